//! The controller as this node's units and its control socket see it: submissions become jobs, units follow them, and
//! clients cancel them. What is due for a job is `driver`'s business, what operators ask for `operations`'.

pub(super) mod repeat;

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::children::RegistryChildren;
use super::core::{ChildId, InstanceName, JobId};
use super::credentials::{CredentialError, Credentials};
use super::driver::JobDriver;
use super::driver::world::Mesh;
use super::header::{Header, Purpose};
use super::operations::{self, Operated, Refused};
use super::options::ControllerOptions;
use super::projects::ProjectCache;
use super::refusal::LINE_LIMIT;
use super::store::{Error, Kept, Options, Store, Submission, Submitted, Terms};
use super::stream;
use crate::rpc::UnitState;
use crate::work::Registry;
use crate::work::jobs::{Act, JobIntake, JobReport, JobRequest, JobUnit, Jobs};
use crate::work::unit::UnitId;

/// The parameter that may carry the header.
const HEADER: &str = "header";
/// How long a submission waits between two tries while the store is away.
const AWAY: Duration = Duration::from_secs(1);
const CHUNK: usize = 256 << 10;

/// Whether a unit is one that a controller made for a job.
pub fn is_child(unit: &UnitId) -> bool {
    ChildId::parse(unit.as_str()).is_some()
}

/// A running controller. Clones share it.
#[derive(Debug, Clone)]
pub struct Service {
    pub(super) driver: Arc<JobDriver>,
    /// The units of this node.
    pub(super) registry: Registry,
    pub(super) stop: CancellationToken,
    /// The units of clean-ups that run.
    pub(super) cleaning: Cleaning,
}

/// The store of a node: its file is below the node's directory unless the settings name another.
///
/// # Errors
/// The settings are wrong.
pub fn store_options(options: &ControllerOptions, directory: &std::path::Path) -> Result<Options, Error> {
    let default = directory.join(".controller").join("store.db");
    Options::parse(&options.store, options.store_password_file.clone(), &default)
}

impl Service {
    /// Opens the store, takes this node's lease, and serves jobs.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn start(
        options: ControllerOptions,
        store: &Options,
        registry: Registry,
        node: &str,
        mesh: Arc<dyn Mesh>,
        projects: ProjectCache,
    ) -> Result<Self, Error> {
        let node = InstanceName::from(node);
        let store = Store::open(store, &node).await?;
        let children = Arc::new(RegistryChildren(registry.clone()));
        let driver = JobDriver::start(node, store, options, mesh, children, projects).await?;
        Ok(Self::serve(driver, &registry).await)
    }

    /// Makes units of jobs reach a driver, and runs it.
    pub(super) async fn serve(driver: Arc<JobDriver>, registry: &Registry) -> Self {
        registry.release_leftovers(&driver.check_prefix());
        let stop = CancellationToken::new();
        let service = Self {
            driver: driver.clone(),
            registry: registry.clone(),
            stop: stop.clone(),
            cleaning: Arc::default(),
        };
        let door = Door {
            driver: Arc::downgrade(&driver),
            registry: registry.clone(),
            stop: stop.clone(),
            cleaning: service.cleaning.clone(),
        };
        registry.serve_jobs(Box::new(door)).await;
        tokio::spawn(async move {
            driver.run(stop.clone()).await;
            // A node that stands down keeps no house either.
            stop.cancel();
        });
        tokio::spawn(service.clone().keep_house());
        service
    }

    /// Whether there may be other control nodes: the store is not this node's alone.
    pub fn has_peers(&self) -> bool {
        self.driver.store.is_shared()
    }

    /// Replaces the settings.
    pub fn set_options(&self, options: ControllerOptions) {
        self.driver.set_options(options);
    }

    /// Ends it. Children run on.
    pub fn stop(&self) {
        self.stop.cancel();
    }
}

