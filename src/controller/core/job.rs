//! A job: its state, its attempts, and its transitions.
//!
//! Only the latest attempt of a job counts. A final state never changes, whatever arrives later. Anybody may request a
//! cancel; only the owner may report on attempts, through [`Job::driven_by`], which rejects everybody else. This module
//! knows units by ID only, and nothing of streams or the store.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::attempt::{Attempt, ChildId, Duty, Progress};
use super::driven::Driven;
use super::impact::JobKind;
use super::lease::{Fence, Fenced};
use super::load::Claim;
use super::names::{AttemptNo, InstanceName, JobId, Word};
use super::queue::{Hold, PendingEnd, Placement};
use super::state::JobState;
use super::time::Time;
use super::verdict::Ending;
use crate::os::back_off::BackOff;

/// The delay before a pod that a quota refused is tried again.
pub(crate) const QUOTA_BACK_OFF: BackOff = BackOff::new(Duration::from_secs(30), Duration::from_secs(300));

/// How many attempts in which nothing ran a job remembers. They do not count as retries, so a quota or a refusing
/// instance may add them forever.
const IDLE_ATTEMPTS: usize = 20;

/// When a job is retried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retry {
    /// Attempts after the first one. Attempts in which nothing ran do not count.
    pub max: u32,
    /// Retry after its instance was lost.
    pub on_lost: bool,
    /// Retry after it could not be run.
    pub on_error: bool,
    /// Retry after its playbook failed.
    pub on_failed: bool,
    /// Retry before the lost attempt is known to have ended: for a while the playbook may run twice.
    pub unconfirmed: bool,
}

impl Default for Retry {
    fn default() -> Self {
        Self { max: 0, on_lost: true, on_error: false, on_failed: false, unconfirmed: false }
    }
}

impl Retry {
    fn covers(&self, ending: Ending) -> bool {
        match ending {
            Ending::Lost => self.on_lost,
            Ending::Error => self.on_error,
            Ending::Failed => self.on_failed,
            Ending::Quota | Ending::NotAccepted => true,
            Ending::Successful | Ending::Canceled => false,
        }
    }
}

/// What happens to jobs whose owner restarts or is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OnLoss {
    /// They continue under another owner.
    TakeOver,
    /// They fail, as in AWX.
    Fail,
}

/// A quota refused the pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaWait {
    /// When the pod is tried again, by the store's clock. That may be set meanwhile, so [`Self::left`] decides.
    pub until: Time,
    /// The message of the API server.
    pub words: String,
    /// Refusals in a row.
    pub refusals: u32,
}

impl QuotaWait {
    /// How long it still waits, after an observer has seen it wait for `waited`.
    pub fn left(&self, waited: Duration) -> Duration {
        QUOTA_BACK_OFF.after(self.refusals).saturating_sub(waited)
    }
}

/// Why a transition was rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The writer no longer owns the job.
    #[error(transparent)]
    Fenced(#[from] Fenced),
    /// The job is not pending, or something prevents its placement.
    #[error("job {0} cannot be placed: it is {state}", state = .1.name())]
    NotPlaceable(JobId, JobState),
    /// The attempt is not lost: its instance still counts as alive, or its end is known.
    #[error("attempt {1} of job {0} does not count as lost")]
    NotLost(JobId, AttemptNo),
    /// The job has no such attempt.
    #[error("job {0} has no attempt {1}")]
    NoAttempt(JobId, AttemptNo),
}

/// The life cycle of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Its number.
    pub id: JobId,
    /// What it does.
    pub kind: JobKind,
    /// Its impact.
    pub impact: u32,
    /// Words of which only one running job may hold each.
    pub exclusive: Vec<Word>,
    /// When it is retried.
    pub retry: Retry,
    /// Overrides the time after which its instance counts as lost.
    pub lost_after: Option<Duration>,
    /// Its state.
    pub state: JobState,
    /// A cancel was requested. It is stored before it is passed on.
    pub cancel_requested: bool,
    /// Who may write to it; `None` until it is placed.
    pub fence: Option<Fence>,
    /// In order; only the last one counts.
    pub attempts: Vec<Attempt>,
    /// Why it is in its state, or what it waits for.
    pub explanation: String,
    /// Since when it has been pending, if it is. Attempts in which nothing ran do not interrupt this wait.
    pub pending_since: Time,
    /// Set if a quota refused its last attempt.
    pub quota: Option<QuotaWait>,
    /// When it became final.
    pub finished: Option<Time>,
}

