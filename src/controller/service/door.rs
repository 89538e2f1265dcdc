//! What the node's units reach of the controller: submissions come in, cancels are passed on, and units of an earlier
//! process follow their jobs again. Before the store was reached for the first time there is no driver: submissions are
//! checked and kept, and wait with what an earlier process left. It knows nothing of how the store is reached.

use std::sync::{Arc, OnceLock, Weak};

use arc_swap::ArcSwap;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use super::{
    Cleaning, STORE_RETRY, Service, WAITING, attach, enter, enter_later, follow_in_any_case, submission,
};
use crate::confine::Support;
use crate::controller::core::{ChildId, InstanceName, JobId};
use crate::controller::credentials::{CredentialError, Credentials};
use crate::controller::driver::{JobDriver, rfc3339};
use crate::controller::header::{Header, Purpose};
use crate::controller::operations;
use crate::controller::options::ControllerOptions;
use crate::controller::refusal::LINE_LIMIT;
use crate::controller::store::{Audit, Error, JobDetail, Kept};
use crate::controller::stream;
use crate::rpc::UnitState;
use crate::rpc::operation::{Answer, Operation, OperationCode, OperationRefusal};
use crate::rpc::report::controller::ControllerReport;
use crate::work::Registry;
use crate::work::jobs::{Act, JobExtra, JobIntake, JobReport, JobRequest, JobUnit, Jobs};
use crate::work::unit::UnitId;

/// The parameter that may carry the header.
const HEADER: &str = "header";
const CHUNK: usize = 256 << 10;
/// What the audit says of a job that the store does not know any more.
const LOST: &str = "job.lost";
const NEEDS_FENCE: &str = "the header's sync.requirements needs all rights on this control node, as what they bring cannot be \
                           kept from its files: leave them out (requirements: false)";
const STOPPED: &str = "the controller has stopped";

/// What units reach of the controller. The registry has it until the controller is taken away. Clones share it.
#[derive(Clone)]
pub(super) struct Door(Arc<Inside>);

struct Inside {
    node: InstanceName,
    registry: Registry,
    /// Those of the driver count once there is one.
    options: ArcSwap<ControllerOptions>,
    driver: OnceLock<Weak<JobDriver>>,
    /// Units that wait for the driver; `None` once it is there.
    waiting: Mutex<Option<Vec<JobUnit>>>,
    /// Why there is no driver.
    why: parking_lot::Mutex<Absence>,
    stop: CancellationToken,
    cleaning: Cleaning,
    /// What the kernel keeps from syncs.
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
    pub(super) fn new(
        node: InstanceName,
        registry: &Registry,
        options: ControllerOptions,
        stop: CancellationToken,
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
            options: ArcSwap::from_pointee(options),
            driver: OnceLock::new(),
            waiting: Mutex::new(Some(Vec::new())),
            why: parking_lot::Mutex::new(Absence { words: "it starts".to_owned(), is_refusal: false }),
            stop,
            cleaning: Arc::default(),
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
        let driver = self.0.driver.get().and_then(Weak::upgrade);
        driver.map_or_else(|| self.0.options.load_full(), |driver| driver.options())
    }

    /// Replaces the settings.
    pub(super) fn set_options(&self, options: ControllerOptions) {
        self.0.options.store(Arc::new(options.clone()));
        if let Some(driver) = self.0.driver.get().and_then(Weak::upgrade) {
            driver.set_options(options);
        }
    }

    /// Gives units their driver. Returns those that waited for one.
    pub(super) async fn open(&self, driver: &Arc<JobDriver>) -> Vec<JobUnit> {
        let mut waiting = self.0.waiting.lock().await;
        let _first = self.0.driver.set(Arc::downgrade(driver));
        let units = waiting.take().unwrap_or_default();
        drop(waiting);
        driver.set_options(ControllerOptions::clone(&self.0.options.load()));
        units
    }

    /// Has units follow their jobs before the driver runs. Those whose jobs the store has lost become jobs again, or end.
    pub(super) async fn follow_all(&self, driver: &Arc<JobDriver>, units: Vec<JobUnit>) {
        let following = async {
            for unit in units {
                self.follow_again(driver, unit).await;
            }
        };
        tokio::select! {
            () = following => {}
            // Thousands of units may take longer than a lease lasts.
            () = driver.keep_lease() => {}
        }
    }

