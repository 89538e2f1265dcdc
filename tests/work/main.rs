//! The work engine from outside: real processes of the real binary as runners, real files, and two engines
//! that reach each other through memory. Nothing here sleeps for time to pass: every wait is for a condition.

#[cfg(feature = "kubernetes")]
mod container_groups;
mod control;
mod daemon;
mod error_messages;
mod faults;
mod fields;
mod harness;
#[cfg(feature = "kubernetes")]
mod inherited_pods;
mod invariants;
mod limits;
mod local;
mod memory_per_unit;
#[cfg(feature = "kubernetes")]
mod pods;
mod private;
mod remote;
mod restart;
mod soak;
mod streaming_submit;
