//! The command line: one run, some, or runs without end.

mod authority;
mod check;
mod client;
mod cluster;
mod faults;
mod groups;
mod habits;
mod history;
mod hostile;
mod jobs;
mod left;
mod node;
mod output;
mod postgres;
mod runner;
mod runs;
mod schedule;
mod stand_in;
mod strangers;
mod transport;
mod wire;
mod world;

use std::process::ExitCode;

/// Does what the command line asks for.
pub(crate) fn main() -> ExitCode {
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
        // Options of cargo's usual test harness are accepted, but change nothing.
        None => runs::some(value("--seeds")),
    }
}
