//! The two places where starting processes needs `unsafe`: forking without exec, and a hook between fork and exec.
//! Owns the arguments why both are sound, and checks at run time what they rest on.
#![allow(unsafe_code)]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sys::signal::SigSet;
use nix::unistd::ForkResult;

/// Which of the two processes this is after a fork.
pub(super) enum Side {
    /// The one that forked.
    Parent,
    /// The new one.
    Child,
}

/// Forks this process.
///
/// # Errors
/// The system's refusal, and any other thread in this process.
pub(super) fn fork() -> io::Result<Side> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("a process with several threads may not fork"));
    }
    // SAFETY: fork is unsound only where another thread may hold a lock (the allocator's, say) that the child
    // then waits for in vain. There is no other thread: counted above, and this thread starts none in between.
    match unsafe { nix::unistd::fork() }? {
        ForkResult::Parent { .. } => Ok(Side::Parent),
        ForkResult::Child => Ok(Side::Child),
    }
}

/// Makes the command start with no signal blocked, whatever this process blocks, and end with this process: a
/// runner that is killed cannot end it any more.
pub(super) fn with_open_signal_mask(command: &mut Command) -> &mut Command {
    let hook = || {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
        SigSet::empty().thread_set_mask().map_err(io::Error::from)
    };
    // SAFETY: the hook runs in the forked child before exec and makes two async-signal-safe calls, prctl and
    // pthread_sigmask, on values on its own stack; it neither allocates nor locks.
    unsafe { command.pre_exec(hook) }
}
