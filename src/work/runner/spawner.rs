//! The spawner process: reads requests from the daemon on its standard input, a socket, and forks a runner for
//! each. Single-threaded and small, so that forking is cheap and sound. It ends when the daemon does;
//! runners and their commands go on.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::exit;

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use rustix::process::WaitOptions;

use super::fork::{ForkSide, fork};
use super::identity::Identity;
use super::{MAX_MESSAGE, Outcome, Reply, RunnerJob, job, reply};
use crate::work::store::UnitDir;

/// Serves the daemon until it is gone.
pub(super) fn run() -> ! {
    // In a session of its own, so that Ctrl-C in a terminal reaches only the daemon.
    let _ = rustix::process::setsid();
    // Processes that a killed runner leaves are adopted and reaped here, also in a container without an init process.
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    let (daemon, signals) = match set_up() {
        Ok(both) => both,
        Err(error) => {
            eprintln!("meshd: the process that starts jobs cannot set itself up: {error}");
            exit(1);
        }
    };
    let spawner = rustix::process::getpid();
    let mut runners = BTreeMap::new();
    loop {
        match next(&daemon, &signals, &mut runners) {
            Next::Job(job) => match fork() {
                Ok(ForkSide::Parent(runner)) => drop(runners.insert(runner, job.dir)),
                // A runner has its own copy of the socket, and closes it when its command runs.
                Ok(ForkSide::Child) => job::run(&job, daemon, spawner),
                Err(error) => {
                    let cause = format!("cannot start a runner process: {error}");
                    reply(&daemon, Reply { dir: job.dir, outcome: Outcome::Failed(cause) });
                }
            },
            Next::Nothing => {}
            Next::DaemonGone => exit(0),
        }
    }
}

/// Moves the socket away from standard input, which commands must not inherit, and prepares for signals.
fn set_up() -> io::Result<(OwnedFd, SignalFd)> {
    let daemon = io::stdin().as_fd().try_clone_to_owned()?;
    nix::unistd::dup2_stdin(File::open("/dev/null")?)?;
    // Every runner needs its identity, so this fails here if a process cannot read its own.
    Identity::own()?;
    Ok((daemon, block_signals()?))
}

/// Blocks the signals that the spawner and its runners read from descriptors, so that none is lost between a fork and
/// the first read.
fn block_signals() -> nix::Result<SignalFd> {
    let mut set = SigSet::empty();
    for signal in [Signal::SIGCHLD, Signal::SIGINT, Signal::SIGTERM] {
        set.add(signal);
    }
    set.thread_block()?;
    SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
}

enum Next {
    Job(Box<RunnerJob>),
    Nothing,
    DaemonGone,
}

/// The directories of the units of living runners, by process ID.
type Runners = BTreeMap<u32, PathBuf>;

/// Waits for the daemon or for a runner's end.
fn next(daemon: &OwnedFd, signals: &SignalFd, runners: &mut Runners) -> Next {
    let mut waiting =
        [PollFd::new(daemon, PollFlags::IN), PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN)];
    match rustix::event::poll(&mut waiting, None) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(_) => return Next::DaemonGone,
    }
    let [asked, signalled] = waiting.map(|fd| !fd.revents().is_empty());
    if signalled {
        while let Ok(Some(_)) = signals.read_signal() {}
        while let Ok(Some((pid, end))) = rustix::process::wait(WaitOptions::NOHANG) {
            let runner = runners.remove(&pid.as_raw_nonzero().get().unsigned_abs());
            if let Some(dir) = runner.filter(|_| end.exit_status() != Some(0)) {
                answer_for(daemon, dir);
            }
        }
    }
    if asked { receive(daemon) } else { Next::Nothing }
}

/// Answers for a runner that was killed, because it may not have answered itself. If it had, the daemon ignores this
/// answer. The unit's directory says whether the runner had claimed the unit, and so may have started the command.
fn answer_for(daemon: &OwnedFd, dir: PathBuf) {
    let outcome = match Identity::load(&UnitDir::at(&dir)) {
        Ok(None) => {
            Outcome::Failed("its runner process was killed before the command could start".to_owned())
        }
        Ok(Some(_)) | Err(_) => Outcome::AlreadyTaken,
    };
    reply(daemon, Reply { dir, outcome });
}

fn receive(daemon: &OwnedFd) -> Next {
    // Not zeroed, because after each fork a page that is written to has to be copied first.
    let mut message = Vec::with_capacity(MAX_MESSAGE);
    match rustix::net::recv(daemon, spare_capacity(&mut message), RecvFlags::DONTWAIT) {
        Ok((_, 0)) => Next::DaemonGone,
        Ok(_) => serde_json::from_slice(&message).map_or(Next::Nothing, |job| Next::Job(Box::new(job))),
        Err(Errno::AGAIN | Errno::INTR) => Next::Nothing,
        Err(_) => Next::DaemonGone,
    }
}
