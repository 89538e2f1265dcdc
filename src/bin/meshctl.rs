//! The command line that talks to a node. The same program as `meshd`; its name decides.

use std::process::ExitCode;

fn main() -> ExitCode {
    meshd::main()
}
