//! The attempts of jobs on other nodes: remote units that have no directory here, since the controller's store and their
//! job's unit have all that a restart needs. Clients do not see them.

use std::collections::BTreeMap;

use super::{Registry, detached};
use crate::rpc::OutputBound;
use crate::rpc::request::{AdoptRequest, SubmitRequest};
use crate::wire::NodeId;
use crate::work::remote::FarOutput;
use crate::work::status::RemoteExtra;
use crate::work::unit::UnitId;
use crate::work::units::FarAttempt;
use crate::work::{AttemptPayload, Caller, FarUnit, Rights, Submitter, WorkError};

impl Registry {
    /// Lets another node start an attempt, and waits a little for its answer. `far` is the unit that the node may have
    /// of it from an earlier process.
    ///
    /// # Errors
    /// This node refuses, and sends nothing. If the other node refuses, the attempt ends instead.
    pub async fn begin_attempt(
        &self,
        request: SubmitRequest,
        far: Option<FarUnit>,
        payload: AttemptPayload,
        max_stdout: OutputBound,
    ) -> Result<(), WorkError> {
        let chosen = request.unit_id.as_deref().unwrap_or_default();
        let id = UnitId::chosen(chosen)?;
        let mut status = self.remote_status(request)?;
        if let (Some(remote), Some(far)) = (status.remote_mut(), &far) {
            remote.remote_unit_id = far.id.as_str().into();
        }
        (status.submitter, status.max_stdout) = (Some(Submitter::Operator), Some(Box::new(max_stdout)));
        let attempt = FarAttempt::new(Some(payload), far, self.executor.jobs.id_keeper());
        let Some(entry) = self.units.add_attempt(id.clone(), status, attempt) else {
            return Err(WorkError::InUse(id.to_string()));
        };
        let remotes = self.executor.remotes.clone();
        // A start that fails shows in its status.
        let _shown = detached(async move { remotes.start(&entry).await }).await;
        Ok(())
    }

    /// Follows an attempt that its node may have, under the ID in `far` if not under its own.
    ///
    /// # Errors
    /// This node refuses.
    pub async fn adopt_attempt(
        &self,
        request: AdoptRequest,
        far: Option<FarUnit>,
        work_type: &str,
        params: BTreeMap<String, String>,
        max_stdout: OutputBound,
    ) -> Result<(), WorkError> {
        let id: UnitId = request.unit.parse()?;
        let origin = RemoteExtra {
            remote_work_type: work_type.into(),
            remote_params: params.into(),
            remote_unit_id: far.as_ref().map_or(id.as_str(), |far| &far.id).into(),
            ..RemoteExtra::default()
        };
        let mut status = self.adopted_status(request, origin)?;
        (status.submitter, status.max_stdout) = (Some(Submitter::Operator), Some(Box::new(max_stdout)));
        let attempt = FarAttempt::new(None, far, self.executor.jobs.id_keeper());
        if let Some(entry) = self.units.add_attempt(id, status, attempt) {
            self.executor.remotes.resume(&entry).await;
        }
        Ok(())
    }

    /// The error for a caller who asks for a unit that is not here. If it is an attempt, an operator is told of its
    /// job.
    pub(super) fn explained(&self, id: &str, caller: &Caller, error: WorkError) -> WorkError {
        let attempt =
            self.units.child(id).ok().filter(|entry| entry.attempt().is_some() && caller.may(Rights::Admin));
        attempt.and_then(|attempt| self.executor.jobs.check_child(&attempt.id).err()).unwrap_or(error)
    }

    /// Whether a name is this node's.
    pub fn is_own_node(&self, node: &str) -> bool {
        NodeId::resolve(node, self.units.node_id()).is_ok_and(|node| node == *self.units.node_id())
    }

    /// Whether there is such an attempt.
    pub fn is_attempt(&self, unit: &str) -> bool {
        self.units.child(unit).is_ok_and(|entry| entry.attempt().is_some())
    }

    /// The output of an attempt from a byte on; `None` if there is no such attempt. A former reader gets nothing
    /// before the end, and then the rest.
    pub fn read_attempt(&self, unit: &str, from: u64) -> Option<FarOutput> {
        self.executor.remotes.read_attempt(&self.units.child(unit).ok()?, from)
    }
}
