//! The work engine from outside: real processes of the real binary as runners, real files, and two engines that
//! reach each other through memory. Nothing here sleeps for time to pass: every wait is for a condition.

mod ahead;
mod control;
mod details;
mod fields;
mod harness;
mod kept;
mod limits;
mod local;
mod promises;
mod remote;
mod restart;
mod soak;
mod troubles;
