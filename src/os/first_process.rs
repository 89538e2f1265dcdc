//! Process 1 of a container that has no init: it runs the program as its child, hands signals on to it, and reaps
//! orphans. All orphans of the container become its children, those of `kubectl exec` too, and no other process can
//! reap them.
//!
//! It is not a task of the daemon, because the daemon could not tell an orphan from a child whose status another
//! task awaits.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};
use std::{env, io};

use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// The signals that people and container engines send.
const HANDED_ON: [Signal; 6] =
    [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM, Signal::SIGUSR1, Signal::SIGUSR2];

/// If this is process 1, runs this program again as another process, to its end. Call it before any thread exists.
pub(crate) fn run_if_first() -> Option<ExitCode> {
    let failed = |error| {
        eprintln!("meshd: as process 1 it cannot start the node: {error}; is /proc mounted?");
        ExitCode::FAILURE
    };
    if std::process::id() == 1 {
        return Some(run().unwrap_or_else(failed));
    }
    // The other process inherits the signals that process 1 blocks. Unblocking valid signals cannot fail.
    let _ = signals().thread_unblock();
    None
}

fn signals() -> SigSet {
    HANDED_ON.into_iter().chain([Signal::SIGCHLD]).collect()
}

fn run() -> io::Result<ExitCode> {
    let signals = signals();
    signals.thread_block()?;
    let mut args = env::args_os();
    let mut program = Command::new(env::current_exe()?);
    // A group of its own, because otherwise a terminal's Ctrl-C would reach it twice.
    program.arg0(args.next().unwrap_or_default()).args(args).process_group(0);
    let program = Pid::from_raw(program.spawn()?.id().cast_signed());
    loop {
        match signals.wait()? {
            Signal::SIGCHLD => {
                if let Some(code) = reap(program) {
                    return Ok(code);
                }
            }
            // An error is ignored, because the program may just have ended.
            other => drop(kill(program, other)),
        }
    }
}

/// Reaps all children that have ended. If the program is one of them, gives its exit code as a shell would.
fn reap(program: Pid) -> Option<ExitCode> {
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(pid, code)) if pid == program => return Some(exit_code(code)),
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == program => {
                return Some(exit_code(128 + signal as i32));
            }
            Ok(WaitStatus::StillAlive) | Err(_) => return None,
            Ok(_another) => {}
        }
    }
}

fn exit_code(code: i32) -> ExitCode {
    u8::try_from(code).map_or(ExitCode::FAILURE, ExitCode::from)
}