impl Job {
    /// A job that was just submitted.
    pub fn new(id: JobId, kind: JobKind, impact: u32, now: Time) -> Self {
        Self {
            id,
            kind,
            impact,
            exclusive: Vec::new(),
            retry: Retry::default(),
            lost_after: None,
            state: JobState::Pending,
            cancel_requested: false,
            fence: None,
            attempts: Vec::new(),
            explanation: String::new(),
            pending_since: now,
            quota: None,
            finished: None,
        }
    }

    /// The latest attempt.
    pub fn current(&self) -> Option<&Attempt> {
        self.attempts.last()
    }

    /// Whether `n` is its latest attempt, the only one that counts.
    pub fn is_current(&self, n: AttemptNo) -> bool {
        self.current().is_some_and(|current| current.n == n)
    }

    /// The attempt with that number.
    pub fn attempt(&self, n: AttemptNo) -> Option<&Attempt> {
        self.attempts.iter().find(|attempt| attempt.n == n)
    }

    /// Whether its output closes with the reason for its end, because another attempt might have followed.
    pub fn closes_output(&self) -> bool {
        self.retry.max > 0 && self.state != JobState::Successful
    }

    /// Whether a child belongs to one of its attempts.
    pub fn has_child(&self, child: &ChildId) -> bool {
        self.attempts.iter().any(|attempt| attempt.unit == *child)
    }

    /// Why it cannot be placed, if it is pending and something prevents it.
    pub fn hold(&self) -> Option<Hold> {
        let open = self.attempts.iter().find(|attempt| attempt.is_open() && !self.retry.unconfirmed);
        if let Some(attempt) = open {
            return Some(Hold::Attempt { attempt: attempt.n, node: attempt.node.clone() });
        }
        let quota = self.quota.as_ref()?;
        Some(Hold::Quota { until: quota.until, words: quota.words.clone() })
    }

    /// Places it. The attempt exists, with its ID, before anything is sent.
    ///
    /// # Errors
    /// It is not pending, or its previous attempt prevents the placement.
    pub fn place(
        &mut self,
        place: &Placement,
        unit: ChildId,
        fence: Fence,
        now: Time,
    ) -> Result<AttemptNo, Refused> {
        // The pass has already decided whether the job still waits for a quota.
        let held = matches!(self.hold(), Some(Hold::Attempt { .. }));
        if self.state != JobState::Pending || held {
            return Err(Refused::NotPlaceable(self.id, self.state));
        }
        self.forget_idle_attempts();
        let n = self.next_attempt();
        // Another control node may have saved the previous attempt's end after this pass began.
        let former_end = self.current().and_then(|attempt| attempt.ended);
        self.attempts.push(Attempt {
            n,
            unit,
            child: place.child,
            sender: place.owner.clone(),
            node: place.execution_node.clone(),
            group: place.group.clone(),
            progress: Progress::Placed,
            swept: false,
            placed: former_end.map_or(now, |end| end.max(now)),
            started: None,
            ended: None,
            output: None,
            released_by: None,
        });
        self.fence = Some(fence);
        self.state = JobState::Waiting;
        self.explanation = match &place.execution_node {
            Some(node) => format!("Starting on {node}"),
            None => format!("Starting in {}", place.group),
        };
        Ok(n)
    }

    /// Forgets the oldest attempts in which nothing ran, if their units are released; keeps [`IDLE_ATTEMPTS`] of them.
    fn forget_idle_attempts(&mut self) {
        let is_idle = |attempt: &Attempt| {
            attempt.swept && attempt.ending().is_some_and(|ending| !ending.may_have_run())
        };
        let idle = self.attempts.iter().filter(|attempt| is_idle(attempt)).count();
        let mut surplus = idle.saturating_sub(IDLE_ATTEMPTS);
        self.attempts.retain(|attempt| {
            let goes = surplus > 0 && is_idle(attempt);
            surplus -= usize::from(goes);
            !goes
        });
    }

    /// The number of its next attempt.
    pub fn next_attempt(&self) -> AttemptNo {
        AttemptNo(self.current().map_or(1, |attempt| attempt.n.0 + 1))
    }

    /// Requests a cancel. A pending job ends at once; for any other the request is stored and passed on
    /// later. Returns whether anything changed.
    pub fn request_cancel(&mut self, now: Time) -> bool {
        match self.state {
            JobState::Pending => {
                self.cancel_requested = true;
                self.end(JobState::Canceled, "Canceled".into(), now);
                true
            }
            JobState::Waiting | JobState::Running => !std::mem::replace(&mut self.cancel_requested, true),
            JobState::Successful | JobState::Failed | JobState::Error | JobState::Canceled => false,
        }
    }

    /// Fails a job that has not run.
    pub fn fail_pending(&mut self, end: PendingEnd, now: Time) {
        if self.state == JobState::Pending {
            self.end(JobState::Failed, end.to_string(), now);
        }
    }

