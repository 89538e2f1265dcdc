//! The driver of one control node: looks at the mesh, makes passes, and drives the jobs that the node owns. One task,
//! in this file, decides what is due. Four parts do the work; each has its own state and locks:
//!
//! - `lease` (and `own_lease`): whether this node may act. Renews the lease, and recovers from its loss.
//! - `placer` (`discovery`, `candidates`, `presence`, `turn`): what concerns all jobs. `checks`: the health of instances.
//! - `attempts` (`tasks`): a task for each attempt of this node's jobs. `attempt` is this task: `dispatch` sends the
//!   attempt's unit, `following` follows the unit, and `end` saves the attempt's end. `request` describes the unit,
//!   `pods` describes the unit of a container group, and `input` prepares what the unit reads, with the project from
//!   `sync`. `output` writes to the job's output, and `measure` determines an output's length and hash.
//! - `publisher` (`published`, `shown`): what the units of jobs show. `followers`: the units of jobs that another control node
//!   drives.
//!
//! `base` holds what all parts use. `world` has the traits for the mesh and for units. `foreign` handles children of
//! jobs that another control node drives, and `forgotten` handles children that the store has forgotten.

mod attempt;
mod attempts;
mod base;
mod candidates;
mod checks;
mod discovery;
mod dispatch;
mod end;
mod figures;
mod followers;
mod following;
mod foreign;
mod forgotten;
mod input;
mod lease;
mod measure;
mod output;
mod own_lease;
mod placer;
mod pods;
mod presence;
mod published;
mod publisher;
mod request;
mod shown;
mod sync;
mod tasks;
mod turn;
pub mod world;

use std::convert::Infallible;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::{Notify, RwLock};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

use self::attempts::Attempts;
use self::base::{Base, STORE_RETRY};
pub use self::candidates::Candidate;
use self::checks::Checks;
use self::discovery::Sightings;
use self::figures::Figures;
use self::foreign::Foreign;
pub(in crate::controller) use self::forgotten::{sent, unknown_of};
use self::lease::LeaseKeeper;
use self::placer::Placer;
use self::publisher::{Publisher, UnitHere};
pub use self::shown::rfc3339;
use self::world::{Children, MeshView};
use super::core::{Duty, Fenced, InstanceName, Job};
use super::options::{ControllerOptions, SharedOptions};
use super::projects::ProjectCache;
use super::store::{Error, Look, Store};
use crate::work::jobs::JobUnit;

/// The shortest time between two looks at everything.
const LEAST_PAUSE: Duration = Duration::from_millis(10);
/// The time between two looks for instances whose health is to be checked.
const CHECKS: Duration = Duration::from_secs(1);
/// This many failures within `FAILURES_WITHIN` stop the controller of this node.
const FAILURES: usize = 3;
const FAILURES_WITHIN: Duration = Duration::from_secs(300);

/// Drives the jobs of one control node.
pub struct JobDriver {
    pub(super) node: InstanceName,
    pub(super) store: Store,
    /// The first 8 hex digits of the install ID.
    pub(super) install: u32,
    pub(super) base: Arc<Base>,
    pub(super) lease: Arc<LeaseKeeper>,
    pub(super) placer: Placer,
    pub(super) checks: Checks,
    pub(super) attempts: Arc<Attempts>,
    pub(super) publisher: Arc<Publisher>,
    pub(super) foreign: Foreign,
    /// Held by a submission from the moment its row is stored until its unit is known, so that no attempt of the job
    /// starts before that.
    pub(super) entering: Arc<RwLock<()>>,
}

impl std::fmt::Debug for JobDriver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JobDriver").field("fence", &self.lease.fence()).finish_non_exhaustive()
    }
}

