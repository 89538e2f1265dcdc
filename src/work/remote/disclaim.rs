//! The promise of a node not to run a unit. A job may be taken over from a control node that sent this unit or was
//! about to; only with the promise is it certain that the job can run elsewhere. That the node does not have the unit
//! now proves nothing, because the unit may still be on its way. This module knows nothing of jobs.

use std::sync::Arc;

use super::Remotes;
use super::step::{DriverStep, extra};
use crate::rpc::UnitReport;
use crate::work::far::{Promise, StepError};
use crate::work::status::RemoteExtra;
use crate::work::unit::Life;
use crate::work::units::Entry;

/// Whether another control node sent the unit, or was about to. A unit that a client adopted has no known work type.
pub(super) fn is_inherited(remote: &RemoteExtra) -> bool {
    remote.adopted && !remote.remote_work_type.is_empty()
}

/// Whether a unit has ended there because its payload never arrived completely, so that another control node may send
/// it again.
pub(super) fn is_half_sent(entry: &Arc<Entry>, report: &UnitReport) -> bool {
    let life = Life::read(report.state, report.detail.clone(), 0);
    report.state.is_final() && life.lacks_payload() && is_inherited(&extra(entry))
}

impl Remotes {
    /// Requires the node's promise not to run a unit that it says it does not have.
    ///
    /// # Errors
    /// There is no promise: the unit may still come there, and is looked for again.
    pub(super) async fn require_promise(&self, entry: &Arc<Entry>) -> Result<(), StepError> {
        if self.ask_promise(entry).await? {
            return Ok(());
        }
        entry.link().note_missing();
        let node = extra(entry).remote_node;
        Err(StepError::Connection(format!(
            "node {node} does not know the unit, and does not promise that it will not run it"
        )))
    }

    /// Asks the node for the promise. Returns whether it gives it.
    pub(super) async fn ask_promise(&self, entry: &Arc<Entry>) -> Result<bool, StepError> {
        // By now another control node may own the job.
        if self.gate.holds(&entry.id, DriverStep::Release) {
            return Err(StepError::Connection("the controller may not act".into()));
        }
        let remote = extra(entry);
        match self.far.disclaim(&remote).await? {
            Promise::Given => Ok(true),
            Promise::Refused(line) => {
                tracing::info!(unit = %entry.id, node = %remote.remote_node, error = %line, "the other node did not promise that it will not run the unit");
                Ok(false)
            }
            Promise::Late => Err(StepError::Connection("the unit has just come there".into())),
        }
    }

    /// Lets the node delete a unit whose payload never arrived completely, so that it can promise not to run it.
    pub(super) async fn clear_half(&self, entry: &Arc<Entry>) -> Result<(), StepError> {
        if !self.gate.holds(&entry.id, DriverStep::Release) {
            self.far.release(&extra(entry)).await?;
        }
        Err(StepError::Connection("its payload never arrived there completely".into()))
    }
}
