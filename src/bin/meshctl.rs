//! The command line that talks to a node. The same program as `meshd`: the name decides which one runs.

use std::process::ExitCode;

fn main() -> ExitCode {
    meshd::main()
}
