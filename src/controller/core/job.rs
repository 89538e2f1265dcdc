//! A job: its state, its attempts, and what may happen to it.
//!
//! A job has at most one attempt that counts, the latest. What is final never changes, whatever arrives
//! later. Anybody may save a cancel; all else that happens to an attempt is reported by the owner, through
//! [`Job::driven_by`], which refuses everybody else. Knows no units but by ID, no streams and no store.

use std::time::Duration;

use super::attempt::{Attempt, ChildId, Duty, Progress};
use super::driven::Driven;
use super::impact::Kind;
use super::lease::{Fence, Fenced};
use super::load::Claim;
use super::names::{AttemptNo, InstanceName, JobId, Word};
use super::queue::{Hold, PendingEnd, Placement};
use super::state::State;
use super::time::{BackOff, Time};
use super::verdict::Ending;

/// How long a pod that a quota refused waits until it is tried again.
pub const QUOTA_BACK_OFF: BackOff =
    BackOff { first: Duration::from_secs(30), longest: Duration::from_secs(300) };

/// When a job is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// Attempts after the first one. Attempts in which nothing ran do not count.
    pub max: u32,
    /// After its instance was lost.
    pub on_lost: bool,
    /// After it could not be run.
    pub on_error: bool,
    /// After its playbook failed.
    pub on_failed: bool,
    /// Without knowing that the lost attempt has ended: the playbook may run twice for a while.
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

/// What becomes of jobs whose owner restarts or is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OnLoss {
    /// They go on.
    TakeOver,
    /// They fail, as in AWX.
    Fail,
}

/// A quota's refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaWait {
    /// When the pod is tried again.
    pub until: Time,
    /// The server's words.
    pub words: String,
    /// Refusals in a row.
    pub refusals: u32,
}

/// Why a transition was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The writer does not own the job any more.
    #[error(transparent)]
    Fenced(#[from] Fenced),
    /// The job is not pending, or something keeps it from being placed.
    #[error("job {0} cannot be placed: it is {state}", state = .1.name())]
    NotPlaceable(JobId, State),
    /// The job has no such attempt.
    #[error("job {0} has no attempt {1}")]
    NoAttempt(JobId, AttemptNo),
}

/// A job, as far as its life goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Its number.
    pub id: JobId,
    /// What it is.
    pub kind: Kind,
    /// Its impact.
    pub impact: u32,
    /// Words that one running job holds at a time.
    pub exclusive: Vec<Word>,
    /// When it is tried again.
    pub retry: Retry,
    /// Replaces the time after which its instance counts as lost.
    pub lost_after: Option<Duration>,
    /// Where it stands.
    pub state: State,
    /// Somebody wants it to end. Saved before it is passed on.
    pub cancel_requested: bool,
    /// Who may write to it; nobody before it was placed.
    pub fence: Option<Fence>,
    /// In order; the last one counts.
    pub attempts: Vec<Attempt>,
    /// What decided, or what it waits for.
    pub explanation: String,
    /// Since when it is pending, if it is.
    pub pending_since: Time,
    /// A quota refused its last attempt.
    pub quota: Option<QuotaWait>,
    /// When it became final.
    pub finished: Option<Time>,
}

impl Job {
    /// A job that was just submitted.
    pub fn new(id: JobId, kind: Kind, impact: u32, now: Time) -> Self {
        Self {
            id,
            kind,
            impact,
            exclusive: Vec::new(),
            retry: Retry::default(),
            lost_after: None,
            state: State::Pending,
            cancel_requested: false,
            fence: None,
            attempts: Vec::new(),
            explanation: String::new(),
            pending_since: now,
            quota: None,
            finished: None,
        }
    }

    /// The attempt that counts.
    pub fn current(&self) -> Option<&Attempt> {
        self.attempts.last()
    }

    /// That attempt.
    pub fn attempt(&self, n: AttemptNo) -> Option<&Attempt> {
        self.attempts.iter().find(|attempt| attempt.n == n)
    }

    /// What keeps it from being placed, if it is pending and something does.
    pub fn hold(&self) -> Option<Hold> {
        let open = self.attempts.iter().find(|attempt| attempt.is_open() && !self.retry.unconfirmed);
        if let Some(attempt) = open {
            return Some(Hold::Attempt { attempt: attempt.n, node: attempt.node.clone() });
        }
        let quota = self.quota.as_ref()?;
        Some(Hold::Quota { until: quota.until, words: quota.words.clone() })
    }