impl JobDriver {
    /// Takes this node's lease. The node's jobs continue, or fail if the options say so.
    pub async fn start(
        node: InstanceName,
        store: Store,
        settings: SharedOptions,
        mesh: Arc<dyn MeshView>,
        children: Arc<dyn Children>,
        projects: ProjectCache,
    ) -> Result<Arc<Self>, Error> {
        let options = settings.load_full();
        let fence = store.start_owner(node.clone(), options.timers.of_leases(), options.on_loss).await?;
        let install = store.install_id().await?;
        let install = install.get(..8).and_then(|digits| u32::from_str_radix(digits, 16).ok());
        let install = install.ok_or_else(|| Error::Corrupt("install_id in meta is not a number".into()))?;
        let base = Arc::new(Base {
            node: node.clone(),
            store: store.clone(),
            install,
            settings,
            mesh,
            children,
            projects,
            figures: Figures::default(),
            peers: OnceLock::new(),
            wake: Notify::new(),
        });
        let lease = Arc::new(LeaseKeeper::new(base.clone(), fence));
        let publisher = Publisher::new(base.clone(), lease.clone());
        let attempts = Attempts::new(base.clone(), lease.clone(), publisher.clone());
        Ok(Arc::new(Self {
            placer: Placer::new(base.clone(), lease.clone(), attempts.clone(), publisher.clone()),
            checks: Checks::new(base.clone(), lease.clone()),
            foreign: Foreign::new(base.clone()),
            entering: Arc::default(),
            node,
            store,
            install,
            base,
            lease,
            attempts,
            publisher,
        }))
    }

    /// The settings.
    pub fn options(&self) -> Arc<ControllerOptions> {
        self.base.options()
    }

    /// Applies changed settings. Running jobs go on.
    pub fn on_settings(&self) {
        self.base.wake.notify_one();
    }

