//! The processes that a confined command has started: none outlives the command, whatever session or environment it
//! has. Refuses to know what they do.

use std::fs;

use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, wait};

use crate::os::ending::kill_all;

/// Makes this process the parent of all its descendants that lose their parent.
pub(super) fn adopt_orphans() -> rustix::io::Result<()> {
    set_child_subreaper(Some(getpid()))
}

/// Kills all descendants of this process. Blocks for a limited time.
pub(super) fn end_all() {
    // When a child ends, its own children become children of this process, and the next look finds them.
    let living = || {
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        children()
    };
    kill_all(living, |&child| {
        // Fails if the child has just ended; the next look reaps it.
        let _ = kill_process(child, Signal::KILL);
    });
}

fn children() -> Vec<Pid> {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let listed = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    listed.flat_map(|line| line.split_whitespace().filter_map(pid).collect::<Vec<_>>()).collect()
}

fn pid(text: &str) -> Option<Pid> {
    Pid::from_raw(text.parse().ok()?)
}
