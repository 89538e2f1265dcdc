//! Ends a command with everything that it started. The runner adopts orphans (it is their subreaper), so the tree below
//! it is complete: processes that left the group or the session are found by their parents.

use rustix::process::{Pid, PidfdFlags, Signal};

use super::identity::Stat;
use super::processes::{Process, below_this};
use crate::work::cgroup::Cgroup;

/// Sends a signal to every descendant of this process, to every process in the unit's control group, and to the process
/// group of `command`, if that is given because it has not ended. SIGKILL kills the control group at once.
pub(super) fn signal_tree(command: Option<Pid>, cgroup: Option<&Cgroup>, signal: Signal) {
    let mut others = below_this();
    if let Some(cgroup) = cgroup {
        let members = cgroup.members().into_iter();
        others.extend(members.filter_map(|pid| Some((pid, Stat::read(pid).ok()?.start))));
        if signal == Signal::KILL {
            cgroup.kill();
        }
    }
    others.sort_unstable();
    others.dedup();
    if let Some(group) = command {
        others.retain(|&(pid, _)| !in_group(pid, group));
        let _ = rustix::process::kill_process_group(group, signal);
    }
    for process in others {
        signal_one(process, signal);
    }
}

fn in_group(pid: u32, group: Pid) -> bool {
    to_pid(pid).is_some_and(|pid| rustix::process::getpgid(Some(pid)).is_ok_and(|found| found == group))
}

pub(super) fn signal_one((pid, start): Process, signal: Signal) {
    let Some(raw) = to_pid(pid) else { return };
    let Ok(descriptor) = rustix::process::pidfd_open(raw, PidfdFlags::empty()) else { return };
    // Another process may have the number by now; the descriptor stays that of one process.
    if Stat::read(pid).is_ok_and(|stat| stat.start == start) {
        let _ = rustix::process::pidfd_send_signal(descriptor, signal);
    }
}

fn to_pid(pid: u32) -> Option<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw)
}
