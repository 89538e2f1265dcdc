//! Whole meshes in one process, in virtual time: real daemons, from their configuration files on, on machines in software
//! (netsim/machine), with everything that goes wrong between any two steps. A seed gives the same history twice, bit for bit.
//!
//! - `world`: a mesh and what happens to it; `node`, `transport`, `wire`, `runner`, `postgres`: a daemon, its links, what is between
//!   hosts, what runs jobs, the store of several control nodes.
//! - `faults`, `strangers`, `hostile`: what goes wrong. `jobs`, `habits`, `client`, `output`: what clients do, and what commands
//!   write.
//! - `history`, `check`: what happened, and what must be true of it. The checker knows nothing else.
//! - `command`, `runs`: many runs, each in a process of its own, and what is left of one that fails.
//!
//! `cargo test --test whole` has a few thousand faults happen; `-- --forever` uses all processors until it is stopped;
//! `-- --one SEED` repeats a run, and with `--notes` and `--log debug` tells of it.

use std::process::ExitCode;

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "command.rs"]
mod command;

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn main() -> ExitCode {
    command::main()
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn main() -> ExitCode {
    println!("SKIPPED: the machine in software is one of Linux on x86-64");
    ExitCode::SUCCESS
}