    /// The driver does not run yet, and without its unit a job would lose its output.
    async fn follow_again(&self, driver: &Arc<JobDriver>, unit: JobUnit) {
        let resumed = loop {
            match self.resume(driver, unit.clone()).await {
                Err(Error::Away(_) | Error::Refused(_)) => tokio::time::sleep(STORE_RETRY).await,
                resumed => break resumed,
            }
        };
        if let Err(error) = resumed {
            tracing::warn!(unit = %unit.id(), %error, "cannot attach unit to its job");
        }
    }

    /// A unit of an earlier process follows its job again. One whose job the store does not know, because the store lost
    /// its last commits or is an older copy, becomes a job again, unless it had been placed.
    async fn resume(&self, driver: &Arc<JobDriver>, unit: JobUnit) -> Result<(), Error> {
        let extra = unit.extra();
        let mut is_placed = extra.attempt > 0;
        if let Some(job) = extra.job_id.map(JobId) {
            let other = match driver.store.detail(job).await {
                Ok(detail) if is_unit_of(&detail, &driver.node, &unit, &extra) => {
                    // The process before may have ended before it noted that.
                    let (node, id) = (driver.node.clone(), unit.id().to_string());
                    if !detail.holders.contains(&(node.clone(), id.clone(), Kept::Output)) {
                        driver.store.hold(job, node, id, Kept::Output).await?;
                    }
                    return attach(driver, job, unit).await;
                }
                // In an older copy of the store the number may have become another job's.
                Ok(detail) => Some(detail),
                Err(Error::NoJob(_)) if driver.store.lost(vec![job]).await?.is_empty() => {
                    let detail = format!("job {job} was deleted");
                    unit.report(JobReport { state: UnitState::Failed, detail, extra }).await;
                    return Ok(());
                }
                Err(Error::NoJob(_)) => None,
                Err(error) => return Err(error),
            };
            // Its status may not say yet that it was placed. Where the job was created at the same moment it may be the unit's
            // own, and may have run.
            let is_others =
                |child: &ChildId| other.as_ref().is_some_and(|detail| has_child(detail, &child.to_string()));
            is_placed |= driver.children_of(job).iter().any(|child| !is_others(child));
            is_placed |= other.as_ref().is_some_and(|detail| was_created_as(detail, &extra));
            tracing::warn!(unit = %unit.id(), %job, "the store has lost this job, or is an older copy");
            let audit =
                Audit { who: format!("mesh:{}", driver.node), op: LOST.to_owned(), target: job.to_string() };
            driver.store.record(audit).await?;
        }
        let entered = match (extra.job_id, extra.rerun_of) {
            (Some(job), _) if is_placed => {
                Err(format!("the store has lost job {job}, which had been placed: it may have run"))
            }
            // Its row alone knew what it was to do of the first one's stream.
            (Some(job), Some(of)) => {
                Err(format!("the store has lost job {job}, which repeated job {of}: run job {of} again"))
            }
            (Some(_) | None, _) => self.enter_again(unit.clone()).await,
        };
        if let Err(detail) = entered {
            unit.report(JobReport { state: UnitState::Failed, detail, extra }).await;
        }
        Ok(())
    }

    /// A unit whose payload is here and whose row is not: an earlier process ended between the two, or there was no store.
    async fn enter_again(&self, unit: JobUnit) -> Result<(), String> {
        let extra = unit.extra();
        let header = extra.header.clone();
        let parsed = header.as_ref().map(|text| Header::parse(text.as_bytes())).transpose();
        let parsed = parsed.map_err(|error| error.to_string())?;
        let mut stream = stream::Submission::new(self.options().bounds.max_payload, parsed);
        let path = unit.payload();
        let checked = tokio::task::spawn_blocking(move || -> Result<stream::Submission, String> {
            use std::io::Read as _;
            let mut file = std::fs::File::open(path).map_err(|error| error.to_string())?;
            let mut buffer = vec![0; CHUNK];
            loop {
                let count = file.read(&mut buffer).map_err(|error| error.to_string())?;
                if count == 0 {
                    return Ok(stream);
                }
                stream.push(&buffer[..count]).map_err(|error| error.to_string())?;
            }
        });
        let stream = checked.await.map_err(|error| error.to_string())??;
        let is_admin = unit.extra().is_admin;
        let request = JobRequest { params: Default::default(), is_admin, launched_by: extra.launched_by };
        Box::new(Intake { door: self.clone(), stream, header, request }).finish(unit).await.map(drop)
    }

    pub(super) fn service(&self, driver: Arc<JobDriver>) -> Service {
        let Inside { registry, stop, cleaning, .. } = &*self.0;
        Service { driver, registry: registry.clone(), stop: stop.clone(), cleaning: cleaning.clone() }
    }

