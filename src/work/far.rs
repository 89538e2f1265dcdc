//! Requests about units of other nodes, which may be repeated, and their signatures. Keeps nothing of a unit: the caller names
//! it and its node. `remote` decides what to ask and when, sends payloads, and reads what a unit prints.

mod session;

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwapOption;

pub(crate) use self::session::{ControlSession, LIMITS, StepError, params_for, submission};
use super::signing::{PayloadHash, Signer, Subject, Verb};
use super::status::RemoteExtra;
use super::{Dialer, UnitId, WorkError};
use crate::rpc::request::{Follow, Request, WorkRequest};
use crate::rpc::{CallError, ErrorLine, UnitReport};
use crate::stream::Peer;
use crate::wire::{NameHash, NodeId};

/// A node's answer to the request never to run a unit.
#[derive(Debug)]
pub(crate) enum Promise {
    /// It promises that.
    Given,
    /// It does not, and will not if it is asked again.
    Refused(ErrorLine),
    /// It has the unit.
    Late,
}

/// Asks other nodes about their units.
pub(crate) struct Far {
    dialer: Arc<dyn Dialer>,
    /// Signs requests, where that is asked for.
    signer: ArcSwapOption<Signer>,
}

impl Far {
    pub(crate) fn new(dialer: Arc<dyn Dialer>, signer: Option<Arc<Signer>>) -> Self {
        Self { dialer, signer: signer.into() }
    }

    /// Replaces the key that signs requests. Units under way are signed with it from now on.
    pub(crate) fn set_signer(&self, signer: Option<Arc<Signer>>) {
        self.signer.store(signer);
    }

    /// Whether there is a key that signs requests.
    pub(crate) fn signs(&self) -> bool {
        self.signer.load().is_some()
    }

    /// Checks what a request to another node needs here.
    ///
    /// # Errors
    /// The TLS profile is not configured, or there is no key for the signature.
    pub(crate) fn check_request(&self, tls_client: &str, sign_work: bool) -> Result<(), WorkError> {
        if !tls_client.is_empty() && !self.dialer.knows_profile(tls_client) {
            return Err(WorkError::UnknownProfile(tls_client.to_owned()));
        }
        if sign_work && !self.signs() {
            return Err(WorkError::NoSigningKey);
        }
        Ok(())
    }

    pub(crate) fn dialer(&self) -> &dyn Dialer {
        &*self.dialer
    }

    /// The name that a hash stands for, if it is known. For texts only.
    pub(crate) async fn name_of(&self, node: NameHash) -> Option<NodeId> {
        self.dialer.name_of(node).await
    }

    /// A connection to the node of a unit.
    pub(crate) async fn connect(&self, remote: &RemoteExtra) -> Result<ControlSession, StepError> {
        ControlSession::connect(&*self.dialer, remote).await
    }

    /// What its node says of a unit.
    pub(crate) async fn status(&self, remote: &RemoteExtra) -> Result<UnitReport, StepError> {
        let mut session = self.connect(remote).await?;
        ask_status(&mut session, &remote.remote_unit_id).await
    }

    /// The output of a unit, from a byte on.
    pub(crate) async fn results(
        &self,
        remote: &RemoteExtra,
        start: u64,
    ) -> Result<ControlSession, StepError> {
        let mut session = self.connect(remote).await?;
        let signature = self.sign(remote, Verb::Results)?;
        let unit = remote.remote_unit_id.to_string();
        session.connection.results(Follow { unit, start, signature, ends_with_unit: true }).await?;
        Ok(session)
    }

    /// Cancels a unit; one that is gone counts as cancelled.
    pub(crate) async fn cancel(&self, remote: &RemoteExtra) -> Result<(), StepError> {
        let mut session = self.connect(remote).await?;
        // Signed only now, because a signature is good for seconds, and a node that has restarted takes none from
        // before.
        let signature = self.sign(remote, Verb::Cancel)?;
        let request = WorkRequest::Cancel { unit: remote.remote_unit_id.to_string(), signature };
        done(session.connection.command(&Request::Work(request)).await)
    }

    /// Releases a unit; one that is gone counts as released.
    pub(crate) async fn release(&self, remote: &RemoteExtra) -> Result<(), StepError> {
        let mut session = self.connect(remote).await?;
        self.release_over(&mut session, remote).await
    }

