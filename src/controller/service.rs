//! The controller of a node: opens it once its store can be reached, and turns submissions into jobs. `driver` does
//! what is due for a job, `operations` does what operators ask for, `door` serves the units, `intake` decides which
//! payload becomes a job, `resume` finds the job of a unit of an earlier process, and `schedules` starts saved jobs.

mod door;
pub(super) mod intake;
pub(super) mod repeat;
mod resume;
pub(super) mod schedules;

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::{OwnedRwLockReadGuard, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use self::door::Door;
use super::children::RegistryChildren;
use super::core::{ChildId, InstanceName, JobId};
use super::driver::JobDriver;
use super::driver::world::MeshView;
use super::header::Header;
use super::notify::{Courier, Notifier, WebTls};
use super::options::ControllerOptions;
use super::peer::{PeerClient, PeerServer};
use super::projects::ProjectCache;
use super::saved::{HookRates, SavedShelf};
use super::store::{Error, JobSelection, Kept, Options, Store, Submission, Submitted, Terms};
use super::stream::Asked;
use crate::counters::ControllerCounters;
use crate::rpc::UnitState;
use crate::rpc::operation::{Operated, Operation, OperationRefusal};
use crate::work::jobs::{Act, HookDelivery, Hooked, JobUnit, Operations, ShownJob};
use crate::work::unit::UnitId;
use crate::work::{Caller, Dialer, Registry};

/// Time between two tries to reach the store, for a waiting submission and for a controller that is being opened.
const STORE_RETRY: Duration = Duration::from_secs(1);
/// How long the start of the node waits for the store.
const AT_ONCE: Duration = Duration::from_secs(2);
/// How the Detail of a unit begins while it waits for the store to become a job.
const WAITING: &str = "waiting for the store";

/// Whether a controller made this unit for a job.
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
    /// The saved jobs of this node.
    pub(super) saved: SavedShelf,
    /// How often hooks have started some of them.
    pub(super) hooks: Arc<parking_lot::Mutex<HookRates>>,
    /// Tells others of jobs that have ended.
    pub(super) notifier: Notifier,
    /// The units of running clean-ups.
    pub(super) cleaning: Cleaning,
}

/// The store of a node: its file is below the node's directory unless the settings name another.
///
/// # Errors
/// The settings are wrong.
pub fn store_options(options: &ControllerOptions, directory: &std::path::Path) -> Result<Options, Error> {
    Options::parse(&options.store, options.store_password_file.clone(), &default_store(directory))
}

/// The file in which a node keeps its jobs if its settings name no other store.
pub fn default_store(directory: &std::path::Path) -> std::path::PathBuf {
    directory.join(".controller").join("store.db")
}

/// What a controller is opened with.
#[derive(Clone)]
pub struct Setup {
    /// Its settings.
    pub options: ControllerOptions,
    /// Where its store is.
    pub store: Options,
    /// The node's directory. If the settings name another store, there may be the former one in it.
    pub directory: std::path::PathBuf,
    /// The units of its node.
    pub registry: Registry,
    /// Its node.
    pub node: InstanceName,
    /// The mesh as its node sees it.
    pub mesh: Arc<dyn MeshView>,
    /// Its cache of projects.
    pub projects: ProjectCache,
    /// TLS for notices.
    pub tls: Arc<dyn WebTls>,
}

/// The controller of a node, which exists before its store can be reached. Clones share it.
#[derive(Debug, Clone)]
pub struct Controller {
    door: Door,
    service: watch::Receiver<Option<Service>>,
    stop: CancellationToken,
}