/// What units reach of the controller. The registry has it until the controller is taken away.
struct Door {
    driver: Weak<JobDriver>,
    registry: Registry,
    stop: CancellationToken,
    cleaning: Cleaning,
}

type Cleaning = Arc<parking_lot::Mutex<std::collections::BTreeSet<String>>>;

const STOPPED: &str = "the controller has stopped";

impl Door {
    fn driver(&self) -> Result<Arc<JobDriver>, String> {
        self.driver.upgrade().ok_or_else(|| STOPPED.to_owned())
    }

    fn service(&self) -> Result<Service, String> {
        let Self { driver: _, registry, stop, cleaning } = self;
        let (registry, stop, cleaning) = (registry.clone(), stop.clone(), cleaning.clone());
        Ok(Service { driver: self.driver()?, registry, stop, cleaning })
    }
}

impl Jobs for Door {
    fn verifies_signatures(&self) -> bool {
        self.driver().is_ok_and(|driver| driver.options().verify_signature)
    }

    fn begin(&self, request: JobRequest) -> Result<Box<dyn JobIntake>, String> {
        let driver = self.driver()?;
        if let Some(why) = driver.halted() {
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
        let stream = stream::Submission::new(driver.options().bounds.max_payload, parsed);
        Ok(Box::new(Intake { driver, stream, header: header.cloned(), request }))
    }

    fn operate(&self, operation: Vec<u8>, who: String) -> Act<'_, String> {
        Box::pin(async move {
            let operated = match (self.service(), serde_json::from_slice(&operation)) {
                (Err(message), _) => Err(Refused { code: "refused", message }),
                (_, Err(_)) => Err(Refused::bad("the payload is not one JSON object")),
                (Ok(service), Ok(request)) => service.operate(request, &who).await,
            };
            operations::line(operated.and_then(|operated| match operated {
                Operated::Done(result) => Ok(result),
                Operated::Stream(..) => {
                    Err(Refused::bad("it is a stream: ask for it over the control socket"))
                }
            }))
            .to_string()
        })
    }

    fn resume(&self, unit: JobUnit) -> Act<'_, ()> {
        Box::pin(async move {
            if let Ok(driver) = self.driver() {
                let id = unit.id().clone();
                // The driver does not run yet, and without its unit a job would lose its output.
                let resumed = loop {
                    match resume(driver.clone(), unit.clone()).await {
                        Err(Error::Away(_)) => tokio::time::sleep(AWAY).await,
                        resumed => break resumed,
                    }
                };
                if let Err(error) = resumed {
                    tracing::warn!(unit = %id, %error, "a unit does not follow its job");
                }
            }
        })
    }

    fn cancel(&self, unit: UnitId) -> Act<'_, Result<(), String>> {
        Box::pin(async move {
            let driver = self.driver()?;
            let Some(job) = driver.job_of(unit.as_str()) else { return Ok(()) };
            driver.store.cancel(None, job).await.map_err(|error| error.to_string())?;
            driver.show(job).await.map_err(|error| error.to_string())
        })
    }

    fn forget(&self, unit: UnitId) -> Act<'_, ()> {
        Box::pin(async move {
            let Ok(driver) = self.driver() else { return };
            driver.detach(unit.as_str());
            let gone = driver.store.let_go_unit(driver.node.clone(), unit.to_string(), &Kept::ALL).await;
            if let Err(error) = gone {
                tracing::debug!(%unit, %error, "housekeeping will note that a unit is gone");
            }
        })
    }

    fn parent(&self, unit: &UnitId) -> Option<i64> {
        let driver = self.driver().ok()?;
        let child = ChildId::parse(unit.as_str()).filter(|_| !driver.is_foreign(unit.as_str()))?;
        (child.install == driver.install).then_some(child.job.0)
    }
}

