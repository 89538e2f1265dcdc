//! Whether a node does its work: the daemon's phase, its latest reload, and whether the controller reaches its store.
//! Anybody may probe at any rate, so the controller is asked at most once a second, and only for a short time. Refuses
//! to know who probes.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use crate::counters::ControllerCounters;
use crate::rpc::operation::{Answer, Nothing, Operation};
use crate::rpc::report::controller::{ControllerReport, StoreReport};
use crate::rpc::report::node::{HealthState, ReloadReport};
use crate::work::Caller;
use crate::work::jobs::Operations;

/// How long an answer of the controller is reused.
const FRESH: Duration = Duration::from_secs(1);
/// How long the controller may take to answer. After that its store counts as away.
const STORE_WITHIN: Duration = Duration::from_secs(2);

/// The life of this process, as the daemon reports it. Clones share their state.
#[derive(Debug, Clone)]
pub(crate) struct ProcessLife {
    began: Instant,
    since: Timestamp,
    phase: Arc<Mutex<HealthState>>,
    last_reload: Arc<Mutex<Option<ReloadReport>>>,
}

impl ProcessLife {
    /// A life that begins now.
    pub(crate) fn begin() -> Self {
        let phase = Arc::new(Mutex::new(HealthState::Starting));
        Self { began: Instant::now(), since: Timestamp::now(), phase, last_reload: Arc::default() }
    }

    /// Sets the phase that the process is in from now on.
    pub(crate) fn enter(&self, phase: HealthState) {
        *self.phase.lock() = phase;
    }

    pub(super) fn phase(&self) -> HealthState {
        *self.phase.lock()
    }

    /// Notes that a reload has just ended.
    pub(crate) fn note_reload(&self, success: bool) {
        *self.last_reload.lock() = Some(ReloadReport { time: Timestamp::now(), success });
    }

    pub(super) fn last_reload(&self) -> Option<ReloadReport> {
        *self.last_reload.lock()
    }

    /// How long the process has run.
    pub(super) fn uptime(&self) -> Duration {
        self.began.elapsed()
    }

    /// When the process began, as the system's clock showed it then.
    pub(crate) fn since(&self) -> Timestamp {
        self.since
    }
}

/// The latest answer of the controller about itself.
pub(super) struct ControllerWatch {
    controller: Arc<dyn Operations>,
    /// Locked while the controller is asked, so that concurrent probes share one answer.
    last: tokio::sync::Mutex<Option<(Instant, ControllerSeen)>>,
}

/// The controller's state and its counters.
pub(crate) type ControllerSeen = (ControllerReport, Option<ControllerCounters>);

impl ControllerWatch {
    pub(super) fn new(controller: Arc<dyn Operations>) -> Self {
        Self { controller, last: tokio::sync::Mutex::default() }
    }

    /// The controller's answer, at most [`FRESH`] old.
    pub(super) async fn look(&self) -> ControllerSeen {
        let mut last = self.last.lock().await;
        if let Some((at, seen)) = &*last
            && at.elapsed() < FRESH
        {
            return seen.clone();
        }
        let asked = async {
            let answered = self.controller.operate(Operation::Ping(Nothing {}), &Caller::default()).await;
            (answered, self.controller.figures().await)
        };
        let seen = match timeout(STORE_WITHIN, asked).await {
            Ok((Ok((Answer::Ping(report), _)), figures)) => (report, figures),
            Ok((Ok(_), figures)) => (ControllerReport::default(), figures),
            Ok((Err(refusal), figures)) => (away(refusal.to_string()), figures),
            Err(_) => (away(format!("no answer within {} s", STORE_WITHIN.as_secs())), None),
        };
        *last = Some((Instant::now(), seen.clone()));
        seen
    }
}

fn away(error: String) -> ControllerReport {
    let store = StoreReport { error: Some(error), ..StoreReport::default() };
    ControllerReport { store, ..ControllerReport::default() }
}
