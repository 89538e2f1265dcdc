//! Whole meshes in one process, in virtual time: real daemons, from their configuration files on, on machines in software
//! (netsim/machine), with everything that goes wrong between any two steps. A seed gives the same history twice, bit for bit.
//!
//! - `world`: a mesh and what happens to it; `node`, `wire`, `runner`: a daemon, what is between hosts, what runs jobs.
//! - `faults`, `jobs`, `client`: what goes wrong, and what clients do.
//! - `history`, `check`: what happened, and what must be true of it. The checker knows nothing else.
//! - `runs`: many runs, each in a process of its own, and what is left of one that fails.
//!
//! `cargo test --test whole` has a few thousand faults happen; `-- --forever` uses all processors until it is stopped;
//! `-- --one SEED` repeats a run, and with `--notes` and `--log debug` tells of it.

mod check;
mod client;
mod faults;
mod history;
mod jobs;
mod node;
mod runner;
mod runs;
mod wire;
mod world;

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| {
        let at = args.iter().position(|arg| arg == name)?;
        args.get(at + 1).map(String::as_str)
    };
    match value("--one") {
        Some(seed) => {
            runs::one(&runs::plan(seed, value, args.iter().any(|arg| arg == "--notes")), value("--log"))
        }
        None if args.iter().any(|arg| arg == "--forever") => runs::forever(value("--from")),
        // The harness of cargo's other tests knows more options; here they change nothing.
        None => runs::some(value("--seeds")),
    }
}
