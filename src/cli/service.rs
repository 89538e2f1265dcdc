//! The node as a service of this host: checked with the rights of its user, started and restarted by systemd.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output as Ended};

use super::DAEMON_ARGUMENT;
use super::exit::{Exit, Failure};
use crate::join::configuration::{CONF_D, DATA};
use crate::join::host::{UNIT, USER};
use crate::join::place::DaemonAccount;
use crate::rpc::report::finding::Finding;

/// Exists where systemd runs as the first process.
const SYSTEMD: &str = "/run/systemd/system";

/// The service of this host.
pub(super) struct HostService {
    has_systemd: bool,
    is_active: bool,
}

impl HostService {
    pub(super) fn of_this_host() -> Self {
        let has_systemd = Path::new(SYSTEMD).is_dir();
        let active = || Command::new("systemctl").args(["is-active", "--quiet", UNIT]).status();
        let is_active = has_systemd && active().is_ok_and(|status| status.success());
        Self { has_systemd, is_active }
    }

    pub(super) fn has_systemd(&self) -> bool {
        self.has_systemd
    }

    /// What `meshd check` finds in the installed configuration, run with the rights of the daemon.
    pub(super) fn check(&self, account: Option<DaemonAccount>) -> Result<Vec<Finding>, Failure> {
        let program = std::env::current_exe().map_err(|error| unable("meshd check", &error))?;
        let mut command = Command::new(program);
        command.args([DAEMON_ARGUMENT, "check", "--json"]).args(self.is_active.then_some("--running"));
        command.args(["--config-dir", CONF_D]).env("HOME", DATA);
        if let Some(DaemonAccount { user, group }) = account {
            command.uid(user).gid(group);
        }
        let ended = command.output().map_err(|error| unable("meshd check", &error))?;
        serde_json::from_slice(&ended.stdout).map_err(|_| {
            let said = String::from_utf8_lossy(&ended.stderr);
            Failure::new(Exit::Failed, format!("meshd check failed: {}", said.trim()))
        })
    }

    /// Starts the service now and at each boot; restarts it if `restarts`, while jobs go on. With `units`, systemd
    /// first reads its unit files again.
    pub(super) fn start(&self, restarts: bool, units: bool, runs_jobs: bool) -> Result<(), Failure> {
        if units {
            systemctl(&["daemon-reload"])?;
        }
        if runs_jobs {
            // The file that enables it is in place, so a host without logind needs nothing more.
            let _no_logind = Command::new("loginctl").args(["enable-linger", USER]).output();
        }
        systemctl(&["enable", "--quiet", UNIT])?;
        systemctl(&[if restarts { "restart" } else { "start" }, UNIT])
    }
}

fn systemctl(args: &[&str]) -> Result<(), Failure> {
    let what = format!("systemctl {}", args.join(" "));
    let Ended { status, stderr, .. } =
        Command::new("systemctl").args(args).output().map_err(|error| unable(&what, &error))?;
    if status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&stderr);
    let text = format!("{what} failed: {}\n`journalctl -u {UNIT}` has the node's log", said.trim());
    Err(Failure::new(Exit::Failed, text))
}

fn unable(what: &str, error: &io::Error) -> Failure {
    Failure::new(Exit::Failed, format!("cannot run {what}: {error}"))
}
