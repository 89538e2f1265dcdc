//! Whether an attempt's unit is there, and that it is sent if it is not: by the owner of its job alone, as long as somebody
//! wants it. Owns what is done about units that another control node may have sent, or may yet send.

use std::sync::Arc;

use tokio::sync::watch;

use super::JobDriver;
use super::end::words_before;
use super::input::Prepared;
use super::output;
use super::world::{ChildRequest, Known};
use crate::controller::core::{Attempt, AttemptNo, ChildId, Duty, JobId, Progress};
use crate::controller::store::{Error, JobDetail};
use crate::work::Leftovers;

impl JobDriver {
    /// Sees to it that the unit exists. Returns false if there is none and never will be.
    pub(super) async fn ensure_sent(
        self: &Arc<Self>,
        detail: &JobDetail,
        attempt: &Attempt,
        request: ChildRequest,
        duty: &mut watch::Receiver<Duty>,
    ) -> Result<bool, Error> {
        let (id, n) = (detail.row.id, attempt.n);
        let known = self.children.known(&request.unit);
        match (known, attempt.progress) {
            (Known::Here, _) => return Ok(true),
            (Known::Unknown, Progress::Running | Progress::Lost | Progress::Placed)
                if (request.node != self.node || request.is_inherited())
                    && (attempt.progress != Progress::Placed || attempt.sender != self.node) =>
            {
                // Another control node sent it, or was about to: the instance is asked.
                return match self.children.adopt(request).await {
                    Ok(true) => Ok(true),
                    Ok(false) => self.unknown(id, n).await,
                    Err(cause) => Err(Error::Unready(format!("its unit cannot be followed here: {cause}"))),
                };
            }
            (Known::Unknown | Known::Unsent, Progress::Running | Progress::Lost | Progress::Over(_)) => {
                if attempt.sender != self.node && request.pod.is_none() {
                    self.disclaim_here(&request.unit, known).await?;
                }
                return self.unknown(id, n).await;
            }
            (Known::Unknown, Progress::Placed) => {}
            (Known::Unsent, Progress::Placed) => {
                self.children.release(request.unit.clone(), Leftovers::Stay).await;
            }
        }
        // It was sent before the store lost its last commits: it ends first, and its node has to say so.
        let mut others = self.children.of_job(&attempt.unit).into_iter();
        if let Some(other) = others.find(|other| other.attempt >= n && *other != attempt.unit) {
            self.children.release(other.to_string(), Leftovers::End).await;
            return Err(Error::Unready(format!("{other} is here, of which the store has lost all it knew")));
        }
        if let Err(cause) = self.prepare_pod(&request, duty).await {
            return self.refuse(id, n, cause).await;
        }
        self.await_room(duty).await;
        let (input, _project) = match self.input(detail, attempt, duty).await? {
            Prepared::Ready(input, project) => (input, project),
            Prepared::Impossible(ending, why) => return self.not_prepared(id, n, ending, why).await,
            Prepared::Unwanted => return self.unwanted(request, id, n).await,
        };
        // As late as possible: a cancel that is saved starts nothing, nor does who is no owner any more. And only a unit that
        // says durably which child it has finds it again, should the store lose its last commits.
        let words = words_before(&detail.job, n);
        let begun = output::begin(self.first_unit(id), &detail.job, n, &words);
        let (may_send, begun) = tokio::join!(self.may_send(attempt.unit.clone()), begun);
        if !may_send? || *duty.borrow_and_update() == Duty::Cancel {
            return self.unwanted(request, id, n).await;
        }
        begun?;
        let unit = request.unit.clone();
        // Its node may not answer for long, and must not start it when it does.
        match self.obeying(duty, &unit, self.children.send(request, input)).await {
            Ok(true) => Ok(true),
            Ok(false) => self.unknown(id, n).await,
            Err(cause) => self.refuse(id, n, cause).await,
        }
    }

    /// Another control node was to send a unit to this one, and may be about to: it is refused from now on.
    async fn disclaim_here(&self, unit: &str, known: Known) -> Result<(), Error> {
        if known == Known::Unsent {
            self.children.release(unit.to_owned(), Leftovers::Stay).await;
        }
        match self.children.disclaim(unit.to_owned()).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(Error::Unready("the unit has just come".into())),
            Err(cause) => Err(Error::Unready(cause)),
        }
    }

    /// Nobody wants a unit any more that is not to be sent now. It may have been sent before another control node had the job
    /// for a while, and have been forgotten here since.
    async fn unwanted(
        self: &Arc<Self>,
        request: ChildRequest,
        id: JobId,
        n: AttemptNo,
    ) -> Result<bool, Error> {
        let is_here = request.node == self.node && request.pod.is_none();
        let may_be_there = self.store.is_shared() && !is_here;
        if may_be_there && self.children.adopt(request).await.map_err(Error::Unready)? {
            return Ok(true);
        }
        self.unknown(id, n).await
    }

    /// Whether an attempt may be sent, as the store says: this node drives its job, and it is wanted.
    ///
    /// # Errors
    /// The lease was taken, or could not be renewed, or the store is away.
    pub(in crate::controller) async fn may_send(&self, child: ChildId) -> Result<bool, Error> {
        let attempt = self.store.before_sending(self.fence(), child).await?;
        if !self.may_act() {
            return Err(Error::Unready("the lease of this control node could not be renewed".into()));
        }
        Ok(attempt.is_some())
    }

    /// Waits until this node's disk has room for another job, or the attempt is not wanted any more.
    async fn await_room(&self, duty: &mut watch::Receiver<Duty>) {
        let unwanted = duty.wait_for(|duty| matches!(duty, Duty::Cancel | Duty::Release | Duty::Nothing));
        tokio::select! {
            () = self.children.room() => {}
            _ = unwanted => {}
        }
    }
}
