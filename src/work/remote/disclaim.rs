//! The promise of a node not to run a unit: only then is it known that the job of another control node may run elsewhere,
//! which sent that unit or was about to. That a node does not have it now says nothing, as it may still be on its way.
//! Knows nothing of jobs.

use std::sync::Arc;

use super::Remotes;
use super::driver::Step;
use super::submit::extra;
use crate::rpc::UnitReport;
use crate::work::far::{Promise, StepError};
use crate::work::status::RemoteExtra;
use crate::work::unit::Life;
use crate::work::units::Entry;

/// Whether another control node sent the unit, or was about to. Of what clients adopt no type is known.
pub(super) fn is_inherited(remote: &RemoteExtra) -> bool {
    remote.adopted && !remote.remote_work_type.is_empty()
}

/// Whether a unit has ended there that another control node may send again, since it never got all of its payload.
pub(super) fn is_half_sent(entry: &Arc<Entry>, report: &UnitReport) -> bool {
    let life = Life::read(report.state, report.detail.clone(), 0);
    report.state.is_final() && life.lacks_payload() && is_inherited(&extra(entry))
}

impl Remotes {
    /// Has the node promise not to run the unit, which it says that it does not have.
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

    /// Returns whether the node promises it.
    pub(super) async fn ask_promise(&self, entry: &Arc<Entry>) -> Result<bool, StepError> {
        // Whose job it is by now is somebody else's to say.
        if self.gate.holds(&entry.id, Step::Release) {
            return Err(StepError::Connection("the controller may not act".into()));
        }
        let remote = extra(entry);
        match self.far.disclaim(&remote).await? {
            Promise::Given => Ok(true),
            Promise::Refused(line) => {
                tracing::info!(unit = %entry.id, node = %remote.remote_node, error = %line, "no promise");
                Ok(false)
            }
            Promise::Late => Err(StepError::Connection("the unit has just come there".into())),
        }
    }

    /// Has the node delete a unit that never got all of its payload, so that it can promise not to run it.
    pub(super) async fn clear_half(&self, entry: &Arc<Entry>) -> Result<(), StepError> {
        if !self.gate.holds(&entry.id, Step::Release) {
            self.far.release(&extra(entry)).await?;
        }
        Err(StepError::Connection("it never got all of its payload there".into()))
    }
}