/// A unit of an earlier process follows its job again. One whose job the store does not know, because the store lost its
/// last commits or is an older copy, becomes a job again, unless it had been placed.
async fn resume(driver: Arc<JobDriver>, unit: JobUnit) -> Result<(), Error> {
    let extra = unit.extra();
    if let Some(job) = extra.job_id.map(JobId) {
        let known = match driver.store.detail(job).await {
            Ok(detail) => {
                let (node, id) = (&driver.node, unit.id().as_str());
                detail.holders.iter().any(|(holder, held, _)| holder == node && held == id)
            }
            Err(Error::NoJob(_)) => false,
            Err(error) => return Err(error),
        };
        if known {
            return driver.attach(job, unit).await;
        }
    }
    let entered = match extra.job_id.filter(|_| extra.attempt > 0) {
        Some(job) => Err(format!("the store has lost job {job}, which had been placed: it may have run")),
        None => enter_again(driver, unit.clone()).await,
    };
    if let Err(detail) = entered {
        unit.report(JobReport { state: UnitState::Failed, detail, extra }).await;
    }
    Ok(())
}

/// A unit whose payload is here and whose row is not: an earlier process ended between the two.
async fn enter_again(driver: Arc<JobDriver>, unit: JobUnit) -> Result<(), String> {
    let extra = unit.extra();
    let header = extra.header.clone();
    let parsed = header.as_ref().map(|text| Header::parse(text.as_bytes())).transpose();
    let parsed = parsed.map_err(|error| error.to_string())?;
    let mut stream = stream::Submission::new(driver.options().bounds.max_payload, parsed);
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
    Box::new(Intake { driver, stream, header, request }).finish(unit).await.map(drop)
}

/// A submission while its payload comes.
#[derive(Debug)]
struct Intake {
    driver: Arc<JobDriver>,
    stream: stream::Submission,
    header: Option<String>,
    request: JobRequest,
}

impl JobIntake for Intake {
    fn push(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.stream.push(bytes).map_err(|error| error.to_string())?;
        self.stream.header().map_or(Ok(()), |header| check(header, self.request.is_admin))
    }

    fn finish(self: Box<Self>, unit: JobUnit) -> Act<'static, Result<bool, String>> {
        Box::pin(async move {
            let Self { driver, stream, header, request } = *self;
            let accepted = stream.finish().map_err(|error| error.to_string())?;
            check(&accepted.header, request.is_admin)?;
            check_credentials(&driver, &accepted.header, request.is_admin).await?;
            let stream::Accepted { header: asked, forks, .. } = accepted;
            let submission = submission(&driver, &unit, &asked, forks, &request.launched_by)?;
            let mut extra = unit.extra();
            (extra.launched_by, extra.is_admin, extra.header) =
                (request.launched_by, request.is_admin, header);
            let mut report =
                JobReport { state: UnitState::Pending, detail: "waiting for the store".to_owned(), extra };
            let entering = driver.entering.clone().read_owned().await;
            match enter(&driver, &submission).await {
                Ok(job) => {
                    report.extra.job_id = Some(job.id().0);
                    report.detail = "pending".to_owned();
                    unit.report(report).await;
                    match follow(&driver, job.id(), unit.clone()).await {
                        Ok(()) => Ok(true),
                        // It is a job, and nobody drives it before its unit follows it.
                        Err(Error::Away(_)) => {
                            tokio::spawn(async move {
                                let _entering = entering;
                                if let Err(error) = follow_at_last(&driver, job.id(), unit).await {
                                    tracing::warn!(job = %job.id(), %error, "a unit does not follow its job");
                                }
                            });
                            Ok(true)
                        }
                        Err(error) => Err(error.to_string()),
                    }
                }
                Err(Error::Away(_)) => {
                    drop(entering);
                    unit.report(report).await;
                    tokio::spawn(async move {
                        if let Err(error) = enter_later(&driver, submission, unit).await {
                            tracing::warn!(%error, "a submission that waited for the store is not a job");
                        }
                    });
                    Ok(false)
                }
                Err(error) => Err(error.to_string()),
            }
        })
    }
}

