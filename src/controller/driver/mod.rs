//! One control node's part: it looks at the mesh, has passes made, and drives the jobs that it owns. One task decides
//! what is due; each attempt and each health check has a task of its own, and each job's units show its row.
//!
//! - `own_lease`, `presence`, `attempts`, `published`: what it knows, each with its locks, and none of them knows another.
//! - `world`: what it does to mesh and units. `discovery`: who is registered, `candidates`: who could be. `checks`: their
//!   health.
//! - `attempt`: one attempt, from its submission to the release of its unit. `sending`: its submission. `output`: what it
//!   adds to its job's output. `measure`: the length and hash of that. `end`: what it leaves, saved with its end.
//! - `request` and `input`: the unit of an attempt, and what it reads. `pods`: that of a container group. `sync`: the
//!   project in it.
//! - `shown`: what the units of jobs show. `followers`: those of jobs that another control node drives.
//! - `lease`: whether this node may act, what it does when it may not, and takeover. `turn`: whether it may place jobs.

mod attempt;
mod attempts;
mod candidates;
mod checks;
mod discovery;
mod end;
mod figures;
mod followers;
mod input;
mod lease;
mod measure;
mod output;
mod own_lease;
mod pods;
mod presence;
mod published;
mod request;
mod sending;
mod shown;
mod sync;
mod turn;
pub mod world;

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::{Notify, RwLock};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use self::attempts::Attempts;
pub use self::candidates::Candidate;
use self::discovery::{Own, Sightings};
use self::figures::Figures;
use self::own_lease::OwnLease;
use self::presence::Presence;
use self::published::Published;
pub use self::request::parsed;
pub(in crate::controller) use self::sending::sent;
pub use self::shown::rfc3339;
use self::turn::MissedTurns;
use self::world::{Children, Mesh};
use super::core::{
    AttemptNo, Duty, Fenced, InstanceName, Job, JobId, LeaseTimes, NodeType, Offer, Patience, WaitWatch,
};
use super::health::Surroundings;
use super::options::{ControllerOptions, Discovery};
use super::peer::PeerClient;
use super::projects::ProjectCache;
use super::store::{Error, Look, PassLimits, Store, Waits};

/// The least time between two looks at everything.
const LEAST_PAUSE: Duration = Duration::from_millis(10);
/// The least time between two looks for instances whose health is to be checked.
const CHECKS: Duration = Duration::from_secs(1);
/// How long a store that is away is left alone.
const STORE_RETRY: Duration = Duration::from_secs(1);

/// What drives the jobs of one control node.
pub struct JobDriver {
    pub(super) node: InstanceName,
    pub(super) store: Store,
    /// The first 8 hex digits of the install ID.
    pub(super) install: u32,
    options: ArcSwap<ControllerOptions>,
    mesh: Arc<dyn Mesh>,
    children: Arc<dyn Children>,
    projects: ProjectCache,
    lease: OwnLease,
    presence: Presence,
    attempts: Attempts,
    published: Published,
    pub(super) figures: Figures,
    /// Children that run here, of jobs of other control nodes. Locked for a look or an entry.
    foreign: Mutex<BTreeSet<String>>,
    /// How long jobs have waited, by the lease's clock.
    waits: Arc<Mutex<WaitWatch>>,
    missed_turns: MissedTurns,
    /// The way to other control nodes, if there may be any.
    pub(super) peers: OnceLock<PeerClient>,
    /// Held by a submission from its row to its unit, so that no attempt of a job starts before its unit is known.
    pub(super) entering: Arc<RwLock<()>>,
    pub(super) wake: Notify,
}

