//! This control node's lease. While the lease is valid, the node acts; while it cannot be renewed, the node starts,
//! cancels and releases nothing, but goes on reading. If the lease was taken away, the node takes a new one, under
//! which it gives up what others drive now. It also takes over the jobs of lost control nodes; the core decides who is
//! lost, from what this node has observed.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::sleep;

use super::base::{Base, STORE_RETRY};
use super::own_lease::OwnLease;
use crate::controller::core::{ChildId, Duty, Fence, Lease, LeaseWatch, OnLoss, Standing};
use crate::controller::store::{Error, InstanceRegistry, Sending};

/// Keeps the lease. `own` is what this process knows of it.
pub(in crate::controller) struct LeaseKeeper {
    base: Arc<Base>,
    pub(super) own: OwnLease,
}

impl LeaseKeeper {
    pub(super) fn new(base: Arc<Base>, fence: Fence) -> Self {
        Self { base, own: OwnLease::new(fence) }
    }

    /// The fence with which this node writes to the store.
    pub(super) fn fence(&self) -> Fence {
        self.own.fence()
    }

    /// Whether this node may start, cancel and release units.
    pub(in crate::controller) fn may_act(&self) -> bool {
        self.own.may_act(&self.base.times())
    }

    /// Whether an attempt may be sent: asks the store whether this node drives the job and the attempt is wanted.
    ///
    /// # Errors
    /// The lease was taken, or could not be renewed, or the store is away.
    pub(in crate::controller) async fn may_send(&self, child: ChildId) -> Result<Option<Sending>, Error> {
        let sent = self.base.store.before_sending(self.fence(), child).await?;
        if !self.may_act() {
            return Err(Error::Unready("the lease of this control node could not be renewed".into()));
        }
        Ok(sent)
    }

    /// Why the controller of this node has stopped; `None` if it works.
    pub(in crate::controller) fn halted(&self) -> Option<String> {
        self.own.halted()
    }

    /// Renews the lease while the driver does not run yet; a running driver does it itself. Never ends.
    pub(in crate::controller) async fn keep_lease(&self) {
        loop {
            sleep(self.base.options().timers.heartbeat).await;
            if let Err(error) = self.base.store.heartbeat(self.fence(), self.base.times(), Vec::new()).await {
                tracing::debug!(%error, "cannot renew the lease while the controller is starting");
            }
        }
    }

    /// Recovers after a write was fenced. If this node still has its lease, it goes on with it; if the lease was taken
    /// away, it takes a new one. While another process has a newer lease of this node, this process has no controller.
    /// Calls `give_up` before taking a lease or leaving it to another process, to end what runs under the former lease.
    pub(super) async fn recover(&self, give_up: impl Fn()) {
        let mut watch = LeaseWatch::default();
        loop {
            match self.standing(&mut watch).await {
                Ok(Standing::Held) => return,
                Ok(Standing::Free) => {
                    self.own.end();
                    give_up();
                    match self.take_lease().await {
                        Ok(()) => return,
                        Err(error) => {
                            tracing::warn!(%error, "cannot take a new lease yet");
                            // The lease may have been taken all the same. Then the change came from this node, not from
                            // another process.
                            watch = LeaseWatch::default();
                        }
                    }
                }
                Ok(Standing::Replaced) if self.halted().is_none() => {
                    let why = format!(
                        "another process uses the node ID {} with this store, and has a newer lease: give each node \
                         an ID of its own, then restart this one, or wait until that one has been silent for three \
                         times ownerlostafter",
                        self.base.node
                    );
                    tracing::error!(
                        why,
                        "the controller of this node stands down; the node goes on without it"
                    );
                    self.own.end();
                    give_up();
                    self.own.halt(why);
                }
                Ok(Standing::Replaced) => {}
                Ok(Standing::Unclear) => {}
                Err(error) => tracing::debug!(%error, "cannot read the lease"),
            }
            sleep(STORE_RETRY.min(self.base.options().timers.heartbeat)).await;
        }
    }