async fn enter(driver: &JobDriver, submission: &Submission) -> Result<Submitted, Error> {
    let limit = u64::from(driver.options().bounds.max_pending);
    driver.store.submit(submission.clone(), limit).await
}

/// Stores a job as soon as the store is there.
async fn enter_later(driver: &Arc<JobDriver>, submission: Submission, unit: JobUnit) -> Result<(), Error> {
    loop {
        tokio::time::sleep(AWAY).await;
        let _entering = driver.entering.read().await;
        match enter(driver, &submission).await {
            Err(Error::Away(_)) => {}
            entered => return follow_at_last(driver, entered?.id(), unit).await,
        }
    }
}

/// As `follow`, as soon as the store is there.
async fn follow_at_last(driver: &Arc<JobDriver>, job: JobId, unit: JobUnit) -> Result<(), Error> {
    loop {
        match follow(driver, job, unit.clone()).await {
            Err(Error::Away(_)) => tokio::time::sleep(AWAY).await,
            followed => return followed,
        }
    }
}

async fn follow(driver: &Arc<JobDriver>, job: JobId, unit: JobUnit) -> Result<(), Error> {
    let (node, id) = (driver.node.clone(), unit.id().to_string());
    let holders = driver.store.holders(job, Kept::Payload).await?;
    if !holders.iter().any(|(holder, held)| *holder == node && *held == id)
        && let Err(error) = unit.drop_payload().await
    {
        tracing::warn!(unit = id, %error, "the payload of a unit that follows another one's job stays");
    }
    driver.attach(job, unit).await?;
    driver.store.hold(job, node, id, Kept::Output).await
}

/// What the caller may do.
fn check(header: &Header, is_admin: bool) -> Result<(), String> {
    if let Some(why) = header.needs_admin().filter(|_| !is_admin) {
        return Err(why.to_owned());
    }
    Ok(())
}

/// The credentials that a header names exist, fit their use, and are for this caller. They are read again at their use.
async fn check_credentials(driver: &JobDriver, header: &Header, is_admin: bool) -> Result<(), String> {
    if header.credentials().is_empty() {
        return Ok(());
    }
    let (credentials, header) = (Credentials::new(driver.options().credentials.clone()), header.clone());
    let checked = tokio::task::spawn_blocking(move || {
        for (name, purpose) in header.credentials() {
            if !is_admin {
                credentials.check_mesh(name)?;
            }
            match purpose {
                Purpose::Registry { image: Some(image) } => drop(credentials.registry(name, image)?),
                Purpose::Registry { image: None } => drop(credentials.read(name)?),
                Purpose::Repository(url) => drop(credentials.repository(name, url)?),
            }
        }
        Ok::<_, CredentialError>(())
    });
    let checked = checked.await.map_err(|error| error.to_string())?;
    checked.map_err(|error| format!("header: {error}"))
}

fn submission(
    driver: &JobDriver,
    unit: &JobUnit,
    header: &Header,
    forks: Option<u32>,
    launched_by: &str,
) -> Result<Submission, String> {
    let text = serde_json::to_string(header).map_err(|error| error.to_string())?;
    let size = header.size(forks);
    let terms = Terms {
        groups: header.groups.walk(),
        retry: header.retry,
        lost_after: header.lost_after,
        pending_timeout: header.pending_timeout,
        limit: Vec::new(),
    };
    Ok(Submission {
        node: driver.node.clone(),
        unit: unit.id().to_string(),
        key: header.key.clone(),
        kind: header.kind,
        name: header.name.clone().unwrap_or_default(),
        priority: header.priority,
        header: text,
        terms,
        labels: header.labels.clone(),
        impact: size.impact(header.kind),
        hosts: header.hosts,
        forks: size.forks,
        launched_by: launched_by.to_owned(),
        exclusive: header.exclusive.clone(),
        needs: header.depends_on.clone(),
    })
}
