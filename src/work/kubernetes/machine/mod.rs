//! The one owner of a unit that runs as a pod, pure. What the API server, the streams, the clock and clients say goes
//! in by `handle_*`; what to ask the server, what to write down and when to wake it comes out of `poll_*`. State only
//! moves forward, and the first end stays.
//!
//! Duties of the caller: outputs are acted on in their order, and a [`Output::Status`] is durable before the next one
//! is; answers may come late but each request gets one; a timer may fire late but is never lost.
//!
//! - `create`: until there is a pod, at a start and after a restart. `pending`: until `worker` runs.
//! - `stdin` and `stdout`: the streams. `end`: which end is success, and its Detail.
//! - `removal`: deleting the pod, after a cancel, a failure or at release.

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

use self::create::Create;
pub use self::messages::{AttachNews, Change, Facts, Output, Recorded, Request, Settings, StreamId, TcpNews};
use self::removal::Removal;
use self::stdin::Stdin;
use self::stdout::Stdout;
pub use self::timers::Timer;
use self::timers::Timers;
use super::api_error::ApiError;
use super::back_off::{BackOff, Dice};
use super::log::cursor::Cursor;
use super::log::{LogReader, StreamEnd, Took};
use super::pod_status::{PodSeen, Terminated};
use crate::work::unit::State;

/// Longest pause between attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The owner of a unit.
#[derive(Debug)]
pub struct Machine {
    settings: Settings,
    facts: Facts,
    state: State,
    detail: String,
    create: Create,
    /// The pod as it was seen last.
    pod: Option<PodSeen>,
    /// `worker` has run, or has ended.
    has_run: bool,
    ended: Option<Terminated>,
    /// Somebody was deleting the pod when `worker` ended.
    ended_by_deletion: bool,
    /// The API server says that there is no such pod any more.
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
    timers: Timers,
    dice: Dice,
    outputs: VecDeque<Output>,
}

impl Machine {
    /// The owner of a unit that has just been submitted. Its work begins.
    pub fn start(settings: Settings, facts: Facts) -> Self {
        let mut machine = Self::new(settings, facts, LogReader::new());
        machine.begin();
        machine
    }

    /// The owner of a unit that an earlier daemon left. Its work goes on, as far as there is any.
    pub fn restart(settings: Settings, recorded: Recorded, now: Instant) -> Self {
        let Recorded { state, detail, facts, cursor, stdout_size } = recorded;
        let mut machine = Self::new(settings, facts, LogReader::resume(cursor, stdout_size));
        (machine.state, machine.detail) = (state, detail);
        machine.resume(now);
        machine
    }

    fn new(settings: Settings, facts: Facts, reader: LogReader) -> Self {
        let first = settings.first_pause;
        Self {
            stdin: Stdin::new(settings.has_stdin && !facts.adopted, first),
            stdout: Stdout::new(first),
            create: Create::new(first, !facts.pod_name.is_empty()),
            removal: Removal::new(),
            get_pauses: BackOff::new(first, LONGEST_PAUSE),
            dice: Dice::new(settings.seed),
            settings,
            facts,
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
            timers: Timers::default(),
            outputs: VecDeque::new(),
        }
    }

    /// The next thing to do.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When to call [`Self::handle_timeout`], and what for.
    pub fn poll_timeout(&self) -> Option<(Instant, Timer)> {
        self.timers.next()
    }

    /// Where the unit stands.
    pub fn state(&self) -> State {
        self.state
    }

    /// Its Detail.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// Bytes of stdout.
    pub fn stdout_size(&self) -> u64 {
        self.reader.size()
    }

    /// How far stdout was written, for its file.
    pub fn cursor(&self) -> &Cursor {
        self.reader.cursor()
    }

    /// The pod as it was seen last.
    pub fn pod(&self) -> Option<&PodSeen> {
        self.pod.as_ref()
    }

    /// Nothing of the unit needs its owner any more, until somebody asks for something.
    pub fn is_idle(&self) -> bool {
        self.state.is_final() && self.verdict.is_none() && self.removal.is_idle() && self.outputs.is_empty()
    }