impl Controller {
    /// Opens the store, takes this node's lease, and serves jobs. While the store is away this goes on in the
    /// background, and submissions are accepted and wait.
    ///
    /// # Errors
    /// Those of the store, but not if the store is away or its server refuses.
    pub async fn open(setup: Setup) -> Result<Self, Error> {
        let (sender, service) = watch::channel(None);
        let stop = CancellationToken::new();
        let settings = Arc::new(ArcSwap::from_pointee(setup.options.clone()));
        let saved = SavedShelf::new(setup.directory.clone());
        saved.reload(setup.options.jobs.clone()).await;
        let door = Door::new(setup.node.clone(), &setup.registry, settings, saved);
        // Boxed, because it goes on in the background if the server does not answer in time.
        let mut opening = Box::pin(setup.clone().driver(door.clone()));
        let opened = match timeout(AT_ONCE, &mut opening).await {
            Ok(Ok(driver)) => Ok(driver),
            // An operator may mend what the server refuses, and the node has other work meanwhile.
            Ok(Err(error @ (Error::Away(_) | Error::Refused(_)))) => Err((error, None)),
            Ok(Err(error)) => return Err(error),
            Err(_) => Err((Error::Away("it does not answer".into()), Some(opening))),
        };
        setup.registry.serve_jobs(Box::new(door.clone())).await;
        let this = Self { door: door.clone(), service, stop: stop.clone() };
        match opened {
            Ok(driver) => {
                drop(sender.send_replace(Some(Service::run(driver, door, stop, setup.tls.clone()).await)));
            }
            Err((error, opening)) => {
                tracing::warn!(%error, "the controller is waiting for its store, and submitted jobs wait with it");
                door.say(&error);
                tokio::spawn(async move {
                    tokio::select! {
                        service = setup.open_later(opening, &door, stop.clone()) => drop(sender.send_replace(Some(service))),
                        () = stop.cancelled() => {}
                    }
                });
            }
        }
        Ok(this)
    }

    /// Replaces the settings, and reads the saved jobs again.
    pub async fn follow(&self, options: ControllerOptions) {
        self.door.saved().reload(options.jobs.clone()).await;
        self.door.set_options(options);
    }

    /// Returns the running service once its store is there; never returns if the controller is stopped before.
    pub async fn running(&mut self) -> Service {
        match self.service.wait_for(Option::is_some).await.map(|service| service.clone()) {
            Ok(Some(service)) => service,
            Ok(None) | Err(_) => std::future::pending().await,
        }
    }

    /// Stops the controller. Its jobs' children keep running.
    pub fn stop(&self) {
        self.stop.cancel();
    }
}

impl Operations for Controller {
    /// Before the store is opened, carries out only operations that need no store.
    fn operate<'a>(&'a self, operation: Operation, who: &'a Caller) -> Act<'a, Operated> {
        let service = self.service.borrow().clone();
        Box::pin(async move {
            match service {
                Some(service) => service.operate(operation, who).await,
                None => self.door.operate(&operation).map(|answer| (answer, None)),
            }
        })
    }

    fn deliver(&self, delivery: HookDelivery) -> Act<'_, Result<Hooked, OperationRefusal>> {
        let service = self.service.borrow().clone();
        Box::pin(async move {
            match service {
                Some(service) => service.deliver(delivery).await,
                None => Err(self.door.away()),
            }
        })
    }

    fn figures(&self) -> Act<'_, Option<ControllerCounters>> {
        Box::pin(async {
            let Service { driver, saved, notifier, .. } = self.service.borrow().clone()?;
            let counters = driver.base.figures.counters(&driver.store).await;
            let (saved, saved_broken) = saved.now().counts();
            let notices = notifier.figures().into_iter().collect();
            Some(ControllerCounters { saved, saved_broken, notices, ..counters })
        })
    }

    fn tls_client(&self) -> Option<String> {
        self.door.options().tls_client.clone()
    }
}

impl Setup {
    async fn driver(self, door: Door) -> Result<Arc<JobDriver>, Error> {
        let Self { options: _, store, directory, registry, node, mesh, projects, tls: _ } = self;
        let default_store = default_store(&directory);
        let former = (store != Options::Sqlite(default_store.clone()) && default_store.exists())
            .then_some(default_store);
        let store = Store::open(&store, &node).await?;
        if let Some(former) = former
            && store.list(JobSelection::default(), 1).await?.jobs.is_empty()
        {
            let path = former.display();
            tracing::warn!(%path, "the store is empty, but there is an older one at this path: docs/moving.md says \
                                   how to move its jobs");
        }
        let children = Arc::new(RegistryChildren(registry));
        JobDriver::start(node, store, door.settings(), mesh, children, projects).await
    }

