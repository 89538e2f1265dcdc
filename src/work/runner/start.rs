//! Starts a unit's command: its arguments, its surroundings, and where its output goes. Owns the texts of errors in
//! that. Knows nothing of what happens afterwards, and leaves rights to `rights`.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use rustix::process::Pid;

use super::output::Pump;
use super::payload::Payload;
use super::rights::{Rights, inherit, look_up, set_runtime_dir};
use super::{RunnerJob, fork, leftovers};
use crate::rpc::OutputBound;
use crate::work::cgroup::Cgroup;
use crate::work::command;
use crate::work::limits::WhenFull;
use crate::work::run_dir;
use crate::work::store::{OutputFile, UnitDir};

/// A command that runs.
pub(super) struct Running {
    pub(super) pid: Pid,
    /// The unit's output file.
    pub(super) stdout: File,
    /// Its control group, if it has one.
    pub(super) group: Option<Cgroup>,
    /// Its payload, if that is to be removed once it is read. That of a plugin is not, because a plugin may open it by
    /// its path at any time.
    pub(super) payload: Option<Payload>,
    /// Move its output to its files, unless it writes there itself.
    pub(super) pumps: Vec<Pump>,
}

/// Starts the command with the unit's own parameters and bound; an error is the cause as Detail shows it.
pub(super) fn start(
    job: &RunnerJob,
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
            // A plugin writes the status in place. If a power loss damages it, the unit must not look like a new one.
            dir.sync_names().map_err(|e| format!("cannot make the unit's files durable: {e}"))?;
            None
        }
        None => Payload::new(&stdin).map_err(|e| format!("cannot look at the unit's stdin: {e}"))?,
    };
    let stdout = open("stdout", OpenOptions::new().append(true).create(true).mode(0o600))?;
    let mut command = Command::new(&job.command);
    command.args(arguments(job, dir, params)?).stdin(stdin).process_group(0);
    let stderr = match job.limits.stderr_apart {
        true => Some(open("stderr", OpenOptions::new().append(true).create(true).mode(0o600))?),
        false => None,
    };
    let pumps = direct_output(&mut command, job.limits.output(max_stdout), dir, (&stdout, stderr))
        .map_err(|e| format!("cannot connect the command with the unit's stdout: {e}"))?;
    let rights = surroundings(&mut command, job, dir)?;
    let (group, door) = group(job, dir)
        .map_err(|e| format!("cannot put the command into a control group (cpu, memory, pids): {e}"))?
        .unzip();
    let child =
        fork::prepare(&mut command, rights, door, job.gives_way).spawn().map_err(|e| start_error(job, &e))?;
    let pid =
        i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or("the command has no process ID")?;
    Ok(Running { pid, stdout, group, payload, pumps })
}

fn arguments(job: &RunnerJob, dir: &UnitDir, params: &str) -> Result<Vec<String>, String> {
    let run_dir = job.run_dir.as_ref().map(|path| path.display().to_string());
    let fill_in = |text: &str| match &run_dir {
        Some(run_dir) => run_dir::fill_in(text, run_dir),
        None => text.to_owned(),
    };
    let Some(plugin) = &job.plugin else {
        // Filled in after the split, so that no path can make more words.
        let words = command::split(params).map_err(|e| e.to_string())?;
        return Ok(words.iter().map(|word| fill_in(word)).collect());
    };
    let mut config = plugin.config.clone();
    config.insert("params".into(), fill_in(params).into());
    let function = format!("{}:{}", plugin.plugin, plugin.function);
    Ok(vec![function, dir.path().display().to_string(), serde_json::Value::Object(config).to_string()])
}

/// The unit's control group, and the descriptor that moves a process into it, if the unit shall have one.
fn group(job: &RunnerJob, dir: &UnitDir) -> io::Result<Option<(Cgroup, OwnedFd)>> {
    let Some(path) = &job.cgroup else { return Ok(None) };
    let group = Cgroup::make(path, &job.limits, dir)?;
    let door = group.door()?;
    Ok(Some((group, door)))
}

fn direct_output(
    command: &mut Command,
    bound: Option<(OutputBound, WhenFull)>,
    dir: &UnitDir,
    (stdout, stderr): (&File, Option<File>),
) -> io::Result<Vec<Pump>> {
    let Some(bound) = bound else {
        let stderr = stderr.map_or_else(|| stdout.try_clone(), Ok)?;
        command.stdout(stdout.try_clone()?).stderr(Stdio::from(stderr));
        return Ok(Vec::new());
    };
    let (pump, end) = Pump::new(dir, OutputFile::Stdout, stdout.try_clone()?, bound.clone())?;
    let Some(stderr) = stderr else {
        command.stdout(end.try_clone()?).stderr(end);
        return Ok(vec![pump]);
    };
    let (of_stderr, stderr_end) = Pump::new(dir, OutputFile::Stderr, stderr, bound)?;
    command.stdout(end).stderr(stderr_end);
    Ok(vec![pump, of_stderr])
}

/// Sets the command's environment and directories. Returns the rights that it is to get.
fn surroundings(command: &mut Command, job: &RunnerJob, dir: &UnitDir) -> Result<Option<Rights>, String> {
    let limits = &job.limits;
    if let Some(cwd) = &limits.cwd {
        if !cwd.is_dir() {
            return Err(format!(
                "the working directory {} (cwd) does not exist: create it, or correct the work type",
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
    set_runtime_dir(command, rights.as_ref().map(|rights| rights.user));
    command.envs(&limits.env).env(leftovers::MARK_VARIABLE, dir.path());
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

/// The text of the Go node, which names the program, and advice.
fn start_error(job: &RunnerJob, error: &io::Error) -> String {
    let program = &job.command;
    let (words, advice) = match error.kind() {
        io::ErrorKind::NotFound if !program.contains('/') => (
            format!("exec: {program:?}: executable file not found in $PATH"),
            "install it on this node, or correct the work type",
        ),
        io::ErrorKind::NotFound => (
            format!("fork/exec {program}: no such file or directory"),
            "install it, or the interpreter that its first line names, or correct the work type",
        ),
        io::ErrorKind::PermissionDenied => (
            format!("fork/exec {program}: permission denied"),
            "let the user who runs the node, or `user` of the work type, execute it",
        ),
        io::ErrorKind::ArgumentListTooLong => {
            (format!("fork/exec {program}: {error}"), "send long data as payload, not as parameters")
        }
        _ => (format!("fork/exec {program}: {error}"), "check that the program can be started by hand"),
    };
    format!("{words} ({advice})")
}
