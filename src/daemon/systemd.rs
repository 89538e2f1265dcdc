//! The daemon as a service of systemd: tells systemd that the daemon is ready, reloads, stops and still works, and
//! warns if systemd confines jobs. Owns the proof of life. Does nothing if no service manager listens.

use sd_notify::{NotifyState, notify};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::config::Config;
use crate::node::NodeHandle;

/// Signs of life within the time after which systemd takes the daemon for hung. Several, because a busy machine may
/// delay some.
const SIGNS: u32 = 4;

/// All listeners and services are up.
pub(super) fn ready() {
    tell(&[NotifyState::Ready]);
}

/// The configuration is being read again, until [`reloaded`].
pub(super) fn reloading() {
    // With Type=notify-reload, systemd needs the time to recognize the reload that it has asked for.
    if let Ok(now) = NotifyState::monotonic_usec_now() {
        tell(&[NotifyState::Reloading, now]);
    }
}

/// How a reload ended: `systemctl status` shows the failure, which is one line.
pub(super) fn reloaded<E: std::fmt::Display>(outcome: &Result<(), E>) {
    let status = match outcome {
        Ok(()) => String::new(),
        Err(error) => format!("the last reload failed, nothing was changed: {error}"),
    };
    tell(&[NotifyState::Ready, NotifyState::Status(&status)]);
}

/// The daemon has begun to stop.
pub(super) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Warns if jobs are confined like the daemon, because the package's unit is made for nodes that run no jobs.
pub(super) fn warn_of_confined_jobs(config: &Config) {
    let runs_jobs =
        !config.work_commands.is_empty() || !config.work_python.is_empty() || config.controller.is_some();
    let is_service = std::env::var_os("INVOCATION_ID").is_some();
    if runs_jobs && is_service && rustix::thread::no_new_privs().unwrap_or_default() {
        warn!(
            "jobs are confined like the daemon, and lose their /tmp when it stops: install the drop-in \
             execution.conf as /etc/systemd/system/meshd.service.d/execution.conf, and restart the service"
        );
    }
}

/// Gives signs of life until `stop`, if systemd waits for them. Each sign needs an answer of the mesh's task to
/// another task, so that there is none if the runtime has no free thread, or if the mesh's task hangs.
pub(super) fn spawn_watchdog(node: NodeHandle, stop: CancellationToken) {
    let Some(patience) = sd_notify::watchdog_enabled() else { return };
    let signs = async move {
        loop {
            let _answer = node.links().await;
            tell(&[NotifyState::Watchdog]);
            sleep(patience / SIGNS).await;
        }
    };
    tokio::spawn(stop.run_until_cancelled_owned(signs));
}

fn tell(states: &[NotifyState]) {
    // An error only means that nobody listens any more.
    let _ = notify(states);
}