    /// Tries until the store is open, because an operator may mend any error. A try under way is awaited and not begun
    /// again, because it may hold the lease already.
    async fn open_later(
        &self,
        mut opening: Option<impl Future<Output = Result<Arc<JobDriver>, Error>>>,
        door: &Door,
        stop: CancellationToken,
    ) -> Service {
        loop {
            let opened = match opening.take() {
                Some(opening) => opening.await,
                None => {
                    tokio::time::sleep(STORE_RETRY).await;
                    self.clone().driver(door.clone()).await
                }
            };
            match opened {
                Ok(driver) => {
                    tracing::info!("the controller has opened its store and works");
                    return Service::run(driver, door.clone(), stop, self.tls.clone()).await;
                }
                Err(error) if door.say(&error) => {
                    tracing::warn!(%error, "the controller is waiting for its store")
                }
                Err(_) => {}
            }
        }
    }
}

impl Service {
    /// Runs a driver and gives it to the units that come through the door.
    async fn run(driver: Arc<JobDriver>, door: Door, stop: CancellationToken, tls: Arc<dyn WebTls>) -> Self {
        let (registry, cleaning) = (door.registry().clone(), Cleaning::default());
        let saved = door.saved().clone();
        let hooks = Arc::default();
        let directory = saved.node_directory().to_owned();
        let courier = Arc::new(Courier::new(tls, driver.base.settings.clone(), directory));
        let notifier = Notifier::new(driver.clone(), courier);
        let service =
            Self { driver: driver.clone(), registry, stop: stop.clone(), saved, hooks, cleaning, notifier };
        service.registry.release_leftovers(&driver.checks.prefix());
        let units = door.open(&driver).await;
        door.follow_all(&driver, units).await;
        tokio::spawn(async move {
            while let Some(units) = driver.clone().run(stop.clone()).await {
                door.follow_all(&driver, units).await;
            }
            // A node that stands down does no housekeeping either.
            stop.cancel();
        });
        tokio::spawn(service.clone().keep_house());
        tokio::spawn(service.clone().keep_schedules());
        tokio::spawn(service.notifier.clone().run(service.stop.clone()));
        service
    }

    /// Lets the controller ask other control nodes. Returns the server that answers their requests.
    pub fn open_peers(&self, dialer: Arc<dyn Dialer>) -> PeerServer {
        let (driver, registry) = (&self.driver, self.registry.clone());
        let (node, store) = (driver.node.clone(), driver.store.clone());
        let client = PeerClient { node, store, settings: driver.base.settings.clone(), registry, dialer };
        // A second call changes nothing.
        let _first = self.driver.base.peers.set(client);
        PeerServer::new(self.driver.clone(), self.registry.clone())
    }

    /// As [`Controller::open`], with a driver that exists already.
    #[cfg(test)]
    pub(super) async fn serve(driver: Arc<JobDriver>, registry: &Registry) -> Self {
        let stop = CancellationToken::new();
        let saved = SavedShelf::new(std::path::PathBuf::new());
        let door = Door::new(driver.node.clone(), registry, driver.base.settings.clone(), saved);
        registry.serve_jobs(Box::new(door.clone())).await;
        Self::run(driver, door, stop, Arc::new(super::notify::tests::NoTls)).await
    }
}

type Cleaning = Arc<parking_lot::Mutex<std::collections::BTreeSet<String>>>;

async fn enter(driver: &JobDriver, submission: &Submission) -> Result<Submitted, Error> {
    driver.store.submit(submission.clone(), most_pending(driver)).await
}

fn most_pending(driver: &JobDriver) -> u64 {
    u64::from(driver.options().bounds.max_pending)
}

/// Stores a job as soon as the store is there.
async fn enter_later(
    driver: &Arc<JobDriver>,
    mut submission: Submission,
    unit: JobUnit,
) -> Result<(), Error> {
    let mut tries = 0u64;
    loop {
        tokio::time::sleep(STORE_RETRY).await;
        tries += 1;
        let _entering = driver.entering.read().await;
        submission.is_cancelled = unit.extra().cancel_requested;
        match enter(driver, &submission).await {
            // Not after each try, because each report is written to the disk.
            Err(Error::Away(why)) if tries.is_power_of_two() => {
                let detail = format!("{WAITING}: asked {tries} times: {why}");
                unit.report(ShownJob { state: UnitState::Pending, detail, extra: unit.extra() }).await;
            }
            Err(Error::Away(_)) => {}
            entered => return follow_at_last(driver, entered?, unit).await,
        }
    }
}

