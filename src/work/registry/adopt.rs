//! Taking over a unit that another node submitted to a third one: it gets a `remote` unit here, under its own ID, which
//! follows it from its first byte on. The node that runs it is not asked first, and need not be there.

use std::collections::BTreeMap;

use tokio::time::Instant;

use super::{Registry, detached};
use crate::rpc::OutputBound;
use crate::rpc::request::AdoptRequest;
use crate::wire::NodeId;
use crate::work::signing::{Subject, Verb};
use crate::work::status::{Extra, REMOTE, RemoteExtra, Status};
use crate::work::unit::{Life, State, UnitId};
use crate::work::{Caller, Submitter, WorkError};

/// The Detail of a unit that has just been adopted.
const ADOPTING: &str = "Adopting Remote Work";

impl Registry {
    /// Takes a unit over. Once this returns, it survives a crash.
    ///
    /// # Errors
    /// Whatever speaks against it here; nothing is left behind then.
    pub async fn adopt(&self, request: AdoptRequest, caller: Caller) -> Result<UnitId, WorkError> {
        let about = Subject { verb: Verb::Adopt, unit: Some(&request.unit), ..Subject::default() };
        self.check_signature(REMOTE, request.sign_work, &caller, &about)?;
        let origin = RemoteExtra::default();
        detached(self.clone().take_over(request, caller.submitter(), origin, None)).await
    }

    /// The same for the child of a job, of which the type and the parameters are known: a node that gave it an ID of its
    /// own has nothing else to find it by.
    ///
    /// # Errors
    /// Those of [`Self::adopt`].
    pub async fn adopt_child(
        &self,
        request: AdoptRequest,
        work_type: &str,
        params: BTreeMap<String, String>,
        max_stdout: OutputBound,
    ) -> Result<UnitId, WorkError> {
        let origin = RemoteExtra {
            remote_work_type: work_type.into(),
            remote_params: params.into(),
            ..RemoteExtra::default()
        };
        let max_stdout = Some(Box::new(max_stdout));
        detached(self.clone().take_over(request, Submitter::Operator, origin, max_stdout)).await
    }

    /// `origin` has what is known of its submission.
    async fn take_over(
        self,
        request: AdoptRequest,
        submitter: Submitter,
        origin: RemoteExtra,
        max_stdout: Option<Box<OutputBound>>,
    ) -> Result<UnitId, WorkError> {
        let id: UnitId = request.unit.parse()?;
        let node = NodeId::new(&request.node).map_err(WorkError::from).and_then(|node| {
            if node == *self.units.node_id() { Err(WorkError::AdoptHere) } else { Ok(node) }
        })?;
        let tls_client = request.tls_client.unwrap_or_default();
        self.remotes.check_request(&tls_client, request.sign_work)?;
        let _lock = self.units.lock_id(&id).await;
        if self.units.get(&id)?.is_some() {
            return Err(WorkError::InUse(id.to_string()));
        }
        let remote = RemoteExtra {
            remote_node: node.as_str().into(),
            remote_unit_id: id.as_str().into(),
            remote_started: true,
            adopted: true,
            sign_work: request.sign_work,
            tls_client: tls_client.into(),
            ..origin
        };
        let mut status = Status::new(REMOTE, Extra::Remote(Box::new(remote)));
        status.life = Life::read(State::Pending, ADOPTING.into(), 0);
        (status.submitter, status.max_stdout) = (Some(submitter), max_stdout);
        let entry = self.create(Some(id.clone()), status, Instant::now()).await?;
        self.remotes.resume(&entry).await;
        Ok(id)
    }
}
