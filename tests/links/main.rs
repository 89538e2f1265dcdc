//! Links of every kind between running nodes, and jobs over them in both directions.
//!
//! `own` links meshd nodes; `go` puts one meshd node among Go nodes, in every role, dialled from either side.
//! LINKS_MB sets the megabytes of each job.

mod go;
mod mesh;
mod own;
#[path = "../support/port.rs"]
mod port;
#[path = "../support/process.rs"]
mod process;
#[path = "../support/receptor.rs"]
mod receptor;