    async fn standing(&self, watch: &mut LeaseWatch) -> Result<Standing, Error> {
        if self.own.has_gone_back() {
            return Ok(Standing::Free);
        }
        let (leases, times) = (self.base.store.leases().await?, self.base.times());
        let now = self.own.now();
        watch.note(leases, now, &times);
        Ok(watch.standing(&self.fence(), now, &times))
    }

    async fn take_lease(&self) -> Result<(), Error> {
        let options = self.base.options();
        // If the store went back, this node has not failed, so its jobs go on.
        let on_loss = if self.own.has_gone_back() { OnLoss::TakeOver } else { options.on_loss };
        let fence = self.base.store.start_owner(self.base.node.clone(), self.base.times(), on_loss).await?;
        tracing::warn!(epoch = %fence.epoch, "the node lost its lease and took a new one");
        self.own.replace(fence);
        Ok(())
    }

    /// Stores that the controller of this node has stopped for good.
    pub(super) async fn tell_unavailable(&self, why: &str) {
        let (name, errors) = (self.base.node.clone(), vec![format!("its controller has stopped: {why}")]);
        let change = move |registry: &mut InstanceRegistry, now| {
            registry.instance_mut(&name)?.instance.on_unhealthy(errors.clone(), now);
            Ok(())
        };
        if let Err(error) = self.base.store.change_registry(None, change).await {
            tracing::warn!(%error, "cannot store that the controller of this node has stopped");
        }
    }

    /// Lets children act while the lease is renewed in time, and stops them otherwise, even if the store hangs.
    pub(super) async fn keep_tenure(self: Arc<Self>) {
        let mut renewals = self.own.renewals();
        let mut did_act = false;
        loop {
            renewals.mark_unchanged();
            let mut may_act = self.may_act();
            let mut look_again = None;
            if may_act && !did_act {
                let is_known = self.withhold_unwanted().await.unwrap_or_else(|error| {
                    tracing::debug!(%error, "cannot find out which children are still wanted, they all wait");
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
                (false, true) => tracing::info!("the lease is valid: the controller may act"),
                (true, true) | (false, false) => {}
            }
            did_act = may_act;
            self.base.children.let_act(may_act);
            let end = self.time_left().filter(|_| may_act).or(look_again);
            tokio::select! {
                // The sender is kept, so this cannot fail.
                _never = renewals.changed() => {}
                () = sleep(end.unwrap_or_default()), if end.is_some() => {}
            }
        }
    }

    /// Withholds the cancelled children before any child may act: a cancel may have been saved while nothing could be
    /// sent, and a cancelled child must not start any more. Returns false if the lease has changed meanwhile.
    async fn withhold_unwanted(&self) -> Result<bool, Error> {
        let fence = self.fence();
        for job in self.base.store.driven(fence.clone()).await? {
            for (n, duty) in job.duties() {
                let unit = job.attempt(n).map(|attempt| attempt.unit.to_string());
                match (duty, unit) {
                    (Duty::Cancel | Duty::Release, Some(unit)) => self.base.children.withhold(unit).await,
                    (Duty::Send | Duty::Follow | Duty::Ask | Duty::Nothing, _) | (_, None) => {}
                }
            }
        }
        Ok(self.fence() == fence)
    }

    /// When to look again whether this node may still act.
    fn time_left(&self) -> Option<Duration> {
        let left = self.own.time_left(&self.base.times())?;
        // Timers stand still while the machine is suspended, but the lease does not.
        Some(left.min(STORE_RETRY) + Duration::from_millis(1))
    }

    /// Takes over the jobs of a lost control node. Each job goes to a control node that can own it.
    pub(super) async fn take_over(&self, lost: Lease) -> Result<(), Error> {
        let (on_loss, node) = (self.base.options().on_loss, lost.node.clone());
        let moved = self.base.store.take_over(self.fence(), lost, on_loss).await?;
        self.base.figures.takeovers.fetch_add(1, Ordering::Relaxed);
        if !moved.is_empty() {
            tracing::warn!(lost = %node, jobs = moved.len(), "a control node is lost, its jobs have new owners");
        }
        Ok(())
    }
}
