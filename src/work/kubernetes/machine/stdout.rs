//! Following `worker`'s log: opening streams, going on after each end, and knowing when all of it was read. The end
//! of a stream never means the end of the log; only a stream that was asked for after `worker` had ended, and that
//! ended in order, was the whole rest.
//!
//! A kubelet notices a container's end about a second late in a stream that follows. So once `worker` has ended, the
//! stream that follows is set aside, still open, and the rest is read by another; if the log was rotated meanwhile,
//! and the other one cannot be joined to what was written, the first is read to its end after all.

use std::time::{Duration, Instant};

use super::end::Channel;
use super::{BackOff, LONGEST_PAUSE, Machine, Request, StreamId, Timer};
use crate::work::kubernetes::api_error::ApiError;
use crate::work::kubernetes::log::{StreamEnd, Took};
use crate::work::kubernetes::options::StreamMethod;
use crate::work::unit::State;

/// The first and the longest pause after a stream that was ended in order.
const REOPEN: Duration = Duration::from_millis(200);
const REOPEN_LONGEST: Duration = Duration::from_secs(5);
/// How long a silent stream that follows is left open after `worker` has ended.
const LINGER: Duration = Duration::from_secs(30);

/// The log streams.
#[derive(Debug)]
pub(super) struct Stdout {
    step: Step,
    last: u32,
    /// A stream that is set aside.
    parked: Option<StreamId>,
    /// Pauses after ends in order, and after failures.
    reopens: BackOff,
    pauses: BackOff,
    has_output: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// `worker` has not run.
    Unopened,
    Opening(Stream),
    Reading(Stream),
    Paused,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stream {
    id: StreamId,
    /// It was asked for after `worker` had ended.
    is_rest: bool,
    /// It has brought something new.
    has_new: bool,
}

impl Stdout {
    pub(super) fn new(first: Duration) -> Self {
        Self {
            step: Step::Unopened,
            last: 0,
            parked: None,
            reopens: BackOff::new(REOPEN, REOPEN_LONGEST),
            pauses: BackOff::new(first, LONGEST_PAUSE),
            has_output: false,
        }
    }

    pub(super) fn is_unopened(&self) -> bool {
        self.step == Step::Unopened
    }

    /// `worker` has printed something since this daemon follows it.
    pub(super) fn has_output(&self) -> bool {
        self.has_output
    }

    /// The stream that is read.
    pub(super) fn reads(&self) -> Option<StreamId> {
        match self.step {
            Step::Reading(stream) => Some(stream.id),
            Step::Unopened | Step::Opening(_) | Step::Paused => None,
        }
    }

    /// The streams that are open or being opened; they are none any more.
    pub(super) fn take_open(&mut self) -> Vec<StreamId> {
        let current = match std::mem::replace(&mut self.step, Step::Paused) {
            Step::Opening(stream) | Step::Reading(stream) => Some(stream.id),
            Step::Unopened | Step::Paused => None,
        };
        current.into_iter().chain(self.parked.take()).collect()
    }
}

impl Machine {
    /// `worker` runs, or has ended, and its log was never opened.
    pub(super) fn open_log_first(&mut self, now: Instant) {
        if self.stdout.is_unopened() {
            self.open_log(now);
        }
    }

    pub(super) fn open_log(&mut self, _now: Instant) {
        self.timers.stop(Timer::Log);
        let is_rest = self.ended.is_some();
        self.stdout.last += 1;
        let id = StreamId(self.stdout.last);
        self.stdout.step = Step::Opening(Stream { id, is_rest, has_new: false });
        self.ask(Request::OpenLog { stream: id, since: self.reader.since(), follow: !is_rest });
    }

    /// `worker` has ended: what is left of its log is read.
    pub(super) fn read_rest(&mut self, now: Instant) {
        match self.stdout.step {
            Step::Unopened | Step::Paused => self.open_log(now),
            Step::Reading(stream) if self.reader.has_anchor() => {
                self.reader.park();
                self.stdout.parked = Some(stream.id);
                self.open_log(now);
            }
            Step::Opening(stream) => {
                self.ask(Request::CloseLog(stream.id));
                self.open_log(now);
            }
            // Without a line to find again nobody can say whether another one leaves something out.
            Step::Reading(_) => self.timers.set(Timer::Linger, now + LINGER),
        }
    }

    pub(super) fn on_log_opened(&mut self, now: Instant, id: StreamId, answer: Result<(), ApiError>) {
        let Step::Opening(stream) = self.stdout.step else { return };
        if stream.id != id {
            return;
        }
        match answer {
            Ok(()) => {
                self.stdout.step = Step::Reading(stream);
                self.reader.open();
                if self.ended.is_none() {
                    self.outages.log = None;
                    self.review_outages();
                }
            }
            Err(_) if self.stdout.parked.is_some() => self.return_to_parked(now),
            Err(error) => self.on_log_refused(now, &error),
        }
    }

    fn on_log_refused(&mut self, now: Instant, error: &ApiError) {
        let text = format!("Error opening log stream for pod {}. Error: {error}", self.place());
        match error {
            ApiError::Forbidden(_) | ApiError::Quota(_) | ApiError::Conflict(_) => {
                return self.fail(now, text);
            }
            ApiError::NotFound(_) | ApiError::Rejected(_) => self.look_soon(),
            ApiError::Unreachable(_) | ApiError::Busy { .. } | ApiError::Unauthorized(_) => {}
        }
        self.reader.note_gap();
        self.note_outage(now, Channel::Log, text);
        self.pause_log(now, error.retry_after().unwrap_or_default());
    }