impl std::fmt::Debug for JobDriver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JobDriver").field("fence", &self.fence()).finish_non_exhaustive()
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
        options: ControllerOptions,
        mesh: Arc<dyn Mesh>,
        children: Arc<dyn Children>,
        projects: ProjectCache,
    ) -> Result<Arc<Self>, Error> {
        let fence = store.start_owner(node.clone(), times(&options), options.on_loss).await?;
        let install = store.install_id().await?;
        let install = install.get(..8).and_then(|digits| u32::from_str_radix(digits, 16).ok());
        let install = install.ok_or_else(|| Error::Corrupt("install_id in meta is no number".into()))?;
        Ok(Arc::new(Self {
            node,
            store,
            install,
            options: ArcSwap::from_pointee(options),
            mesh,
            children,
            projects,
            lease: OwnLease::new(fence),
            presence: Presence::default(),
            attempts: Attempts::default(),
            published: Published::default(),
            figures: Figures::default(),
            foreign: Mutex::default(),
            waits: Arc::default(),
            missed_turns: MissedTurns::default(),
            peers: OnceLock::new(),
            entering: Arc::default(),
            wake: Notify::new(),
        }))
    }

    /// The settings.
    pub fn options(&self) -> Arc<ControllerOptions> {
        self.options.load_full()
    }

    /// Replaces the settings; what runs goes on.
    pub fn set_options(&self, options: ControllerOptions) {
        self.options.store(Arc::new(options));
        self.wake.notify_one();
    }

    /// Until it is fenced.
    async fn work(self: &Arc<Self>) -> Result<Infallible, Fenced> {
        let mut store = self.store.changes();
        let mut mesh = self.mesh.changes();
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
                    retry_unless_fenced(self.beat(&mut sightings).await)?;
                }
                _ = checks.tick(), if !is_checked => {
                    is_checked = retry_unless_fenced(self.check_instances().await)?;
                    continue;
                }
                _ = mesh.changed() => {
                    retry_unless_fenced(self.observe(&mut sightings).await)?;
                }
                () = self.presence.taken() => {
                    retry_unless_fenced(self.observe(&mut sightings).await)?;
                }
                _ = store.changed() => {}
                _ = poll.tick() => {
                    retry_unless_fenced(self.look_around().await)?;
                }
                () = self.wake.notified() => {}
            }
            is_checked = false;
            let current = self.options().timers;
            if timers != current {
                timers = current;
                (heartbeat, poll) = (ticks(timers.heartbeat), ticks(timers.poll));
            }
            let rates = self.rates();
            let look = async {
                if measured != Some(rates) {
                    self.measure_again(rates).await?;
                    measured = Some(rates);
                }
                let mut look = self.look().await?;
                if look.has_pending {
                    // Another one waits for its turn: heartbeats come first.
                    if self.pass().await? {
                        self.wake.notify_one();
                    }
                    look = self.look().await?;
                } else {
                    self.note_turn(false).await?;
                }
                self.attend(look.driven).await?;
                self.show_ended(look.ended).await
            };
            if !retry_unless_fenced(look.await)? {
                sleep(STORE_RETRY).await;
            }
            sleep(LEAST_PAUSE).await;
        }
    }

    /// Looks at the mesh: new nodes are registered, and the store learns who is seen.
    async fn observe(&self, sightings: &mut Sightings) -> Result<(), Error> {
        let nodes = self.mesh.nodes().await;
        let noted = Instant::now();
        sightings.note(&nodes, noted, Timestamp::now().as_millisecond());
        let own = Own { name: self.node.clone(), signs: self.mesh.signs() };
        let options = self.options();
        let (registry, found) = discovery::register(&self.store, nodes, own, sightings, &options).await?;
        let registered: BTreeSet<InstanceName> =
            registry.instances.into_iter().map(|record| record.instance.name).collect();
        self.presence.note_found((options.discovery != Discovery::Off).then_some(found), &registered);
        sightings.keep(&registered);
        let seen = sightings.report(&self.node);
        let seen = seen.into_iter().filter(|seen| registered.contains(&seen.instance)).collect();
        let sent = self.lease.now();
        let beat = self.store.heartbeat(self.fence(), times(&self.options()), seen).await;
        let beat = beat.inspect_err(|_| {
            // It has seen nobody be silent meanwhile.
            self.lease.interrupt();
            self.presence.interrupt();
        })?;
        sightings.on_reported(noted);
        self.note_beat(beat, sent)
    }

    /// An operator took a node that discovery found: the mesh is looked at again.
    pub fn look_at_mesh(&self) {
        self.presence.take();
    }

    /// The nodes that discovery found, and nobody has taken.
    pub fn found(&self) -> Vec<Candidate> {
        self.presence.found()
    }

    /// What a node would be that is to become an instance: as the mesh knows it, else as discovery found it.
    pub(super) async fn known_as(&self, name: &InstanceName) -> Option<(NodeType, Offer)> {
        if let Some(node) = self.mesh.nodes().await.into_iter().find(|node| node.name == *name) {
            return Some((
                discovery::node_type(&node).unwrap_or(NodeType::Execution),
                discovery::offer(&node),
            ));
        }
        self.presence.found_as(name).map(|found| (found.node_type, found.offer))
    }

    /// How long an instance may stay silent, and how long each of them has.
    pub(super) fn patience(&self) -> Patience {
        self.presence.patience(self.lease.now(), self.options().timers.lost_after)
    }

    async fn beat(self: &Arc<Self>, sightings: &mut Sightings) -> Result<(), Error> {
        self.observe(sightings).await?;
        // Before anything that the store may hold up: what was seen is as old as this look.
        let lost = self.lease.lost(&times(&self.options()));
        let losses = self.store.judge_losses(self.fence(), self.patience(), self.attempts.said()).await?;
        for instance in &losses.instances {
            tracing::warn!(%instance, "an instance is lost");
        }
        for (job, attempt) in losses.attempts {
            tracing::warn!(%job, %attempt, "an attempt is lost with its instance");
            if !self.attempts.decide((job, attempt)) {
                self.show(job).await?;
            }
        }
        for lost in lost {
            self.take_over(lost).await?;
        }
        self.store.remove_drained().await?;
        // Another pod has another name: this one does not come back.
        if self.store.is_shared() && Surroundings::of_process().is_in_pod() {
            for instance in self.store.remove_lost_control_nodes().await? {
                tracing::warn!(%instance, "a lost control node is not registered any more");
            }
        }
        Ok(())
    }

    /// Has a pass made. Returns whether another one should follow at once.
    async fn pass(self: &Arc<Self>) -> Result<bool, Error> {
        let mut alive = self.lease.alive();
        alive.insert(self.node.clone());
        let waits = Waits { watch: self.waits.clone(), now: self.lease.now(), alive: Some(alive) };
        let limits = PassLimits { require_tls: self.options().require_tls, waits, ..PassLimits::default() };
        let begun = Instant::now();
        let passed = self.store.pass(self.fence(), limits).await?;
        self.figures.pass.note(begun.elapsed());
        self.note_turn(passed.elsewhere).await?;
        for job in passed.failed {
            self.show(job).await?;
        }
        Ok(passed.again)
    }

    /// Of a store that is not shared nobody else changes anything.
    async fn look(&self) -> Result<Look, Error> {
        let shown = if self.store.is_shared() { self.published.jobs() } else { Vec::new() };
        self.store.look(self.fence(), shown).await
    }

    /// Has every attempt of these jobs, which are this node's, a task that knows what to do.
    async fn attend(self: &Arc<Self>, driven: Vec<Job>) -> Result<(), Error> {
        // Whoever was making one of them has given it its unit.
        drop(self.entering.write().await);
        self.published.keep_shown(&driven.iter().map(|job| job.id).collect());
        for job in &driven {
            if !job.state.is_final() {
                self.published.stop_following(job.id);
            }
            let made = self.ensure_unit(job).await?;
            if !job.state.is_final() && (made == Some(true) || self.published.is_news(job)) {
                self.show(job.id).await?;
            }
            let duties: Vec<_> = job.duties().collect();
            for (n, duty) in duties {
                match duty {
                    Duty::Nothing => self.attempts.remove((job.id, n)),
                    // Its output would be lost: a later look may find a place for it.
                    Duty::Send | Duty::Follow | Duty::Ask if made.is_none() => {}
                    Duty::Send | Duty::Follow | Duty::Cancel | Duty::Ask | Duty::Release => {
                        self.assign(job.id, n, duty);
                    }
                }
            }
        }
        Ok(())
    }

    fn assign(self: &Arc<Self>, job: JobId, n: AttemptNo, duty: Duty) {
        self.attempts.assign((job, n), duty, |duty, decided| {
            let this = self.clone();
            let task = tokio::spawn(async move {
                if let Err(error) = this.drive_attempt(job, n, duty, &decided).await {
                    tracing::warn!(%job, attempt = %n, %error, "attempt failed, retrying");
                    sleep(STORE_RETRY).await;
                }
                this.attempts.remove((job, n));
                this.wake.notify_one();
            });
            task.abort_handle()
        });
    }
}

/// The times of leases.
fn times(options: &ControllerOptions) -> LeaseTimes {
    let timers = options.timers;
    LeaseTimes { heartbeat: timers.heartbeat, owner_lost_after: timers.owner_lost_after }
}

/// Whether it was done. Whatever else the store has, it may have recovered from when it is tried again, and until then
/// this control node goes on with what it has; but one that is fenced has nothing left to do.
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
