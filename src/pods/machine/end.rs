//! How a unit ends, and its Detail: receptor's words first, then reason, exit code and node from the pod's
//! own status, and the pod's last event if the credential may read it.

use std::time::{Duration, Instant};

use super::{ApiRequest, Machine, MachineOutput, Timer};
use crate::duration;
use crate::pods::options::StreamMethod;
use crate::pods::pod_status::{Container, PodPhase, Terminated};
use crate::pods::waiting::{how, joined};
use crate::rpc::UnitState as State;

/// How long a log stream may continue after its pod is gone.
pub(super) const AFTER_GONE: Duration = Duration::from_secs(10);
/// How long to wait for a pod's last event.
const EVENTS_WITHIN: Duration = Duration::from_secs(2);

/// Failures that may pass, each with its begin and a complete Detail.
#[derive(Debug, Default)]
pub(super) struct Outages {
    pub(super) get: Option<Outage>,
    pub(super) attach: Option<Outage>,
    pub(super) log: Option<Outage>,
}

#[derive(Debug, Clone)]
pub(super) struct Outage {
    since: Instant,
    text: String,
}

/// The kind of request that fails.
#[derive(Debug, Clone, Copy)]
pub(super) enum OutageOf {
    Get,
    Attach,
    Log,
}

impl Outages {
    fn first(&self) -> Option<&Outage> {
        [&self.get, &self.attach, &self.log].into_iter().flatten().min_by_key(|outage| outage.since)
    }
}

impl Machine {
    /// Notes a failure that may pass. The unit fails if it lasts for `api_outage`.
    pub(super) fn note_outage(&mut self, now: Instant, of: OutageOf, text: String) {
        let slot = match of {
            OutageOf::Get => &mut self.outages.get,
            OutageOf::Attach => &mut self.outages.attach,
            OutageOf::Log => &mut self.outages.log,
        };
        let since = slot.as_ref().map(|outage| outage.since);
        if since.is_none() {
            self.outputs.push_back(MachineOutput::Waits(text.clone()));
        }
        let since = since.unwrap_or(now);
        *slot = Some(Outage { since, text });
        self.review_outages();
    }

    /// Sets the timer to the oldest failure, or stops it.
    pub(super) fn review_outages(&mut self) {
        match self.outages.first() {
            Some(first) => self.timers.set(Timer::Outage, first.since + self.settings.api_outage),
            None => self.timers.stop(Timer::Outage),
        }
    }

    pub(super) fn fail_outage(&mut self, now: Instant) {
        if let Some(outage) = self.outages.first() {
            let text = format!("{} (for {} now)", outage.text, duration::print(self.settings.api_outage));
            self.fail(now, text);
        }
    }

    pub(super) fn worker_ended(&mut self, now: Instant, ended: Terminated) {
        self.timers.stop(Timer::Pending);
        self.timers.stop(Timer::Grace);
        self.has_run = true;
        self.record.exit_code = Some(ended.exit_code);
        self.record.terminated_reason.clone_from(&ended.reason);
        self.ended = Some(ended);
        self.ended_by_deletion = self.pod.as_ref().is_some_and(|pod| pod.is_deleting);
        if self.settings.method == StreamMethod::Tcp {
            return self.linger_for_tcp(now);
        }
        self.stop_stdin();
        self.set(State::Running, "Pod Running");
        self.read_rest(now);
    }

    /// The pod failed as a whole, and the status of `worker` is unknown: it was evicted, or its node is lost.
    pub(super) fn pod_failed(&mut self, now: Instant) {
        self.pod_gone(now);
    }

    /// `worker` has ended, and all of its log is read.
    pub(super) fn finish(&mut self, now: Instant) {
        let Some(ended) = self.ended.clone() else { return };
        let code = ended.exit_code;
        let never_started = ["StartError", "ContainerCannotRun"].contains(&ended.reason.as_str());
        // A container killed by Kubernetes did not end by itself, whatever its status says.
        let was_killed =
            self.ended_by_deletion || self.pod.as_ref().is_some_and(|pod| !pod.reason.is_empty());
        let is_usual = ["Completed", "Error"].contains(&ended.reason.as_str()) && !was_killed;
        if self.stdin.is_undelivered() && code != 0 && !never_started {
            let reason = if is_usual || ended.reason.is_empty() {
                String::new()
            } else {
                format!(" ({})", ended.reason)
            };
            let text = format!(
                "Error streaming stdin to pod {}. Error: container worker ended with exit code {code}{reason} before it \
                 had read its input{}",
                self.pod_path(),
                self.circumstances()
            );
            return self.fail_with_event(now, text);
        }
        if never_started || code != 0 && !is_usual {
            let text =
                format!("Error with pod's stdout: container worker {}{}", how(&ended), self.circumstances());
            return self.fail_with_event(now, text);
        }
        let detail = match ended.reason.as_str() {
            "OOMKilled" => "Finished: a process of container worker was killed, out of memory (OOMKilled)",
            _ => "Finished",
        };
        self.conclude(now, State::Succeeded, detail.into());
    }

