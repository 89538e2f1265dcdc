//! What the node's units reach of the controller: submissions come in, cancels are passed on. Before the store was reached
//! for the first time there is no driver: submissions are checked and kept, and wait with what an earlier process left. It
//! knows nothing of how the store is reached.

use std::sync::{Arc, OnceLock, Weak};

use tokio::sync::Mutex;

use super::intake::{Intake, NEEDS_FENCE};
use super::resume::Lost;
use crate::confine::Support;
use crate::controller::core::{ChildId, InstanceName};
use crate::controller::driver::{JobDriver, SharedOptions};
use crate::controller::header::Header;
use crate::controller::operations;
use crate::controller::options::ControllerOptions;
use crate::controller::refusal::LINE_LIMIT;
use crate::controller::store::{Error, Kept};
use crate::controller::stream;
use crate::rpc::operation::{Answer, Operation, OperationCode, OperationRefusal};
use crate::rpc::report::controller::ControllerReport;
use crate::work::Registry;
use crate::work::jobs::{Act, HEADER, JobExtra, JobIntake, JobReport, JobRequest, JobUnit, Jobs};
use crate::work::unit::UnitId;

const STOPPED: &str = "the controller has stopped";

/// What units reach of the controller. The registry has it until the controller is taken away. Clones share it.
#[derive(Clone)]
pub(super) struct Door(Arc<Inside>);

struct Inside {
    node: InstanceName,
    registry: Registry,
    settings: SharedOptions,
    driver: OnceLock<Weak<JobDriver>>,
    /// Units that wait for the driver; `None` once it is there.
    waiting: Mutex<Option<Vec<JobUnit>>>,
    /// Why there is no driver.
    why: parking_lot::Mutex<Absence>,
    support: Support,
}

/// Why there is no driver.
struct Absence {
    words: String,
    /// To wait does not mend it: nothing is taken that would wait for it.
    is_refusal: bool,
}

impl std::fmt::Debug for Door {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Door").field("node", &self.0.node).finish_non_exhaustive()
    }
}

impl Door {
    pub(super) fn new(node: InstanceName, registry: &Registry, settings: SharedOptions) -> Self {
        let support = Support::detect();
        if support == Support::SocketsOnly {
            tracing::warn!(
                "this kernel has no Landlock, or an older one than that of Linux 6.2: {NEEDS_FENCE}"
            );
        }
        Self(Arc::new(Inside {
            node,
            registry: registry.clone(),
            settings,
            driver: OnceLock::new(),
            waiting: Mutex::new(Some(Vec::new())),
            why: parking_lot::Mutex::new(Absence { words: "it starts".to_owned(), is_refusal: false }),
            support,
        }))
    }

    /// Why there is no driver yet. Says whether that is news.
    pub(super) fn say(&self, error: &Error) -> bool {
        let words = error.to_string();
        let is_refusal = matches!(error, Error::Refused(_));
        let mut why = self.0.why.lock();
        let is_news = why.words != words;
        *why = Absence { words, is_refusal };
        is_news
    }

    pub(super) fn options(&self) -> Arc<ControllerOptions> {
        self.0.settings.load_full()
    }

    pub(super) fn settings(&self) -> SharedOptions {
        self.0.settings.clone()
    }

    /// Replaces the settings.
    pub(super) fn set_options(&self, options: ControllerOptions) {
        self.0.settings.store(Arc::new(options));
        if let Some(driver) = self.0.driver.get().and_then(Weak::upgrade) {
            driver.on_settings();
        }
    }

    /// Gives units their driver. Returns those that waited for one.
    pub(super) async fn open(&self, driver: &Arc<JobDriver>) -> Vec<JobUnit> {
        let mut waiting = self.0.waiting.lock().await;
        let _first = self.0.driver.set(Arc::downgrade(driver));
        waiting.take().unwrap_or_default()
    }

    /// The units of this node.
    pub(super) fn registry(&self) -> &Registry {
        &self.0.registry
    }

    /// Has a unit wait for the driver, and show that. Returns it if the driver is there.
    ///
    /// # Errors
    /// To wait would not help.
    pub(super) async fn keep(&self, unit: JobUnit, shown: &JobReport) -> Result<Option<JobUnit>, String> {
        let mut waiting = self.0.waiting.lock().await;
        let Some(waiting) = &mut *waiting else { return Ok(Some(unit)) };
        if let Absence { words, is_refusal: true } = &*self.0.why.lock() {
            return Err(words.clone());
        }
        unit.report(shown.clone()).await;
        waiting.push(unit);
        Ok(None)
    }

    /// What the kernel keeps from syncs.
    pub(super) fn support(&self) -> Support {
        self.0.support
    }

    pub(super) fn driver(&self) -> Result<Arc<JobDriver>, String> {
        match self.0.driver.get() {
            Some(driver) => driver.upgrade().ok_or_else(|| STOPPED.to_owned()),
            None => Err(self.0.why.lock().words.clone()),
        }
    }

