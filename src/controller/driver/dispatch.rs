//! Finds out whether an attempt's unit exists, and sends it if it does not. Only the owner of the job sends it, and
//! only while it is wanted. Also handles units that another control node may have sent or may still send; the core's
//! `approach` decides how.

use tokio::sync::watch;

use super::attempt::AttemptTask;
use super::end::words_before;
use super::input::{Prepared, input};
use super::output;
use super::world::{ChildRequest, Children};
use crate::controller::core::{Approach, Attempt, Duty, Known, UnitPlace, approach};
use crate::controller::header::Header;
use crate::controller::store::{Error, JobRecord};
use crate::work::{FarUnit, Leftovers};

/// What an open attempt needs to be sent.
pub(super) struct Dispatch<'a> {
    pub(super) task: &'a mut AttemptTask,
    pub(super) detail: &'a JobRecord,
    pub(super) header: &'a Header,
    pub(super) attempt: &'a Attempt,
    pub(super) request: ChildRequest,
}

impl Dispatch<'_> {
    /// Ensures that the unit exists. Returns false if there is none and never will be.
    pub(super) async fn ensure(mut self) -> Result<bool, Error> {
        let children = self.task.on.base.children.clone();
        let known = children.known(&self.request.unit);
        let is_ours = self.attempt.sender == self.task.on.base.node;
        match approach(known, self.attempt.progress, is_ours, self.place()) {
            Approach::Follow => Ok(true),
            Approach::Ask => {
                self.request.far = self.task.on.far_unit(&self.attempt.unit).await?;
                match children.adopt(self.request).await {
                    Ok(true) => Ok(true),
                    Ok(false) => self.task.conclude_absent().await,
                    Err(cause) => Err(Error::Unready(format!("its unit cannot be followed here: {cause}"))),
                }
            }
            Approach::Absent { disclaim } => {
                if disclaim {
                    disclaim_here(&*children, &self.request.unit, known).await?;
                }
                self.task.conclude_absent().await
            }
            Approach::Send { afresh } => {
                if afresh {
                    children.release(self.request.unit.clone(), Leftovers::Stay).await;
                }
                self.send().await
            }
        }
    }

    fn place(&self) -> UnitPlace {
        match &self.request.pod {
            Some(_) => UnitPlace::Pod,
            None if self.request.node == self.task.on.base.node => UnitPlace::Here,
            None => UnitPlace::Elsewhere,
        }
    }

    async fn send(mut self) -> Result<bool, Error> {
        let (on, n) = (self.task.on.clone(), self.task.n);
        // Children that the store forgot with its last commits have to end first, and their nodes have to confirm this.
        let unit = on.publisher.first_unit(self.task.id);
        on.forgotten.end_all(&self.detail.job, self.attempt, unit.as_ref()).await?;
        if let Err(cause) = on.pods.prepare(&self.request, &mut self.task.duty).await {
            return self.task.refuse(cause).await;
        }
        await_room(&*on.base.children, &mut self.task.duty).await;
        let prepared = input(&on, self.detail, self.header, self.attempt, &mut self.task.duty).await?;
        let (input, _project) = match prepared {
            Prepared::Ready(input, project) => (input, project),
            // An earlier process may have sent the unit. If the payload was then deleted, and the store lost its last
            // commits, the store no longer knows the unit's end.
            Prepared::Impossible(ending, why) => {
                return match self.may_be_there().await? {
                    true => Ok(true),
                    false => self.task.not_prepared(ending, why).await,
                };
            }
            Prepared::Unwanted => return self.unwanted().await,
        };
        // Asks as late as possible, so that nothing starts after a cancel was saved or another node became the owner.
        // The job's unit must durably name its child before the child is sent, because otherwise nobody finds the child
        // again if the store loses its last commits.
        let words = words_before(&self.detail.job, n);
        let unit = on.publisher.first_unit(self.task.id);
        let begun = output::begin(&on.base.store, unit, &self.detail.job, n, &words);
        let (may_send, begun) = tokio::join!(on.lease.may_send(self.attempt.unit.clone()), begun);
        let is_cancelled = *self.task.duty.borrow_and_update() == Duty::Cancel;
        let Some(sending) = may_send?.filter(|_| !is_cancelled) else { return self.unwanted().await };
        begun?;
        let may_be_released = on.base.store.is_shared() && !sending.is_ours;
        self.request.far = sending.sent_as.map(|id| FarUnit { id, may_be_released });
        let unit = self.request.unit.clone();
        // The node may take long to answer. If the attempt is cancelled meanwhile, the node must not start it.
        match self.task.obeying(&unit, on.base.children.send(self.request, input)).await {
            Ok(true) => Ok(true),
            Ok(false) => self.task.conclude_absent().await,
            Err(cause) => self.task.refuse(cause).await,
        }
    }

    /// Ends an attempt whose unit is no longer wanted and is not sent. If the unit may exist all the same, it is
    /// followed instead: this node may have sent it, and forgotten it while another control node had the job.
    async fn unwanted(mut self) -> Result<bool, Error> {
        match self.may_be_there().await? {
            true => Ok(true),
            false => self.task.conclude_absent().await,
        }
    }

    /// Whether a unit that is not sent now may have been sent before. If so, adopts the unit; following it then shows
    /// whether its node has it.
    async fn may_be_there(&mut self) -> Result<bool, Error> {
        let on = &self.task.on;
        let is_here = self.place() == UnitPlace::Here;
        if is_here || !on.base.store.may_have_been_sent(self.task.id, self.task.n).await? {
            return Ok(false);
        }
        self.request.far = on.far_unit(&self.attempt.unit).await?;
        on.base.children.adopt(self.request.clone()).await.map_err(Error::Unready)
    }
}

/// Ensures that this node refuses a unit that another control node was to send here and may still be sending.
async fn disclaim_here(children: &dyn Children, unit: &str, known: Known) -> Result<(), Error> {
    if known == Known::Unsent {
        children.release(unit.to_owned(), Leftovers::Stay).await;
    }
    match children.disclaim(unit.to_owned()).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(Error::Unready("the unit has just come".into())),
        Err(cause) => Err(Error::Unready(cause)),
    }
}

/// Waits until this node's disk has room for another job, or the attempt is not wanted any more.
async fn await_room(children: &dyn Children, duty: &mut watch::Receiver<Duty>) {
    let unwanted = duty.wait_for(|duty| matches!(duty, Duty::Cancel | Duty::Release | Duty::Nothing));
    tokio::select! {
        () = children.room() => {}
        _ = unwanted => {}
    }
}
