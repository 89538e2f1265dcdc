//! The control group in which systemd keeps a service's jobs apart from its daemon: `NAME-jobs.service` beside
//! `NAME.service`. Owns how the process that starts jobs gets there. Its child processes are then in that group from
//! their start.
//!
//! Only root and systemd may move a process from one service to another, so this asks systemd, which allows it if
//! process and service belong to the same user. If there is no such service, jobs stay in the daemon's group.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{RUNNERS, make_dir, own_group};

/// How long systemd may take to answer, in seconds.
const SYSTEMD_WITHIN: &str = "--timeout=5";

/// Puts the process that starts jobs into the group for jobs, if this daemon's service has one.
pub(crate) fn move_apart(spawner: u32) {
    let Some(group) = jobs_group() else { return };
    match ask_systemd(&group, spawner) {
        Ok(()) => tracing::debug!(group = %group.display(), "jobs have a control group of their own"),
        Err(error) => tracing::warn!(
            group = %group.display(),
            error,
            "jobs share the daemon's control group: limits (cpu, memory, pids) are not enforced, and jobs compete \
             with the daemon; see `systemctl status` of the service that this group belongs to, and restart the node"
        ),
    }
}

/// The group for jobs beside this process's own group, if there is one.
fn jobs_group() -> Option<PathBuf> {
    let read = |path: &str| fs::read_to_string(path).ok();
    let own = own_group(&read("/proc/self/mountinfo")?, &read("/proc/self/cgroup")?)?;
    beside(&own).filter(|group| group.is_dir())
}

fn beside(service: &Path) -> Option<PathBuf> {
    let name = service.file_name()?.to_str()?.strip_suffix(".service")?;
    Some(service.with_file_name(format!("{name}-jobs.service")))
}

fn ask_systemd(group: &Path, spawner: u32) -> Result<(), String> {
    make_dir(&group.join(RUNNERS)).map_err(|error| format!("{RUNNERS}: {error}"))?;
    let unit = group.file_name().unwrap_or_default();
    let asked = Command::new("busctl")
        .args([SYSTEMD_WITHIN, "--quiet", "call", "org.freedesktop.systemd1", "/org/freedesktop/systemd1"])
        .args(["org.freedesktop.systemd1.Manager", "AttachProcessesToUnit", "ssau"])
        .arg(unit)
        .args([format!("/{RUNNERS}"), "1".to_owned(), spawner.to_string()])
        .output()
        .map_err(|error: io::Error| format!("busctl: {error}"))?;
    if asked.status.success() {
        return Ok(());
    }
    Err(format!("busctl: {}", String::from_utf8_lossy(&asked.stderr).trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_for_jobs_is_named_after_the_service() {
        let beside = |path: &str| beside(Path::new(path));
        let wanted = Some(PathBuf::from("/c/system.slice/meshd-jobs.service"));
        assert_eq!(beside("/c/system.slice/meshd.service"), wanted);
        assert_eq!(beside("/c/user.slice/session-1.scope"), None);
        assert_eq!(beside("/"), None);
    }
}
