//! Follows `worker`'s log: opens streams, resumes after each end, and decides when all of it is read. The end of a
//! stream is not the end of the log. A stream was the whole rest only if it ended in order, and was requested after
//! `worker` had ended or outlived the pod.
//!
//! A kubelet notices a container's end about a second late in a following stream. So once `worker` has ended,
//! the following stream is parked while another one reads the rest. If the log was rotated meanwhile, and the
//! other stream does not join what was written, the parked one is read to its end after all.

use std::time::{Duration, Instant};

use super::end::OutageOf;
use super::{ApiRequest, BackOff, LONGEST_PAUSE, Machine, StreamId, Timer};
use crate::pods::api_error::ApiError;
use crate::pods::log::{LostLines, StreamEnd, Took};
use crate::pods::options::StreamMethod;
use crate::rpc::UnitState as State;

/// The first and the longest delay after a stream that ended in order.
const REOPEN: Duration = Duration::from_millis(200);
const REOPEN_LONGEST: Duration = Duration::from_secs(5);
/// For how long after `worker`'s end a kubelet may say that there is no log. After that it has removed the container.
const LOG_GONE_AFTER: Duration = Duration::from_secs(30);
/// How long a silent following stream stays open after `worker` has ended.
const LINGER: Duration = Duration::from_secs(30);

