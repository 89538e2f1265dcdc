//! Deletes the pod. This continues after the unit's end and across failures, until the API server confirms
//! that this very pod is gone. It never deletes anybody else's pod: each request contains the UID, and if the
//! UID is unknown, the labels are checked first.

use std::time::{Duration, Instant};

use super::{ApiRequest, BackOff, Machine, MachineOutput, Timer};
use crate::pods::api_error::ApiError;
use crate::pods::pod_status::PodSeen;

/// The first and the longest delay between attempts.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// The progress of the pod's deletion.
#[derive(Debug)]
pub(super) struct Removal {
    step: RemovalStep,
    pauses: BackOff,
    release: Option<Release>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RemovalStep {
    /// Not wanted.
    Unwanted,
    /// Waiting for the answer to the create, which shows whether there is anything to delete.
    AwaitingCreate,
    /// Getting the pod, as its UID is unknown.
    Looking,
    /// Deletion requested.
    Deleting,
    /// Waiting before another attempt.
    Paused,
    /// The pod does not exist.
    Done,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Release {
    /// Wait until it is done.
    Patient,
    /// The client was informed that it takes longer.
    Pending,
    /// Make one attempt.
    Forced,
    /// The unit is released.
    Over,
}

impl Removal {
    pub(super) fn new() -> Self {
        Self { step: RemovalStep::Unwanted, pauses: BackOff::new(FIRST_PAUSE, LONGEST_PAUSE), release: None }
    }

    /// Whether no request is under way.
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.step, RemovalStep::Unwanted | RemovalStep::Done)
    }

    /// A pod was seen.
    pub(super) fn pod_exists(&mut self) {
        if self.step == RemovalStep::Done {
            self.step = RemovalStep::Unwanted;
        }
    }
}

impl Machine {
    /// Requests the pod's deletion.
    pub(super) fn want_removal(&mut self, now: Instant) {
        if self.removal.step == RemovalStep::Unwanted {
            self.remove(now);
        }
    }

    /// Takes the next step of the deletion.
    pub(super) fn remove(&mut self, now: Instant) {
        self.timers.stop(Timer::Delete);
        if self.create.is_asked() {
            self.removal.step = RemovalStep::AwaitingCreate;
        } else if !self.record.pod_uid.is_empty() {
            self.removal.step = RemovalStep::Deleting;
            self.ask(ApiRequest::Delete(self.record.pod_uid.clone()));
        } else if self.may_have_pod() {
            self.removal.step = RemovalStep::Looking;
            self.get_pod();
        } else {
            self.removed(now);
        }
    }

    /// Whether there may be a pod with the unit's own name and an unknown UID.
    fn may_have_pod(&self) -> bool {
        !self.record.adopted && self.create.may_exist()
    }

    pub(super) fn on_pod_for_removal(&mut self, now: Instant, answer: Result<PodSeen, ApiError>) {
        if self.removal.step != RemovalStep::Looking {
            return;
        }
        match answer {
            Ok(pod) if pod.owner.as_ref() == Some(&self.settings.owner) => {
                self.record.pod_uid = pod.uid;
                self.remove(now);
            }
            // The pod is somebody else's, or does not exist.
            Ok(_) | Err(ApiError::NotFound(_)) => self.removed(now),
            Err(error) => self.pause_removal(now, &error.to_string(), Duration::ZERO),
        }
    }

    pub(super) fn on_deleted(&mut self, now: Instant, answer: Result<(), ApiError>) {
        if self.removal.step != RemovalStep::Deleting {
            return;
        }
        match answer {
            Ok(()) | Err(ApiError::NotFound(_)) => self.removed(now),
            // Another pod has the name now, from a create whose answer was lost or from somebody else.
            Err(ApiError::Conflict(_)) if !self.record.adopted => {
                self.record.pod_uid.clear();
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
        self.removal.step = RemovalStep::Paused;
        match self.removal.release {
            Some(Release::Forced) => return self.give_up(),
            Some(Release::Patient) => {
                self.removal.release = Some(Release::Pending);
                self.outputs.push_back(MachineOutput::ReleasePending(why.to_owned()));
            }
            Some(Release::Pending | Release::Over) | None => {}
        }
        let pause = self.removal.pauses.next_with(&mut self.random).max(at_least);
        self.timers.set(Timer::Delete, now + pause);
    }

    /// The API server knows no such pod, and will not create one any more.
    pub(super) fn removed(&mut self, now: Instant) {
        if let Some(until) = self.create.in_doubt_until().filter(|until| *until > now) {
            // Another pod would have another UID.
            self.record.pod_uid.clear();
            return self.pause_removal(
                now,
                "a create whose answer was lost may still be carried out",
                until - now,
            );
        }
        self.timers.stop(Timer::Delete);
        self.removal.step = RemovalStep::Done;
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
            RemovalStep::Done => self.end_release(true),
            RemovalStep::AwaitingCreate | RemovalStep::Looking | RemovalStep::Deleting => {}
            // Make one attempt for the waiting client.
            RemovalStep::Unwanted | RemovalStep::Paused => self.remove(now),
        }
    }

    pub(super) fn give_up(&mut self) {
        if self.removal.release.is_some() {
            self.timers.stop(Timer::Delete);
            self.end_release(false);
        }
    }

    fn end_release(&mut self, is_gone: bool) {
        self.removal.step = RemovalStep::Done;
        if self.removal.release.replace(Release::Over) != Some(Release::Over) {
            self.timers.stop(Timer::GiveUp);
            self.outputs.push_back(MachineOutput::Released { is_gone });
        }
    }
}
