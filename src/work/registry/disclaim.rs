//! The promise not to run a unit. A node asks for it before it runs the work elsewhere, because a status says only what
//! is here now, not what may still arrive. Owns who may have the promise, and for which IDs; `units` keeps it.

use super::{Registry, detached};
use crate::work::signing::{Subject, Verb};
use crate::work::unit::UnitId;
use crate::work::{Caller, RUNNER, SYNC, Submitter, UnitReport, WorkError};

impl Registry {
    /// Promises, durably, that no unit with this ID runs here within the next 48 hours (one hour for a caller without a
    /// certificate). If the unit is here, promises nothing and returns its report.
    ///
    /// # Errors
    /// The ID is not that of a job's child, the caller may not submit units of that type, or the promise cannot be
    /// given.
    pub async fn disclaim(
        &self,
        unit: &str,
        work_type: &str,
        caller: &Caller,
    ) -> Result<Option<UnitReport>, WorkError> {
        let id = UnitId::chosen(unit)?;
        if !id.is_child() {
            return Err(WorkError::NotDisclaimable(id.to_string()));
        }
        // Types of the controller's own are not checked, because no client may submit them, but another control node
        // may have to ask about their units.
        if ![RUNNER, SYNC].contains(&work_type) {
            self.executor.local.admit(work_type, caller)?;
        }
        if !self.executor.local.has_type(work_type) {
            return Err(WorkError::UnknownType(work_type.to_owned()));
        }
        let about = Subject {
            verb: Verb::Disclaim,
            work_type: Some(work_type),
            unit: Some(unit),
            ..Subject::default()
        };
        self.check_signature(work_type, false, caller, &about)?;
        if detached(self.clone().promise(id, caller.submitter())).await? {
            return Ok(None);
        }
        self.check_look(unit, caller)?;
        self.status(unit).await.map(Some)
    }

    /// As [`Self::disclaim`], but for this node's controller, about a unit that another control node may yet send here.
    /// Returns false if the unit is here.
    ///
    /// # Errors
    /// The promise cannot be given.
    pub async fn disclaim_child(&self, unit: &str) -> Result<bool, WorkError> {
        detached(self.clone().promise(UnitId::chosen(unit)?, Submitter::Operator)).await
    }

    async fn promise(self, id: UnitId, to: Submitter) -> Result<bool, WorkError> {
        // While this holds the lock, no submission of the unit is half done.
        let _lock = self.units.lock_id(&id).await;
        if self.units.get(&id)?.is_some() {
            return Ok(false);
        }
        self.units.disclaim(id, to).await.map(|()| true)
    }
}
