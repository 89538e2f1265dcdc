//! This control node's lease: while it holds, the node acts; while it cannot be renewed, the node starts, cancels and
//! releases nothing, and goes on reading. A lease that was taken is replaced by a new one, under which the node gives up
//! what others drive now. Jobs of a lost control node are taken over here, too. Who is lost, the core decides, by what this
//! node has watched.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::discovery::Sightings;
use super::{JobDriver, STORE_RETRY, times};
use crate::controller::core::{
    ChildId, Duty, Fence, Fenced, Job, JobKind, Lease, LeaseWatch, OnLoss, Standing, Time,
};
use crate::controller::store::{Beat, Error, Kept};
use crate::work::ChildUnit;
use crate::work::jobs::JobUnit;

/// As many failures in that time end the controller of this node.
const FAILURES: usize = 3;
const FAILURES_WITHIN: Duration = Duration::from_secs(300);

impl JobDriver {
    /// What this node writes with.
    pub(super) fn fence(&self) -> Fence {
        self.lease.fence()
    }

    /// Whether this node may start, cancel and release units.
    pub(in crate::controller) fn may_act(&self) -> bool {
        self.lease.may_act(&times(&self.options()))
    }

    /// A heartbeat that was sent then has renewed the lease, and has seen those of others.
    ///
    /// # Errors
    /// The store has lost its last commits. What this process knows may be more than what is there.
    pub(super) fn note_beat(&self, beat: Beat, sent: Time) -> Result<(), Error> {
        let Beat { leases, own, sightings } = beat;
        let times = times(&self.options());
        let went_back = self.lease.note(leases, own, &times);
        self.presence.note(sightings, went_back, self.lease.now(), times.blind());
        if went_back {
            tracing::warn!("the store has lost its last commits: the lease is renewed under a new fence");
            return Err(Error::Fenced(Fenced(self.fence())));
        }
        self.lease.renew(sent);
        Ok(())
    }

    /// Why the controller of this node has stopped, unless it works again.
    pub fn halted(&self) -> Option<String> {
        self.lease.halted()
    }

    /// Renews the lease until the driver runs, which does that itself. Never ends.
    pub(in crate::controller) async fn keep_lease(&self) {
        loop {
            sleep(self.options().timers.heartbeat).await;
            if let Err(error) = self.store.heartbeat(self.fence(), times(&self.options()), Vec::new()).await {
                tracing::debug!(%error, "the lease is not renewed while the controller starts");
            }
        }
    }

