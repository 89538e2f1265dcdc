//! The daemon: a mesh node. The same program as `meshctl`; its name decides.

use std::process::ExitCode;

fn main() -> ExitCode {
    meshd::main()
}
