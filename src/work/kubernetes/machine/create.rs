//! Until there is a pod: choosing its name, creating it exactly once, or finding the one that was made before. A name
//! is durable before it is asked for, so a create whose answer was lost is simply repeated: the name tells.

use std::time::{Duration, Instant};

use super::{BackOff, LONGEST_PAUSE, Machine, Request, Timer};
use crate::work::kubernetes::api_error::ApiError;
use crate::work::kubernetes::name::pod_name;
use crate::work::kubernetes::options::StreamMethod;
use crate::work::kubernetes::pod_status::PodSeen;
use crate::work::unit::State;

/// How long the API server may still carry out a request whose answer was lost: its own request timeout.
const IN_FLIGHT: Duration = Duration::from_secs(60);

/// How far the pod's creation is.
#[derive(Debug)]
pub(super) struct Create {
    step: Step,
    pauses: BackOff,
    /// A create may still be carried out until then, though its answer was lost.
    in_doubt_until: Option<Instant>,
    /// Why it did not work the last time.
    last_error: Option<String>,
    /// There may be a pod of that name that we made.
    may_exist: bool,
    /// What the watch has shown before the answer came.
    early: Option<PodSeen>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Nothing was asked for.
    Idle,
    /// It was asked for.
    Asked,
    /// It will be asked for again.
    Paused,
    /// The name is taken: by whom is being looked at.
    Checking,
    /// A pod that somebody else made is being looked at.
    Adopting,
    /// What an earlier daemon left is being looked at.
    Resuming,
    /// The pod is there.
    Done,
}

impl Create {
    /// `may_exist` says whether an earlier daemon may have made it.
    pub(super) fn new(first: Duration, may_exist: bool) -> Self {
        let pauses = BackOff::new(first, LONGEST_PAUSE);
        Self { step: Step::Idle, pauses, in_doubt_until: None, last_error: None, may_exist, early: None }
    }

    /// The pod is there, and known.
    pub(super) fn is_done(&self) -> bool {
        self.step == Step::Done
    }

    /// There may be a pod of that name that we made.
    pub(super) fn may_exist(&self) -> bool {
        self.may_exist
    }

    /// Whose pod it is, if there is one, is being looked at.
    pub(super) fn is_unsure(&self) -> bool {
        matches!(self.step, Step::Checking | Step::Adopting | Step::Resuming)
    }

    /// An answer is awaited that may make a pod.
    pub(super) fn is_asked(&self) -> bool {
        self.step == Step::Asked
    }

    pub(super) fn in_doubt_until(&self) -> Option<Instant> {
        self.in_doubt_until
    }

    pub(super) fn last_error(&self) -> Option<&str> {
        self.last_error.as_deref()
    }
}

impl Machine {
    /// A new unit's work begins.
    pub(super) fn begin(&mut self) {
        self.detail = "Connecting to Kubernetes".to_owned();
        if let Some(until) = self.settings.pending_until {
            self.timers.set(Timer::Pending, until);
        }
        if self.facts.adopted {
            self.write_down();
            self.create.step = Step::Adopting;
            self.ask(Request::Watch);
            self.look();
        } else {
            self.choose_name();
            self.ask(Request::Watch);
            self.ask_create();
        }
    }

