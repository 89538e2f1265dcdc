//! Sending stdin, once. The container's stdin closes with the first stream that was attached to it, so only a stream
//! that never reached the container may be opened again. That one was asked for is durable before it is.

use std::time::{Duration, Instant};

use super::end::Channel;
use super::{AttachNews, BackOff, LONGEST_PAUSE, Machine, Request, Timer};
use crate::work::kubernetes::api_error::ApiError;
use crate::work::unit::State;

/// How long the server's word on a stdin that was sent is waited for.
const STATUS_WITHIN: Duration = Duration::from_secs(60);
/// How long `worker`'s end is waited for where stdin broke off: most often that is why.
const VERDICT_WITHIN: Duration = Duration::from_secs(5);

/// How far stdin is.
#[derive(Debug)]
pub(super) struct Stdin {
    step: Step,
    pauses: BackOff,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    /// Nothing is to be sent.
    Nothing,
    /// `worker` does not run yet.
    Waiting,
    /// A stream is being opened.
    Opening,
    /// It could not be opened and will be again.
    Paused,
    /// It is being sent.
    Sending,
    /// It was sent; the server's word is missing.
    Sent,
    /// It has arrived.
    Delivered,
    /// It broke off for this cause.
    Broken(String),
    /// `worker` has ended without having read it.
    Undelivered,
}

impl Stdin {
    pub(super) fn new(is_there: bool, first: Duration) -> Self {
        let step = if is_there { Step::Waiting } else { Step::Nothing };
        Self { step, pauses: BackOff::new(first, LONGEST_PAUSE) }
    }

    /// An earlier daemon has sent it.
    pub(super) fn assume_delivered(&mut self) {
        if self.step != Step::Nothing {
            self.step = Step::Delivered;
        }
    }

    /// There is a stream, or will be.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.step, Step::Opening | Step::Sending | Step::Sent)
    }

    /// `worker` has ended before it was known to have got it.
    pub(super) fn is_undelivered(&self) -> bool {
        self.step == Step::Undelivered
    }
}

impl Machine {
    /// `worker` runs, and reads.
    pub(super) fn worker_takes_stdin(&mut self, now: Instant) {
        match self.stdin.step {
            Step::Nothing => self.set(State::Running, "Pod Running"),
            Step::Waiting if self.facts.stdin_begun => {
                self.stdin.step = Step::Broken("the daemon ended while it was being sent".into());
                self.fail_stdin(now);
            }
            Step::Waiting => self.attach(now),
            Step::Opening
            | Step::Paused
            | Step::Sending
            | Step::Sent
            | Step::Delivered
            | Step::Broken(_)
            | Step::Undelivered => {}
        }
    }

    pub(super) fn attach(&mut self, _now: Instant) {
        self.stdin.step = Step::Opening;
        self.facts.stdin_begun = true;
        self.set(State::Pending, "Sending stdin to pod");
        self.ask(Request::Attach);
    }

    pub(super) fn on_attach(&mut self, now: Instant, news: AttachNews) {
        match (&self.stdin.step, news) {
            (Step::Opening, AttachNews::Opened) => {
                self.stdin.step = Step::Sending;
                self.ask(Request::SendStdin);
            }
            (Step::Opening | Step::Sending | Step::Sent, AttachNews::Refused(error)) => {
                self.on_refused(now, &error)
            }
            (Step::Sending, AttachNews::Sent) => {
                self.outages.attach = None;
                self.review_outages();
                self.stdin.step = Step::Sent;
                self.timers.set(Timer::StdinStatus, now + STATUS_WITHIN);
                if self.stdout.has_output() {
                    self.stdin_delivered();
                }
            }
            (Step::Sent, AttachNews::Succeeded) => self.stdin_delivered(),
            (Step::Sending | Step::Opening, AttachNews::Succeeded) => {
                self.on_broken(now, "container worker closed its stdin before all of it was sent".into());
            }
            (Step::Opening | Step::Sending | Step::Sent, AttachNews::Failed(cause)) => {
                self.on_broken(now, cause)
            }
            // From a stream that nobody waits for any more.
            (
                Step::Nothing
                | Step::Waiting
                | Step::Paused
                | Step::Delivered
                | Step::Broken(_)
                | Step::Undelivered,
                _,
            )
            | (Step::Sending | Step::Sent, AttachNews::Opened)
            | (Step::Opening | Step::Sent, AttachNews::Sent) => {}
        }
    }

    fn on_refused(&mut self, now: Instant, error: &ApiError) {
        match error {
            ApiError::Forbidden(_) | ApiError::Quota(_) | ApiError::Conflict(_) => {
                self.stdin.step = Step::Broken(error.to_string());
                return self.fail_stdin(now);
            }
            // The container has ended, most often, and the watch will say so.
            ApiError::NotFound(_) | ApiError::Rejected(_) => self.look_soon(),
            ApiError::Unreachable(_) | ApiError::Busy { .. } | ApiError::Unauthorized(_) => {}
        }
        self.stdin.step = Step::Paused;
        self.timers.stop(Timer::StdinStatus);
        let text = format!("Error streaming stdin to pod {}. Error: {error}", self.place());
        self.note_outage(now, Channel::Attach, text);
        let pause = self.stdin.pauses.next(&mut self.dice).max(error.retry_after().unwrap_or_default());
        self.timers.set(Timer::Attach, now + pause);
        self.set(State::Pending, format!("Sending stdin to pod: {error}"));
    }

    fn on_broken(&mut self, now: Instant, cause: String) {
        self.timers.stop(Timer::StdinStatus);
        self.stdin.step = Step::Broken(cause);
        self.timers.set(Timer::Verdict, now + VERDICT_WITHIN);
        self.look_soon();
    }

    /// All of stdin has arrived, as far as anybody can tell.
    pub(super) fn stdin_delivered(&mut self) {
        if self.stdin.step == Step::Sent {
            self.stdin.step = Step::Delivered;
            self.timers.stop(Timer::StdinStatus);
            self.set(State::Running, "Pod Running");
        }
    }

    /// `worker` has ended: nothing is sent any more.
    pub(super) fn stop_stdin(&mut self) {
        self.timers.stop(Timer::Attach);
        self.timers.stop(Timer::Verdict);
        self.timers.stop(Timer::StdinStatus);
        if self.stdin.is_open() {
            self.ask(Request::CloseAttach);
        }
        self.outages.attach = None;
        self.review_outages();
        self.stdin.step = match std::mem::replace(&mut self.stdin.step, Step::Nothing) {
            Step::Nothing => Step::Nothing,
            Step::Sent | Step::Delivered => Step::Delivered,
            Step::Waiting
            | Step::Opening
            | Step::Paused
            | Step::Sending
            | Step::Broken(_)
            | Step::Undelivered => Step::Undelivered,
        };
    }

    pub(super) fn fail_stdin(&mut self, now: Instant) {
        if let Step::Broken(cause) = &self.stdin.step {
            let text = format!("Error streaming stdin to pod {}. Error: {cause}", self.place());
            self.fail(now, text);
        }
    }
}
