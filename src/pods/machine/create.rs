//! From the start until there is a pod: chooses its name, creates it exactly once, or finds one that was
//! created before. The name is durable before it is requested, so a create whose answer was lost is simply
//! repeated: the name shows whether it succeeded.

use std::time::{Duration, Instant};

use rand::RngExt as _;

use super::{ApiRequest, BackOff, LONGEST_PAUSE, Machine, MachineOutput, Timer};
use crate::duration;
use crate::pods::api_error::{AnswerPatience, ApiError};
use crate::pods::name::pod_name;
use crate::pods::options::StreamMethod;
use crate::pods::pod_status::PodSeen;
use crate::rpc::UnitState as State;

/// How long the API server may still execute a request whose answer was lost: its own request timeout.
const IN_FLIGHT: Duration = Duration::from_secs(60);
/// How long to wait for a server that has answered an earlier daemon or another node, but not this daemon. A server
/// that restarts is back by then.
pub(super) const UNPROVEN_FOR: Duration = Duration::from_secs(60);

/// The progress of the pod's creation.
#[derive(Debug)]
pub(super) struct Create {
    step: CreateStep,
    pauses: BackOff,
    /// Until then the server may still execute a create whose answer was lost.
    in_doubt_until: Option<Instant>,
    /// Why the last attempt failed.
    last_error: Option<String>,
    /// Since when a server does not answer that, at best, an earlier daemon or another node has reached.
    unproven_since: Option<Instant>,
    /// We may have created a pod of that name.
    may_exist: bool,
    /// A pod that the watch showed before the answer arrived.
    early: Option<PodSeen>,
    /// The text to fail with once the create is answered, because the pod cannot be watched.
    unwatched: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CreateStep {
    /// Nothing requested.
    Idle,
    /// Requested.
    Asked,
    /// Waiting before another attempt.
    Paused,
    /// The name is taken; getting the pod to see whose it is.
    Checking,
    /// Getting a pod that somebody else created.
    Adopting,
    /// Getting the pod of an earlier daemon.
    Resuming,
    /// The pod exists.
    Done,
}

impl Create {
    /// `may_exist` says whether an earlier daemon may have created the pod.
    pub(super) fn new(first: Duration, may_exist: bool) -> Self {
        let pauses = BackOff::new(first, LONGEST_PAUSE);
        Self {
            step: CreateStep::Idle,
            pauses,
            in_doubt_until: None,
            last_error: None,
            unproven_since: None,
            may_exist,
            early: None,
            unwatched: None,
        }
    }

    /// The pod exists and is known.
    pub(super) fn is_done(&self) -> bool {
        self.step == CreateStep::Done
    }

    /// We may have created a pod of that name.
    pub(super) fn may_exist(&self) -> bool {
        self.may_exist
    }

    /// A get of the pod is under way, to see whose it is.
    pub(super) fn is_unsure(&self) -> bool {
        matches!(self.step, CreateStep::Checking | CreateStep::Adopting | CreateStep::Resuming)
    }

    /// A request is under way that may create a pod.
    pub(super) fn is_asked(&self) -> bool {
        self.step == CreateStep::Asked
    }

    /// Fails with `text` once the create is answered, because the pod cannot be watched.
    pub(super) fn fail_once_answered(&mut self, text: String) {
        self.unwatched = Some(text);
    }

    pub(super) fn in_doubt_until(&self) -> Option<Instant> {
        self.in_doubt_until
    }

    pub(super) fn last_error(&self) -> Option<&str> {
        self.last_error.as_deref()
    }
}

impl Machine {
    /// Starts a new unit.
    pub(super) fn begin(&mut self) {
        self.detail = "Connecting to Kubernetes".to_owned();
        if let Some(until) = self.settings.pending_until {
            self.timers.set(Timer::Pending, until);
        }
        if self.record.adopted {
            self.record_status();
            self.create.step = CreateStep::Adopting;
            self.ask(ApiRequest::Watch);
            self.get_pod();
        } else {
            self.choose_name();
            self.ask(ApiRequest::Watch);
            self.ask_create();
        }
    }

    /// Resumes a unit of an earlier daemon.
    pub(super) fn resume(&mut self, now: Instant) {
        if self.create.may_exist && self.record.pod_uid.is_empty() && !self.record.adopted {
            // The earlier daemon may have ended during a create.
            self.create.in_doubt_until = Some(now + IN_FLIGHT);
        }
        let is_tcp = self.settings.method == StreamMethod::Tcp;
        match self.state {
            State::Pending if self.record.pod_name.is_empty() => self.begin(),
            State::Pending | State::Running if is_tcp => {
                self.conclude(
                    now,
                    State::Failed,
                    "Failed to restart: restart not implemented for streammethod tcp".into(),
                );
            }
            State::Pending => {
                if let Some(until) = self.settings.pending_until {
                    self.timers.set(Timer::Pending, until);
                }
                self.look_at_what_is_left();
            }
            State::Running => {
                self.has_run = true;
                self.stdin.assume_delivered();
                self.look_at_what_is_left();
            }
            State::Canceled => self.want_removal(now),
            State::Succeeded | State::Failed => {}
        }
    }

