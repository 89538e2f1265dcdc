//! One connection to another node's control service: dialled by the engine's [`Dialer`], spoken by [`rpc`](crate::rpc).
//! Distinguishes a connection that failed, which is worth another try, from a node that refused, which is not.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use tokio::time::timeout;

use crate::rpc::request::{CHOSEN_ID, SubmitRequest};
use crate::rpc::{CallError, CallLimits, ControlConnection, ErrorCode, ErrorLine};
use crate::stream::Peer;
use crate::wire::{NodeId, ServiceName};
use crate::work::status::RemoteExtra;
use crate::work::{DialFailure, Dialed, Dialer, UnitId};

/// For dialling.
const CONNECT: Duration = Duration::from_secs(20);
/// An answer to a cancel may take that node's grace and more.
pub(super) const LIMITS: CallLimits = CallLimits {
    greeting: Duration::from_secs(5),
    answer: Duration::from_secs(60),
    answer_size: 1024 * 1024,
};

/// Why a step on another node failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum StepError {
    /// The node cannot be reached, or the connection broke: to be tried again.
    #[error("{0}")]
    Connection(String),
    /// The TLS handshake failed: certificates do not fit.
    #[error("TLS error connecting to remote service: {0}")]
    Tls(String),
    /// The node answered with an error.
    #[error("error from remote: {0}")]
    Refused(ErrorLine),
    /// Something failed on this node: to be tried again.
    #[error("{0}")]
    Local(#[from] crate::work::WorkError),
}

impl From<io::Error> for StepError {
    fn from(error: io::Error) -> Self {
        Self::Connection(error.to_string())
    }
}

impl From<DialFailure> for StepError {
    fn from(failure: DialFailure) -> Self {
        match failure {
            DialFailure::Unreachable(text) => Self::Connection(text),
            DialFailure::Tls(text) => Self::Tls(text),
        }
    }
}

impl From<CallError> for StepError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Refused(line) => Self::Refused(line),
            other => Self::Connection(other.to_string()),
        }
    }
}

impl StepError {
    /// The node cannot be asked at all: this text says why.
    pub(super) fn refused(text: impl Into<String>) -> Self {
        Self::Refused(ErrorLine::new(text))
    }

    /// What the node's error is about; `None` if it did not answer with one.
    pub(super) fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Refused(line) => Some(line.code()),
            Self::Connection(_) | Self::Tls(_) | Self::Local(_) => None,
        }
    }
}

/// An open connection, past its greeting.
pub(super) struct ControlSession {
    /// The connection.
    pub(super) connection: ControlConnection,
    /// What speaks at the other end.
    pub(super) peer: Peer,
}

impl ControlSession {
    /// Dials the node's control service and checks that the right node answers.
    pub(super) async fn connect(dialer: &dyn Dialer, remote: &RemoteExtra) -> Result<Self, StepError> {
        Self::connect_within(dialer, remote, LIMITS).await
    }

    /// The same for longer answers, say.
    pub(super) async fn connect_within(
        dialer: &dyn Dialer,
        remote: &RemoteExtra,
        limits: CallLimits,
    ) -> Result<Self, StepError> {
        let node = NodeId::new(&remote.remote_node).map_err(|e| StepError::refused(e.to_string()))?;
        let tls = (!remote.tls_client.is_empty()).then(|| remote.tls_client.to_string());
        let dialing = timeout(CONNECT, dialer.dial(node.clone(), ServiceName::CONTROL, tls)).await;
        let late = |_| StepError::Connection(format!("dialling took longer than {CONNECT:?}"));
        let Dialed { stream, peer } = dialing.map_err(late)??;
        let wrong = |greeting| {
            StepError::Connection(format!("while expecting node ID {node}, got message: {greeting}"))
        };
        let connection = match ControlConnection::open(stream, node.as_str(), limits).await {
            Err(CallError::NotControl { greeting, .. }) => return Err(wrong(greeting)),
            opened => opened?,
        };
        if connection.node() != node.as_str() {
            return Err(wrong(format!("Receptor Control, node {}", connection.node())));
        }
        Ok(Self { connection, peer })
    }
}

/// The request that submits the unit to its node, under the ID that was chosen for it, if one was.
pub(super) fn submission(
    remote: &RemoteExtra,
    id: Option<&UnitId>,
    signature: Option<String>,
) -> SubmitRequest {
    let mut params: BTreeMap<String, String> = remote.remote_params.to_map();
    // No parameter can pass for a signature, or for the unit's ID.
    params.remove("signature");
    params.remove(CHOSEN_ID);
    SubmitRequest {
        node: remote.remote_node.to_string(),
        work_type: remote.remote_work_type.to_string(),
        params,
        tls_client: Some(remote.tls_client.to_string()),
        signature,
        unit_id: id.map(UnitId::to_string),
        ..SubmitRequest::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::request::{Request, WorkRequest};

    #[test]
    fn parameters_cannot_replace_the_command() {
        let remote = RemoteExtra {
            remote_node: "n2".into(),
            remote_work_type: "echo".into(),
            remote_params: BTreeMap::from([
                ("command".into(), "reload".into()),
                ("params".into(), "x".into()),
                (CHOSEN_ID.into(), "another".into()),
            ])
            .into(),
            ..RemoteExtra::default()
        };
        let line = |id| {
            let request = Request::Work(WorkRequest::Submit(submission(&remote, id, None)));
            serde_json::from_str::<BTreeMap<String, String>>(&request.to_line()).unwrap()
        };
        let id = UnitId::chosen("n1abcd1234").unwrap();
        assert_eq!(line(Some(&id))[CHOSEN_ID], "n1abcd1234");
        let line = line(None);
        assert_eq!((line["command"].as_str(), line["params"].as_str()), ("work", "x"));
        assert_eq!((line["node"].as_str(), line["worktype"].as_str()), ("n2", "echo"));
        assert!(!line.contains_key(CHOSEN_ID));
    }
}
