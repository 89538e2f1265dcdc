//! One control node's part: it looks at the mesh, has passes made, and drives the jobs that it owns. One task, here, decides
//! what is due; four parts do it, each with state of its own, which has its own locks:
//!
//! - `lease` (and `own_lease`): whether this node may act. It renews the lease, and finds out what was lost with it.
//! - `placer` (`discovery`, `candidates`, `presence`, `turn`): what concerns all jobs. `checks`: the instances' health.
//! - `attempts` (`tasks`): a task for each attempt of this node's jobs. `attempt`: its way, from `dispatch` (`request`: its
//!   unit; `input`: what that reads, with the project that `sync` fetches; `pods`: that of a container group) by `following`
//!   (`output`: what it adds to its job's output; `measure`: the length and hash of that) to its `end`.
//! - `publisher` (`published`, `shown`): what the units of jobs show. `followers`: those of jobs that another control node
//!   drives.
//!
//! `base` is what they stand on, `world` what they do to mesh and units. `foreign` and `forgotten` are about children that
//! other control nodes have, or nobody knows.

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
use self::base::Base;
pub use self::base::SharedOptions;
pub use self::candidates::Candidate;
use self::checks::Checks;
use self::discovery::Sightings;
use self::figures::Figures;
use self::foreign::Foreign;
pub(in crate::controller) use self::forgotten::sent;
use self::lease::LeaseKeeper;
use self::placer::Placer;
use self::publisher::{Publisher, UnitHere};
pub use self::request::parsed;
pub use self::shown::rfc3339;
use self::world::{Children, Mesh};
use super::core::{Duty, Fenced, InstanceName, Job};
use super::options::ControllerOptions;
use super::projects::ProjectCache;
use super::store::{Error, Look, Store};
use crate::work::jobs::JobUnit;

/// The least time between two looks at everything.
const LEAST_PAUSE: Duration = Duration::from_millis(10);
/// The least time between two looks for instances whose health is to be checked.
const CHECKS: Duration = Duration::from_secs(1);
/// How long a store that is away is left alone.
const STORE_RETRY: Duration = Duration::from_secs(1);
/// As many failures in that time end the controller of this node.
const FAILURES: usize = 3;
const FAILURES_WITHIN: Duration = Duration::from_secs(300);

/// What drives the jobs of one control node.
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
    /// Held by a submission from its row to its unit, so that no attempt of a job starts before its unit is known.
    pub(super) entering: Arc<RwLock<()>>,
}

impl std::fmt::Debug for JobDriver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JobDriver").field("fence", &self.lease.fence()).finish_non_exhaustive()
    }
}

impl JobDriver {
    /// Takes this node's lease; its jobs continue, or fail if the options say so.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn start(
        node: InstanceName,
        store: Store,
        settings: SharedOptions,
        mesh: Arc<dyn Mesh>,
        children: Arc<dyn Children>,
        projects: ProjectCache,
    ) -> Result<Arc<Self>, Error> {
        let options = settings.load_full();
        let fence = store.start_owner(node.clone(), options.timers.of_leases(), options.on_loss).await?;
        let install = store.install_id().await?;
        let install = install.get(..8).and_then(|digits| u32::from_str_radix(digits, 16).ok());
        let install = install.ok_or_else(|| Error::Corrupt("install_id in meta is no number".into()))?;
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

    /// The settings are others by now; what runs goes on.
    pub fn on_settings(&self) {
        self.base.wake.notify_one();
    }

    /// Works until it is stopped, or stops for good because it fails again and again. The node goes on without it. If the
    /// store has lost its last commits, it returns the units of jobs, none of which may be known any more: it is to run again
    /// once they follow their jobs.
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

    /// Until the store has lost its last commits.
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
            tracing::error!(why = failure, "the controller starts again");
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

    /// Until it is fenced.
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
        // Instances change less often than jobs do.
        let (mut checks, mut is_checked) = (ticks(CHECKS), false);
        let (mut heartbeat, mut poll) = (ticks(timers.heartbeat), ticks(timers.poll));
        while !retry_unless_fenced(self.settle(&mut sightings).await)? {
            sleep(STORE_RETRY).await;
        }
        loop {
            tokio::select! {
                biased;
                // First: after a pause of the whole machine the lease is renewed before anything needs it.
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
                    // Another one waits for its turn: heartbeats come first.
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

    /// The first thing under a lease: what others drive now is given up, before anything is sent.
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
            tracing::warn!(%job, "the store has lost its last commits: a job that was stored is not there");
            self.lease.own.note_lost_commits();
            return Err(Error::Fenced(Fenced(self.lease.fence())));
        }
        self.foreign.forget().await?;
        self.publisher.show_pending().await
    }

    /// Of a store that is not shared nobody else changes anything.
    async fn look(&self) -> Result<Look, Error> {
        let shown = if self.store.is_shared() { self.publisher.published.jobs() } else { Vec::new() };
        self.store.look(self.lease.fence(), shown).await
    }

    /// Ensures that each attempt of these jobs, which are this node's, has a task, and tells it its duty.
    async fn attend(&self, driven: Vec<Job>) -> Result<(), Error> {
        // Whoever was making one of them has given it its unit.
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
                    // Its output would be lost: a later look may find a place for it.
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

/// A task that ends with its handle.
struct Aborting<T>(tokio::task::JoinHandle<T>);

impl<T> Drop for Aborting<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// False on an error that a retry may cure: until then this control node goes on with what it has. One that is fenced has
/// nothing left to do.
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