    fn look_at_what_is_left(&mut self) {
        self.create.step = if self.record.adopted { CreateStep::Adopting } else { CreateStep::Resuming };
        self.ask(ApiRequest::Watch);
        self.get_pod();
    }

    /// Whether a pod is this unit's. A pod that is named after the unit may have been made from another data directory.
    fn is_ours(&self, pod: &PodSeen) -> bool {
        let own = &self.settings.owner;
        let is_named = self.settings.name.is_some();
        pod.owner.as_ref().is_some_and(|owner| owner == own || (is_named && owner.unit == own.unit))
    }

    /// Creates a pod under another name, because somebody else's pod has this one.
    fn create_under_another_name(&mut self) {
        self.settings.name = None;
        self.choose_name();
        self.ask_create();
    }

    /// Chooses a name, which is durable before it is requested.
    fn choose_name(&mut self) {
        let letters = self.settings.name.unwrap_or_else(|| self.random.random());
        self.record.pod_name = pod_name(&self.settings.prefix, letters);
        self.record.pod_uid.clear();
        self.create.may_exist = false;
        self.record_status();
    }

    fn ask_create(&mut self) {
        self.create.step = CreateStep::Asked;
        self.ask(ApiRequest::Create(self.record.pod_name.clone()));
    }

    pub(super) fn create_again(&mut self, _now: Instant) {
        if self.record.pod_name.is_empty() {
            self.choose_name();
        }
        self.ask_create();
    }

    /// `was_sent` says whether the request may have reached the server.
    pub(super) fn on_created(&mut self, now: Instant, answer: Result<PodSeen, ApiError>, was_sent: bool) {
        if self.create.step != CreateStep::Asked {
            return;
        }
        match &answer {
            Ok(_) | Err(ApiError::Conflict(_)) => self.create.may_exist = true,
            Err(error) if was_sent && error.may_have_been_executed() => {
                self.create.may_exist = true;
                self.create.in_doubt_until = Some(now + IN_FLIGHT);
            }
            Err(_) => {}
        }
        if self.state.is_final() || self.verdict.is_some() {
            return self.on_created_too_late(now, answer);
        }
        match answer {
            Ok(pod) => self.created(now, pod),
            Err(ApiError::Conflict(message)) => {
                self.create.step = CreateStep::Checking;
                self.create.last_error = Some(message);
                self.get_pod();
            }
            Err(ApiError::Quota(message)) if self.settings.quota_retry => {
                self.pause_create(now, message, None)
            }
            Err(error) => {
                if !self.create.may_exist {
                    // That pod never existed.
                    self.record.pod_name.clear();
                }
                match self.hopeless(now, &error) {
                    Some(cause) => {
                        self.create.step = CreateStep::Idle;
                        self.fail(now, format!("Error creating pod: {cause}"));
                    }
                    None => {
                        let after = error.retry_after();
                        self.pause_create(now, error.to_string(), after);
                        if !self.create.may_exist {
                            self.record_status();
                        }
                    }
                }
            }
        }
        if let Some(text) = self.create.unwatched.take() {
            self.fail(now, text);
        }
    }

    /// The cause to end with, if a request that failed before the pod exists is not worth repeating.
    fn hopeless(&mut self, now: Instant, error: &ApiError) -> Option<String> {
        if !error.is_passing() {
            return Some(error.to_string());
        }
        // An earlier daemon or another node has reached the server for this pod, so the server may only be restarting.
        let was_asked = matches!(self.create.step, CreateStep::Adopting | CreateStep::Resuming);
        match error.patience() {
            AnswerPatience::Short if was_asked => {
                let until = *self.create.unproven_since.get_or_insert(now) + UNPROVEN_FOR;
                (now >= until).then(|| format!("{error} (for {} now)", duration::print(UNPROVEN_FOR)))
            }
            AnswerPatience::None | AnswerPatience::Short => Some(error.to_string()),
            AnswerPatience::Outage => {
                self.create.unproven_since = None;
                None
            }
        }
    }

    /// Limits a pause to the time for which an unproven server is waited for.
    pub(super) fn pause_until(&self, at: Instant) -> Instant {
        self.create.unproven_since.map_or(at, |since| at.min(since + UNPROVEN_FOR))
    }

    /// The watch shows the pod before the create is answered. While an answer is pending, the answer counts, because
    /// the server may create another pod if this one is gone by then. After a lost answer the watch counts.
    pub(super) fn seen_early(&mut self, now: Instant, pod: PodSeen) {
        match self.create.step {
            CreateStep::Paused => self.created(now, pod),
            CreateStep::Asked => self.create.early = Some(pod),
            CreateStep::Idle
            | CreateStep::Checking
            | CreateStep::Adopting
            | CreateStep::Resuming
            | CreateStep::Done => {}
        }
    }

    fn pause_create(&mut self, now: Instant, why: String, after: Option<Duration>) {
        self.create.step = CreateStep::Paused;
        let pause = self.create.pauses.next_with(&mut self.random).max(after.unwrap_or_default());
        self.timers.set(Timer::Create, now + pause);
        if self.create.last_error.is_none() {
            self.outputs.push_back(MachineOutput::Waits(why.clone()));
        }
        self.set(State::Pending, format!("Connecting to Kubernetes: {why}"));
        self.create.last_error = Some(why);
    }