    /// Works until stopped, or until it has failed too often; the node then goes on without its controller. If the
    /// store has lost its last commits, returns the units of all jobs, because the store may no longer know these jobs.
    /// The caller runs the driver again once the units follow their jobs again.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) -> Option<Vec<JobUnit>> {
        let keeper = tokio::spawn(self.lease.clone().keep_tenure());
        let units = tokio::select! {
            ended = self.keep_working() => ended.map(|()| self.publisher.published.take_all()).map_err(|why| {
                tracing::error!(why, "the controller of this node has stopped; the node goes on without it");
                self.lease.own.end();
                self.attempts.abort_all();
                self.lease.own.halt(why);
            }).ok(),
            () = stop.cancelled() => None,
        };
        keeper.abort();
        self.base.children.let_act(false);
        units
    }

    /// Works until the store has lost its last commits.
    ///
    /// # Errors
    /// Why it stops for good.
    async fn keep_working(self: &Arc<Self>) -> Result<(), String> {
        let mut failures: Vec<Instant> = Vec::new();
        loop {
            let this = self.clone();
            let mut work = Aborting(tokio::spawn(async move { this.work().await }));
            let failure = match (&mut work.0).await {
                Ok(Err(Fenced(_))) => {
                    let went_back = self.lease.own.has_gone_back();
                    self.lease.recover(|| self.attempts.abort_all()).await;
                    if went_back {
                        return Ok(());
                    }
                    continue;
                }
                // It panicked.
                Err(error) => error.to_string(),
            };
            tracing::error!(why = failure, "the controller failed, starting it again");
            failures.retain(|at| at.elapsed() < FAILURES_WITHIN);
            failures.push(Instant::now());
            if failures.len() >= FAILURES {
                let why =
                    format!("it failed {FAILURES} times within 5 minutes, the last time because: {failure}");
                self.lease.tell_unavailable(&why).await;
                return Err(why);
            }
            sleep(STORE_RETRY).await;
        }
    }

    /// Works until a write is fenced.
    async fn work(self: &Arc<Self>) -> Result<Infallible, Fenced> {
        let mut store = self.store.changes();
        let mut mesh = self.base.mesh.changes();
        let mut sightings = Sightings::default();
        let ticks = |period: Duration| {
            let mut ticks = interval(period);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            ticks
        };
        let (mut timers, mut measured) = (self.options().timers, None);
        // Health checks have their own ticks, because instances change less often than jobs.
        let (mut checks, mut is_checked) = (ticks(CHECKS), false);
        let (mut heartbeat, mut poll) = (ticks(timers.heartbeat), ticks(timers.poll));
        while !retry_unless_fenced(self.settle(&mut sightings).await)? {
            sleep(STORE_RETRY).await;
        }
        loop {
            tokio::select! {
                biased;
                // Comes first, so that the lease is renewed before anything needs it after the whole machine was
                // suspended.
                _ = heartbeat.tick() => {
                    retry_unless_fenced(self.placer.beat(&mut sightings).await)?;
                }
                _ = checks.tick(), if !is_checked => {
                    is_checked = retry_unless_fenced(self.checks.start_due().await)?;
                    continue;
                }
                _ = mesh.changed() => {
                    retry_unless_fenced(self.placer.observe(&mut sightings).await)?;
                }
                () = self.placer.taken() => {
                    retry_unless_fenced(self.placer.observe(&mut sightings).await)?;
                }
                _ = store.changed() => {}
                _ = poll.tick() => {
                    retry_unless_fenced(self.look_around().await)?;
                }
                () = self.base.wake.notified() => {}
            }
            is_checked = false;
            let current = self.options().timers;
            if timers != current {
                timers = current;
                (heartbeat, poll) = (ticks(timers.heartbeat), ticks(timers.poll));
            }
            let rates = self.base.rates();
            let look = async {
                if measured != Some(rates) {
                    self.checks.measure_again(rates).await?;
                    measured = Some(rates);
                }
                let mut look = self.look().await?;
                if look.has_pending {
                    // A further pass waits for the next round, because heartbeats come first.
                    if self.placer.pass().await? {
                        self.base.wake.notify_one();
                    }
                    look = self.look().await?;
                } else {
                    self.placer.note_turn(false).await?;
                }
                self.attend(look.driven).await?;
                self.publisher.show_ended(look.ended).await
            };
            if !retry_unless_fenced(look.await)? {
                sleep(STORE_RETRY).await;
            }
            sleep(LEAST_PAUSE).await;
        }
    }

    /// The first step under a lease: gives up what others drive now, before anything is sent.
    async fn settle(&self, sightings: &mut Sightings) -> Result<(), Error> {
        self.foreign.forget().await?;
        for (job, owner) in self.store.owners_of(self.publisher.published.jobs()).await? {
            if owner != self.node {
                self.publisher.follow_elsewhere(job);
            }
        }
        self.placer.beat(sightings).await
    }

    async fn look_around(&self) -> Result<(), Error> {
        if let Some(job) = self.store.lost(self.publisher.published.jobs()).await?.first() {
            tracing::warn!(%job, "the store has lost its last commits: a job that was stored is missing");
            self.lease.own.note_lost_commits();
            return Err(Error::Fenced(Fenced(self.lease.fence())));
        }
        self.foreign.forget().await?;
        self.publisher.show_pending().await
    }

    /// Asks about shown jobs only if the store is shared, because otherwise nobody else changes them.
    async fn look(&self) -> Result<Look, Error> {
        let shown = if self.store.is_shared() { self.publisher.published.jobs() } else { Vec::new() };
        self.store.look(self.lease.fence(), shown).await
    }

    /// Gives each attempt that has a duty a task, and tells the task the duty. This node drives these jobs.
    async fn attend(&self, driven: Vec<Job>) -> Result<(), Error> {
        // Waits until all submissions under way have given their jobs their units.
        drop(self.entering.write().await);
        self.publisher.published.keep_shown(&driven.iter().map(|job| job.id).collect());
        for job in &driven {
            if !job.state.is_final() {
                self.publisher.published.stop_following(job.id);
            }
            let unit = self.publisher.ensure_unit(job).await?;
            if !job.state.is_final() && (unit == UnitHere::Made || self.publisher.published.is_news(job)) {
                self.publisher.show(job.id).await?;
            }
            let duties: Vec<_> = job.duties().collect();
            for (n, duty) in duties {
                match duty {
                    Duty::Nothing => self.attempts.dismiss(job.id, n),
                    // Waits for a later look, because there is no unit yet that takes the attempt's output.
                    Duty::Send | Duty::Follow | Duty::Ask if unit == UnitHere::Impossible => {}
                    Duty::Send | Duty::Follow | Duty::Cancel | Duty::Ask | Duty::Release => {
                        self.attempts.assign(job.id, n, duty);
                    }
                }
            }
        }
        Ok(())
    }
}

/// A task that is aborted when its handle is dropped.
struct Aborting<T>(tokio::task::JoinHandle<T>);

impl<T> Drop for Aborting<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Returns false on an error that a retry may cure; until then this control node goes on with what it has. Fails only
/// if a write was fenced, because then the work under this lease is over.
fn retry_unless_fenced(result: Result<(), Error>) -> Result<bool, Fenced> {
    match result {
        Ok(()) => Ok(true),
        Err(Error::Fenced(fenced)) => Err(fenced),
        Err(error) => {
            tracing::warn!(%error, "controller store unavailable, retrying");
            Ok(false)
        }
    }
}

#[cfg(test)]
mod tests;
