//! One program with two names: called `meshctl` (or receptor's `receptorctl`), it is the command line, by any other
//! name the daemon.
//!
//! Owns the choice between the two, and gives each the functions that it needs of the other, so that neither imports
//! it.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

use crate::{cli, config, confine, daemon, work};

/// Runs what the program's name and arguments say, to its end.
pub fn main() -> ExitCode {
    // These come before any thread exists: this process may only run a job, or become another program.
    confine::main_if_asked();
    work::runner::main_if_asked();
    let args: Vec<OsString> = env::args_os().collect();
    if args.get(1).is_some_and(|first| first == cli::DAEMON_ARGUMENT) {
        daemon(&args[2..])
    } else if args.first().is_some_and(|path| is_command_line(path)) {
        let profiles = |path: &Path| config::tls_profiles(path).map_err(|errors| errors.to_string());
        cli::main(
            args,
            cli::NodeFiles { profiles, store: daemon::node_store, examine: daemon::examine_files },
        )
    } else {
        daemon(args.get(1..).unwrap_or_default())
    }
}

fn daemon(args: &[OsString]) -> ExitCode {
    let args = args.iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
    daemon::main(args, cli::ask_to_sign)
}

/// True for a name of the command line. It may end with a version: `meshctl-0.1`.
fn is_command_line(path: &OsStr) -> bool {
    let name = Path::new(path).file_name().unwrap_or_default().to_string_lossy();
    matches!(name.split('-').next(), Some("meshctl" | "receptorctl"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_decides() {
        for (path, expected) in [
            ("/usr/bin/meshctl", true),
            ("meshctl-0.1", true),
            ("receptorctl", true),
            ("/usr/bin/meshd", false),
            ("receptor", false),
            ("/opt/meshctl/bin/meshd", false),
            ("sysctl", false),
            ("", false),
        ] {
            assert_eq!(is_command_line(OsStr::new(path)), expected, "{path}");
        }
    }
}