    /// A pass found a place. The attempt exists from here on, with its ID, before anything is sent.
    ///
    /// # Errors
    /// It is not pending, or its former attempt or a quota still keeps it.
    pub fn place(
        &mut self,
        place: &Placement,
        unit: ChildId,
        fence: Fence,
        now: Time,
    ) -> Result<AttemptNo, Refused> {
        let held = match self.hold() {
            None => false,
            Some(Hold::Quota { until, words: _ }) => now < until,
            Some(Hold::Attempt { .. }) => true,
        };
        if self.state != State::Pending || held {
            return Err(Refused::NotPlaceable(self.id, self.state));
        }
        let n = self.next_attempt();
        self.attempts.push(Attempt {
            n,
            unit,
            child: place.child,
            sender: place.owner.clone(),
            node: place.execution_node.clone(),
            group: place.group.clone(),
            progress: Progress::Placed,
            swept: false,
            placed: now,
            started: None,
            ended: None,
        });
        self.fence = Some(fence);
        self.state = State::Waiting;
        self.explanation = match &place.execution_node {
            Some(node) => format!("Starting on {node}"),
            None => format!("Starting in {}", place.group),
        };
        Ok(n)
    }

    /// The number that its next attempt has.
    pub fn next_attempt(&self) -> AttemptNo {
        AttemptNo(self.current().map_or(1, |attempt| attempt.n.0 + 1))
    }

    /// Somebody cancels it. A pending job ends at once; of another one the cancel is saved, and passed on
    /// afterwards. Answers whether anything changed.
    pub fn request_cancel(&mut self, now: Time) -> bool {
        match self.state {
            State::Pending => {
                self.cancel_requested = true;
                self.end(State::Canceled, "Canceled".into(), now);
                true
            }
            State::Waiting | State::Running => !std::mem::replace(&mut self.cancel_requested, true),
            State::Successful | State::Failed | State::Error | State::Canceled => false,
        }
    }

    /// It fails without having run.
    pub fn fail_pending(&mut self, end: PendingEnd, now: Time) {
        if self.state == State::Pending {
            self.end(State::Failed, end.to_string(), now);
        }
    }

    /// No copy of its payload is left, and an operator declared the last holder dead.
    pub fn on_payload_lost(&mut self, holder: &InstanceName, now: Time) {
        if self.state == State::Pending {
            self.end(State::Failed, format!("its payload was lost with {holder}"), now);
        }
    }

    /// Its owner, if that is who writes.
    ///
    /// # Errors
    /// The writer has an older epoch, or is not the owner.
    pub fn driven_by(&mut self, writer: &Fence) -> Result<Driven<'_>, Fenced> {
        if self.fence.as_ref() == Some(writer) { Ok(Driven::new(self)) } else { Err(Fenced(writer.clone())) }
    }

    /// Its owner restarted, or another control node is its owner from now on.
    ///
    /// A child that ran on the lost owner itself is lost with it.
    pub fn take_over(&mut self, heir: Fence, on_loss: OnLoss, now: Time) {
        let former = self.fence.replace(heir.clone());
        if !self.state.is_active() {
            return;
        }
        match (on_loss, former) {
            (OnLoss::Fail, _) => self.end(State::Failed, "its control node was lost".into(), now),
            (OnLoss::TakeOver, Some(former)) if former.owner != heir.owner => {
                let was_local = |attempt: &&Attempt| attempt.depends_on_node(&former.owner);
                if let Some(n) = self.current().filter(was_local).map(|attempt| attempt.n) {
                    Driven::new(self).on_lost(n, now);
                }
            }
            (OnLoss::TakeOver, _) => {}
        }
    }

    /// An operator declared a node dead: what ran there is over, and nothing of it is left.
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

    /// What its owner has to do about each attempt.
    pub fn duties(&self) -> impl Iterator<Item = (AttemptNo, Duty)> {
        self.attempts.iter().map(|attempt| (attempt.n, self.duty(attempt)))
    }

    fn duty(&self, attempt: &Attempt) -> Duty {
        let counts = self.current().is_some_and(|current| current.n == attempt.n);
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

    /// What it holds of instances, groups and words.
    pub fn claims(&self) -> Vec<Claim> {
        let mut claims = Vec::new();
        for attempt in self.attempts.iter().filter(|attempt| attempt.is_open()) {
            let counts = self.current().is_some_and(|current| current.n == attempt.n);
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

    pub(super) fn end(&mut self, state: State, explanation: String, now: Time) {
        if !self.state.is_final() {
            self.state = state;
            self.explanation = explanation;
            self.finished = Some(now);
            self.quota = None;
        }
    }

    /// Whether an attempt that ended so is followed by another one.
    pub(super) fn retries_after(&self, ending: Ending) -> bool {
        let ran = self.attempts.iter().filter(|a| a.ending().is_none_or(Ending::may_have_run)).count();
        let free = !ending.may_have_run();
        self.retry.covers(ending)
            && !self.cancel_requested
            && (free || ran as u64 <= u64::from(self.retry.max))
    }
}
