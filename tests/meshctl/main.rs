//! meshctl as a process: against scripted nodes, byte for byte, and against real nodes of the Go implementation.

#[path = "../support/fake_node.rs"]
mod fake_node;
#[path = "../support/process.rs"]
mod process;
#[path = "../support/receptor.rs"]
mod receptor;
#[path = "../support/until.rs"]
mod until;

mod beside_go;
mod jobs;
mod verbs;