    fn driver(&self) -> Result<Arc<JobDriver>, String> {
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

/// Whether a job that the store has under the number that a unit shows is that unit's.
fn is_unit_of(detail: &JobDetail, node: &InstanceName, unit: &JobUnit, extra: &JobExtra) -> bool {
    // One that was made for a job that this node took over, or that another unit had submitted, before that was noted.
    let has_none_of_its_own =
        || !unit.has_payload() && (extra.created.is_none() || was_created_as(detail, extra));
    detail.is_shown_by(node, unit.id().as_str())
        || has_child(detail, &extra.child_unit_id)
        || has_none_of_its_own()
}

fn has_child(detail: &JobDetail, child: &str) -> bool {
    detail.job.attempts.iter().any(|attempt| attempt.unit.to_string() == child)
}

/// Whether a job was created when a unit says that its own was.
fn was_created_as(detail: &JobDetail, extra: &JobExtra) -> bool {
    extra.created.as_ref() == Some(&rfc3339(detail.row.created))
}

impl Jobs for Door {
    fn verifies_signatures(&self) -> bool {
        self.options().verify_signature
    }

    fn begin(&self, request: JobRequest) -> Result<Box<dyn JobIntake>, String> {
        if self.0.driver.get().is_some()
            && let Some(why) = self.driver()?.halted()
        {
            return Err(format!("the controller of this node has stopped: {why}"));
        }
        let header = request.params.get(HEADER).filter(|text| !text.is_empty());
        if let Some(other) = request.params.keys().find(|name| *name != HEADER) {
            return Err(format!("unknown parameter `{other}`: there is {HEADER}"));
        }
        if header.is_some_and(|text| text.len() > LINE_LIMIT) {
            return Err(format!("the parameter {HEADER} is longer than {LINE_LIMIT} bytes"));
        }
        let parsed = header.map(|text| Header::parse(text.as_bytes())).transpose();
        let parsed = parsed.map_err(|error| format!("header: {error}"))?;
        let stream = stream::Submission::new(self.options().bounds.max_payload, parsed);
        Ok(Box::new(Intake { door: self.clone(), stream, header: header.cloned(), request }))
    }

    fn resume(&self, unit: JobUnit) -> Act<'_, ()> {
        Box::pin(async move {
            if let Some(waiting) = &mut *self.0.waiting.lock().await {
                waiting.push(unit);
            } else if let Ok(driver) = self.driver() {
                self.follow_again(&driver, unit).await;
            }
        })
    }

    fn cancel(&self, unit: UnitId) -> Act<'_, Result<(), String>> {
        Box::pin(async move {
            let attached = || {
                let driver = self.driver().ok()?;
                let job = driver.job_of(unit.as_str())?;
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
                && driver.give_up_fetching(&unit).await
            {
                return Ok(());
            }
            driver.store.cancel(None, job).await.map_err(|error| error.to_string())?;
            driver.show(job).await.map_err(|error| error.to_string())
        })
    }

    fn forget(&self, unit: UnitId) -> Act<'_, ()> {
        Box::pin(async move {
            if let Some(waiting) = &mut *self.0.waiting.lock().await {
                waiting.retain(|one| *one.id() != unit);
            }
            let Ok(driver) = self.driver() else { return };
            driver.detach(unit.as_str());
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
            driver.may_send(child).await.unwrap_or_else(|error| {
                tracing::warn!(%unit, %error, "a payload waits until it may be sent");
                false
            })
        })
    }

    fn parent(&self, unit: &UnitId) -> Option<i64> {
        let child = ChildId::parse(unit.as_str())?;
        let Some(driver) = self.0.driver.get() else {
            // Whose job it is, only the store knows.
            return Some(child.job.0);
        };
        let driver = driver.upgrade()?;
        let is_ours = child.install == driver.install && !driver.is_foreign(unit.as_str());
        is_ours.then_some(child.job.0)
    }
}

/// A submission while its payload comes.
#[derive(Debug)]
struct Intake {
    door: Door,
    stream: stream::Submission,
    header: Option<String>,
    request: JobRequest,
}

impl JobIntake for Intake {
    fn push(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.stream.push(bytes).map_err(|error| error.to_string())?;
        let (is_admin, support) = (self.request.is_admin, self.door.0.support);
        self.stream.header().map_or(Ok(()), |header| check(header, is_admin, support))
    }

