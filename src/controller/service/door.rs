//! The controller as the node's units see it: takes submissions and passes cancels on. There is no driver before the
//! store is first reached. Until then it checks and keeps submissions, which wait together with the units of an earlier
//! process. It knows nothing of how the store is reached.

use std::sync::{Arc, OnceLock, Weak};

use tokio::sync::Mutex;

use super::intake::{Intake, NEEDS_FENCE};
use super::resume::Lost;
use crate::confine::Support;
use crate::controller::answers;
use crate::controller::core::{ChildId, InstanceName};
use crate::controller::driver::JobDriver;
use crate::controller::header::Header;
use crate::controller::options::{ControllerOptions, SharedOptions};
use crate::controller::refusal::LINE_LIMIT;
use crate::controller::saved::SavedShelf;
use crate::controller::store::{Error, Kept};
use crate::controller::stream;
use crate::rpc::operation::{Answer, Operation, OperationCode, OperationRefusal};
use crate::rpc::report::controller::ControllerReport;
use crate::work::Registry;
use crate::work::jobs::{Act, HEADER, JobController, JobExtra, JobIntake, JobRequest, JobUnit, ShownJob};
use crate::work::unit::UnitId;

const STOPPED: &str = "the controller has stopped";

/// The controller as units see it. The registry holds it until the controller is taken away. Clones share it.
#[derive(Clone)]
pub(super) struct Door(Arc<Inside>);

struct Inside {
    node: InstanceName,
    registry: Registry,
    settings: SharedOptions,
    saved: SavedShelf,
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
    /// Waiting does not help, so nothing is accepted that would wait for the driver.
    is_refusal: bool,
}

impl std::fmt::Debug for Door {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Door").field("node", &self.0.node).finish_non_exhaustive()
    }
}

impl Door {
    pub(super) fn new(
        node: InstanceName,
        registry: &Registry,
        settings: SharedOptions,
        saved: SavedShelf,
    ) -> Self {
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
            saved,
            driver: OnceLock::new(),
            waiting: Mutex::new(Some(Vec::new())),
            why: parking_lot::Mutex::new(Absence { words: "it starts".to_owned(), is_refusal: false }),
            support,
        }))
    }

    /// Notes why there is no driver yet. Returns whether the reason is new.
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

    /// The saved jobs of this node.
    pub(super) fn saved(&self) -> &SavedShelf {
        &self.0.saved
    }

    /// Replaces the settings.
    pub(super) fn set_options(&self, options: ControllerOptions) {
        self.0.settings.store(Arc::new(options));
        if let Some(driver) = self.0.driver.get().and_then(Weak::upgrade) {
            driver.on_settings();
        }
    }

    /// Gives units their driver. Returns the units that waited for it.
    pub(super) async fn open(&self, driver: &Arc<JobDriver>) -> Vec<JobUnit> {
        let mut waiting = self.0.waiting.lock().await;
        let _first = self.0.driver.set(Arc::downgrade(driver));
        waiting.take().unwrap_or_default()
    }

    /// The units of this node.
    pub(super) fn registry(&self) -> &Registry {
        &self.0.registry
    }

    /// Makes a unit wait for the driver, and show that it waits. Returns the unit if the driver is there.
    ///
    /// # Errors
    /// Waiting would not help.
    pub(super) async fn keep(&self, unit: JobUnit, shown: &ShownJob) -> Result<Option<JobUnit>, String> {
        let mut waiting = self.0.waiting.lock().await;
        let Some(waiting) = &mut *waiting else { return Ok(Some(unit)) };
        if let Absence { words, is_refusal: true } = &*self.0.why.lock() {
            return Err(words.clone());
        }
        unit.report(shown.clone()).await;
        waiting.push(unit);
        Ok(None)
    }

    /// What the kernel can keep syncs from.
    pub(super) fn support(&self) -> Support {
        self.0.support
    }

    pub(super) fn driver(&self) -> Result<Arc<JobDriver>, String> {
        match self.0.driver.get() {
            Some(driver) => driver.upgrade().ok_or_else(|| STOPPED.to_owned()),
            None => Err(self.0.why.lock().words.clone()),
        }
    }

    /// The refusal of what needs a driver.
    pub(super) fn away(&self) -> OperationRefusal {
        OperationRefusal::new(OperationCode::StoreAway, self.0.why.lock().words.clone())
    }

    /// Carries out a ping, the only operation that needs no driver.
    pub(super) fn operate(&self, operation: &Operation) -> Result<Answer, OperationRefusal> {
        let away = self.away();
        if !matches!(operation, Operation::Ping(_)) {
            return Err(away);
        }
        let store = answers::store_report(&self.options(), Some(away.message));
        Ok(Answer::Ping(ControllerReport { store, ..answers::unopened(&self.0.node) }))
    }
}

impl JobController for Door {
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
        let JobRequest { params: _, is_admin, is_own, launched_by } = request;
        let extra = JobExtra { is_admin, launched_by, header, ..JobExtra::default() };
        Ok((extra, Box::new(Intake::new(self.clone(), stream, is_admin, is_own))))
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
            // The unit may have become a job meanwhile.
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
                tracing::debug!(%unit, %error, "cannot store that a unit is gone, leaving it to housekeeping");
            }
        })
    }

    fn may_send(&self, unit: UnitId) -> Act<'_, bool> {
        Box::pin(async move {
            let (Some(child), Ok(driver)) = (ChildId::parse(unit.as_str()), self.driver()) else {
                return false;
            };
            let sent = driver.lease.may_send(child).await.unwrap_or_else(|error| {
                tracing::warn!(%unit, %error, "cannot find out whether a payload may be sent yet, it waits");
                None
            });
            sent.is_some()
        })
    }

    fn keep_far_id(&self, unit: UnitId, id: String) -> Act<'_, Result<(), String>> {
        Box::pin(async move {
            // The ID is not kept for a health check's unit, because nobody asks for this unit after a restart.
            let Some(child) = ChildId::parse(unit.as_str()) else { return Ok(()) };
            self.driver()?.attempts.keep_far_unit(child, id).await.map_err(|error| error.to_string())
        })
    }

    fn parent(&self, unit: &UnitId) -> Option<i64> {
        let child = ChildId::parse(unit.as_str())?;
        let Some(driver) = self.0.driver.get() else {
            // Only the store knows whether another node drives the job, so the child counts as this node's.
            return Some(child.job.0);
        };
        let driver = driver.upgrade()?;
        let is_ours = child.install == driver.install && !driver.foreign.has(unit.as_str());
        is_ours.then_some(child.job.0)
    }
}
