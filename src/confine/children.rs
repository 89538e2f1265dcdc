//! What a confined command has started: nothing of it outlives the command, whatever session or environment it chose.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, wait};

/// How long killed processes get to vanish, and between looks.
const LIMIT: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(2);

/// Whatever loses its parent below this process becomes a child of it.
pub(super) fn adopt_orphans() -> rustix::io::Result<()> {
    set_child_subreaper(Some(getpid()))
}

/// Kills all that descends from this process. Blocks for a limited time.
pub(super) fn end_all() {
    let deadline = Instant::now() + LIMIT;
    loop {
        // Those of a child that ends are there at the next look.
        let found = children();
        for &child in &found {
            // One that has just ended is reaped below.
            let _ = kill_process(child, Signal::KILL);
        }
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        if found.is_empty() || Instant::now() >= deadline {
            return;
        }
        std::thread::sleep(LOOK);
    }
}

fn children() -> Vec<Pid> {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let listed = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    listed.flat_map(|line| line.split_whitespace().filter_map(pid).collect::<Vec<_>>()).collect()
}

fn pid(text: &str) -> Option<Pid> {
    Pid::from_raw(text.parse().ok()?)
}