    /// Works until it is stopped, or stops for good because it fails again and again. The node goes on without it. If the
    /// store has lost its last commits, it returns the units of jobs, none of which may be known any more: it is to run again
    /// once they follow their jobs.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) -> Option<Vec<JobUnit>> {
        let keeper = tokio::spawn(self.clone().keep_tenure());
        let units = tokio::select! {
            ended = self.keep_working() => ended.map(|()| self.published.take_all()).map_err(|why| {
                tracing::error!(why, "the controller of this node has stopped; the node goes on without it");
                self.give_up();
                self.lease.halt(why);
            }).ok(),
            () = stop.cancelled() => None,
        };
        keeper.abort();
        self.children.let_act(false);
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
                    let went_back = self.lease.has_gone_back();
                    self.recover().await;
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
                self.tell_unavailable(&why).await;
                return Err(why);
            }
            sleep(STORE_RETRY).await;
        }
    }

    /// A write was fenced. Goes on with the same lease if that is not why, and with a new one if it was taken. While
    /// another process lives with it, this one has no controller.
    async fn recover(self: &Arc<Self>) {
        let mut watch = LeaseWatch::default();
        loop {
            match self.standing(&mut watch).await {
                Ok(Standing::Held) => return,
                Ok(Standing::Free) => {
                    self.give_up();
                    match self.take_lease().await {
                        Ok(()) => return,
                        Err(error) => {
                            tracing::warn!(%error, "there is no new lease yet");
                            // There may be, and then it was this node that changed it.
                            watch = LeaseWatch::default();
                        }
                    }
                }
                Ok(Standing::Replaced) if self.halted().is_none() => {
                    let why = format!(
                        "another process uses the node ID {} with this store, and has a newer lease: give each node \
                         an ID of its own, then restart this one, or wait until that one has been silent for three \
                         times ownerlostafter",
                        self.node
                    );
                    tracing::error!(
                        why,
                        "the controller of this node stands down; the node goes on without it"
                    );
                    self.give_up();
                    self.lease.halt(why);
                }
                Ok(Standing::Replaced) => {}
                Ok(Standing::Unclear) => {}
                Err(error) => tracing::debug!(%error, "the lease cannot be looked at"),
            }
            sleep(STORE_RETRY.min(self.options().timers.heartbeat)).await;
        }
    }

    async fn standing(&self, watch: &mut LeaseWatch) -> Result<Standing, Error> {
        if self.lease.has_gone_back() {
            return Ok(Standing::Free);
        }
        let (leases, times) = (self.store.leases().await?, times(&self.options()));
        let now = self.lease.now();
        watch.note(leases, now, &times);
        Ok(watch.standing(&self.fence(), now, &times))
    }

    async fn take_lease(&self) -> Result<(), Error> {
        let options = self.options();
        // It was not this node that failed.
        let on_loss = if self.lease.has_gone_back() { OnLoss::TakeOver } else { options.on_loss };
        let fence = self.store.start_owner(self.node.clone(), times(&options), on_loss).await?;
        tracing::warn!(epoch = %fence.epoch, "the lease was taken: a new one begins");
        self.lease.replace(fence);
        Ok(())
    }

    /// Ends the tasks of attempts where they are. Their units stay.
    fn give_up(&self) {
        self.lease.end();
        self.attempts.abort_all();
    }

    async fn tell_unavailable(&self, why: &str) {
        let (name, errors) = (self.node.clone(), vec![format!("its controller has stopped: {why}")]);
        let change = move |registry: &mut crate::controller::store::Registry, now| {
            registry.instance_mut(&name)?.instance.on_unhealthy(errors.clone(), now);
            Ok(())
        };
        if let Err(error) = self.store.change_registry(None, change).await {
            tracing::warn!(%error, "the store does not know that the controller of this node has stopped");
        }
    }

    /// Lets children act as long as the lease was renewed in time. The store may hang meanwhile.
    async fn keep_tenure(self: Arc<Self>) {
        let mut renewals = self.lease.renewals();
        let mut did_act = false;
        loop {
            renewals.mark_unchanged();
            let mut may_act = self.may_act();
            let mut look_again = None;
            if may_act && !did_act {
                let is_known = self.withhold_unwanted().await.unwrap_or_else(|error| {
                    tracing::debug!(%error, "children wait until it is known which of them are wanted");
                    false
                });
                look_again = Some(STORE_RETRY).filter(|_| !is_known);
                // The store may have taken longer than the lease lasts.
                may_act = is_known && self.may_act();
            }
            match (did_act, may_act) {
                (true, false) => {
                    tracing::warn!(
                        "the lease is not renewed: nothing is started, cancelled or released until it is"
                    );
                }
                (false, true) => tracing::info!("the lease holds: the controller acts"),
                (true, true) | (false, false) => {}
            }
            did_act = may_act;
            self.children.let_act(may_act);
            let end = self.time_left().filter(|_| may_act).or(look_again);
            tokio::select! {
                // The sender is kept, so this cannot fail.
                _never = renewals.changed() => {}
                () = sleep(end.unwrap_or_default()), if end.is_some() => {}
            }
        }
    }

    /// A cancel that was saved while nothing could be sent is known to the children before they are: none of them starts
    /// after it. Returns false if the lease is another one by now.
    async fn withhold_unwanted(&self) -> Result<bool, Error> {
        let fence = self.fence();
        for job in self.store.driven(fence.clone()).await? {
            for (n, duty) in job.duties() {
                let unit = job.attempt(n).map(|attempt| attempt.unit.to_string());
                match (duty, unit) {
                    (Duty::Cancel | Duty::Release, Some(unit)) => self.children.withhold(unit).await,
                    (Duty::Send | Duty::Follow | Duty::Ask | Duty::Nothing, _) | (_, None) => {}
                }
            }
        }
        Ok(self.fence() == fence)
    }

    /// When to look again whether this node may still act.
    fn time_left(&self) -> Option<Duration> {
        let left = self.lease.time_left(&times(&self.options()))?;
        // Timers stand still while the machine is suspended, and the lease does not.
        Some(left.min(STORE_RETRY) + Duration::from_millis(1))
    }

    /// The first thing under a lease: what others drive now is given up, before anything is sent.
    pub(super) async fn settle(self: &Arc<Self>, sightings: &mut Sightings) -> Result<(), Error> {
        self.forget_foreign().await?;
        for (job, owner) in self.store.owners_of(self.published.jobs()).await? {
            if owner != self.node {
                self.follow_elsewhere(job);
            }
        }
        self.beat(sightings).await
    }

    pub(super) async fn look_around(self: &Arc<Self>) -> Result<(), Error> {
        if let Some(job) = self.store.lost(self.published.jobs()).await?.first() {
            tracing::warn!(%job, "the store has lost its last commits: a job that was stored is not there");
            self.lease.note_lost_commits();
            return Err(Error::Fenced(Fenced(self.fence())));
        }
        self.forget_foreign().await?;
        self.show_pending().await
    }

    /// Children of jobs that another control node drives: those elsewhere are forgotten here, nothing is sent to their
    /// nodes, and their pods stay. Those that run here may be cancelled by that control node. One of which nothing is expected
    /// any more is an orphan, and housekeeping releases it: it may have come late to its node, and nobody else knows that.
    async fn forget_foreign(&self) -> Result<(), Error> {
        let mut children = self.children.list();
        children.retain(|child| child.id.install == self.install);
        if children.is_empty() {
            return Ok(());
        }
        let owners = self.store.owners_of(children.iter().map(|child| child.id.job).collect()).await?;
        for ChildUnit { id, is_elsewhere } in children {
            let Some(owner) = owners.get(&id.job) else { continue };
            let unit = id.to_string();
            match (*owner == self.node, is_elsewhere) {
                (true, _) => drop(self.foreign.lock().remove(&unit)),
                (false, false) => drop(self.foreign.lock().insert(unit)),
                (false, true) if self.is_swept(&id).await? => {}
                (false, true) => {
                    tracing::info!(unit, %owner, "another control node drives this child: it is forgotten here");
                    self.children.forget(unit).await;
                }
            }
        }
        Ok(())
    }

    /// Whether nothing is expected of a child any more.
    async fn is_swept(&self, child: &ChildId) -> Result<bool, Error> {
        let job = self.store.job(child.job).await?;
        let attempt = job.attempt(child.attempt).filter(|attempt| attempt.unit == *child);
        Ok(attempt.is_none_or(|attempt| attempt.swept))
    }

    /// Whether a child that runs here belongs to another control node.
    pub fn is_foreign(&self, unit: &str) -> bool {
        self.foreign.lock().contains(unit)
    }

    /// Takes over the jobs of a lost control node; each goes to the control node that is fit for it.
    pub(super) async fn take_over(&self, lost: Lease) -> Result<(), Error> {
        let (on_loss, node) = (self.options().on_loss, lost.node.clone());
        let moved = self.store.take_over(self.fence(), lost, on_loss).await?;
        self.figures.takeovers.fetch_add(1, Ordering::Relaxed);
        if !moved.is_empty() {
            tracing::warn!(lost = %node, jobs = moved.len(), "a control node is lost, and its jobs have new owners");
        }
        Ok(())
    }

    /// A job that was submitted elsewhere gets a unit here, which has its output from the first byte on, unless nothing is
    /// expected of it any more. Says whether it did; `None` if it needs one and cannot have it yet.
    pub(super) async fn ensure_unit(&self, job: &Job) -> Result<Option<bool>, Error> {
        let was_submitted = job.kind != JobKind::ProjectSync;
        // Also one that is lost, as what is read of it once there is news needs a place, and one that had ended when it
        // was taken over, before its output was read to the end.
        let has_output = job.current().is_some_and(|current| {
            if job.state.is_final() { current.has_unread_output() } else { current.is_open() }
        });
        if !has_output || !was_submitted || self.first_unit(job.id).is_some() {
            return Ok(Some(false));
        }
        let mut holders = self.store.holders(job.id, Kept::Payload).await?;
        holders.extend(self.store.holders(job.id, Kept::Output).await?);
        // Its unit is here, and was released by force or has shown its end; or it was here, and nobody wants it any more.
        if holders.iter().any(|(node, _)| *node == self.node) || (job.state.is_final() && holders.is_empty())
        {
            return Ok(Some(false));
        }
        let Some(unit) = self.children.adopt_job(job.id).await else { return Ok(None) };
        self.store.hold(job.id, self.node.clone(), unit.id().to_string(), Kept::Output).await?;
        self.published.add(job.id, unit, false);
        Ok(Some(true))
    }
}

/// A task that ends with its handle.
struct Aborting<T>(tokio::task::JoinHandle<T>);

impl<T> Drop for Aborting<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
