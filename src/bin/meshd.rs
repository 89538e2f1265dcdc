//! The daemon: a mesh node.

use std::process::ExitCode;

fn main() -> ExitCode {
    // Before any thread exists: this may be a process that only runs jobs.
    meshd::work::runner::main_if_asked();
    meshd::daemon::main(std::env::args().skip(1).collect())
}
