//! The runner process of one unit: claims the unit, starts its command with `stdin` and `stdout` as files, waits for
//! its end and writes the final status. Once the command runs, it shares no socket and no pipe with the daemon or the
//! spawner, so it does not notice when they end. SIGINT or SIGTERM ends the command with everything it started.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal as NixSignal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

use super::containers::Containers;
use super::fork::leave;
use super::identity::Identity;
use super::kill::signal_tree;
use super::output::Pump;
use super::payload::Payload;
use super::processes;
use super::start::{Running, start};
use super::{Outcome, Reply, RunnerJob, reply};
use crate::duration;
use crate::work::cgroup::Cgroup;
use crate::work::run_dir::{self, RunDirs};
use crate::work::status::{CommandExtra, Extra, Status};
use crate::work::store::{Durability, UnitDir};
use crate::work::unit::{State, UnitEvent};

/// How long processes get to end after SIGTERM.
const AFTER_TERM: Duration = Duration::from_secs(2);
/// How long processes get to vanish after SIGKILL, and the pause before it is sent again, for processes that were just
/// started.
const AFTER_KILL: Duration = Duration::from_secs(4);
const KILL_AGAIN: Duration = Duration::from_millis(50);
/// The pause between attempts to write the final status on a full disk.
const RETRY: Duration = Duration::from_secs(1);
/// How long a command runs before the status on disk says so, because writing it costs time and most commands have
/// ended by then. The daemon knows it from the runner's answer.
const SHORT: Duration = Duration::from_millis(20);
/// The Detail of a unit that was ended by a signal to its runner which no client's cancel explains.
const ASKED_TO_END: &str = "Killed: its runner was told to end (SIGINT or SIGTERM), but not by this node; find out \
                            who stops processes on this machine, then submit the job again";
/// The same of a unit that filled the disk, so that the daemon had no room to write the reason down.
const DISK_IS_FULL: &str = "it filled the disk of its node (diskreserve)";
/// Added to the Detail if this node had no part in a kill.
const WHO_KILLS: &str = "not by this node; look for an out-of-memory kill in the system's log";
/// Exit statuses of a shell whose last command was ended by a signal: 128 and its number.
const SIGNALLED: std::ops::RangeInclusive<i32> = 129..=159;
/// How long the end of a unit waits for the removal of its private directory.
const REMOVAL: Duration = Duration::from_secs(3);
/// The most bytes and lines of a command's stderr in the Detail.
const LAST_WORDS: u64 = 1_000;
const LAST_LINES: usize = 3;
/// The pause between checks if signals cannot be waited for.
const SIGNALS_EVERY: Duration = Duration::from_millis(50);

/// Runs the unit to its end, for this spawner.
pub(super) fn run(job: &RunnerJob, daemon: OwnedFd, spawner: Pid) -> ! {
    let _ = rustix::process::setsid();
    // The daemon's standard error may be a pipe, which must not stay open for as long as the job.
    let _ = File::open("/dev/null").map(nix::unistd::dup2_stderr);
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    let dir = UnitDir::at(&job.dir);
    let answer = |outcome| reply(&daemon, Reply { dir: job.dir.clone(), outcome });
    match Identity::own().and_then(|own| own.claim(&dir)) {
        Ok(true) => {}
        Ok(false) => {
            answer(Outcome::AlreadyTaken);
            leave(0);
        }
        Err(error) => {
            answer(Outcome::Failed(format!("cannot claim the unit's directory: {error}")));
            leave(1);
        }
    }
    let begun = begin(job, &dir);
    match begun {
        Ok((status, running)) => {
            answer(Outcome::Started(number(running.pid)));
            drop(daemon);
            follow(job, &dir, status, running, spawner);
        }
        Err((status, cause)) => {
            remove_run_dir(job);
            if let Some(mut status) = status {
                status.life.apply(&UnitEvent::StartFailed(cause.clone()));
                status.extra = Extra::None;
                let _ = dir.write_status(&status, Durability::Durable);
            }
            answer(Outcome::Failed(cause));
        }
    }
    leave(0)
}

type Begun = Result<(Status, Running), (Option<Box<Status>>, String)>;

