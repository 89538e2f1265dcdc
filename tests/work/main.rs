//! The work engine from outside: real processes of the real binary as runners, real files, and two engines
//! that reach each other through memory. Nothing here sleeps for time to pass: every wait is for a condition.

mod at_once;
mod attempts;
mod container_groups;
mod control;
mod daemon;
mod error_messages;
mod faults;
mod fields;
mod harness;
mod inherited_pods;
mod invariants;
mod kills;
mod limits;
mod local;
mod memory_per_unit;
mod owner;
mod pods;
#[path = "../support/port.rs"]
mod port;
mod private;
#[path = "../support/process.rs"]
mod process;
mod remote;
mod restart;
mod soak;
mod streaming_submit;
mod three;
mod turns;
#[path = "../support/until.rs"]
mod until;