    /// The unit ended while the create was under way.
    fn on_created_too_late(&mut self, now: Instant, answer: Result<PodSeen, ApiError>) {
        self.create.step = CreateStep::Idle;
        if let Ok(pod) = answer {
            self.record.pod_uid = pod.uid;
        }
        self.remove(now);
    }

    pub(super) fn created(&mut self, now: Instant, pod: PodSeen) {
        self.timers.stop(Timer::Create);
        self.create.step = CreateStep::Done;
        self.create.may_exist = true;
        (self.create.last_error, self.create.unproven_since) = (None, None);
        self.record.pod_uid.clone_from(&pod.uid);
        self.removal.pod_exists();
        if self.state == State::Pending && !self.record.stdin_begun {
            self.set(State::Pending, "Pod created");
        }
        let early = self.create.early.take().filter(|early| early.uid == pod.uid);
        self.observe(now, pod);
        if let Some(early) = early.filter(|_| !self.state.is_final() && self.verdict.is_none()) {
            self.observe(now, early);
        }
    }

    pub(super) fn on_pod_for_create(&mut self, now: Instant, answer: Result<PodSeen, ApiError>) {
        // A pod that once existed proves that its server is right.
        let is_new = self.record.pod_uid.is_empty() && !self.has_run;
        match (self.create.step, answer) {
            (_, Err(error)) if error.is_passing() => {
                match is_new.then(|| self.hopeless(now, &error)).flatten() {
                    Some(cause) => self.fail_to_get(now, &cause),
                    None => self.retry_get_pod(now, &error),
                }
            }
            (CreateStep::Resuming, Err(error @ ApiError::Unauthorized(_))) => self.retry_get_pod(now, &error),
            (CreateStep::Checking, Ok(pod)) if self.is_ours(&pod) => self.created(now, pod),
            (CreateStep::Checking, Ok(_)) => self.create_under_another_name(),
            // The conflict had another cause, or the pod is gone.
            (CreateStep::Checking, Err(ApiError::NotFound(_))) => {
                let why = self.create.last_error.take().unwrap_or_default();
                self.pause_create(now, why, None);
            }
            (CreateStep::Adopting, Ok(pod)) => self.adopt(now, pod),
            (CreateStep::Resuming, Ok(pod)) => self.resume_pod(now, pod),
            (CreateStep::Resuming, Err(ApiError::NotFound(_)))
                if self.record.pod_uid.is_empty() && !self.has_run =>
            {
                self.ask_create();
            }
            (CreateStep::Resuming, Err(ApiError::NotFound(_))) => {
                self.create.step = CreateStep::Done;
                self.pod_gone(now);
            }
            (_, Err(error)) => self.fail_to_get(now, &error.to_string()),
            // No get is under way in these steps.
            (CreateStep::Idle | CreateStep::Asked | CreateStep::Paused | CreateStep::Done, Ok(pod)) => {
                self.observe(now, pod)
            }
        }
    }

    fn fail_to_get(&mut self, now: Instant, cause: &str) {
        let place = self.pod_path();
        self.create.step = CreateStep::Idle;
        self.fail(now, format!("Error getting pod {place}. Error: {cause}"));
    }

    fn adopt(&mut self, now: Instant, pod: PodSeen) {
        let place = self.pod_path();
        let refusal = if pod.namespace != self.record.namespace {
            Some(format!("the pod is in namespace {}", pod.namespace))
        } else if !pod.has_worker {
            Some("at least one container must be named worker".to_owned())
        } else if !self.record.pod_uid.is_empty() && pod.uid != self.record.pod_uid {
            Some("another pod has that name now".to_owned())
        } else {
            None
        };
        if let Some(refusal) = refusal {
            self.create.step = CreateStep::Idle;
            return self.conclude(now, State::Failed, format!("Error getting pod {place}. Error: {refusal}"));
        }
        self.created(now, pod);
    }

    fn resume_pod(&mut self, now: Instant, pod: PodSeen) {
        let is_ours = match self.record.pod_uid.as_str() {
            "" => self.is_ours(&pod),
            uid => pod.uid == uid,
        };
        if !is_ours {
            self.create.step = CreateStep::Done;
            if self.record.pod_uid.is_empty() && !self.has_run {
                return self.create_under_another_name();
            }
            return self.pod_gone(now);
        }
        self.record.pod_uid.clone_from(&pod.uid);
        self.removal.pod_exists();
        let has_started = self.has_run || pod.has_started();
        if !has_started && self.settings.delete_pod_on_restart {
            self.create.step = CreateStep::Done;
            return self.conclude(now, State::Failed, NOT_RUNNING.into());
        }
        self.created(now, pod);
    }
}

const NOT_RUNNING: &str = "Failed to restart: work unit is not in running state, cannot be restarted: its pod had not \
                           started when the daemon ended, and is deleted; submit the job again";
