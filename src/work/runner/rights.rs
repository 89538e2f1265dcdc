//! Whose rights a command gets, and which of the daemon's variables it keeps. Owns the texts of errors in that; starts
//! nothing.

use std::path::Path;
use std::process::Command;

use nix::unistd::{Gid, Uid, User, getgrouplist};

use crate::work::limits::{Inherited, Limits};

const RUNTIME_DIR: &str = "XDG_RUNTIME_DIR";
/// The daemon's variables that stay in a clean environment. None of them is a secret.
const CLEAN: &str = "PATH HOME USER LOGNAME LANG LANGUAGE LC_* TZ XDG_RUNTIME_DIR SSL_CERT_FILE SSL_CERT_DIR \
                     GIT_SSL_CAINFO GIT_SSL_CAPATH REQUESTS_CA_BUNDLE CURL_CA_BUNDLE NIX_SSL_CERT_FILE";

/// Rights that a command gets in place of the runner's.
#[derive(Debug, Clone)]
pub(crate) struct Rights {
    pub(super) user: Uid,
    pub(super) group: Gid,
    pub(super) groups: Vec<Gid>,
}

/// Leaves a command the daemon's whole environment, or only what any program needs. By default, only a command of
/// another user gets the latter.
pub(super) fn inherit(command: &mut Command, limits: &Limits, rights: Option<&Rights>) {
    let is_another = rights.is_some_and(|rights| rights.user != nix::unistd::geteuid());
    let usual = if is_another { Inherited::Clean } else { Inherited::Whole };
    match limits.environment.unwrap_or(usual) {
        Inherited::Whole => return,
        Inherited::Clean => {}
    }
    let is_kept = |name: &str| {
        let mut all = CLEAN.split(' ');
        all.any(|one| one.strip_suffix('*').map_or(one == name, |kind| name.starts_with(kind)))
    };
    let kept = std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_kept));
    command.env_clear().envs(kept);
}

/// Sets for a command the runtime directory that systemd-logind keeps for a user, by default this process's user,
/// because systemd sets none for a service. Rootless podman keeps its state there.
pub(super) fn set_runtime_dir(command: &mut Command, user: Option<Uid>) {
    if user.is_none() && std::env::var_os(RUNTIME_DIR).is_some() {
        return;
    }
    command.env_remove(RUNTIME_DIR);
    let directory = format!("/run/user/{}", user.unwrap_or_else(nix::unistd::geteuid));
    if Path::new(&directory).is_dir() {
        command.env(RUNTIME_DIR, directory);
    }
}

/// A user's rights, and what the system knows of that user; an error is the cause as Detail shows it.
pub(super) fn look_up(name: &str) -> Result<(Rights, User), String> {
    let found = User::from_name(name).map_err(|e| format!("cannot look up user {name}: {e}"))?;
    let user = found.ok_or_else(|| {
        format!(
            "there is no user {name} on this system: create that user, or correct `user` of the work type"
        )
    })?;
    if !nix::unistd::geteuid().is_root() && nix::unistd::geteuid() != user.uid {
        return Err(format!("cannot become user {name}: only a node that runs as root can do that"));
    }
    let c_name = std::ffi::CString::new(name).map_err(|e| e.to_string())?;
    let groups =
        getgrouplist(&c_name, user.gid).map_err(|e| format!("cannot look up the groups of {name}: {e}"))?;
    Ok((Rights { user: user.uid, group: user.gid, groups }, user))
}