    /// The pod is gone, and no more of its log is available.
    pub(super) fn conclude_gone(&mut self, now: Instant) {
        let (name, place) = (&self.record.pod_name, self.pod_path());
        let has_failed = self.pod.as_ref().is_some_and(|pod| pod.phase == PodPhase::Failed);
        let text = if self.ended.is_none() && self.has_run && has_failed {
            "Error with pod's stdout: container worker has ended with its pod".to_owned()
        } else if self.ended.is_some() {
            format!("Error with pod's stdout: pod {place} was deleted before its log was read to the end")
        } else if self.has_run {
            format!(
                "Error getting pod {place}. Error: pods \"{name}\" not found: it was deleted while container worker ran"
            )
        } else {
            format!(
                "Error creating pod: pods \"{name}\" not found: it was deleted before container worker ran"
            )
        };
        let text = format!("{text}{}", self.circumstances());
        self.fail_with_event(now, text);
    }

    /// Fails the unit because `worker` has ended and its kubelet no longer has the log. Most often the pod was evicted.
    pub(super) fn fail_without_log(&mut self, now: Instant, said: &str) {
        let text = format!("Error with pod's stdout: {said}{}", self.circumstances());
        self.fail_with_event(now, text);
    }

    /// The node, and the message of the pod as a whole.
    fn circumstances(&self) -> String {
        let Some(pod) = &self.pod else { return String::new() };
        let deleted = if self.ended_by_deletion { ", as the pod was being deleted" } else { "" };
        let node = if pod.node.is_empty() { String::new() } else { format!(" on node {}", pod.node) };
        let cause = joined(&pod.reason, &pod.message);
        let cause = if cause.is_empty() { String::new() } else { format!(": {cause}") };
        format!("{node}{deleted}{cause}")
    }

    /// Fails the unit; if readable, Detail also contains the pod's last event.
    pub(super) fn fail_with_event(&mut self, now: Instant, text: String) {
        if self.state.is_final() || self.verdict.is_some() {
            return;
        }
        if !self.settings.may_read_events {
            return self.fail(now, text);
        }
        self.close_streams();
        self.timers.stop_work();
        self.verdict = Some(text);
        self.timers.set(Timer::Events, now + EVENTS_WITHIN);
        self.ask(ApiRequest::GetEvents);
    }

    pub(super) fn conclude_verdict(&mut self, now: Instant, event: Option<&str>) {
        let Some(verdict) = self.verdict.take() else { return };
        self.timers.stop(Timer::Events);
        let text = match event {
            Some(event) => format!("{verdict}; last event: {event}"),
            None => verdict,
        };
        self.fail(now, text);
    }

    /// Fails the unit. A pod that may still run is deleted, since nobody follows it any more.
    pub(super) fn fail(&mut self, now: Instant, text: String) {
        self.conclude(now, State::Failed, text);
    }

    /// Cancels the unit.
    pub(super) fn cancel(&mut self, now: Instant) {
        self.conclude_verdict(now, None);
        self.conclude(now, State::Canceled, "Canceled".into());
    }

    /// Ends the unit, unless it has ended.
    pub(super) fn conclude(&mut self, now: Instant, state: State, detail: String) {
        if self.state.is_final() {
            return;
        }
        self.close_streams();
        self.timers.stop_work();
        let has_ended = self.is_gone
            || self.pod.as_ref().is_some_and(|pod| matches!(pod.worker, Container::Terminated(_)));
        self.set(state, detail);
        if state == State::Failed && !has_ended && !self.record.adopted {
            self.want_removal(now);
        }
    }
}
