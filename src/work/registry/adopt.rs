//! Takes over a unit that another node submitted to a third node: makes a `remote` unit here, under the same ID, which
//! follows the original from its first byte on. The node that runs it is not asked first, and may be unreachable.

use tokio::time::Instant;

use super::{Registry, detached};
use crate::rpc::request::AdoptRequest;
use crate::wire::NodeId;
use crate::work::signing::{Subject, Verb};
use crate::work::status::{Extra, REMOTE, RemoteExtra, Status};
use crate::work::unit::{Life, State, UnitId};
use crate::work::{Caller, Submitter, WorkError};

/// The Detail of a unit that has just been adopted.
const ADOPTING: &str = "Adopting Remote Work";

impl Registry {
    /// Takes over a unit. Once this returns, the `remote` unit survives a crash.
    ///
    /// # Errors
    /// The request is refused here, or a file operation failed. Then nothing is left behind.
    pub async fn adopt(&self, request: AdoptRequest, caller: Caller) -> Result<UnitId, WorkError> {
        let about = Subject { verb: Verb::Adopt, unit: Some(&request.unit), ..Subject::default() };
        self.check_signature(REMOTE, request.sign_work, &caller, &about)?;
        detached(self.clone().take_over(request, caller.submitter())).await
    }

    async fn take_over(self, request: AdoptRequest, submitter: Submitter) -> Result<UnitId, WorkError> {
        let id: UnitId = request.unit.parse()?;
        let origin = RemoteExtra { remote_unit_id: id.as_str().into(), ..RemoteExtra::default() };
        let mut status = self.adopted_status(request, origin)?;
        status.submitter = Some(submitter);
        let _lock = self.units.lock_id(&id).await;
        if self.units.get(&id)?.is_some() {
            return Err(WorkError::InUse(id.to_string()));
        }
        let entry = self.create(Some(id.clone()), status, Instant::now()).await?;
        self.executor.remotes.resume(&entry).await;
        Ok(id)
    }

    /// The first status of a unit that is taken over. `origin` has what is known of its submission.
    ///
    /// # Errors
    /// The request is refused here.
    pub(super) fn adopted_status(
        &self,
        request: AdoptRequest,
        origin: RemoteExtra,
    ) -> Result<Status, WorkError> {
        let node = NodeId::new(&request.node)?;
        if node == *self.units.node_id() {
            return Err(WorkError::AdoptHere);
        }
        let tls_client = request.tls_client.unwrap_or_default();
        self.executor.remotes.far().check_request(&tls_client, request.sign_work)?;
        let remote = RemoteExtra {
            remote_node: node.as_str().into(),
            remote_started: true,
            adopted: true,
            sign_work: request.sign_work,
            tls_client: tls_client.into(),
            ..origin
        };
        let mut status = Status::new(REMOTE, Extra::Remote(Box::new(remote)));
        status.life = Life::read(State::Pending, ADOPTING.into(), 0);
        Ok(status)
    }
}