    /// The clock says `now`.
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
                Timer::Get => self.look(),
                Timer::Outage => self.fail_outage(now),
                Timer::Gone => self.conclude_gone(now),
                Timer::Events => self.conclude_verdict(now, None),
                Timer::Delete => self.remove(now),
                Timer::GiveUp => self.give_up(),
            }
        }
    }

    /// The pod was created, or was not.
    pub fn handle_created(&mut self, now: Instant, answer: Result<PodSeen, ApiError>) {
        self.on_created(now, answer);
    }

    /// The answer to [`Request::GetPod`].
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
            self.on_looked_for_removal(now, answer);
        } else if self.create.is_unsure() {
            self.on_looked_for_create(now, answer);
        } else {
            match answer {
                Ok(pod) => self.observe(now, pod),
                Err(ApiError::NotFound(_)) => self.pod_gone(now),
                Err(error) => self.look_again(now, &error),
            }
        }
    }

    /// The watch shows the pod.
    pub fn handle_watched(&mut self, now: Instant, pod: PodSeen) {
        if self.state.is_final() || self.verdict.is_some() || pod.name != self.facts.pod_name {
            return;
        }
        if self.create.is_unsure() {
            self.on_looked_for_create(now, Ok(pod));
        } else if self.create.is_done() {
            self.observe(now, pod);
        } else if pod.owner.as_ref() == Some(&self.settings.owner) {
            self.seen_early(now, pod);
        }
    }

    /// The watch says that the pod is gone; what it looked like at the end.
    pub fn handle_watched_gone(&mut self, now: Instant, pod: PodSeen) {
        if pod.uid != self.facts.pod_uid || self.facts.pod_uid.is_empty() {
            return;
        }
        if self.state.is_final() || self.verdict.is_some() {
            self.removed(now);
        } else {
            self.observe(now, pod);
            self.pod_gone(now);
        }
    }

    /// The attach stream says something.
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

    /// Whether bytes of this log stream are wanted now; one that was set aside is not to be read.
    pub fn wants_log(&self, stream: StreamId) -> bool {
        self.stdout.reads() == Some(stream)
    }

    /// Bytes of a log stream; adds to `out` what goes to stdout, from [`Took::at`] on, or to be compared with what is
    /// there. The cursor is written after that.
    pub fn handle_log(&mut self, now: Instant, stream: StreamId, bytes: &[u8], out: &mut Vec<u8>) -> Took {
        if self.state.is_final() || self.verdict.is_some() || !self.wants_log(stream) {
            return Took::default();
        }
        self.on_log(now, bytes, out)
    }

    /// Stdout holds something else than what a stream repeats.
    pub fn handle_stdout_differs(&mut self, now: Instant) {
        let lost = self.reader.lost();
        self.fail(now, format!("Error with pod's stdout: {lost}"));
    }

    /// A log stream has ended.
    pub fn handle_log_ended(&mut self, now: Instant, stream: StreamId, end: StreamEnd) {
        if !self.state.is_final() && self.verdict.is_none() && self.wants_log(stream) {
            self.on_log_ended(now, end);
        }
    }

    /// The connection of a pod with [`StreamMethod::Tcp`] says something.
    pub fn handle_tcp(&mut self, now: Instant, news: TcpNews) {
        if !self.state.is_final() && self.verdict.is_none() {
            self.on_tcp(now, news);
        }
    }

    /// The answer to [`Request::GetEvents`]; none if there is none to be had.
    pub fn handle_event(&mut self, now: Instant, event: Option<&str>) {
        self.conclude_verdict(now, event);
    }

    /// The answer to [`Request::Delete`].
    pub fn handle_deleted(&mut self, now: Instant, answer: Result<(), ApiError>) {
        self.on_deleted(now, answer);
    }

    /// The API server answers again, after an outage that others have noticed too: what waits to be tried again is tried
    /// soon, but not by all units at the same moment.
    pub fn handle_server_is_back(&mut self, now: Instant) {
        for timer in [Timer::Create, Timer::Attach, Timer::Log, Timer::Get, Timer::Delete] {
            let soon = now + Duration::from_millis(self.dice.roll() % 500);
            self.timers.advance(timer, soon);
        }
    }

    /// Something on this node fails the unit, such as a credential that cannot be used; a whole Detail.
    pub fn handle_failure(&mut self, now: Instant, detail: String) {
        self.fail(now, detail);
    }

    /// A client cancels the unit. A finished one stays as it is, and its pod goes.
    pub fn handle_cancel(&mut self, now: Instant) {
        self.cancel(now);
        self.want_removal(now);
    }

    /// A client releases the unit: [`Output::Released`] follows, at `give_up` at the latest; with `force` after one
    /// attempt.
    pub fn handle_release(&mut self, now: Instant, give_up: Instant, force: bool) {
        self.cancel(now);
        self.release(now, give_up, force);
    }

    fn ask(&mut self, request: Request) {
        self.outputs.push_back(Output::Request(request));
    }

    /// Moves forward, and writes it down if anything changed.
    fn set(&mut self, state: State, detail: impl Into<String>) {
        let detail = detail.into();
        if self.state.is_final() || state < self.state || (state == self.state && detail == self.detail) {
            return;
        }
        (self.state, self.detail) = (state, detail);
        self.write_down();
    }

    fn write_down(&mut self) {
        let change = Change { state: self.state, detail: self.detail.clone(), facts: self.facts.clone() };
        self.outputs.push_back(Output::Status(change));
    }

    /// Gets the pod, once at a time.
    fn look(&mut self) {
        self.timers.stop(Timer::Get);
        if !std::mem::replace(&mut self.is_getting, true) {
            self.ask(Request::GetPod);
        }
    }

    /// The pod could not be got.
    fn look_again(&mut self, now: Instant, error: &ApiError) {
        if !error.is_passing() && !matches!(error, ApiError::Unauthorized(_)) {
            // The watch tells as well.
            return;
        }
        let text = format!("Error getting pod {}. Error: {error}", self.place());
        self.note_outage(now, end::Channel::Get, text);
        let pause = self.get_pauses.next(&mut self.dice).max(error.retry_after().unwrap_or_default());
        self.timers.set(Timer::Get, now + pause);
    }

    /// The pod's namespace and name, as texts have them.
    fn place(&self) -> String {
        format!("{}/{}", self.facts.namespace, self.facts.pod_name)
    }
}