fn begin(job: &RunnerJob, dir: &UnitDir) -> Begun {
    let mut status = dir.read_own_status().map_err(|e| (None, e.to_string()))?;
    let Extra::Command(CommandExtra { params, .. }) = &status.extra else {
        return Err((None, "the unit's status holds no parameters".into()));
    };
    let params = params.clone();
    let running = match start(job, dir, &params, status.max_stdout.as_deref()) {
        Ok(running) => running,
        Err(cause) => return Err((Some(Box::new(status)), cause)),
    };
    status.extra = Extra::Command(CommandExtra { pid: std::process::id(), params });
    status.life.apply(&UnitEvent::Started(number(running.pid)));
    Ok((status, running))
}

fn number(pid: Pid) -> u32 {
    pid.as_raw_nonzero().get().unsigned_abs()
}

/// Waits for the command's end and writes it down.
fn follow(job: &RunnerJob, dir: &UnitDir, mut status: Status, running: Running, spawner: Pid) {
    let Running { pid, stdout, group, payload, pumps } = running;
    let mut wakeups = Wakeups { signals: own_signals(), pumps };
    let (mut ended, killed) = wait_for_end(job, dir, &status, pid, payload, &mut wakeups);
    let left = match (&killed, ended) {
        (None, Some(end)) if !was_killed(end) => None,
        (Some(_) | None, _) => end_tree(job, pid, &mut ended, group.as_ref(), &mut wakeups),
    };
    let mut end = match (killed, ended) {
        (Some(_), _) if dir.is_marked_cancelled() => End::new(State::Canceled, "Canceled"),
        (Some(cause), _) => End::new(State::Failed, cause),
        (None, None) => End::new(State::Failed, "Killed"),
        (None, Some(end)) => own_words(job, dir).unwrap_or_else(|| End::of(end)),
    };
    wakeups.finish(dir, &mut end);
    let why = group.as_ref().and_then(|group| explain(group, job, end.state));
    end.add(why.or_else(|| end.is_unexplained.then(|| WHO_KILLS.to_owned())));
    if job.limits.stderr_apart && end.state == State::Failed {
        end.add(last_words(dir));
    }
    end.add(left);
    let End { state, detail, is_unexplained: _ } = end;
    note_survivors(dir, pid);
    remove_run_dir(job);
    dir.remove_payload();
    let size = stdout.metadata().map_or(0, |m| m.len());
    status.life.apply(&UnitEvent::Reported(state, detail, size));
    // The process of a plugin is not the job.
    status.exit_code = ended.filter(|_| job.plugin.is_none()).and_then(exit_code);
    status.extra = Extra::None;
    // A daemon that is alive makes the record durable before it shows it.
    if rustix::process::getppid() == Some(spawner) && dir.leave_exit_record(&status).is_ok() {
        return;
    }
    // A full disk may have room again. If the directory is gone, the unit was released.
    while dir.write_status(&status, Durability::Durable).is_err() && dir.path().is_dir() {
        std::thread::sleep(RETRY);
    }
}

/// Why the runner was told to end its command, unless that is a cancel.
fn asked_to_end(dir: &UnitDir) -> String {
    match dir.stopped() {
        None => ASKED_TO_END.to_owned(),
        Some(why) if why.is_empty() => format!("Killed: {DISK_IS_FULL}"),
        Some(why) => format!("Killed: {why}"),
    }
}

/// Waits until the command has ended, or has to be ended. Then also returns why.
fn wait_for_end(
    job: &RunnerJob,
    dir: &UnitDir,
    status: &Status,
    command: Pid,
    mut payload: Option<Payload>,
    wakeups: &mut Wakeups,
) -> (Option<WaitStatus>, Option<String>) {
    let begun = Instant::now();
    let deadline = job.limits.timeout.map(|limit| begun + limit);
    // A plugin writes its status itself.
    let mut unwritten = (job.plugin.is_none()).then(|| begun + SHORT);
    let mut ended = reap(command);
    while ended.is_none() {
        let unread = payload.as_ref().map(Payload::next);
        let next = [deadline, unwritten, unread].into_iter().flatten().min();
        let asked = wakeups.wait(next.map(|next| next.saturating_duration_since(Instant::now())));
        ended = reap(command);
        if payload.as_mut().is_some_and(|payload| payload.remove_if_read(dir, Instant::now())) {
            payload = None;
        }
        if ended.is_none() && unwritten.is_some_and(|when| Instant::now() >= when) {
            unwritten = None;
            // Need not be durable: after a power loss the unit counts as failed, whatever a whole status says.
            let _ = dir.write_status(status, Durability::Deferred);
        }
        let late = deadline.is_some_and(|deadline| Instant::now() >= deadline);
        let cause = match (asked, wakeups.must_end()) {
            (true, _) => Some(asked_to_end(dir)),
            // `Wakeups::finish` says how much it wrote.
            (false, true) => Some("Killed".to_owned()),
            (false, false) if late => job
                .limits
                .timeout
                .map(|limit| format!("Killed: it ran longer than {} (timeout)", duration::print(limit))),
            (false, false) => None,
        };
        if cause.is_some() && ended.is_none() {
            return (None, cause);
        }
    }
    (ended, None)
}

