//! This control node's lease: while it holds, the node acts; while it cannot be renewed, the node starts, cancels and
//! releases nothing, and goes on reading. A lease that was taken is replaced by a new one, under which the node gives up
//! what others drive now. Jobs of a lost control node are taken over here, too. Who is lost, the core decides, by what this
//! node has watched.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::sleep;

use super::STORE_RETRY;
use super::base::Base;
use super::own_lease::OwnLease;
use crate::controller::core::{ChildId, Duty, Fence, Lease, LeaseWatch, OnLoss, Standing};
use crate::controller::store::{Error, Registry, Sending};

/// What keeps the lease. What it knows of it is in `own`.
pub(in crate::controller) struct LeaseKeeper {
    base: Arc<Base>,
    pub(super) own: OwnLease,
}

impl LeaseKeeper {
    pub(super) fn new(base: Arc<Base>, fence: Fence) -> Self {
        Self { base, own: OwnLease::new(fence) }
    }

    /// What this node writes with.
    pub(super) fn fence(&self) -> Fence {
        self.own.fence()
    }

    /// Whether this node may start, cancel and release units.
    pub(in crate::controller) fn may_act(&self) -> bool {
        self.own.may_act(&self.base.times())
    }

    /// Whether an attempt may be sent, as the store says: this node drives its job, and it is wanted.
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

    /// Why the controller of this node has stopped, unless it works again.
    pub(in crate::controller) fn halted(&self) -> Option<String> {
        self.own.halted()
    }

    /// Renews the lease until the driver runs, which does that itself. Never ends.
    pub(in crate::controller) async fn keep_lease(&self) {
        loop {
            sleep(self.base.options().timers.heartbeat).await;
            if let Err(error) = self.base.store.heartbeat(self.fence(), self.base.times(), Vec::new()).await {
                tracing::debug!(%error, "the lease is not renewed while the controller starts");
            }
        }
    }

    /// A write was fenced. Goes on with the same lease if that is not why, and with a new one if it was taken. While
    /// another process lives with it, this one has no controller. `give_up` is called before a lease is taken, or left to
    /// another process: what runs under the former one ends.
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
                Err(error) => tracing::debug!(%error, "the lease cannot be looked at"),
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
        // It was not this node that failed.
        let on_loss = if self.own.has_gone_back() { OnLoss::TakeOver } else { options.on_loss };
        let fence = self.base.store.start_owner(self.base.node.clone(), self.base.times(), on_loss).await?;
        tracing::warn!(epoch = %fence.epoch, "the lease was taken: a new one begins");
        self.own.replace(fence);
        Ok(())
    }

    /// The controller of this node has stopped for good.
    pub(super) async fn tell_unavailable(&self, why: &str) {
        let (name, errors) = (self.base.node.clone(), vec![format!("its controller has stopped: {why}")]);
        let change = move |registry: &mut Registry, now| {
            registry.instance_mut(&name)?.instance.on_unhealthy(errors.clone(), now);
            Ok(())
        };
        if let Err(error) = self.base.store.change_registry(None, change).await {
            tracing::warn!(%error, "the store does not know that the controller of this node has stopped");
        }
    }

    /// Lets children act as long as the lease was renewed in time. The store may hang meanwhile.
    pub(super) async fn keep_tenure(self: Arc<Self>) {
        let mut renewals = self.own.renewals();
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
            self.base.children.let_act(may_act);
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
        // Timers stand still while the machine is suspended, and the lease does not.
        Some(left.min(STORE_RETRY) + Duration::from_millis(1))
    }

    /// Takes over the jobs of a lost control node; each goes to the control node that is fit for it.
    pub(super) async fn take_over(&self, lost: Lease) -> Result<(), Error> {
        let (on_loss, node) = (self.base.options().on_loss, lost.node.clone());
        let moved = self.base.store.take_over(self.fence(), lost, on_loss).await?;
        self.base.figures.takeovers.fetch_add(1, Ordering::Relaxed);
        if !moved.is_empty() {
            tracing::warn!(lost = %node, jobs = moved.len(), "a control node is lost, and its jobs have new owners");
        }
        Ok(())
    }
}
