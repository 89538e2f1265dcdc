//! Starting a unit's command: its arguments, surroundings, rights, and where its output goes. Owns the words for what
//! can go wrong with that; knows nothing of what happens afterwards.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::unistd::{Gid, Uid, User, getgrouplist};
use rustix::process::Pid;

use super::output::Pump;
use super::payload::Payload;
use super::{Job, fork, leftovers};
use crate::rpc::OutputBound;
use crate::work::cgroup::Cgroup;
use crate::work::command;
use crate::work::limits::{Inherited, Limits, WhenFull};
use crate::work::run_dir;
use crate::work::store::UnitDir;

const RUNTIME_DIR: &str = "XDG_RUNTIME_DIR";
/// What of the daemon's variables stays in a clean environment. None of it is a secret.
const CLEAN: &str = "PATH HOME USER LOGNAME LANG LANGUAGE LC_* TZ XDG_RUNTIME_DIR SSL_CERT_FILE SSL_CERT_DIR \
                     GIT_SSL_CAINFO GIT_SSL_CAPATH REQUESTS_CA_BUNDLE CURL_CA_BUNDLE NIX_SSL_CERT_FILE";

/// A command that runs.
pub(super) struct Running {
    pub(super) pid: Pid,
    /// The unit's output file.
    pub(super) stdout: File,
    /// Its control group, if it has one.
    pub(super) group: Option<Cgroup>,
    /// What of its payload is still to be removed. A plugin finds it by its path, at any time.
    pub(super) payload: Option<Payload>,
    /// What moves the output there, when the command does not write there itself.
    pub(super) pump: Option<Pump>,
}

/// Rights that a command gets in place of the runner's.
#[derive(Debug, Clone)]
pub(crate) struct Rights {
    pub(super) user: Uid,
    pub(super) group: Gid,
    pub(super) groups: Vec<Gid>,
}

/// Starts the command with the unit's own parameters and bound; an error is the cause as Detail shows it.
pub(super) fn start(
    job: &Job,
    dir: &UnitDir,
    params: &str,
    max_stdout: Option<&OutputBound>,
) -> Result<Running, String> {
    let open = |name: &str, options: &mut OpenOptions| {
        dir.open(name, options).map_err(|e| format!("cannot open the unit's {name}: {e}"))
    };
    let stdin = open("stdin", OpenOptions::new().read(true))?;
    let payload = match job.plugin {
        Some(_) => {
            // It writes the status in place: one that a power loss then damages must not look like a new unit's.
            dir.sync_names().map_err(|e| format!("cannot make the unit's files durable: {e}"))?;
            None
        }
        None => Payload::new(&stdin).map_err(|e| format!("cannot look at the unit's stdin: {e}"))?,
    };
    let stdout = open("stdout", OpenOptions::new().append(true).create(true).mode(0o600))?;
    let mut command = Command::new(&job.command);
    command.args(arguments(job, dir, params)?).stdin(stdin).process_group(0);
    let pump = direct_output(&mut command, job.limits.output(max_stdout), dir, &stdout)
        .map_err(|e| format!("cannot connect the command with the unit's stdout: {e}"))?;
    let rights = surroundings(&mut command, job, dir)?;
    let (group, door) = group(job, dir)
        .map_err(|e| format!("cannot put the command into a control group (cpu, memory, pids): {e}"))?
        .unzip();
    let child =
        fork::prepare(&mut command, rights, door, job.gives_way).spawn().map_err(|e| start_error(job, &e))?;
    let pid =
        i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or("the command has no process ID")?;
    Ok(Running { pid, stdout, group, payload, pump })
}

fn arguments(job: &Job, dir: &UnitDir, params: &str) -> Result<Vec<String>, String> {
    let run_dir = job.run_dir.as_ref().map(|path| path.display().to_string());
    let fill_in = |text: &str| match &run_dir {
        Some(run_dir) => run_dir::fill_in(text, run_dir),
        None => text.to_owned(),
    };
    let Some(plugin) = &job.plugin else {
        // Afterwards, so that no path can make more words.
        let words = command::split(params).map_err(|e| e.to_string())?;
        return Ok(words.iter().map(|word| fill_in(word)).collect());
    };
    let mut config = plugin.config.clone();
    config.insert("params".into(), fill_in(params).into());
    let function = format!("{}:{}", plugin.plugin, plugin.function);
    Ok(vec![function, dir.path().display().to_string(), serde_json::Value::Object(config).to_string()])
}

