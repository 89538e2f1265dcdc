//! What a confined command has started: nothing of it outlives the command, whatever session or environment it chose.

use std::fs;

use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, wait};

use crate::os::ending::kill_all;

/// Whatever loses its parent below this process becomes a child of it.
pub(super) fn adopt_orphans() -> rustix::io::Result<()> {
    set_child_subreaper(Some(getpid()))
}

/// Kills all that descends from this process. Blocks for a limited time.
pub(super) fn end_all() {
    // Those of a child that ends are there at the next look.
    let living = || {
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        children()
    };
    kill_all(living, |&child| {
        // One that has just ended is reaped at the next look.
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
