//! Whole meshes in one process, in virtual time: real daemons, from their configuration files on, on machines in
//! software (netsim/machine), with everything that goes wrong between any two steps. A seed gives the same history
//! twice, bit for bit.
//!
//! - `world`: a mesh and what happens to it; `node`: a daemon; `transport`: its links; `wire`: the network of hosts.
//! - `runner`: runs jobs; `stand_in`: simulated servers. These are `postgres`, the shared store of control nodes, and
//!   `cluster`, for pods.
//! - `faults`, `strangers`, `hostile`: what goes wrong. `jobs`, `groups`, `habits`, `client`: what clients do;
//!   `output`: what commands write.
//! - `history`, `check`: what happened, and what must be true of it. The checker knows nothing else.
//! - `command`, `runs`: many runs, each in a process of its own, and the smallest version of a failing run.
//!
//! `cargo test --test whole` makes a few thousand faults happen; `-- --forever` uses all processors until it is
//! stopped; `-- --one SEED` repeats a run, and prints its events with `--notes` and `--log debug`.

use std::process::ExitCode;

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "command.rs"]
mod command;

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[global_allocator]
static MEMORY: meshd_machine::CountedMemory = meshd_machine::CountedMemory;

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn main() -> ExitCode {
    command::main()
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn main() -> ExitCode {
    println!("SKIPPED: the machine in software is one of Linux on x86-64");
    ExitCode::SUCCESS
}
