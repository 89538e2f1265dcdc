//! The one owner of a unit that runs as a pod, without I/O. Events of the API server, the streams, the clock and
//! clients go in through `handle_*`; requests, records and timeouts come out through `poll_*`. The state only moves
//! forward, and the first final state stays.
//!
//! Duties of the caller: execute outputs in their order, and make a [`MachineOutput::Status`] durable before
//! the next one. Answers may be late, but each request gets one. A timer may fire late but must fire.
//!
//! - `create`: until there is a pod, at a start and after a restart. `pending`: until `worker` runs.
//! - `stdin` and `stdout`: the streams. `end`: the result, and its Detail.
//! - `removal`: deletes the pod after a cancel, a failure or a release.

mod create;
mod end;
mod messages;
mod pending;
mod removal;
mod stdin;
mod stdout;
mod tcp;
mod timers;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

use self::create::Create;
pub use self::messages::{
    ApiRequest, AttachNews, MachineOutput, PodRecord, Recorded, StatusChange, StreamId, TcpNews, UnitSettings,
};
use self::removal::Removal;
use self::stdin::Stdin;
use self::stdout::Stdout;
use self::timers::PodTimers;
pub use self::timers::Timer;
use super::api_error::ApiError;
use super::log::cursor::Cursor;
use super::log::{LogReader, StreamEnd, Took};
use super::pod_status::{PodSeen, Terminated};
use crate::os::back_off::BackOff;
use crate::rpc::UnitState as State;

/// The longest delay between attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The owner of a unit.
#[derive(Debug)]
pub struct Machine {
    settings: UnitSettings,
    record: PodRecord,
    state: State,
    detail: String,
    create: Create,
    /// The pod as last seen.
    pod: Option<PodSeen>,
    /// `worker` runs or has run.
    has_run: bool,
    ended: Option<Terminated>,
    /// Somebody was deleting the pod when `worker` ended.
    ended_by_deletion: bool,
    /// The API server reports that the pod is gone.
    is_gone: bool,
    stdin: Stdin,
    stdout: Stdout,
    reader: LogReader,
    removal: Removal,
    /// An end that waits for the pod's last event.
    verdict: Option<String>,
    is_getting: bool,
    get_pauses: BackOff,
    back_offs: pending::BackOffs,
    outages: end::Outages,
    timers: PodTimers,
    random: SmallRng,
    outputs: VecDeque<MachineOutput>,
}

impl Machine {
    /// Starts a unit that was just submitted.
    pub fn start(settings: UnitSettings, record: PodRecord) -> Self {
        let mut machine = Self::new(settings, record, LogReader::new());
        machine.begin();
        machine
    }

    /// Resumes a unit of an earlier daemon, if there is anything left to do.
    pub fn restart(settings: UnitSettings, recorded: Recorded, now: Instant) -> Self {
        let Recorded { state, detail, record, cursor, stdout_size } = recorded;
        let mut machine = Self::new(settings, record, LogReader::resume(cursor, stdout_size));
        (machine.state, machine.detail) = (state, detail);
        machine.resume(now);
        machine
    }

    fn new(settings: UnitSettings, record: PodRecord, reader: LogReader) -> Self {
        let first = settings.first_pause;
        Self {
            stdin: Stdin::new(settings.has_stdin && !record.adopted, first),
            stdout: Stdout::new(first),
            create: Create::new(first, !record.pod_name.is_empty()),
            removal: Removal::new(),
            get_pauses: BackOff::new(first, LONGEST_PAUSE),
            random: SmallRng::seed_from_u64(settings.seed),
            settings,
            record,
            state: State::Pending,
            detail: String::new(),
            pod: None,
            has_run: false,
            ended: None,
            ended_by_deletion: false,
            is_gone: false,
            reader,
            verdict: None,
            is_getting: false,
            back_offs: pending::BackOffs::default(),
            outages: end::Outages::default(),
            timers: PodTimers::default(),
            outputs: VecDeque::new(),
        }
    }

    /// The next output to execute.
    pub fn poll_output(&mut self) -> Option<MachineOutput> {
        self.outputs.pop_front()
    }

    /// When to call [`Self::handle_timeout`], and for which timer.
    pub fn poll_timeout(&self) -> Option<(Instant, Timer)> {
        self.timers.next()
    }

    /// The unit's state.
    pub fn state(&self) -> State {
        self.state
    }

    /// Its Detail.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// Bytes of stdout.
    pub fn stdout_size(&self) -> u64 {
        let most = self.settings.max_stdout.as_ref().map_or(u64::MAX, |bound| bound.bytes);
        self.reader.size().min(most)
    }

    /// How far stdout is written, for the cursor's file.
    pub fn cursor(&self) -> &Cursor {
        self.reader.cursor()
    }

    /// The pod as last seen.
    pub fn pod(&self) -> Option<&PodSeen> {
        self.pod.as_ref()
    }

