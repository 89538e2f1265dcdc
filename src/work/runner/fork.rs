//! The three places where starting processes needs `unsafe`: forking without exec, ending such a process, and a hook
//! between fork and exec. Owns the arguments why they are sound, and checks at run time what the arguments assume.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sys::signal::{SigHandler, SigSet, Signal, signal};
use nix::unistd::ForkResult;

use super::rights::Rights;

/// Which of the two processes this is after a fork.
pub(super) enum ForkSide {
    /// The process that forked; its child has this process ID.
    Parent(u32),
    Child,
}

/// Forks this process.
///
/// # Errors
/// The system refuses, or this process has another thread.
pub(super) fn fork() -> io::Result<ForkSide> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("a process with several threads may not fork"));
    }
    // SAFETY: fork is unsound only where another thread may hold a lock (the allocator's, say) that the child
    // then waits for in vain. There is no other thread: counted above, and this thread starts none in between.
    match unsafe { nix::unistd::fork() }? {
        ForkResult::Parent { child } => Ok(ForkSide::Parent(child.as_raw().unsigned_abs())),
        ForkResult::Child => Ok(ForkSide::Child),
    }
}

/// Ends this forked process at once. It does not run what `exit` would run, because that belongs to the parent.
pub(super) fn leave(code: i32) -> ! {
    // SAFETY: any number will do, and nothing of this process is used any more.
    unsafe { nix::libc::_exit(code) }
}

/// How much nicer than the node a command is that gives way: it gets a tenth of the node's weight.
const NICER: i32 = 10;

/// Prepares the command to start with no signal blocked or ignored, in the control group of `door`, with the given
/// rights, and nicer than this process if it gives way. The command is killed when this process ends, because a runner
/// that is killed cannot end it any more.
pub(super) fn prepare(
    command: &mut Command,
    rights: Option<Rights>,
    door: Option<OwnedFd>,
    gives_way: bool,
) -> &mut Command {
    let hook = move || {
        // Before the command can start anything, and while this process still has the right to do it.
        if let Some(door) = &door {
            rustix::io::write(door, b"0")?;
        }
        if gives_way {
            // Being nicer is always allowed, and a failure would not matter.
            let _ = rustix::process::nice(NICER);
        }
        if let Some(Rights { user, group, groups }) = &rights
            && nix::unistd::geteuid().is_root()
        {
            nix::unistd::setgroups(groups)?;
            nix::unistd::setgid(*group)?;
            nix::unistd::setuid(*user)?;
        }
        // Last, because a change of rights undoes it.
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
        for ignored in Signal::iterator() {
            // SAFETY: no handler is installed, the default action is restored. Refused for SIGKILL and SIGSTOP alone.
            let _ = unsafe { signal(ignored, SigHandler::SigDfl) };
        }
        SigSet::empty().thread_set_mask().map_err(io::Error::from)
    };
    // SAFETY: the hook runs in the forked child before exec. It makes async-signal-safe system calls alone, on
    // values made before the fork, and neither allocates nor locks; this process has one thread, so that glibc
    // has no other to inform of a change of rights.
    unsafe { command.pre_exec(hook) }
}