/// The log streams.
#[derive(Debug)]
pub(super) struct Stdout {
    step: LogStep,
    last: u32,
    parked: Option<StreamId>,
    /// Delays after ends in order, and after failures.
    reopens: BackOff,
    pauses: BackOff,
    has_output: bool,
    /// Since when only messages have come instead of the log, after `worker`'s end.
    without_log: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LogStep {
    /// `worker` has not run.
    Unopened,
    Opening(OpenStream),
    Reading(OpenStream),
    Paused,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct OpenStream {
    id: StreamId,
    /// It was requested after `worker` had ended.
    is_rest: bool,
    /// It delivered something new.
    has_new: bool,
}

impl Stdout {
    pub(super) fn new(first: Duration) -> Self {
        Self {
            step: LogStep::Unopened,
            last: 0,
            parked: None,
            reopens: BackOff::new(REOPEN, REOPEN_LONGEST),
            pauses: BackOff::new(first, LONGEST_PAUSE),
            has_output: false,
            without_log: None,
        }
    }

    pub(super) fn is_unopened(&self) -> bool {
        self.step == LogStep::Unopened
    }

    /// Whether `worker` has printed anything since this daemon began to follow it.
    pub(super) fn has_output(&self) -> bool {
        self.has_output
    }

    /// The stream that is being read.
    pub(super) fn reads(&self) -> Option<StreamId> {
        match self.step {
            LogStep::Reading(stream) => Some(stream.id),
            LogStep::Unopened | LogStep::Opening(_) | LogStep::Paused => None,
        }
    }

    /// Takes the streams that are open or being opened, and forgets them.
    pub(super) fn take_open(&mut self) -> Vec<StreamId> {
        let current = match std::mem::replace(&mut self.step, LogStep::Paused) {
            LogStep::Opening(stream) | LogStep::Reading(stream) => Some(stream.id),
            LogStep::Unopened | LogStep::Paused => None,
        };
        current.into_iter().chain(self.parked.take()).collect()
    }
}

impl Machine {
    /// `worker` runs or has ended, and its log was never opened.
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
        self.stdout.step = LogStep::Opening(OpenStream { id, is_rest, has_new: false });
        self.ask(ApiRequest::OpenLog { stream: id, since: self.reader.since(), follow: !is_rest });
    }

    /// `worker` has ended: reads the rest of its log.
    pub(super) fn read_rest(&mut self, now: Instant) {
        match self.stdout.step {
            LogStep::Unopened | LogStep::Paused => self.open_log(now),
            LogStep::Reading(stream) if self.reader.has_anchor() => {
                self.reader.park();
                self.stdout.parked = Some(stream.id);
                self.open_log(now);
            }
            LogStep::Opening(stream) => {
                self.ask(ApiRequest::CloseLog(stream.id));
                self.open_log(now);
            }
            // Without a line to find again, nobody can say whether another stream is complete.
            LogStep::Reading(_) => self.timers.set(Timer::Linger, now + LINGER),
        }
    }

    pub(super) fn on_log_opened(&mut self, now: Instant, id: StreamId, answer: Result<(), ApiError>) {
        let LogStep::Opening(stream) = self.stdout.step else { return };
        if stream.id != id {
            return;
        }
        match answer {
            Ok(()) => {
                self.stdout.step = LogStep::Reading(stream);
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
        let text = format!("Error opening log stream for pod {}. Error: {error}", self.pod_path());
        match error {
            ApiError::Forbidden(_) | ApiError::Quota(_) | ApiError::Conflict(_) => {
                return self.fail(now, text);
            }
            ApiError::NotFound(_) | ApiError::Rejected(_) => self.get_pod_soon(),
            ApiError::Unreachable(_) | ApiError::Busy { .. } | ApiError::Unauthorized(_) => {}
        }
        self.reader.note_gap();
        self.note_outage(now, OutageOf::Log, text);
        self.pause_log(now, error.retry_after().unwrap_or_default());
    }

    fn pause_log(&mut self, now: Instant, at_least: Duration) {
        self.stdout.step = LogStep::Paused;
        let pause = self.stdout.pauses.next_with(&mut self.random).max(at_least);
        self.timers.set(Timer::Log, now + pause);
    }

    pub(super) fn on_log(&mut self, now: Instant, took: Result<Took, LostLines>) -> Took {
        let took = match took {
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
        took
    }

    fn note_output(&mut self, now: Instant) {
        if let LogStep::Reading(stream) = &mut self.stdout.step {
            stream.has_new = true;
        }
        self.stdout.has_output = true;
        self.stdout.without_log = None;
        self.stdout.reopens.reset();
        self.stdout.pauses.reset();
        self.outages.log = None;
        self.review_outages();
        self.stdin_delivered();
        if self.timers.runs(Timer::Linger) {
            self.timers.set(Timer::Linger, now + LINGER);
        }
    }

    /// The kubelet or API server sent a message instead of the log.
    fn on_message(&mut self, now: Instant, said: &str) {
        if self.ended.is_some() {
            let since = *self.stdout.without_log.get_or_insert(now);
            if now.duration_since(since) >= LOG_GONE_AFTER {
                return self.fail_without_log(now, said);
            }
        }
        if self.state == State::Running {
            self.set(State::Running, format!("Pod Running: {said}"));
        }
        self.note_outage(now, OutageOf::Log, format!("Error with pod's stdout: {said}"));
        self.go_on_after_break(now);
    }

    pub(super) fn on_log_ended(&mut self, now: Instant, end: StreamEnd) {
        let LogStep::Reading(stream) = self.stdout.step else { return };
        self.stdout.step = LogStep::Paused;
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
            return self.on_message(now, &said);
        }
        match (end, joins) {
            (StreamEnd::InOrder, Ok(())) if completes => self.log_complete(now),
            (StreamEnd::InOrder, Err(lost)) if completes => {
                self.fail(now, format!("Error with pod's stdout: {lost}"))
            }
            (StreamEnd::InOrder, _) => self.go_on_after_end(now, stream.has_new),
            (StreamEnd::Broken, _) => {
                if self.ended.is_some() && !stream.has_new {
                    let text = format!(
                        "Error with pod's stdout: the log stream of pod {} breaks off",
                        self.pod_path()
                    );
                    self.note_outage(now, OutageOf::Log, text);
                }
                self.go_on_after_break(now);
            }
        }
    }

    /// A stream ended in order. The reason is unknown: the log was rotated, the stream was idle, or `worker` has ended.
    fn go_on_after_end(&mut self, now: Instant, has_new: bool) {
        self.timers.stop(Timer::Linger);
        if self.is_gone {
            return self.conclude_gone(now);
        }
        if self.ended.is_some() {
            return self.open_log(now);
        }
        if !has_new && self.stdout.reopens.failures() > 1 {
            self.get_pod_soon();
        }
        let pause = self.stdout.reopens.next_with(&mut self.random);
        self.timers.set(Timer::Log, now + pause);
    }

    fn go_on_after_break(&mut self, now: Instant) {
        self.timers.stop(Timer::Linger);
        if self.is_gone {
            return self.conclude_gone(now);
        }
        self.pause_log(now, Duration::ZERO);
    }

    /// The stream for the rest failed. If it delivered nothing new, the parked stream is read on.
    fn return_to_parked(&mut self, now: Instant) {
        let parked = self.stdout.parked.take();
        if let LogStep::Opening(stream) | LogStep::Reading(stream) = self.stdout.step {
            self.ask(ApiRequest::CloseLog(stream.id));
        }
        match parked {
            Some(id) if self.reader.unpark() => {
                self.stdout.step = LogStep::Reading(OpenStream { id, is_rest: false, has_new: false });
                self.timers.set(Timer::Linger, now + LINGER);
            }
            Some(id) => {
                self.ask(ApiRequest::CloseLog(id));
                self.pause_log(now, Duration::ZERO);
            }
            None => self.pause_log(now, Duration::ZERO),
        }
    }

    /// `worker` has ended, and its log stream neither delivers anything nor ends.
    pub(super) fn stop_lingering(&mut self, now: Instant) {
        if self.settings.method == StreamMethod::Tcp {
            return self.stop_lingering_for_tcp(now);
        }
        if self.stdout.reads().is_some() {
            self.reader.close(StreamEnd::Broken);
        }
        for stream in self.stdout.take_open() {
            self.ask(ApiRequest::CloseLog(stream));
        }
        self.open_log(now);
    }

    fn log_complete(&mut self, now: Instant) {
        self.timers.stop(Timer::Linger);
        self.finish(now);
    }
}