    /// What an earlier daemon left goes on.
    pub(super) fn resume(&mut self, now: Instant) {
        if self.create.may_exist && self.facts.pod_uid.is_empty() && !self.facts.adopted {
            // The daemon may have ended while its create was under way.
            self.create.in_doubt_until = Some(now + IN_FLIGHT);
        }
        let is_tcp = self.settings.method == StreamMethod::Tcp;
        match self.state {
            State::Pending if self.facts.pod_name.is_empty() => self.begin(),
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
        self.create.step = if self.facts.adopted { Step::Adopting } else { Step::Resuming };
        self.ask(Request::Watch);
        self.look();
    }

    /// Chooses a name, which is written down before it is asked for.
    fn choose_name(&mut self) {
        self.facts.pod_name = pod_name(&self.settings.prefix, self.dice.roll());
        self.facts.pod_uid.clear();
        self.create.may_exist = false;
        self.write_down();
    }

    fn ask_create(&mut self) {
        self.create.step = Step::Asked;
        self.ask(Request::Create(self.facts.pod_name.clone()));
    }

    pub(super) fn create_again(&mut self, _now: Instant) {
        self.ask_create();
    }

    pub(super) fn on_created(&mut self, now: Instant, answer: Result<PodSeen, ApiError>) {
        if self.create.step != Step::Asked {
            return;
        }
        match &answer {
            Ok(_) | Err(ApiError::Conflict(_)) => self.create.may_exist = true,
            Err(error) if error.is_passing() => {
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
                self.create.step = Step::Checking;
                self.create.last_error = Some(message);
                self.look();
            }
            Err(ApiError::Quota(message)) if self.settings.quota_retry => {
                self.pause_create(now, message, None)
            }
            Err(error) if error.is_passing() => {
                let after = error.retry_after();
                self.pause_create(now, error.to_string(), after);
            }
            Err(error) => {
                self.create.step = Step::Idle;
                if !self.create.may_exist {
                    // There never was such a pod.
                    self.facts.pod_name.clear();
                }
                self.fail(now, format!("Error creating pod: {error}"));
            }
        }
    }

    /// The watch shows the pod before the create is answered. An answer that is awaited may still make another one, if
    /// this one has gone meanwhile, so it counts; after one that was lost the watch does.
    pub(super) fn seen_early(&mut self, now: Instant, pod: PodSeen) {
        match self.create.step {
            Step::Paused => self.created(now, pod),
            Step::Asked => self.create.early = Some(pod),
            Step::Idle | Step::Checking | Step::Adopting | Step::Resuming | Step::Done => {}
        }
    }

    fn pause_create(&mut self, now: Instant, why: String, after: Option<Duration>) {
        self.create.step = Step::Paused;
        let pause = self.create.pauses.next(&mut self.dice).max(after.unwrap_or_default());
        self.timers.set(Timer::Create, now + pause);
        self.set(State::Pending, format!("Connecting to Kubernetes: {why}"));
        self.create.last_error = Some(why);
    }

    /// The unit has ended meanwhile.
    fn on_created_too_late(&mut self, now: Instant, answer: Result<PodSeen, ApiError>) {
        self.create.step = Step::Idle;
        if let Ok(pod) = answer {
            self.facts.pod_uid = pod.uid;
        }
        self.remove(now);
    }

    pub(super) fn created(&mut self, now: Instant, pod: PodSeen) {
        self.timers.stop(Timer::Create);
        self.create.step = Step::Done;
        self.create.may_exist = true;
        self.create.last_error = None;
        self.facts.pod_uid.clone_from(&pod.uid);
        self.removal.pod_exists();
        if self.state == State::Pending && !self.facts.stdin_begun {
            self.set(State::Pending, "Pod created");
        }
        let early = self.create.early.take().filter(|early| early.uid == pod.uid);
        self.observe(now, pod);
        if let Some(early) = early.filter(|_| !self.state.is_final() && self.verdict.is_none()) {
            self.observe(now, early);
        }
    }

    pub(super) fn on_looked_for_create(&mut self, now: Instant, answer: Result<PodSeen, ApiError>) {
        match (self.create.step, answer) {
            (_, Err(error)) if error.is_passing() => self.look_again(now, &error),
            (Step::Resuming, Err(error @ ApiError::Unauthorized(_))) => self.look_again(now, &error),
            (Step::Checking, Ok(pod)) if pod.owner.as_ref() == Some(&self.settings.owner) => {
                self.created(now, pod)
            }
            (Step::Checking, Ok(_)) => {
                self.choose_name();
                self.ask_create();
            }
            // The conflict was about something else, or the pod has gone.
            (Step::Checking, Err(ApiError::NotFound(_))) => {
                let why = self.create.last_error.take().unwrap_or_default();
                self.pause_create(now, why, None);
            }
            (Step::Adopting, Ok(pod)) => self.adopt(now, pod),
            (Step::Resuming, Ok(pod)) => self.resume_pod(now, pod),
            (Step::Resuming, Err(ApiError::NotFound(_)))
                if self.facts.pod_uid.is_empty() && !self.has_run =>
            {
                self.ask_create();
            }
            (Step::Resuming, Err(ApiError::NotFound(_))) => {
                self.create.step = Step::Done;
                self.pod_gone(now);
            }
            (_, Err(error)) => {
                let place = self.place();
                self.create.step = Step::Idle;
                self.fail(now, format!("Error getting pod {place}. Error: {error}"));
            }
            // Nobody looks in these steps.
            (Step::Idle | Step::Asked | Step::Paused | Step::Done, Ok(pod)) => self.observe(now, pod),
        }
    }

    fn adopt(&mut self, now: Instant, pod: PodSeen) {
        let place = self.place();
        let refusal = if pod.namespace != self.facts.namespace {
            Some(format!("the pod is in namespace {}", pod.namespace))
        } else if !pod.has_worker {
            Some("at least one container must be named worker".to_owned())
        } else if !self.facts.pod_uid.is_empty() && pod.uid != self.facts.pod_uid {
            Some("another pod has that name now".to_owned())
        } else {
            None
        };
        if let Some(refusal) = refusal {
            self.create.step = Step::Idle;
            return self.conclude(now, State::Failed, format!("Error getting pod {place}. Error: {refusal}"));
        }
        self.created(now, pod);
    }

    fn resume_pod(&mut self, now: Instant, pod: PodSeen) {
        let is_ours = match self.facts.pod_uid.as_str() {
            "" => pod.owner.as_ref() == Some(&self.settings.owner),
            uid => pod.uid == uid,
        };
        if !is_ours {
            self.create.step = Step::Done;
            if self.facts.pod_uid.is_empty() && !self.has_run {
                self.choose_name();
                return self.ask_create();
            }
            return self.pod_gone(now);
        }
        self.facts.pod_uid.clone_from(&pod.uid);
        self.removal.pod_exists();
        let has_started = self.has_run || pod.has_started();
        if !has_started && self.settings.delete_pod_on_restart {
            self.create.step = Step::Done;
            return self.conclude(now, State::Failed, NOT_RUNNING.into());
        }
        self.created(now, pod);
    }
}

const NOT_RUNNING: &str = "Failed to restart: work unit is not in running state, cannot be restarted: its pod had not \
                           started when the daemon ended, and is deleted; submit the job again";