    /// Releases a unit over an open connection.
    pub(crate) async fn release_over(
        &self,
        session: &mut ControlSession,
        remote: &RemoteExtra,
    ) -> Result<(), StepError> {
        let (unit, signature) = (remote.remote_unit_id.to_string(), self.sign(remote, Verb::Release)?);
        let request = WorkRequest::Release { unit, force: false, sweep: remote.sweep, signature };
        done(session.connection.command(&Request::Work(request)).await)
    }

    /// Asks a node never to run a unit.
    pub(crate) async fn disclaim(&self, remote: &RemoteExtra) -> Result<Promise, StepError> {
        let mut session = self.connect(remote).await?;
        let about = Subject {
            verb: Verb::Disclaim,
            work_type: Some(&remote.remote_work_type),
            unit: Some(&remote.remote_unit_id),
            ..Subject::default()
        };
        let request = WorkRequest::Disclaim {
            unit: remote.remote_unit_id.to_string(),
            work_type: remote.remote_work_type.to_string(),
            signature: self.sign_about(remote, &about)?,
        };
        match session.connection.command(&Request::Work(request)).await {
            Ok(answer) if answer.get("disclaimed").is_some() => Ok(Promise::Given),
            Ok(_) => Ok(Promise::Late),
            Err(CallError::Refused(line)) if !line.code().is_temporary() => Ok(Promise::Refused(line)),
            Err(error) => Err(error.into()),
        }
    }

    /// A signature for a request to a node.
    ///
    /// # Errors
    /// There is no key.
    pub(crate) fn sign_for(&self, node: &NodeId, about: &Subject<'_>) -> Result<String, WorkError> {
        let signer = self.signer.load_full().ok_or(WorkError::NoSigningKey)?;
        signer.sign(node, about).map_err(WorkError::Job)
    }

    /// A signature for a submission with this very payload, if the unit is to be signed.
    pub(crate) fn sign_submission(
        &self,
        remote: &RemoteExtra,
        params: &BTreeMap<String, String>,
        id: Option<&UnitId>,
        payload: Option<PayloadHash>,
    ) -> Result<Option<String>, StepError> {
        let about = Subject {
            verb: Verb::Submit,
            work_type: Some(&remote.remote_work_type),
            params: Some(params),
            payload,
            unit: None,
            chosen_id: id.map(UnitId::as_str),
        };
        self.sign_about(remote, &about)
    }

    /// A signature for a request about a unit, if it is to be signed.
    pub(crate) fn sign(&self, remote: &RemoteExtra, verb: Verb) -> Result<Option<String>, StepError> {
        self.sign_about(remote, &Subject { verb, unit: Some(&remote.remote_unit_id), ..Subject::default() })
    }

    fn sign_about(&self, remote: &RemoteExtra, about: &Subject<'_>) -> Result<Option<String>, StepError> {
        if !remote.sign_work {
            return Ok(None);
        }
        let node = NodeId::new(&remote.remote_node).map_err(|error| StepError::refused(error.to_string()))?;
        let signer = self.signer.load_full().ok_or(StepError::Local(WorkError::NoSigningKey))?;
        signer.sign(&node, about).map(Some).map_err(StepError::Connection)
    }
}

/// Counts a unit that is not there as done.
fn done<T>(answered: Result<T, CallError>) -> Result<(), StepError> {
    match answered {
        Err(CallError::Refused(line)) if line.code().is_no_unit() => Ok(()),
        answered => Ok(answered.map(drop)?),
    }
}

/// Asks a node for the status of a unit over an open connection.
pub(crate) async fn ask_status(session: &mut ControlSession, id: &str) -> Result<UnitReport, StepError> {
    let mut report = session.connection.unit_status(id).await?;
    if report.state.is_final() && session.peer == Peer::Receptor {
        report.exit_code = exit_code_in(&report.detail);
    }
    Ok(report)
}

/// The exit status in the Detail of a Go node, which reports it nowhere else.
fn exit_code_in(detail: &str) -> Option<i32> {
    let number = detail.strip_prefix("exit status ")?;
    number.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}
