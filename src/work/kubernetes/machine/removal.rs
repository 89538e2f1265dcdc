//! Deleting the pod, which has its own life beside the unit's: it goes on after the unit's end, across failures, and
//! is finished when the API server has confirmed that this very pod is gone. Nobody else's pod is ever deleted: the
//! UID goes with the request, and where it is not known, the labels are looked at first.

use std::time::{Duration, Instant};

use super::{BackOff, Machine, Output, Request, Timer};
use crate::work::kubernetes::api_error::ApiError;
use crate::work::kubernetes::pod_status::PodSeen;

/// The first and the longest pause between attempts.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// How far the pod's deletion is.
#[derive(Debug)]
pub(super) struct Removal {
    step: Step,
    pauses: BackOff,
    release: Option<Release>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// It is not wanted.
    Unwanted,
    /// The answer to the create is awaited, which says whether there is anything to delete.
    AwaitingCreate,
    /// It is looked at, as its UID is not known.
    Looking,
    /// Its deletion was asked for.
    Deleting,
    /// It will be tried again.
    Paused,
    /// There is no such pod.
    Done,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Release {
    /// Until it is done.
    Patient,
    /// The client knows that it takes longer.
    Pending,
    /// One attempt.
    Forced,
    /// The unit is released.
    Over,
}

impl Removal {
    pub(super) fn new() -> Self {
        Self { step: Step::Unwanted, pauses: BackOff::new(FIRST_PAUSE, LONGEST_PAUSE), release: None }
    }

    /// Nothing is under way.
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.step, Step::Unwanted | Step::Done)
    }

    /// A pod was seen.
    pub(super) fn pod_exists(&mut self) {
        if self.step == Step::Done {
            self.step = Step::Unwanted;
        }
    }
}

impl Machine {
    /// The pod is to go.
    pub(super) fn want_removal(&mut self, now: Instant) {
        if self.removal.step == Step::Unwanted {
            self.remove(now);
        }
    }

    /// Takes the next step towards the pod's deletion.
    pub(super) fn remove(&mut self, now: Instant) {
        self.timers.stop(Timer::Delete);
        if self.create.is_asked() {
            self.removal.step = Step::AwaitingCreate;
        } else if !self.facts.pod_uid.is_empty() {
            self.removal.step = Step::Deleting;
            self.ask(Request::Delete(self.facts.pod_uid.clone()));
        } else if self.may_have_pod() {
            self.removal.step = Step::Looking;
            self.look();
        } else {
            self.removed(now);
        }
    }

    /// Whether there may be a pod of the unit's own name whose UID is not known.
    fn may_have_pod(&self) -> bool {
        !self.facts.adopted && self.create.may_exist()
    }

    pub(super) fn on_looked_for_removal(&mut self, now: Instant, answer: Result<PodSeen, ApiError>) {
        if self.removal.step != Step::Looking {
            return;
        }
        match answer {
            Ok(pod) if pod.owner.as_ref() == Some(&self.settings.owner) => {
                self.facts.pod_uid = pod.uid;
                self.remove(now);
            }
            // Somebody else's, or none.
            Ok(_) | Err(ApiError::NotFound(_)) => self.removed(now),
            Err(error) => self.pause_removal(now, &error.to_string(), Duration::ZERO),
        }
    }

    pub(super) fn on_deleted(&mut self, now: Instant, answer: Result<(), ApiError>) {
        if self.removal.step != Step::Deleting {
            return;
        }
        match answer {
            Ok(()) | Err(ApiError::NotFound(_)) => self.removed(now),
            // Another pod has the name now: by a create whose answer was lost, or from somebody else.
            Err(ApiError::Conflict(_)) if !self.facts.adopted => {
                self.facts.pod_uid.clear();
                self.remove(now);
            }
            Err(ApiError::Conflict(_)) => self.removed(now),
            Err(error) => {
                let after = error.retry_after().unwrap_or_default();
                self.pause_removal(now, &error.to_string(), after);
            }
        }
    }

    fn pause_removal(&mut self, now: Instant, why: &str, at_least: Duration) {
        self.removal.step = Step::Paused;
        match self.removal.release {
            Some(Release::Forced) => return self.give_up(),
            Some(Release::Patient) => {
                self.removal.release = Some(Release::Pending);
                self.outputs.push_back(Output::ReleasePending(why.to_owned()));
            }
            Some(Release::Pending | Release::Over) | None => {}
        }
        let pause = self.removal.pauses.next(&mut self.dice).max(at_least);
        self.timers.set(Timer::Delete, now + pause);
    }

    /// The API server knows no such pod, and makes none any more.
    pub(super) fn removed(&mut self, now: Instant) {
        if let Some(until) = self.create.in_doubt_until().filter(|until| *until > now) {
            // Another one would have another UID.
            self.facts.pod_uid.clear();
            return self.pause_removal(
                now,
                "a create whose answer was lost may still be carried out",
                until - now,
            );
        }
        self.timers.stop(Timer::Delete);
        self.removal.step = Step::Done;
        if self.removal.release.is_some() {
            self.end_release(true);
        }
    }

    /// A client releases the unit.
    pub(super) fn release(&mut self, now: Instant, give_up: Instant, force: bool) {
        if self.removal.release == Some(Release::Over) {
            return;
        }
        let was_released = self.removal.release.is_some();
        self.removal.release = Some(match (force, was_released) {
            (true, _) => Release::Forced,
            (false, _) => Release::Patient,
        });
        self.timers.start(Timer::GiveUp, give_up);
        match self.removal.step {
            Step::Done => self.end_release(true),
            Step::AwaitingCreate | Step::Looking | Step::Deleting => {}
            // One attempt is made for the client who waits.
            Step::Unwanted | Step::Paused => self.remove(now),
        }
    }

    pub(super) fn give_up(&mut self) {
        if self.removal.release.is_some() {
            self.timers.stop(Timer::Delete);
            self.end_release(false);
        }
    }

    fn end_release(&mut self, is_gone: bool) {
        self.removal.step = Step::Done;
        if self.removal.release.replace(Release::Over) != Some(Release::Over) {
            self.timers.stop(Timer::GiveUp);
            self.outputs.push_back(Output::Released { is_gone });
        }
    }
}