/// As `follow`, as soon as the store is there.
async fn follow_at_last(driver: &Arc<JobDriver>, job: Submitted, unit: JobUnit) -> Result<(), Error> {
    loop {
        match follow(driver, job, unit.clone()).await {
            // The job is in the store, so the unit must follow it once the store is mended.
            Err(Error::Away(_) | Error::Refused(_)) => tokio::time::sleep(STORE_RETRY).await,
            followed => return followed,
        }
    }
}

/// As `follow`. If the store went away this returns and goes on in the background, because nobody drives the job before
/// its unit follows it.
async fn follow_in_any_case(
    driver: &Arc<JobDriver>,
    entering: OwnedRwLockReadGuard<()>,
    job: Submitted,
    unit: JobUnit,
) -> Result<(), Error> {
    match follow(driver, job, unit.clone()).await {
        Err(Error::Away(_) | Error::Refused(_)) => {}
        followed => return followed,
    }
    let driver = driver.clone();
    tokio::spawn(async move {
        let _entering = entering;
        if let Err(error) = follow_at_last(&driver, job, unit).await {
            tracing::warn!(job = %job.id(), %error, "cannot attach unit to its job");
        }
    });
    Ok(())
}

async fn follow(driver: &Arc<JobDriver>, job: Submitted, unit: JobUnit) -> Result<(), Error> {
    let job = match job {
        Submitted::New(job) => {
            driver.publisher.attach_first(job, unit.clone()).await?;
            return cancel_if_asked(driver, job, &unit).await;
        }
        Submitted::Known(job) => job,
    };
    let (node, id) = (driver.node.clone(), unit.id().to_string());
    let holders = driver.store.holders(job, Kept::Payload).await?;
    if !holders.iter().any(|(holder, held)| *holder == node && *held == id)
        && let Err(error) = unit.drop_payload().await
    {
        tracing::warn!(unit = id, %error, "cannot delete the payload of a unit that follows another unit's job");
    }
    driver.store.hold(job, node, id, Kept::Output).await?;
    attach(driver, job, unit).await
}

/// Gives a job a unit, and cancels the job if the unit was cancelled before.
async fn attach(driver: &Arc<JobDriver>, job: JobId, unit: JobUnit) -> Result<(), Error> {
    driver.publisher.attach(job, unit.clone()).await?;
    cancel_if_asked(driver, job, &unit).await
}

async fn cancel_if_asked(driver: &Arc<JobDriver>, job: JobId, unit: &JobUnit) -> Result<(), Error> {
    if unit.extra().cancel_requested {
        driver.store.cancel(None, job).await?;
        driver.publisher.show(job).await?;
    }
    Ok(())
}

fn submission(
    driver: &JobDriver,
    unit: &JobUnit,
    header: &Header,
    asked: &Asked,
    launched_by: &str,
) -> Submission {
    let size = header.size(asked.forks);
    let terms = Terms {
        groups: header.groups.walk(),
        retry: (&header.retry).into(),
        lost_after: header.lost_after,
        pending_timeout: header.pending_timeout,
        limit: Vec::new(),
        run: asked.run.clone(),
        rerun_of: unit.extra().rerun_of,
    };
    Submission {
        node: driver.node.clone(),
        unit: unit.id().to_string(),
        key: header.key.clone(),
        kind: header.kind,
        name: header.name.as_ref().or(asked.run.title()).cloned().unwrap_or_default(),
        priority: header.priority,
        header: header.to_string(),
        terms,
        labels: header.labels.clone(),
        impact: size.impact(header.kind),
        hosts: header.hosts,
        forks: size.forks,
        launched_by: launched_by.to_owned(),
        is_admin: false,
        exclusive: header.exclusive.clone(),
        needs: header.depends_on.clone(),
        groups: header.groups.named(),
        is_cancelled: unit.extra().cancel_requested,
    }
}
