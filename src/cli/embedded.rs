//! The daemon inside meshctl: a hidden first argument makes this program the node itself, so that `meshctl demo`
//! needs no second binary. Owns that argument's name; knows nothing of what a daemon does.

use std::{ffi::OsString, process::ExitCode};

/// The first argument that asks for the daemon; the rest are meshd's own.
pub const DAEMON_ARGUMENT: &str = "__meshd";

/// Becomes the daemon, or one of its helpers, if `args` ask for it.
pub fn main_if_asked(args: &[OsString]) -> Option<ExitCode> {
    // The daemon starts this very program again to run jobs.
    crate::work::runner::main_if_asked();
    if args.get(1).is_none_or(|first| first != DAEMON_ARGUMENT) {
        return None;
    }
    Some(daemon(args[2..].iter().map(|arg| arg.to_string_lossy().into_owned()).collect()))
}

/// Runs meshd with `args`.
fn daemon(args: Vec<String>) -> ExitCode {
    crate::daemon::main(args)
}
