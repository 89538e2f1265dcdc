//! Sends stdin, once. The container's stdin closes with the first stream attached to it, so only a stream
//! that never reached the container may be opened again. An attach is recorded durably before it is
//! requested.

use std::time::{Duration, Instant};

use super::end::OutageOf;
use super::{ApiRequest, AttachNews, BackOff, LONGEST_PAUSE, Machine, Timer};
use crate::pods::api_error::ApiError;
use crate::rpc::UnitState as State;

/// How long to wait for the server's status after stdin was sent.
const STATUS_WITHIN: Duration = Duration::from_secs(60);
/// How long to wait for `worker`'s end after stdin broke off, because that end is the usual reason.
const VERDICT_WITHIN: Duration = Duration::from_secs(5);

/// The progress of stdin.
#[derive(Debug)]
pub(super) struct Stdin {
    step: StdinStep,
    pauses: BackOff,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum StdinStep {
    /// There is nothing to send.
    Nothing,
    /// `worker` does not run yet.
    Waiting,
    /// A stream is being opened.
    Opening,
    /// Waiting before another attempt to open it.
    Paused,
    Sending,
    /// Sent; waiting for the server's status.
    Sent,
    Delivered,
    /// It broke off, for this reason.
    Broken(String),
    /// `worker` ended without reading it.
    Undelivered,
}

impl Stdin {
    pub(super) fn new(is_there: bool, first: Duration) -> Self {
        let step = if is_there { StdinStep::Waiting } else { StdinStep::Nothing };
        Self { step, pauses: BackOff::new(first, LONGEST_PAUSE) }
    }

    /// An earlier daemon sent stdin.
    pub(super) fn assume_delivered(&mut self) {
        if self.step != StdinStep::Nothing {
            self.step = StdinStep::Delivered;
        }
    }

    /// Whether a stream is open or being opened.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.step, StdinStep::Opening | StdinStep::Sending | StdinStep::Sent)
    }

    /// Whether `worker` ended before stdin was known to be delivered.
    pub(super) fn is_undelivered(&self) -> bool {
        self.step == StdinStep::Undelivered
    }
}

impl Machine {
    /// `worker` runs and reads stdin.
    pub(super) fn worker_takes_stdin(&mut self, now: Instant) {
        match self.stdin.step {
            StdinStep::Nothing => self.set(State::Running, "Pod Running"),
            StdinStep::Waiting if self.record.stdin_begun => {
                self.stdin.step = StdinStep::Broken("the daemon ended while it was being sent".into());
                self.fail_stdin(now);
            }
            StdinStep::Waiting => self.attach(now),
            StdinStep::Opening
            | StdinStep::Paused
            | StdinStep::Sending
            | StdinStep::Sent
            | StdinStep::Delivered
            | StdinStep::Broken(_)
            | StdinStep::Undelivered => {}
        }
    }

    pub(super) fn attach(&mut self, _now: Instant) {
        self.stdin.step = StdinStep::Opening;
        self.record.stdin_begun = true;
        self.set(State::Pending, "Sending stdin to pod");
        self.ask(ApiRequest::Attach);
    }

    pub(super) fn on_attach(&mut self, now: Instant, news: AttachNews) {
        match (&self.stdin.step, news) {
            (StdinStep::Opening, AttachNews::Opened) => {
                self.stdin.step = StdinStep::Sending;
                self.ask(ApiRequest::SendStdin);
            }
            (StdinStep::Opening | StdinStep::Sending | StdinStep::Sent, AttachNews::Refused(error)) => {
                self.on_refused(now, &error)
            }
            (StdinStep::Sending, AttachNews::Sent) => {
                self.outages.attach = None;
                self.review_outages();
                self.stdin.step = StdinStep::Sent;
                self.timers.set(Timer::StdinStatus, now + STATUS_WITHIN);
                if self.stdout.has_output() {
                    self.stdin_delivered();
                }
            }
            (StdinStep::Sent, AttachNews::Succeeded) => self.stdin_delivered(),
            (StdinStep::Sending | StdinStep::Opening, AttachNews::Succeeded) => {
                self.on_broken(now, "container worker closed its stdin before all of it was sent".into());
            }
            (StdinStep::Opening | StdinStep::Sending | StdinStep::Sent, AttachNews::Failed(cause)) => {
                self.on_broken(now, cause)
            }
            // From a stream that is no longer in use.
            (
                StdinStep::Nothing
                | StdinStep::Waiting
                | StdinStep::Paused
                | StdinStep::Delivered
                | StdinStep::Broken(_)
                | StdinStep::Undelivered,
                _,
            )
            | (StdinStep::Sending | StdinStep::Sent, AttachNews::Opened)
            | (StdinStep::Opening | StdinStep::Sent, AttachNews::Sent) => {}
        }
    }

    fn on_refused(&mut self, now: Instant, error: &ApiError) {
        match error {
            ApiError::Forbidden(_) | ApiError::Quota(_) | ApiError::Conflict(_) => {
                self.stdin.step = StdinStep::Broken(error.to_string());
                return self.fail_stdin(now);
            }
            // Most often the container has ended, and the watch will report it.
            ApiError::NotFound(_) | ApiError::Rejected(_) => self.get_pod_soon(),
            ApiError::Unreachable(_) | ApiError::Busy { .. } | ApiError::Unauthorized(_) => {}
        }
        self.stdin.step = StdinStep::Paused;
        self.timers.stop(Timer::StdinStatus);
        let text = format!("Error streaming stdin to pod {}. Error: {error}", self.pod_path());
        self.note_outage(now, OutageOf::Attach, text);
        let pause =
            self.stdin.pauses.next_with(&mut self.random).max(error.retry_after().unwrap_or_default());
        self.timers.set(Timer::Attach, now + pause);
        self.set(State::Pending, format!("Sending stdin to pod: {error}"));
    }

    fn on_broken(&mut self, now: Instant, cause: String) {
        self.timers.stop(Timer::StdinStatus);
        self.stdin.step = StdinStep::Broken(cause);
        self.timers.set(Timer::Verdict, now + VERDICT_WITHIN);
        self.get_pod_soon();
    }

    /// All of stdin is delivered, as far as anybody can tell.
    pub(super) fn stdin_delivered(&mut self) {
        if self.stdin.step == StdinStep::Sent {
            self.stdin.step = StdinStep::Delivered;
            self.timers.stop(Timer::StdinStatus);
            self.set(State::Running, "Pod Running");
        }
    }

    /// `worker` has ended, so nothing more is sent.
    pub(super) fn stop_stdin(&mut self) {
        self.timers.stop(Timer::Attach);
        self.timers.stop(Timer::Verdict);
        self.timers.stop(Timer::StdinStatus);
        if self.stdin.is_open() {
            self.ask(ApiRequest::CloseAttach);
        }
        self.outages.attach = None;
        self.review_outages();
        self.stdin.step = match std::mem::replace(&mut self.stdin.step, StdinStep::Nothing) {
            StdinStep::Nothing => StdinStep::Nothing,
            StdinStep::Sent | StdinStep::Delivered => StdinStep::Delivered,
            StdinStep::Waiting
            | StdinStep::Opening
            | StdinStep::Paused
            | StdinStep::Sending
            | StdinStep::Broken(_)
            | StdinStep::Undelivered => StdinStep::Undelivered,
        };
    }

    pub(super) fn fail_stdin(&mut self, now: Instant) {
        if let StdinStep::Broken(cause) = &self.stdin.step {
            let text = format!("Error streaming stdin to pod {}. Error: {cause}", self.pod_path());
            self.fail(now, text);
        }
    }
}
