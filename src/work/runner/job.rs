//! The runner process of one unit: claims the unit, starts its command with `stdin` and `stdout` as files, waits
//! for its end and writes the final status. It holds no socket and no pipe once the command runs, so neither the
//! daemon's end nor the spawner's touches it. SIGINT or SIGTERM ends the command with everything it started.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio, exit};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal as NixSignal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

use super::identity::Identity;
use super::kill::signal_tree;
use super::spawner::reply;
use super::{Job, Outcome, Reply, fork, leftovers};
use crate::work::command;
use crate::work::status::{CommandExtra, Extra, Status};
use crate::work::store::UnitDir;
use crate::work::unit::{Event, State};

/// How long processes get to end after SIGTERM.
const AFTER_TERM: Duration = Duration::from_secs(2);
/// How long processes get to vanish after SIGKILL, and between repetitions for those that were just born.
const AFTER_KILL: Duration = Duration::from_secs(4);
const KILL_AGAIN: Duration = Duration::from_millis(50);
/// Between attempts to write the final status on a full disk.
const RETRY: Duration = Duration::from_secs(1);

/// Runs the unit to its end.
pub(super) fn run(job: &Job, daemon: OwnedFd) -> ! {
    let _ = rustix::process::setsid();
    // A pipe that the daemon's messages go to must not stay open for as long as the job.
    let _ = File::open("/dev/null").map(nix::unistd::dup2_stderr);
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    let dir = UnitDir::at(job.dir.clone());
    let answer = |outcome| reply(&daemon, Reply { dir: job.dir.clone(), outcome });
    match Identity::own().and_then(|own| own.claim(&dir)) {
        Ok(true) => {}
        Ok(false) => {
            answer(Outcome::AlreadyTaken);
            exit(0);
        }
        Err(error) => {
            answer(Outcome::Failed(format!("cannot claim the unit's directory: {error}")));
            exit(1);
        }
    }
    let begun = begin(job, &dir);
    match begun {
        Ok((status, stdout, pid)) => {
            answer(Outcome::Started(pid.as_raw_nonzero().get().unsigned_abs()));
            drop(daemon);
            follow(job, &dir, status, &stdout, pid);
        }
        Err((status, cause)) => {
            if let Some(mut status) = status {
                status.life.apply(&Event::StartFailed(cause.clone()));
                status.extra = Extra::None;
                let _ = dir.write_status(&status, true);
            }
            answer(Outcome::Failed(cause));
        }
    }
    exit(0);
}

type Begun = Result<(Status, File, Pid), (Option<Box<Status>>, String)>;

fn begin(job: &Job, dir: &UnitDir) -> Begun {
    let mut status = dir.read_status().map_err(|e| (None, e.to_string()))?;
    let Extra::Command(CommandExtra { params, .. }) = &status.extra else {
        return Err((None, "the unit's status holds no parameters".into()));
    };
    let params = params.clone();
    let (stdout, pid) = match start_command(job, dir, &params) {
        Ok(started) => started,
        Err(cause) => return Err((Some(Box::new(status)), cause)),
    };
    status.extra = Extra::Command(CommandExtra { pid: std::process::id(), params });
    status.life.apply(&Event::Started(pid.as_raw_nonzero().get().unsigned_abs()));
    Ok((status, stdout, pid))
}

fn start_command(job: &Job, dir: &UnitDir, params: &str) -> Result<(File, Pid), String> {
    let words = command::split(params).map_err(|e| e.to_string())?;
    let open = |name: &str, options: &OpenOptions| {
        options.open(dir.file(name)).map_err(|e| format!("cannot open the unit's {name}: {e}"))
    };
    let stdin = open("stdin", OpenOptions::new().read(true))?;
    let stdout = open("stdout", OpenOptions::new().append(true).create(true).mode(0o600))?;
    let twin = || stdout.try_clone().map_err(|e| format!("cannot open the unit's stdout twice: {e}"));
    let mut command = Command::new(&job.command);
    command
        .args(words)
        .env(leftovers::MARK, dir.path())
        .stdin(stdin)
        .stdout(twin()?)
        .stderr(Stdio::from(twin()?))
        .process_group(0);
    let child =
        fork::with_open_signal_mask(&mut command).spawn().map_err(|e| start_error(&job.command, &e))?;
    let pid =
        i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or("the command has no process ID")?;
    Ok((stdout, pid))
}

/// The words of the Go node, which name the program.
fn start_error(program: &str, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound if !program.contains('/') => {
            format!("exec: {program:?}: executable file not found in $PATH")
        }
        io::ErrorKind::NotFound => format!("fork/exec {program}: no such file or directory"),
        io::ErrorKind::PermissionDenied => format!("fork/exec {program}: permission denied"),
        _ => format!("fork/exec {program}: {error}"),
    }
}