/// The unit's group and the way in, if it shall have one.
fn group(job: &Job, dir: &UnitDir) -> io::Result<Option<(Cgroup, OwnedFd)>> {
    let Some(path) = &job.cgroup else { return Ok(None) };
    let group = Cgroup::make(path, &job.limits, dir)?;
    let door = group.door()?;
    Ok(Some((group, door)))
}

fn direct_output(
    command: &mut Command,
    bound: Option<(OutputBound, WhenFull)>,
    dir: &UnitDir,
    stdout: &File,
) -> io::Result<Option<Pump>> {
    let Some(bound) = bound else {
        command.stdout(stdout.try_clone()?).stderr(Stdio::from(stdout.try_clone()?));
        return Ok(None);
    };
    let (pump, end) = Pump::new(dir, stdout.try_clone()?, bound)?;
    command.stdout(end.try_clone()?).stderr(end);
    Ok(Some(pump))
}

/// Environment, directory and rights.
fn surroundings(command: &mut Command, job: &Job, dir: &UnitDir) -> Result<Option<Rights>, String> {
    let limits = &job.limits;
    if let Some(cwd) = &limits.cwd {
        if !cwd.is_dir() {
            return Err(format!(
                "the working directory {} (cwd) is not there: make it, or correct the work type",
                cwd.display()
            ));
        }
        command.current_dir(cwd);
    }
    let found = limits.user.as_deref().map(look_up).transpose()?;
    inherit(command, limits, found.as_ref().map(|(rights, _)| rights));
    let rights = found.map(|(rights, user)| {
        command.env("HOME", &user.dir).env("USER", &user.name).env("LOGNAME", &user.name);
        rights
    });
    let user = rights.as_ref().map(|rights| rights.user);
    set_runtime_dir(command, user);
    command.envs(&limits.env).env(leftovers::MARK, dir.path());
    if let Some(path) = &job.run_dir {
        let owner = rights.as_ref().map(|rights| {
            let Rights { user, group, groups: _ } = rights;
            (rustix::fs::Uid::from_raw(user.as_raw()), rustix::fs::Gid::from_raw(group.as_raw()))
        });
        run_dir::make(path, owner)
            .map_err(|e| format!("cannot make the unit's private directory {}: {e}", path.display()))?;
        command.env(run_dir::VARIABLE, path);
    }
    Ok(rights)
}

/// Leaves a command what it may have of the daemon's environment: where that is not all, what any program needs.
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

/// Tells a command of the directory that systemd-logind keeps for a user, by default this process's own, who gets none by
/// the unit of a service. Rootless podman keeps its state there.
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

impl Rights {
    /// Those of a user; an error is the cause as Detail shows it.
    pub(super) fn of(name: &str) -> Result<Self, String> {
        Ok(look_up(name)?.0)
    }
}

/// A user's rights, and what the system knows of that user.
fn look_up(name: &str) -> Result<(Rights, User), String> {
    let found = User::from_name(name).map_err(|e| format!("cannot look up user {name}: {e}"))?;
    let user = found.ok_or_else(|| {
        format!("there is no user {name} on this system: make that user, or correct `user` of the work type")
    })?;
    if !nix::unistd::geteuid().is_root() && nix::unistd::geteuid() != user.uid {
        return Err(format!("cannot become user {name}: only a node that runs as root can"));
    }
    let c_name = std::ffi::CString::new(name).map_err(|e| e.to_string())?;
    let groups =
        getgrouplist(&c_name, user.gid).map_err(|e| format!("cannot look up the groups of {name}: {e}"))?;
    Ok((Rights { user: user.uid, group: user.gid, groups }, user))
}

/// The words of the Go node, which name the program, and what to do.
fn start_error(job: &Job, error: &io::Error) -> String {
    let program = &job.command;
    let (words, advice) = match error.kind() {
        io::ErrorKind::NotFound if !program.contains('/') => (
            format!("exec: {program:?}: executable file not found in $PATH"),
            "install it on this node, or correct the work type",
        ),
        io::ErrorKind::NotFound => (
            format!("fork/exec {program}: no such file or directory"),
            "install it, or what its first line names, or correct the work type",
        ),
        io::ErrorKind::PermissionDenied => (
            format!("fork/exec {program}: permission denied"),
            "let the user who runs the node, or `user` of the work type, execute it",
        ),
        io::ErrorKind::ArgumentListTooLong => {
            (format!("fork/exec {program}: {error}"), "send what is long as payload, not as parameters")
        }
        _ => (format!("fork/exec {program}: {error}"), "see that the program can be started by hand"),
    };
    format!("{words} ({advice})")
}