    fn finish(self: Box<Self>, unit: JobUnit) -> Act<'static, Result<bool, String>> {
        Box::pin(async move {
            let Self { door, stream, header, request } = *self;
            let accepted = stream.finish().map_err(|error| error.to_string())?;
            check(&accepted.header, request.is_admin, door.0.support)?;
            check_credentials(&door.options(), &accepted.header, request.is_admin).await?;
            let stream::Accepted { header: wanted, asked, unjudged, .. } = accepted;
            if let Some(zip) = unjudged {
                judge(zip, unit.payload()).await?;
            }
            let mut extra = unit.extra();
            (extra.launched_by, extra.is_admin, extra.header) =
                (request.launched_by.clone(), request.is_admin, header);
            let mut report = JobReport { state: UnitState::Pending, detail: WAITING.to_owned(), extra };
            let mut waiting = door.0.waiting.lock().await;
            if let Some(waiting) = &mut *waiting {
                if let Absence { words, is_refusal: true } = &*door.0.why.lock() {
                    return Err(words.clone());
                }
                unit.report(report).await;
                waiting.push(unit);
                return Ok(false);
            }
            drop(waiting);
            let driver = door.driver()?;
            let mut submission = submission(&driver, &unit, &wanted, &asked, &request.launched_by);
            submission.is_admin = request.is_admin;
            let entering = driver.entering.clone().read_owned().await;
            match enter(&driver, &submission).await {
                Ok(job) => {
                    report.extra.job_id = Some(job.id().0);
                    report.detail = "pending".to_owned();
                    unit.report(report).await;
                    let followed = follow_in_any_case(&driver, entering, job, unit).await;
                    followed.map(|()| true).map_err(|error| error.to_string())
                }
                Err(Error::Away(_)) => {
                    drop(entering);
                    unit.report(report).await;
                    tokio::spawn(async move {
                        if let Err(error) = enter_later(&driver, submission, unit.clone()).await {
                            tracing::warn!(%error, "a submission that waited for the store is not a job");
                            let (detail, extra) = (error.to_string(), unit.extra());
                            unit.report(JobReport { state: UnitState::Failed, detail, extra }).await;
                        }
                    });
                    Ok(false)
                }
                Err(error) => Err(error.to_string()),
            }
        })
    }
}

/// Whether the zip of a stored payload may stand beside a project from elsewhere.
async fn judge(zip: stream::StoredZip, payload: std::path::PathBuf) -> Result<(), String> {
    let judged = tokio::task::spawn_blocking(move || -> Result<(), String> {
        let mut payload = std::fs::File::open(payload).map_err(|error| error.to_string())?;
        zip.judge(&mut payload).map_err(|fault| fault.to_string())
    });
    judged.await.map_err(|error| error.to_string())?
}

/// What the caller may do.
fn check(header: &Header, is_admin: bool, support: Support) -> Result<(), String> {
    let has_requirements = header.sync.as_ref().is_some_and(|sync| sync.requirements);
    if has_requirements && !is_admin && support == Support::SocketsOnly {
        return Err(NEEDS_FENCE.to_owned());
    }
    if let Some(why) = header.needs_admin().filter(|_| !is_admin) {
        return Err(why.to_owned());
    }
    Ok(())
}

/// The credentials that a header names exist, fit their use, and are for this caller. They are read again at their use.
async fn check_credentials(
    options: &ControllerOptions,
    header: &Header,
    is_admin: bool,
) -> Result<(), String> {
    if header.credentials().is_empty() {
        return Ok(());
    }
    let (credentials, header) = (Credentials::new(options.credentials.clone()), header.clone());
    let checked = tokio::task::spawn_blocking(move || {
        for (name, purpose) in header.credentials() {
            if !is_admin {
                credentials.check_mesh(name)?;
            }
            match purpose {
                Purpose::Registry { image: Some(image) } => drop(credentials.registry(name, image)?),
                Purpose::Registry { image: None } => credentials.check_registry(name)?,
                Purpose::Repository(url) => drop(credentials.repository(name, url)?),
            }
        }
        Ok::<_, CredentialError>(())
    });
    let checked = checked.await.map_err(|error| error.to_string())?;
    checked.map_err(|error| format!("header: {error}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn without_a_fence_requirements_need_all_rights() {
        let header = |requirements: bool| {
            let sync = json!({"url": "https://git.example/a", "requirements": requirements});
            Header::parse(json!({"controller": 1, "sync": sync}).to_string().as_bytes()).unwrap()
        };
        for (requirements, is_admin, support, expected) in [
            (true, false, Support::SocketsOnly, false),
            (true, true, Support::SocketsOnly, true),
            (false, false, Support::SocketsOnly, true),
            (true, false, Support::Files, true),
        ] {
            let checked = check(&header(requirements), is_admin, support);
            assert_eq!(checked.is_ok(), expected, "{requirements} {is_admin} {support:?}");
        }
    }
}