/// Waits for the command's end and writes it down.
fn follow(job: &Job, dir: &UnitDir, mut status: Status, stdout: &File, pid: Pid) {
    let signals = own_signals();
    let mut ended = reap(pid);
    if ended.is_none() {
        // After a power loss the unit counts as failed whatever stands here, so long as it is whole.
        let _ = dir.write_status(&status, false);
    }
    let mut killed = false;
    while ended.is_none() {
        let interrupted = wait(signals.as_ref(), None);
        ended = reap(pid);
        if interrupted && ended.is_none() {
            killed = true;
            ended = end_tree(pid, signals.as_ref(), Duration::from_millis(job.grace_ms));
            break;
        }
    }
    let (state, detail) = match (killed, ended) {
        (true, _) if dir.is_marked_cancelled() => (State::Canceled, "Canceled".to_owned()),
        (true, _) | (false, None) => (State::Failed, "Killed".to_owned()),
        (false, Some(end)) => describe(end),
    };
    let size = stdout.metadata().map_or(0, |m| m.len());
    status.life.apply(&Event::Reported(state, detail, size));
    status.extra = Extra::None;
    // A full disk heals; a directory that is gone was released.
    while dir.write_status(&status, true).is_err() && dir.path().exists() {
        std::thread::sleep(RETRY);
    }
}

/// The signals that the spawner blocked, in a descriptor of this process: a descriptor made before the fork
/// would tell about the parent's.
fn own_signals() -> Option<SignalFd> {
    let mut set = SigSet::empty();
    for signal in [NixSignal::SIGCHLD, NixSignal::SIGINT, NixSignal::SIGTERM] {
        set.add(signal);
    }
    SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC).ok()
}

/// Waits for a signal; says whether one asked for the end.
fn wait(signals: Option<&SignalFd>, limit: Option<Duration>) -> bool {
    let Some(signals) = signals else {
        // Out of descriptors: looking now and then is all that is left.
        std::thread::sleep(limit.unwrap_or(RETRY).min(RETRY));
        return false;
    };
    let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
    let mut waiting = [PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN)];
    let _ = rustix::event::poll(&mut waiting, limit.as_ref());
    let mut asked = false;
    while let Ok(Some(signal)) = signals.read_signal() {
        asked |= signal.ssi_signo != NixSignal::SIGCHLD as u32;
    }
    asked
}

/// Reaps whatever has ended, adopted orphans too; gives the end of the command itself.
fn reap(command: Pid) -> Option<WaitStatus> {
    let mut found = None;
    while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
        if pid == command {
            found = Some(status);
        }
    }
    found
}

/// Ends the command and everything below it: politely, and after the grace for good. Being asked again changes
/// nothing.
fn end_tree(command: Pid, signals: Option<&SignalFd>, grace: Duration) -> Option<WaitStatus> {
    let mut ended = None;
    let steps = [
        (Signal::INT, grace, None),
        (Signal::TERM, AFTER_TERM, None),
        (Signal::KILL, AFTER_KILL, Some(KILL_AGAIN)),
    ];
    for (signal, limit, again) in steps {
        let deadline = Instant::now() + limit;
        signal_tree(command, signal);
        while has_children(command, &mut ended) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            wait(signals, Some(again.map_or(left, |again| left.min(again))));
            if again.is_some() {
                signal_tree(command, signal);
            }
        }
    }
    ended
}

/// Reaps; says whether any child is left.
fn has_children(command: Pid, ended: &mut Option<WaitStatus>) -> bool {
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid == command => *ended = Some(status),
            Ok(Some(_)) => {}
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}

/// The end of a process in the words of the Go node.
fn describe(end: WaitStatus) -> (State, String) {
    match (end.exit_status(), end.terminating_signal()) {
        (Some(0), _) => (State::Succeeded, "exit status 0".into()),
        (Some(code), _) => (State::Failed, format!("exit status {code}")),
        (None, Some(signal)) => {
            let core = if end.as_raw() & 0x80 != 0 { " (core dumped)" } else { "" };
            (State::Failed, format!("signal: {}{core}", signal_name(signal)))
        }
        (None, None) => (State::Failed, format!("ended with wait status {:#x}", end.as_raw())),
    }
}

fn signal_name(number: i32) -> String {
    let name = match number {
        1 => "hangup",
        2 => "interrupt",
        3 => "quit",
        4 => "illegal instruction",
        5 => "trace/breakpoint trap",
        6 => "aborted",
        7 => "bus error",
        8 => "floating point exception",
        9 => "killed",
        10 => "user defined signal 1",
        11 => "segmentation fault",
        12 => "user defined signal 2",
        13 => "broken pipe",
        14 => "alarm clock",
        15 => "terminated",
        other => return format!("signal {other}"),
    };
    name.into()
}
