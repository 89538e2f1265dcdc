//! Passes each action on a unit to the module that runs units of its kind: `local`, `remote`, `pods` or `jobs`. It is
//! the only place that tells the kinds apart for that. Attempts of jobs on other nodes begin elsewhere, because they
//! are of one kind. Owns no unit, and no rule about who may ask for what.

use std::sync::Arc;

use super::WorkError;
use super::jobs::JobsSlot;
use super::local::Local;
use super::pods::Pods;
use super::remote::Remotes;
use super::status::{Status, UnitKind};
use super::unit::State;
use super::units::{Entry, Leftovers, Outcome, Started, Units, detached};

/// What runs the units of a node.
pub(super) struct Executor {
    pub(super) units: Arc<Units>,
    pub(super) local: Arc<Local>,
    pub(super) remotes: Arc<Remotes>,
    pub(super) pods: Arc<Pods>,
    pub(super) jobs: JobsSlot,
}

/// Whether a unit that an earlier daemon left is to be resumed: it is under way, or its release or cancel elsewhere is.
pub(super) fn is_unfinished(status: &Status) -> bool {
    let state = status.life.state;
    !state.is_final()
        || match status.kind() {
            UnitKind::Remote => super::remote::has_work(status),
            UnitKind::Pod => state == State::Canceled,
            UnitKind::Local | UnitKind::Job => false,
        }
}

impl Executor {
    /// Starts a unit whose payload is complete.
    ///
    /// # Errors
    /// What kept it from starting; its Detail says the same.
    pub(super) async fn start(&self, unit: &Arc<Entry>) -> Result<Started, WorkError> {
        match unit.status().kind() {
            UnitKind::Local => self.local.start(unit).await.map(|()| Started::Started),
            UnitKind::Remote => self.remotes.start_flushed(unit).await,
            UnitKind::Pod => self.pods.start(unit).await.map(|()| Started::Started),
            // The job's intake decides what happens to it.
            UnitKind::Job => Ok(Started::Submitted),
        }
    }

    /// Goes on with an unfinished unit that an earlier daemon left.
    pub(super) async fn resume(&self, unit: &Arc<Entry>) {
        match unit.status().kind() {
            UnitKind::Local => self.local.resume(unit).await,
            UnitKind::Remote => self.remotes.resume(unit).await,
            UnitKind::Pod => self.pods.resume(unit).await,
            UnitKind::Job => self.jobs.resume(&self.units, unit).await,
        }
    }

    /// Goes on with the release of a hidden unit.
    pub(super) fn finish_release(&self, hidden: Arc<Entry>) {
        match hidden.status().kind() {
            UnitKind::Remote => self.remotes.ensure_driver(&hidden),
            UnitKind::Pod => drop(tokio::spawn(self.pods.clone().finish_release(hidden))),
            UnitKind::Local | UnitKind::Job => {}
        }
    }

    /// Ends a unit, here or on its node. One that has ended stays as it is.
    ///
    /// # Errors
    /// Processes do not end, or the cancel cannot be saved.
    pub(super) async fn cancel(&self, unit: &Arc<Entry>) -> Result<Outcome, WorkError> {
        match unit.status().kind() {
            UnitKind::Local => self.local.cancel(unit).await.map(|()| Outcome::Done),
            UnitKind::Remote => self.remotes.cancel(unit).await,
            UnitKind::Pod => self.pods.cancel(unit).await,
            UnitKind::Job => self.jobs.cancel(unit).await,
        }
    }

    /// Ends a unit for a reason of this node's own, with which it fails. Does nothing to a job's unit, because a job
    /// ends with its child.
    pub(super) async fn stop(self: &Arc<Self>, unit: Arc<Entry>, why: String) -> Result<(), WorkError> {
        let this = self.clone();
        detached(async move {
            match unit.status().kind() {
                UnitKind::Local => this.local.stop(&unit, why).await,
                UnitKind::Remote => this.remotes.stop(&unit, why).await,
                UnitKind::Pod => this.pods.stop(&unit, why).await,
                UnitKind::Job => Ok(()),
            }
        })
        .await
    }

    /// Cancels a unit and deletes everything of it, here and on its node; with `force` here whatever happens. `leftovers`
    /// says what becomes of the processes that it has left running.
    ///
    /// # Errors
    /// Processes do not end, or files cannot be removed.
    pub(super) async fn release(
        self: &Arc<Self>,
        unit: Arc<Entry>,
        force: bool,
        leftovers: Leftovers,
    ) -> Result<Outcome, WorkError> {
        let this = self.clone();
        detached(async move {
            match unit.status().kind() {
                UnitKind::Local => this.local.release(&unit, force, leftovers).await.map(|()| Outcome::Done),
                UnitKind::Remote => this.remotes.release(&unit, force, leftovers).await,
                UnitKind::Pod => this.pods.release(&unit, force).await,
                UnitKind::Job => this.jobs.release(&this.units, &unit, force).await,
            }
        })
        .await
    }

    /// Drops a unit here and asks its node for nothing, because another control node drives it, or its node is given
    /// up. Its pod stays. Does nothing to a unit that runs here.
    ///
    /// # Errors
    /// Its files cannot be removed.
    pub(super) async fn forget(self: &Arc<Self>, unit: Arc<Entry>) -> Result<(), WorkError> {
        let this = self.clone();
        detached(async move {
            match unit.status().kind() {
                UnitKind::Remote => this.remotes.forget(&unit).await,
                UnitKind::Pod => this.pods.forget(&unit).await,
                UnitKind::Local | UnitKind::Job => Ok(()),
            }
        })
        .await
    }

    /// Notes that a unit is to be cancelled, and asks no other node: a unit that was not sent yet is never started.
    pub(super) async fn withhold(&self, unit: &Arc<Entry>) -> Result<(), WorkError> {
        match unit.status().kind() {
            UnitKind::Remote => self.remotes.withhold(unit).await,
            UnitKind::Pod => self.pods.cancel(unit).await.map(drop),
            // A unit that runs here is not sent, so there is nothing to withhold.
            UnitKind::Local | UnitKind::Job => Ok(()),
        }
    }
}
