//! The work for all jobs: looks at the mesh, tells the store who is seen, asks it who is lost, and makes passes. The
//! core decides who is lost and which job goes where; `attempts` and `publisher` handle this node's own jobs.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::attempts::Attempts;
use super::base::Base;
use super::candidates::Candidate;
use super::discovery::{self, Own, Sightings};
use super::lease::LeaseKeeper;
use super::presence::Presence;
use super::publisher::Publisher;
use super::turn::MissedTurns;
use crate::controller::core::{Fenced, InstanceName, NodeType, Offer, Patience, WaitWatch};
use crate::controller::health::Surroundings;
use crate::controller::options::Discovery;
use crate::controller::store::{Error, PassLimits, Waits};

pub(in crate::controller) struct Placer {
    base: Arc<Base>,
    lease: Arc<LeaseKeeper>,
    attempts: Arc<Attempts>,
    publisher: Arc<Publisher>,
    presence: Presence,
    /// How long jobs have waited, by the lease's clock.
    waits: Arc<Mutex<WaitWatch>>,
    missed_turns: MissedTurns,
}

impl Placer {
    pub(super) fn new(
        base: Arc<Base>,
        lease: Arc<LeaseKeeper>,
        attempts: Arc<Attempts>,
        publisher: Arc<Publisher>,
    ) -> Self {
        let (presence, waits, missed_turns) = (Presence::default(), Arc::default(), MissedTurns::default());
        Self { base, lease, attempts, publisher, presence, waits, missed_turns }
    }

    /// Returns once an operator has enabled or added a node that discovery found.
    pub(super) async fn taken(&self) {
        self.presence.taken().await;
    }

    /// Why this node has placed no jobs for too long; `None` if it has had its turn.
    pub(in crate::controller) fn no_turn(&self) -> Option<String> {
        self.missed_turns.why()
    }

    /// Notes whether this node has had its turn to place jobs.
    pub(super) async fn note_turn(&self, had_none: bool) -> Result<(), Error> {
        let too_long = self.base.options().timers.owner_lost_after;
        self.missed_turns.tell(had_none, self.lease.own.now(), too_long, &self.base.store).await
    }

    /// Looks at the mesh: new nodes are registered, and the store learns who is seen.
    pub(super) async fn observe(&self, sightings: &mut Sightings) -> Result<(), Error> {
        let nodes = self.base.mesh.nodes().await;
        let noted = Instant::now();
        sightings.note(&nodes, noted, Timestamp::now().as_millisecond());
        let own = Own { name: self.base.node.clone(), signs: self.base.mesh.signs() };
        let options = self.base.options();
        let (registry, found) =
            discovery::register(&self.base.store, nodes, own, sightings, &options).await?;
        let registered: BTreeSet<InstanceName> =
            registry.instances.into_iter().map(|record| record.instance.name).collect();
        self.presence.note_found((options.discovery != Discovery::Off).then_some(found), &registered);
        sightings.keep(&registered);
        let seen = sightings.report(&self.base.node);
        let seen = seen.into_iter().filter(|seen| registered.contains(&seen.instance)).collect();
        let sent = self.lease.own.now();
        let beat = self.base.store.heartbeat(self.lease.fence(), self.base.times(), seen).await;
        let beat = beat.inspect_err(|_| {
            // The time since the last heartbeat does not count as anybody's silence.
            self.lease.own.interrupt();
            self.presence.interrupt();
        })?;
        sightings.on_reported(noted);
        let (times, now) = (self.base.times(), self.lease.own.now());
        let went_back = self.lease.own.note(beat.leases, beat.own, &times);
        self.presence.note(beat.sightings, went_back, now, times.blind());
        if went_back {
            tracing::warn!("the store has lost its last commits: the lease is renewed under a new fence");
            // Recovers as after a fenced write, because this process may know more than the store does.
            return Err(Error::Fenced(Fenced(self.lease.fence())));
        }
        self.lease.own.renew(sent);
        Ok(())
    }

    /// Looks at the mesh again, because an operator has enabled or added a node that discovery found.
    pub(in crate::controller) fn look_at_mesh(&self) {
        self.presence.take();
    }

    /// The nodes that discovery found and nobody has enabled or added yet.
    pub(in crate::controller) fn found(&self) -> Vec<Candidate> {
        self.presence.found()
    }

    /// The type and offer of a node that is to become an instance: as the mesh knows it, or else as discovery found it.
    pub(in crate::controller) async fn known_as(&self, name: &InstanceName) -> Option<(NodeType, Offer)> {
        if let Some(node) = self.base.mesh.nodes().await.into_iter().find(|node| node.name == *name) {
            return Some((
                discovery::node_type(&node).unwrap_or(NodeType::Execution),
                discovery::offer(&node),
            ));
        }
        self.presence.found_as(name).map(|found| (found.node_type, found.offer))
    }

    /// How long an instance may be silent, and how long each instance has been silent.
    pub(in crate::controller) fn patience(&self) -> Patience {
        self.presence.patience(self.lease.own.now(), self.base.options().timers.lost_after)
    }

    pub(super) async fn beat(&self, sightings: &mut Sightings) -> Result<(), Error> {
        self.observe(sightings).await?;
        // Comes before anything that may take the store long, because the observations are as old as this look.
        let lost = self.lease.own.lost(&self.base.times());
        let losses =
            self.base.store.judge_losses(self.lease.fence(), self.patience(), self.attempts.said()).await?;
        for instance in &losses.instances {
            tracing::warn!(%instance, "an instance is lost");
        }
        for (job, attempt) in losses.attempts {
            tracing::warn!(%job, %attempt, "an attempt is lost with its instance");
            if !self.attempts.decide((job, attempt)) {
                self.publisher.show(job).await?;
            }
        }
        for lost in lost {
            self.lease.take_over(lost).await?;
        }
        self.base.store.remove_drained().await?;
        // Lost control nodes in pods do not come back, because a pod's successor has another name.
        if self.base.store.is_shared() && Surroundings::of_process().is_in_pod() {
            for instance in self.base.store.remove_lost_control_nodes().await? {
                tracing::warn!(%instance, "removed a lost control node");
            }
        }
        Ok(())
    }

    /// Makes a pass. Returns whether another one should follow at once.
    pub(super) async fn pass(&self) -> Result<bool, Error> {
        let mut alive = self.lease.own.alive();
        alive.insert(self.base.node.clone());
        let waits = Waits { watch: self.waits.clone(), now: self.lease.own.now(), alive: Some(alive) };
        let limits =
            PassLimits { require_tls: self.base.options().require_tls, waits, ..PassLimits::default() };
        let begun = Instant::now();
        let passed = self.base.store.pass(self.lease.fence(), limits).await?;
        self.base.figures.pass.note(begun.elapsed());
        self.note_turn(passed.elsewhere).await?;
        for job in passed.failed {
            self.publisher.show(job).await?;
        }
        Ok(passed.again)
    }
}
