//! The daemon: a mesh node. The same program as `meshctl`: the name decides which one runs.

use std::process::ExitCode;

fn main() -> ExitCode {
    meshd::main()
}