    /// Carries out what needs no driver: a ping.
    pub(super) fn operate(&self, operation: &Operation) -> Result<Answer, OperationRefusal> {
        let why = self.0.why.lock().words.clone();
        if !matches!(operation, Operation::Ping(_)) {
            return Err(OperationRefusal::new(OperationCode::StoreAway, why));
        }
        let store = operations::store_report(&self.options(), Some(why));
        Ok(Answer::Ping(ControllerReport { store, ..operations::unopened(&self.0.node) }))
    }
}

impl Jobs for Door {
    fn verifies_signatures(&self) -> bool {
        self.options().verify_signature
    }

    fn begin(&self, request: JobRequest) -> Result<(JobExtra, Box<dyn JobIntake>), String> {
        if self.0.driver.get().is_some()
            && let Some(why) = self.driver()?.lease.halted()
        {
            return Err(format!("the controller of this node has stopped: {why}"));
        }
        let header = request.params.get(HEADER).filter(|text| !text.is_empty()).cloned();
        if let Some(other) = request.params.keys().find(|name| *name != HEADER) {
            return Err(format!("unknown parameter `{other}`: there is {HEADER}"));
        }
        if header.as_ref().is_some_and(|text| text.len() > LINE_LIMIT) {
            return Err(format!("the parameter {HEADER} is longer than {LINE_LIMIT} bytes"));
        }
        let parsed = header.as_ref().map(|text| Header::parse(text.as_bytes())).transpose();
        let parsed = parsed.map_err(|error| format!("header: {error}"))?;
        let stream = stream::Submission::new(self.options().bounds.max_payload, parsed);
        let JobRequest { params: _, is_admin, launched_by } = request;
        let extra = JobExtra { is_admin, launched_by, header, ..JobExtra::default() };
        Ok((extra, Box::new(Intake::new(self.clone(), stream, is_admin))))
    }

    fn resume(&self, unit: JobUnit) -> Act<'_, ()> {
        Box::pin(async move {
            if let Some(waiting) = &mut *self.0.waiting.lock().await {
                waiting.push(unit);
            } else if let Ok(driver) = self.driver() {
                self.follow_again(&driver, unit, &mut Lost::default()).await;
            }
        })
    }

    fn cancel(&self, unit: UnitId) -> Act<'_, Result<(), String>> {
        Box::pin(async move {
            let attached = || {
                let driver = self.driver().ok()?;
                let job = driver.publisher.job_of(unit.as_str())?;
                Some((driver, job))
            };
            if attached().is_none()
                && let Some(unit) = self.0.registry.job_unit(unit.as_str())
            {
                unit.note_cancel().await;
            }
            // It may have become a job meanwhile.
            let Some((driver, job)) = attached() else { return Ok(()) };
            if let Some(unit) = self.0.registry.job_unit(unit.as_str())
                && driver.publisher.give_up_fetching(&unit).await
            {
                return Ok(());
            }
            driver.store.cancel(None, job).await.map_err(|error| error.to_string())?;
            driver.publisher.show(job).await.map_err(|error| error.to_string())
        })
    }

    fn forget(&self, unit: UnitId) -> Act<'_, ()> {
        Box::pin(async move {
            if let Some(waiting) = &mut *self.0.waiting.lock().await {
                waiting.retain(|one| *one.id() != unit);
            }
            let Ok(driver) = self.driver() else { return };
            driver.publisher.detach(unit.as_str());
            let gone = driver.store.let_go_unit(driver.node.clone(), unit.to_string(), &Kept::ALL).await;
            if let Err(error) = gone {
                tracing::debug!(%unit, %error, "housekeeping will note that a unit is gone");
            }
        })
    }

    fn may_send(&self, unit: UnitId) -> Act<'_, bool> {
        Box::pin(async move {
            let (Some(child), Ok(driver)) = (ChildId::parse(unit.as_str()), self.driver()) else {
                return false;
            };
            let sent = driver.lease.may_send(child).await.unwrap_or_else(|error| {
                tracing::warn!(%unit, %error, "a payload waits until it may be sent");
                None
            });
            sent.is_some()
        })
    }

    fn keep_far_id(&self, unit: UnitId, id: String) -> Act<'_, Result<(), String>> {
        Box::pin(async move {
            // One of a health check is nobody's after a restart.
            let Some(child) = ChildId::parse(unit.as_str()) else { return Ok(()) };
            self.driver()?.attempts.keep_far_unit(child, id).await.map_err(|error| error.to_string())
        })
    }

    fn parent(&self, unit: &UnitId) -> Option<i64> {
        let child = ChildId::parse(unit.as_str())?;
        let Some(driver) = self.0.driver.get() else {
            // Whose job it is, only the store knows.
            return Some(child.job.0);
        };
        let driver = driver.upgrade()?;
        let is_ours = child.install == driver.install && !driver.foreign.has(unit.as_str());
        is_ours.then_some(child.job.0)
    }
}