/// Returns what the kernel did because of the unit's limits. Removes its control group, unless processes in it go on.
fn explain(group: &Cgroup, job: &RunnerJob, state: State) -> Option<String> {
    let why = group.explain(&job.limits).filter(|_| state != State::Canceled);
    match state {
        State::Canceled => group.end(),
        State::Pending | State::Running | State::Succeeded | State::Failed => drop(group.remove_if_empty()),
    }
    why
}

/// Removes the private directory, unless it is kept. If that takes too long, the daemon removes the rest.
fn remove_run_dir(job: &RunnerJob) {
    if let Some(path) = job.run_dir.as_ref().filter(|path| !RunDirs::is_kept(path)) {
        let _ = run_dir::remove(path, Instant::now() + REMOVAL);
    }
}

/// Writes down that processes of the command's group outlive it, so that the unit's release can end them.
fn note_survivors(dir: &UnitDir, command: Pid) {
    if rustix::process::test_kill_process_group(command) != Err(rustix::io::Errno::SRCH) {
        // Without the note they only live longer.
        let _ = dir.note_group(number(command));
    }
}

/// The end of what the command wrote to its stderr, in one line; `None` if it wrote nothing.
fn last_words(dir: &UnitDir) -> Option<String> {
    let mut file = dir.open("stderr", std::fs::OpenOptions::new().read(true)).ok()?;
    let from = file.metadata().ok()?.len().saturating_sub(LAST_WORDS);
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(from)).ok()?;
    file.take(LAST_WORDS).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let last = lines[lines.len().saturating_sub(LAST_LINES)..].join(" / ");
    let shown = last.replace(char::is_control, "\u{fffd}");
    (!shown.is_empty()).then(|| format!("its stderr ends: {shown}"))
}

/// The end that a plugin has written down itself, if the command is a plugin and did so.
fn own_words(job: &RunnerJob, dir: &UnitDir) -> Option<End> {
    job.plugin.as_ref()?;
    let left = dir.read_status().ok()?.life;
    left.state.is_final().then(|| End::new(left.state, left.detail))
}

/// The signals that the spawner blocked, in a descriptor of this process: a descriptor made before the fork
/// would report the parent's.
fn own_signals() -> Option<SignalFd> {
    let mut set = SigSet::empty();
    for signal in [NixSignal::SIGCHLD, NixSignal::SIGINT, NixSignal::SIGTERM] {
        set.add(signal);
    }
    SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC).ok()
}

/// What wakes a runner: signals, and output that it has to move.
struct Wakeups {
    /// None when there is no descriptor left for them.
    signals: Option<SignalFd>,
    pumps: Vec<Pump>,
}

impl Wakeups {
    /// Waits for a signal or output, at most for `limit`. Returns whether a signal asked for the end.
    fn wait(&mut self, limit: Option<Duration>) -> bool {
        let limit = self.pumps.iter().filter_map(Pump::retry).chain(limit).min();
        let Some(signals) = &self.signals else {
            // Without a descriptor, it can only check now and then.
            std::thread::sleep(limit.unwrap_or(SIGNALS_EVERY).min(SIGNALS_EVERY));
            self.move_output();
            return false;
        };
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let listen = std::iter::once(signals.as_fd()).chain(self.pumps.iter().filter_map(Pump::descriptor));
        let mut waiting: Vec<_> = listen.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let _ = rustix::event::poll(&mut waiting, limit.as_ref());
        let mut asked = false;
        while let Ok(Some(signal)) = signals.read_signal() {
            asked |= signal.ssi_signo != NixSignal::SIGCHLD as u32;
        }
        self.move_output();
        asked
    }

