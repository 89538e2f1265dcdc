//! The command line that talks to a node.

use std::process::ExitCode;

fn main() -> ExitCode {
    meshd::cli::main(std::env::args_os().collect())
}