    /// Every copy of its payload is lost, because an operator declared the last holder dead.
    pub fn on_payload_lost(&mut self, holder: &InstanceName, now: Time) {
        if self.state == JobState::Pending {
            self.end(JobState::Failed, format!("its payload was lost with {holder}"), now);
        }
    }

    /// Checks that the writer is its current owner.
    ///
    /// # Errors
    /// The writer has an older epoch, or is not the owner.
    pub fn driven_by(&mut self, writer: &Fence) -> Result<Driven<'_>, Fenced> {
        if self.fence.as_ref() == Some(writer) { Ok(Driven::new(self)) } else { Err(Fenced(writer.clone())) }
    }

    /// Its owner restarted, or another control node takes it over.
    ///
    /// A child that ran on the lost owner itself is lost with it.
    pub fn take_over(&mut self, heir: Fence, on_loss: OnLoss, now: Time) {
        let former = self.fence.replace(heir.clone());
        if !self.state.is_active() {
            return;
        }
        match (on_loss, former) {
            (OnLoss::Fail, _) => self.end(JobState::Failed, "its control node was lost".into(), now),
            (OnLoss::TakeOver, Some(former)) if former.owner != heir.owner => {
                let was_local = |attempt: &&Attempt| attempt.depends_on_node(&former.owner);
                if let Some(n) = self.current().filter(was_local).map(|attempt| attempt.n) {
                    Driven::new(self).on_lost(n, now);
                }
            }
            (OnLoss::TakeOver, _) => {}
        }
    }

    /// An operator declared a node dead: whatever ran there has ended and left nothing.
    pub fn on_declared_dead(&mut self, node: &InstanceName, now: Time) {
        let there: Vec<AttemptNo> = self
            .attempts
            .iter()
            .filter(|attempt| attempt.depends_on_node(node) && !attempt.swept)
            .map(|attempt| attempt.n)
            .collect();
        for n in there {
            Driven::new(self).on_lost(n, now);
            Driven::new(self).on_gone(n);
        }
    }

    /// An operator says that a lost attempt does not run and will not.
    ///
    /// # Errors
    /// There is no such attempt, or it is not lost.
    pub fn confirm_lost(&mut self, n: AttemptNo) -> Result<(), Refused> {
        let attempt = self.attempt(n).ok_or(Refused::NoAttempt(self.id, n))?;
        if attempt.progress != Progress::Lost {
            return Err(Refused::NotLost(self.id, n));
        }
        Driven::new(self).on_gone(n);
        Ok(())
    }

    /// What its owner has to do about each attempt.
    pub fn duties(&self) -> impl Iterator<Item = (AttemptNo, Duty)> {
        self.attempts.iter().map(|attempt| (attempt.n, self.duty(attempt)))
    }

    fn duty(&self, attempt: &Attempt) -> Duty {
        let counts = self.is_current(attempt.n);
        let unwanted = self.cancel_requested || self.state.is_final() || !counts;
        match attempt.progress {
            Progress::Placed | Progress::Running | Progress::Lost if unwanted => Duty::Cancel,
            Progress::Placed => Duty::Send,
            Progress::Running => Duty::Follow,
            Progress::Lost => Duty::Ask,
            Progress::Over(_) if attempt.swept => Duty::Nothing,
            Progress::Over(_) => Duty::Release,
        }
    }

    /// What it occupies of instances, groups and words.
    pub fn claims(&self) -> Vec<Claim> {
        let mut claims = Vec::new();
        for attempt in self.attempts.iter().filter(|attempt| attempt.is_open()) {
            let counts = self.is_current(attempt.n);
            let active = counts && self.state.is_active();
            let holds_words = counts && !self.state.is_final();
            claims.push(Claim {
                job: self.id,
                owner: self.fence.as_ref().filter(|_| active).map(|fence| fence.owner.clone()),
                execution_node: attempt.node.clone(),
                group: active.then(|| attempt.group.clone()),
                impact: self.impact,
                words: if holds_words { self.exclusive.clone() } else { Vec::new() },
            });
        }
        claims
    }

    pub(super) fn end(&mut self, state: JobState, explanation: String, now: Time) {
        if !self.state.is_final() {
            self.state = state;
            self.explanation = explanation;
            self.finished = Some(now);
            self.quota = None;
        }
    }

    /// Whether a retry follows an attempt that ended like this.
    pub(super) fn retries_after(&self, ending: Ending) -> bool {
        let ran = self.attempts.iter().filter(|a| a.ending().is_none_or(Ending::may_have_run)).count();
        let free = !ending.may_have_run();
        self.retry.covers(ending)
            && !self.cancel_requested
            && (free || ran as u64 <= u64::from(self.retry.max))
    }
}
