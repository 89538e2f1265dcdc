//! Whether a node does its work: the phase that the daemon is in, its latest reload, and whether the controller reaches its
//! store. Probes ask often, and strangers may ask as often as they like: the controller is asked once in a while, and never
//! waited for long.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use super::Operations;
use crate::counters::ControllerCounters;
use crate::rpc::operation::{Answer, Nothing, Operation};
use crate::rpc::report::controller::{ControllerReport, StoreReport};
use crate::rpc::report::node::{HealthState, ReloadReport};
use crate::work::Caller;

/// How long an answer of the controller is good.
const FRESH: Duration = Duration::from_secs(1);
/// How long it is waited for. A store that takes longer counts as away.
const PATIENCE: Duration = Duration::from_secs(2);

/// The life of this process, as the daemon says it. Clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct Life {
    began: Instant,
    since: Timestamp,
    phase: Arc<Mutex<HealthState>>,
    last_reload: Arc<Mutex<Option<ReloadReport>>>,
}

impl Life {
    /// It begins now.
    pub(crate) fn begin() -> Self {
        let phase = Arc::new(Mutex::new(HealthState::Starting));
        Self { began: Instant::now(), since: Timestamp::now(), phase, last_reload: Arc::default() }
    }

    /// It is in this phase from now on.
    pub(crate) fn enter(&self, phase: HealthState) {
        *self.phase.lock() = phase;
    }

    pub(super) fn phase(&self) -> HealthState {
        *self.phase.lock()
    }

    /// A reload has just ended.
    pub(crate) fn note_reload(&self, success: bool) {
        *self.last_reload.lock() = Some(ReloadReport { time: Timestamp::now(), success });
    }

    pub(super) fn last_reload(&self) -> Option<ReloadReport> {
        *self.last_reload.lock()
    }

    /// How long it has lasted.
    pub(super) fn uptime(&self) -> Duration {
        self.began.elapsed()
    }

    /// When it began, by the system's clock of then.
    pub(crate) fn since(&self) -> Timestamp {
        self.since
    }
}

/// What the controller said of itself last.
pub(super) struct ControllerWatch {
    controller: Arc<dyn Operations>,
    /// Held while it is asked, so that many who want to know ask once.
    last: tokio::sync::Mutex<Option<(Instant, ControllerSeen)>>,
}

/// How it stands, and what is counted of it.
pub(crate) type ControllerSeen = (ControllerReport, Option<ControllerCounters>);

impl ControllerWatch {
    pub(super) fn new(controller: Arc<dyn Operations>) -> Self {
        Self { controller, last: tokio::sync::Mutex::default() }
    }

    /// What it says now, or said a moment ago.
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
        let seen = match timeout(PATIENCE, asked).await {
            Ok((Ok((Answer::Ping(report), _)), figures)) => (report, figures),
            Ok((Ok(_), figures)) => (ControllerReport::default(), figures),
            Ok((Err(refusal), figures)) => (away(refusal.to_string()), figures),
            Err(_) => (away(format!("no answer within {} s", PATIENCE.as_secs())), None),
        };
        *last = Some((Instant::now(), seen.clone()));
        seen
    }
}

fn away(error: String) -> ControllerReport {
    let store = StoreReport { error: Some(error), ..StoreReport::default() };
    ControllerReport { store, ..ControllerReport::default() }
}