    /// Whether the unit no longer needs its owner, until a client requests something.
    pub fn is_idle(&self) -> bool {
        self.state.is_final() && self.verdict.is_none() && self.removal.is_idle() && self.outputs.is_empty()
    }

    /// The time is `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(timer) = self.timers.expired(now) {
            match timer {
                Timer::Pending => self.fail_pending(now),
                Timer::Grace => self.fail_to_start(now),
                Timer::Create => self.create_again(now),
                Timer::Attach => self.attach(now),
                Timer::StdinStatus => self.stdin_delivered(),
                Timer::Verdict => self.fail_stdin(now),
                Timer::Log => self.open_log(now),
                Timer::Linger => self.stop_lingering(now),
                Timer::Get => self.get_pod(),
                Timer::Outage => self.fail_outage(now),
                Timer::Gone => self.conclude_gone(now),
                Timer::Events => self.conclude_verdict(now, None),
                Timer::Delete => self.remove(now),
                Timer::GiveUp => self.give_up(),
            }
        }
    }

    /// The answer to [`ApiRequest::Create`].
    pub fn handle_created(&mut self, now: Instant, answer: Result<PodSeen, ApiError>) {
        self.on_created(now, answer, true);
    }

    /// [`ApiRequest::Create`] was not sent, for this reason.
    pub fn handle_not_sent(&mut self, now: Instant, why: ApiError) {
        self.on_created(now, Err(why), false);
    }

    /// The answer to [`ApiRequest::GetPod`].
    pub fn handle_pod(&mut self, now: Instant, answer: Result<PodSeen, ApiError>) {
        self.is_getting = false;
        match &answer {
            Ok(_) | Err(ApiError::NotFound(_)) => {
                self.get_pauses.reset();
                self.outages.get = None;
                self.review_outages();
            }
            Err(_) => {}
        }
        if self.state.is_final() || self.verdict.is_some() {
            self.on_pod_for_removal(now, answer);
        } else if self.create.is_unsure() {
            self.on_pod_for_create(now, answer);
        } else {
            match answer {
                Ok(pod) => self.observe(now, pod),
                Err(ApiError::NotFound(_)) => self.pod_gone(now),
                Err(error) => self.retry_get_pod(now, &error),
            }
        }
    }

    /// The watch shows the pod.
    pub fn handle_watched(&mut self, now: Instant, pod: PodSeen) {
        if self.state.is_final() || self.verdict.is_some() || pod.name != self.record.pod_name {
            return;
        }
        if self.create.is_unsure() {
            self.on_pod_for_create(now, Ok(pod));
        } else if self.create.is_done() {
            self.observe(now, pod);
        } else if pod.owner.as_ref() == Some(&self.settings.owner) {
            self.seen_early(now, pod);
        }
    }

    /// The watch is refused. A create under way is awaited first, because if it is refused too, its error counts.
    pub fn handle_unwatched(&mut self, now: Instant, refused: Result<(), ApiError>) {
        let Err(error) = refused else { return };
        let text = format!("Error getting pod {}. Error: {error}", self.pod_path());
        match self.create.is_asked() {
            true => self.create.fail_once_answered(text),
            false => self.fail(now, text),
        }
    }

    /// The watch reports that the pod is gone, with its last status.
    pub fn handle_watched_gone(&mut self, now: Instant, pod: PodSeen) {
        if pod.uid != self.record.pod_uid || self.record.pod_uid.is_empty() {
            return;
        }
        if self.state.is_final() || self.verdict.is_some() {
            self.removed(now);
        } else {
            self.observe(now, pod);
            self.pod_gone(now);
        }
    }

    /// News of the attach stream.
    pub fn handle_attach(&mut self, now: Instant, news: AttachNews) {
        if !self.state.is_final() && self.verdict.is_none() {
            self.on_attach(now, news);
        }
    }

    /// The log stream is open, or cannot be opened.
    pub fn handle_log_opened(&mut self, now: Instant, stream: StreamId, answer: Result<(), ApiError>) {
        if !self.state.is_final() && self.verdict.is_none() {
            self.on_log_opened(now, stream, answer);
        }
    }

    /// Whether to read this log stream now; a parked one must wait.
    pub fn wants_log(&self, stream: StreamId) -> bool {
        self.stdout.reads() == Some(stream)
    }

    /// Bytes of a log stream. Appends to `out` what to write to stdout from [`Took::at`] on, or to compare
    /// with what is there. Write the cursor afterwards.
    pub fn handle_log(&mut self, now: Instant, stream: StreamId, bytes: &[u8], out: &mut Vec<u8>) -> Took {
        if !self.takes_log(stream) {
            return Took::default();
        }
        let took = self.reader.read(bytes, out);
        let took = self.on_log(now, took);
        self.handle_output(now, took.at, out);
        took
    }

    /// A log stream has ended in order: appends the text held back of it to `out`, as [`Self::handle_log`] does.
    /// [`Self::handle_log_ended`] comes next.
    pub fn handle_log_held(&mut self, now: Instant, stream: StreamId, out: &mut Vec<u8>) -> Took {
        if !self.takes_log(stream) {
            return Took::default();
        }
        let took = self.reader.read_held(out);
        let took = self.on_log(now, took);
        self.handle_output(now, took.at, out);
        took
    }

    /// Takes output for stdout from `at` on. Cuts off what exceeds the unit's bound, and then fails the unit.
    pub fn handle_output(&mut self, now: Instant, at: u64, out: &mut Vec<u8>) {
        let Some(bound) = &self.settings.max_stdout else { return };
        let room = bound.room_for(out.len(), at);
        if room < out.len() {
            out.truncate(room);
            let why = bound.exceeded();
            self.fail(now, format!("Killed: {why}"));
        }
    }

    fn takes_log(&self, stream: StreamId) -> bool {
        !self.state.is_final() && self.verdict.is_none() && self.wants_log(stream)
    }

    /// Stdout differs from what a stream repeats.
    pub fn handle_stdout_differs(&mut self, now: Instant) {
        let lost = self.reader.lost();
        self.fail(now, format!("Error with pod's stdout: {lost}"));
    }

    /// A log stream has ended.
    pub fn handle_log_ended(&mut self, now: Instant, stream: StreamId, end: StreamEnd) {
        if self.takes_log(stream) {
            self.on_log_ended(now, end);
        }
    }

    /// News of the connection of a pod with [`StreamMethod::Tcp`](crate::pods::options::StreamMethod::Tcp).
    pub fn handle_tcp(&mut self, now: Instant, news: TcpNews) {
        if !self.state.is_final() && self.verdict.is_none() {
            self.on_tcp(now, news);
        }
    }

    /// The answer to [`ApiRequest::GetEvents`]; `None` if there is none.
    pub fn handle_event(&mut self, now: Instant, event: Option<&str>) {
        self.conclude_verdict(now, event);
    }

    /// The answer to [`ApiRequest::Delete`].
    pub fn handle_deleted(&mut self, now: Instant, answer: Result<(), ApiError>) {
        self.on_deleted(now, answer);
    }

    /// The API server answers again after an outage that other units noticed too. Pending retries run soon,
    /// but not those of all units at the same moment.
    pub fn handle_server_is_back(&mut self, now: Instant) {
        for timer in [Timer::Create, Timer::Attach, Timer::Log, Timer::Get, Timer::Delete] {
            let soon = now + Duration::from_millis(self.random.random_range(0..500));
            self.timers.advance(timer, soon);
        }
    }

    /// This node fails the unit, for example because a credential cannot be used. `detail` is a complete Detail.
    pub fn handle_failure(&mut self, now: Instant, detail: String) {
        self.fail(now, detail);
    }

    /// A client cancels the unit. A finished unit stays as it is, and its pod is deleted.
    pub fn handle_cancel(&mut self, now: Instant) {
        self.cancel(now);
        self.want_removal(now);
    }

    /// A client releases the unit. [`MachineOutput::Released`] follows, at `give_up` at the latest; with
    /// `force` after one attempt.
    pub fn handle_release(&mut self, now: Instant, give_up: Instant, force: bool) {
        self.cancel(now);
        self.release(now, give_up, force);
    }

    fn ask(&mut self, request: ApiRequest) {
        self.outputs.push_back(MachineOutput::Request(request));
    }

    /// Moves the state forward, and records any change.
    fn set(&mut self, state: State, detail: impl Into<String>) {
        let detail = detail.into();
        if self.state.is_final() || state < self.state || (state == self.state && detail == self.detail) {
            return;
        }
        (self.state, self.detail) = (state, detail);
        self.record_status();
    }

    fn record_status(&mut self) {
        let change =
            StatusChange { state: self.state, detail: self.detail.clone(), record: self.record.clone() };
        self.outputs.push_back(MachineOutput::Status(change));
    }

    /// Gets the pod, unless a get is under way.
    fn get_pod(&mut self) {
        self.timers.stop(Timer::Get);
        if !std::mem::replace(&mut self.is_getting, true) {
            self.ask(ApiRequest::GetPod);
        }
    }

    /// Repeats a get that failed, if it may succeed later.
    fn retry_get_pod(&mut self, now: Instant, error: &ApiError) {
        if !error.is_passing() && !matches!(error, ApiError::Unauthorized(_)) {
            // The get is not repeated, because the watch reports the pod, too.
            return;
        }
        let text = format!("Error getting pod {}. Error: {error}", self.pod_path());
        self.note_outage(now, end::OutageOf::Get, text);
        let pause = self.get_pauses.next_with(&mut self.random).max(error.retry_after().unwrap_or_default());
        self.timers.set(Timer::Get, self.pause_until(now + pause));
    }

    /// The pod's namespace and name for messages.
    fn pod_path(&self) -> String {
        format!("{}/{}", self.record.namespace, self.record.pod_name)
    }
}