    fn move_output(&mut self) {
        for pump in &mut self.pumps {
            pump.step();
        }
    }

    fn must_end(&self) -> bool {
        self.pumps.iter().any(Pump::must_end)
    }

    /// Brings all output into its file, and says in the Detail what was left out. Too much output may be a failure.
    fn finish(self, dir: &UnitDir, end: &mut End) {
        for pump in self.pumps {
            let fails = pump.fails();
            match pump.finish(dir) {
                Some(told) if fails && end.state != State::Canceled => {
                    *end = End::new(State::Failed, format!("Killed: {told}"));
                }
                Some(_) if end.state == State::Canceled => {}
                told => end.add(told),
            }
        }
    }
}

/// Reaps whatever has ended, adopted orphans too. Returns the end of the command itself.
fn reap(command: Pid) -> Option<WaitStatus> {
    let mut found = None;
    while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
        if pid == command {
            found = Some(status);
        }
    }
    found
}

/// Ends the command and everything below it: first with SIGINT, and after the grace with SIGTERM and SIGKILL. If the
/// command is gone already, the processes that it left get no grace. Further signals to this runner change nothing.
/// Returns which processes could not be ended.
fn end_tree(
    job: &RunnerJob,
    command: Pid,
    ended: &mut Option<WaitStatus>,
    group: Option<&Cgroup>,
    wakeups: &mut Wakeups,
) -> Option<String> {
    let containers = Containers::of(&processes::below_this(), &job.limits);
    let polite = (Signal::INT, Duration::from_millis(job.grace_ms), None);
    let steps = [
        ended.is_none().then_some(polite),
        Some((Signal::TERM, AFTER_TERM, None)),
        Some((Signal::KILL, AFTER_KILL, Some(KILL_AGAIN))),
    ];
    for (signal, limit, again) in steps.into_iter().flatten() {
        let deadline = Instant::now() + limit;
        let send = |ended: &Option<WaitStatus>| {
            signal_tree(ended.is_none().then_some(command), group, signal);
        };
        send(ended);
        while is_anything_left(command, ended) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            wakeups.wait(Some(again.map_or(left, |again| left.min(again))));
            if again.is_some() {
                send(ended);
            }
        }
    }
    containers.remove(&job.limits);
    processes::told(&processes::below_this())
}

/// Reaps. Returns whether anything is left to be ended.
fn is_anything_left(command: Pid, ended: &mut Option<WaitStatus>) -> bool {
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid == command => *ended = Some(status),
            Ok(Some(_)) => {}
            Ok(None) => return !processes::below_this().is_empty(),
            Err(_) => return false,
        }
    }
}

/// Whether a signal ended the command, or the last command of a shell, whose exit status says so.
fn was_killed(end: WaitStatus) -> bool {
    let by_signal = |code| SIGNALLED.contains(&code);
    end.terminating_signal().is_some() || end.exit_status().is_some_and(by_signal)
}

/// The end of a process as a shell reports it.
fn exit_code(end: WaitStatus) -> Option<i32> {
    end.exit_status().or_else(|| end.terminating_signal().map(|signal| 128 + signal))
}

/// How a unit ends.
struct End {
    state: State,
    detail: String,
    /// It ended by SIGKILL, and nothing says who sent that.
    is_unexplained: bool,
}

impl End {
    fn new(state: State, detail: impl Into<String>) -> Self {
        Self { state, detail: detail.into(), is_unexplained: false }
    }

    /// The end of its command, in the words of the Go node.
    fn of(end: WaitStatus) -> Self {
        match (end.exit_status(), end.terminating_signal()) {
            (Some(0), _) => Self::new(State::Succeeded, "exit status 0"),
            (Some(code), _) => Self::new(State::Failed, format!("exit status {code}")),
            (None, Some(signal)) => {
                let core = if end.as_raw() & 0x80 != 0 { " (core dumped)" } else { "" };
                let detail = format!("signal: {}{core}", signal_name(signal));
                let is_unexplained = signal == Signal::KILL.as_raw();
                Self { state: State::Failed, detail, is_unexplained }
            }
            (None, None) => Self::new(State::Failed, format!("ended with wait status {:#x}", end.as_raw())),
        }
    }

    /// Adds to the Detail.
    fn add(&mut self, more: Option<String>) {
        if let Some(more) = more {
            self.detail.push_str(&format!(" ({more})"));
        }
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