    fn pause_log(&mut self, now: Instant, at_least: Duration) {
        self.stdout.step = Step::Paused;
        let pause = self.stdout.pauses.next(&mut self.dice).max(at_least);
        self.timers.set(Timer::Log, now + pause);
    }

    pub(super) fn on_log(&mut self, now: Instant, bytes: &[u8], out: &mut Vec<u8>) -> Took {
        let took = match self.reader.read(bytes, out) {
            Ok(took) => took,
            Err(_) if self.stdout.parked.is_some() => {
                self.return_to_parked(now);
                return Took::default();
            }
            Err(lost) => {
                self.fail(now, format!("Error with pod's stdout: {lost}"));
                return Took::default();
            }
        };
        if took.is_new {
            self.note_output(now);
        }
        if let Some(said) = &took.foreign {
            self.on_foreign(now, said);
        }
        took
    }

    fn note_output(&mut self, now: Instant) {
        if let Step::Reading(stream) = &mut self.stdout.step {
            stream.has_new = true;
        }
        self.stdout.has_output = true;
        self.stdout.reopens.reset();
        self.stdout.pauses.reset();
        self.outages.log = None;
        self.review_outages();
        self.stdin_delivered();
        if self.timers.runs(Timer::Linger) {
            self.timers.set(Timer::Linger, now + LINGER);
        }
    }

    /// Kubelet or API server speak in place of the log.
    fn on_foreign(&mut self, now: Instant, said: &str) {
        let Some(id) = self.stdout.reads() else { return };
        if self.stdout.parked.is_some() {
            return self.return_to_parked(now);
        }
        self.ask(Request::CloseLog(id));
        self.reader.close(StreamEnd::Broken);
        self.tell_foreign(now, said);
        self.go_on_after_break(now);
    }

    fn tell_foreign(&mut self, now: Instant, said: &str) {
        if self.state == State::Running {
            self.set(State::Running, format!("Pod Running: {said}"));
        }
        self.note_outage(now, Channel::Log, format!("Error with pod's stdout: {said}"));
    }

    pub(super) fn on_log_ended(&mut self, now: Instant, end: StreamEnd) {
        let Step::Reading(stream) = self.stdout.step else { return };
        self.stdout.step = Step::Paused;
        let completes = end == StreamEnd::InOrder && (stream.is_rest || self.is_gone && self.ended.is_some());
        let joins = self.reader.complete();
        let parked = self.stdout.parked.is_some();
        if parked && (end == StreamEnd::Broken || joins.is_err()) {
            return self.return_to_parked(now);
        }
        if let Some(said) = self.reader.close(end) {
            if parked {
                return self.return_to_parked(now);
            }
            self.tell_foreign(now, &said);
            return self.go_on_after_break(now);
        }
        match (end, joins) {
            (StreamEnd::InOrder, Ok(())) if completes => self.log_complete(now),
            (StreamEnd::InOrder, Err(lost)) if completes => {
                self.fail(now, format!("Error with pod's stdout: {lost}"))
            }
            (StreamEnd::InOrder, _) => self.go_on_after_end(now, stream.has_new),
            (StreamEnd::Broken, _) => {
                if self.ended.is_some() && !stream.has_new {
                    let text =
                        format!("Error with pod's stdout: the log stream of pod {} breaks off", self.place());
                    self.note_outage(now, Channel::Log, text);
                }
                self.go_on_after_break(now);
            }
        }
    }

    /// A stream was ended in order, which says nothing: the log was rotated, something was idle, `worker` has ended.
    fn go_on_after_end(&mut self, now: Instant, has_new: bool) {
        self.timers.stop(Timer::Linger);
        if self.is_gone {
            return self.conclude_gone(now);
        }
        if self.ended.is_some() {
            return self.open_log(now);
        }
        if !has_new && self.stdout.reopens.failures() > 1 {
            self.look_soon();
        }
        let pause = self.stdout.reopens.next(&mut self.dice);
        self.timers.set(Timer::Log, now + pause);
    }

    fn go_on_after_break(&mut self, now: Instant) {
        self.timers.stop(Timer::Linger);
        if self.is_gone {
            return self.conclude_gone(now);
        }
        self.pause_log(now, Duration::ZERO);
    }

    /// The stream that should have brought the rest did not: the one set aside is read, if nothing came of the other.
    fn return_to_parked(&mut self, now: Instant) {
        let parked = self.stdout.parked.take();
        if let Step::Opening(stream) | Step::Reading(stream) = self.stdout.step {
            self.ask(Request::CloseLog(stream.id));
        }
        match parked {
            Some(id) if self.reader.unpark() => {
                self.stdout.step = Step::Reading(Stream { id, is_rest: false, has_new: false });
                self.timers.set(Timer::Linger, now + LINGER);
            }
            Some(id) => {
                self.ask(Request::CloseLog(id));
                self.pause_log(now, Duration::ZERO);
            }
            None => self.pause_log(now, Duration::ZERO),
        }
    }

    /// `worker` has ended, and its log stream neither brings anything nor ends.
    pub(super) fn stop_lingering(&mut self, now: Instant) {
        if self.settings.method == StreamMethod::Tcp {
            return self.stop_lingering_for_tcp(now);
        }
        if self.stdout.reads().is_some() {
            self.reader.close(StreamEnd::Broken);
        }
        for stream in self.stdout.take_open() {
            self.ask(Request::CloseLog(stream));
        }
        self.open_log(now);
    }

    fn log_complete(&mut self, now: Instant) {
        self.timers.stop(Timer::Linger);
        self.finish(now);
    }
}
