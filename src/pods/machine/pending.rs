//! Interprets the pod's status: what it waits for until `worker` runs, which reasons end the waiting, and
//! whether `worker` runs or has ended. Only `worker` counts, not other containers.

use std::time::Instant;

use super::{ApiRequest, Machine, Timer};
use crate::pods::options::StreamMethod;
use crate::pods::pod_status::{Container, PodPhase, PodSeen};
use crate::pods::waiting::{
    BACK_OFFS, GRACE, IMAGE_PULL_BACK_OFF, WaitLimit, describe, failed_to_start, obstacle, wait_limit,
    waits_for,
};
use crate::rpc::UnitState as State;

/// How often the pull of an image has backed off.
#[derive(Debug, Default)]
pub(super) struct BackOffs {
    count: u32,
    is_in_one: bool,
}

impl BackOffs {
    /// Counts transitions, as the same status may be reported many times.
    fn note(&mut self, reason: &str) -> u32 {
        let is_in_one = reason == IMAGE_PULL_BACK_OFF;
        if is_in_one && !self.is_in_one {
            self.count += 1;
        }
        self.is_in_one = is_in_one;
        self.count
    }
}

impl Machine {
    /// The pod was seen.
    pub(super) fn observe(&mut self, now: Instant, pod: PodSeen) {
        if pod.uid != self.record.pod_uid {
            return self.pod_gone(now);
        }
        let worker = pod.worker.clone();
        let (phase, has_run) = (pod.phase, self.has_run);
        self.pod = Some(pod);
        match worker {
            Container::Running if self.ended.is_none() => self.worker_runs(now),
            Container::Terminated(ended) if self.ended.is_none() => self.worker_ended(now, ended),
            Container::Running | Container::Terminated(_) => {}
            Container::Unknown | Container::Waiting(_) if phase == PodPhase::Failed && has_run => {
                self.pod_failed(now)
            }
            Container::Unknown | Container::Waiting(_) if phase == PodPhase::Failed => {
                self.fail_to_start(now)
            }
            Container::Unknown | Container::Waiting(_) if has_run => {}
            Container::Unknown | Container::Waiting(_) => self.pod_pends(now),
        }
    }

    fn pod_pends(&mut self, now: Instant) {
        let Some(pod) = &self.pod else { return };
        let reason = obstacle(pod).map_or("", |waiting| &waiting.reason);
        let (wait_limit, back_offs) = (wait_limit(reason), self.back_offs.note(reason));
        let waits_for = waits_for(pod);
        match wait_limit {
            WaitLimit::None => return self.fail_to_start(now),
            WaitLimit::Grace => self.timers.start(Timer::Grace, now + GRACE),
            WaitLimit::BackOffs if back_offs >= BACK_OFFS => return self.fail_to_start(now),
            WaitLimit::BackOffs | WaitLimit::Deadline => self.timers.stop(Timer::Grace),
        }
        self.set(
            State::Pending,
            match waits_for {
                Some(why) => format!("Pod created: {why}"),
                None => "Pod created".to_owned(),
            },
        );
    }

    fn worker_runs(&mut self, now: Instant) {
        self.timers.stop(Timer::Pending);
        self.timers.stop(Timer::Grace);
        self.has_run = true;
        if self.settings.method == StreamMethod::Logger {
            self.open_log_first(now);
            self.worker_takes_stdin(now);
        }
    }

    /// The pod will not run, for the reason in its status.
    pub(super) fn fail_to_start(&mut self, now: Instant) {
        let cause = match &self.pod {
            Some(pod) if pod.phase == PodPhase::Failed => failed_to_start(pod),
            Some(pod) => match obstacle(pod) {
                Some(waiting) => format!("container failed to start, {}", describe(waiting)),
                None => return,
            },
            None => return,
        };
        self.fail_with_event(now, format!("Error creating pod: {cause}"));
    }

    /// The pod did not run in time.
    pub(super) fn fail_pending(&mut self, now: Instant) {
        if self.has_run || self.state != State::Pending {
            return;
        }
        let seen = self.pod.as_ref().and_then(waits_for);
        let cause = seen.or_else(|| self.create.last_error().map(str::to_owned));
        let cause = cause.map(|cause| format!(": {cause}")).unwrap_or_default();
        let text = format!("Error creating pod: timed out waiting for the condition{cause}");
        if self.pod.is_some() { self.fail_with_event(now, text) } else { self.fail(now, text) }
    }

    /// The API server no longer knows the pod.
    pub(super) fn pod_gone(&mut self, now: Instant) {
        self.is_gone = true;
        if self.has_run && self.stdout.reads().is_some() {
            // The kubelet may still serve the rest of the log.
            self.timers.start(Timer::Gone, now + super::end::AFTER_GONE);
        } else {
            self.conclude_gone(now);
        }
    }

    /// Gets the pod's status, because the watch may be late.
    pub(super) fn get_pod_soon(&mut self) {
        if !self.is_getting && !self.timers.runs(Timer::Get) {
            self.get_pod();
        }
    }

    /// Closes all open streams.
    pub(super) fn close_streams(&mut self) {
        if self.stdin.is_open() {
            self.ask(ApiRequest::CloseAttach);
        }
        for stream in self.stdout.take_open() {
            self.ask(ApiRequest::CloseLog(stream));
        }
    }
}
