//! One connection to another node's control service: opened by the engine's [`Dialer`] and used through
//! [`rpc`](crate::rpc). Distinguishes a connection that failed, which is worth another try, from a node that refused,
//! which is not.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Once;
use std::time::Duration;

use tokio::time::timeout;

use crate::rpc::request::{CHOSEN_ID, SubmitRequest};
use crate::rpc::{CallError, CallLimits, ControlConnection, ErrorCode, ErrorLine};
use crate::stream::Peer;
use crate::wire::{NodeId, ServiceName};
use crate::work::run_dir;
use crate::work::status::RemoteExtra;
use crate::work::{Dialed, Dialer, StreamFailure, UnitId};

/// How long dialling may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(20);
/// An answer to a cancel may take that node's grace and more.
pub(crate) const LIMITS: CallLimits = CallLimits {
    greeting: Duration::from_secs(5),
    answer: Duration::from_secs(60),
    answer_size: 1024 * 1024,
};

/// Why a step on another node failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StepError {
    /// The node cannot be reached, or the connection broke: to be tried again. It may quote what the node said, at any
    /// length.
    #[error("{0:.4096}")]
    Connection(String),
    /// The TLS handshake failed. Any node on the way can make it fail.
    #[error("TLS error connecting to remote service: {0}")]
    Handshake(String),
    /// This node has no such TLS profile, whatever others say.
    #[error("TLS error connecting to remote service: {0}")]
    OwnProfile(String),
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

impl From<StreamFailure> for StepError {
    fn from(failure: StreamFailure) -> Self {
        match failure {
            StreamFailure::Unreachable(text) => Self::Connection(text),
            StreamFailure::Handshake(text) => Self::Handshake(text),
            StreamFailure::OwnProfile(text) => Self::OwnProfile(text),
        }
    }
}

impl From<CallError> for StepError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Refused(line) => Self::Refused(line),
            CallError::NotControl { address, greeting } => {
                Self::Connection(format!("while expecting node ID {address}, got message: {greeting}"))
            }
            other => Self::Connection(other.to_string()),
        }
    }
}

impl StepError {
    /// A refusal with a text of this node's own.
    pub(crate) fn refused(text: impl Into<String>) -> Self {
        Self::Refused(ErrorLine::new(text))
    }

    /// What the node's error is about; `None` if it did not answer with one.
    pub(crate) fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Refused(line) => Some(line.code()),
            Self::Connection(_) | Self::Handshake(_) | Self::OwnProfile(_) | Self::Local(_) => None,
        }
    }
}

/// An open connection. No answer is believed before the greeting of the right node.
pub(crate) struct ControlSession {
    pub(crate) connection: ControlConnection,
    /// The program at the other end.
    pub(crate) peer: Peer,
}

impl ControlSession {
    /// Dials the node's control service. Waits for the greeting of a receptor node, because a request must not come
    /// before it.
    pub(crate) async fn connect(dialer: &dyn Dialer, remote: &RemoteExtra) -> Result<Self, StepError> {
        let node = NodeId::new(&remote.remote_node).map_err(|e| StepError::refused(e.to_string()))?;
        let tls = (!remote.tls_client.is_empty()).then(|| remote.tls_client.to_string());
        let dialing = timeout(CONNECT_WITHIN, dialer.dial(node.clone(), ServiceName::CONTROL, tls)).await;
        let late = |_| StepError::Connection(format!("dialling took longer than {CONNECT_WITHIN:?}"));
        let Dialed { stream, peer } = dialing.map_err(late)??;
        let mut connection = ControlConnection::to_node(stream, node.as_str(), LIMITS);
        if peer == Peer::Receptor {
            connection.greeted().await?;
        }
        Ok(Self { connection, peer })
    }
}

/// The parameters of a unit as its node gets them. A Go node makes no private directories and would take the
/// placeholder literally, so it gets the directory that the submission names for that case. Each submission has its own
/// directory below that: receptor 1.4.9 chooses the IDs of units, so a unit whose answer was lost cannot be released
/// there. Such a unit never got a payload, so its runner ends at once, but then removes its directory.
pub(crate) fn params_for(unit: &UnitId, remote: &RemoteExtra, peer: Peer) -> BTreeMap<String, String> {
    let mut params = remote.remote_params.to_map();
    let Some(fallback) = params.remove(run_dir::FALLBACK) else { return params };
    if peer == Peer::Receptor {
        let name = run_dir::private_dir(unit.as_str());
        for value in params.values_mut().filter(|value| run_dir::is_asked_for(value)) {
            let another = format!("{name}_{:08x}", rand::random::<u32>());
            *value = run_dir::fill_in(value, &fallback).replace(&name, &another);
            warn_if_open(&remote.remote_node, &fallback);
        }
    }
    params
}

/// Warns once that jobs may be exposed on nodes where they make their directories themselves.
fn warn_if_open(node: &str, directory: &str) {
    static WARNED: Once = Once::new();
    if run_dir::is_open_to_others(Path::new(directory)) {
        WARNED.call_once(|| {
            tracing::warn!(
                node,
                directory,
                "nodes like this one make no private directories: any local user there who may write to this \
                 directory can take over the secrets and the rights of a job; set rundir to a directory that \
                 belongs only to the user who runs jobs there"
            );
        });
    }
}

/// The request that submits the unit to its node, under the chosen ID if there is one.
pub(crate) fn submission(
    remote: &RemoteExtra,
    mut params: BTreeMap<String, String>,
    id: Option<&UnitId>,
    signature: Option<String>,
) -> SubmitRequest {
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

    /// A node that greets like this, and agrees to everything.
    struct Greets(NodeId, Peer, &'static str);

    impl Dialer for Greets {
        fn dial(
            &self,
            _node: NodeId,
            _service: ServiceName,
            _tls: Option<String>,
        ) -> crate::work::StreamDialing {
            let (ours, mut theirs) = tokio::io::duplex(1024);
            let (said, peer) = (format!("{}\n{{\"released\":\"x\"}}\n", self.2), self.1);
            Box::pin(async move {
                tokio::io::AsyncWriteExt::write_all(&mut theirs, said.as_bytes()).await.unwrap();
                tokio::spawn(async move { tokio::io::copy(&mut theirs, &mut tokio::io::sink()).await });
                Ok(Dialed { stream: Box::new(ours), peer })
            })
        }

        fn knows_profile(&self, _name: &str) -> bool {
            false
        }

        fn node_id(&self) -> &NodeId {
            &self.0
        }
    }

    #[tokio::test]
    async fn nothing_is_believed_before_the_greeting_of_the_right_node() {
        let remote = RemoteExtra { remote_node: "n2".into(), ..RemoteExtra::default() };
        let release =
            WorkRequest::Release { unit: "x".to_owned(), force: false, sweep: false, signature: None };
        let release = Request::Work(release);
        for peer in [Peer::Meshd, Peer::Receptor] {
            for greeting in ["Receptor Control, node n2", "Receptor Control, node n3", "SSH-2.0"] {
                let dialer = Greets(NodeId::new("n1").unwrap(), peer, greeting);
                let asked = async {
                    let mut session = ControlSession::connect(&dialer, &remote).await?;
                    Ok::<_, StepError>(session.connection.command(&release).await?)
                };
                match asked.await {
                    Ok(_) => assert!(greeting.ends_with("n2"), "{greeting}"),
                    Err(error) => assert_eq!(
                        error.to_string(),
                        format!("while expecting node ID n2, got message: {greeting}")
                    ),
                }
            }
        }
    }

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
            let request = Request::Work(WorkRequest::Submit(submission(
                &remote,
                params_for(&UnitId::chosen("n1abcd1234").unwrap(), &remote, Peer::Meshd),
                id,
                None,
            )));
            serde_json::from_str::<BTreeMap<String, String>>(&request.to_line()).unwrap()
        };
        let id = UnitId::chosen("n1abcd1234").unwrap();
        assert_eq!(line(Some(&id))[CHOSEN_ID], "n1abcd1234");
        let line = line(None);
        assert_eq!((line["command"].as_str(), line["params"].as_str()), ("work", "x"));
        assert_eq!((line["node"].as_str(), line["worktype"].as_str()), ("n2", "echo"));
        assert!(!line.contains_key(CHOSEN_ID));
    }

    #[test]
    fn only_a_node_that_makes_private_directories_is_asked_for_one() {
        let params = |given: &[(&str, &str)], peer| {
            let given = given.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            let remote = RemoteExtra {
                remote_params: given.collect::<BTreeMap<_, _>>().into(),
                ..RemoteExtra::default()
            };
            params_for(&UnitId::chosen("c1n1").unwrap(), &remote, peer).into_iter().collect::<Vec<_>>()
        };
        let one = |value: &str| vec![("params".to_owned(), value.to_owned())];
        let (asked, fallback) = ("--private-data-dir=${MESHD_RUN_DIR}/a --delete", ("rundir", "/srv/run"));
        let child = [("params", asked), fallback];
        assert_eq!(params(&child, Peer::Meshd), one(asked));
        assert_eq!(params(&child, Peer::Receptor), one("--private-data-dir=/srv/run/a --delete"));
        assert_eq!(params(&[("params", asked)], Peer::Receptor), one(asked), "nothing is known to put there");
    }

    #[test]
    fn each_submission_to_a_go_node_has_another_directory() {
        let remote = RemoteExtra {
            remote_params: BTreeMap::from([
                ("params".to_owned(), "--private-data-dir=${MESHD_RUN_DIR}/meshd_c1n1 --delete".to_owned()),
                ("rundir".to_owned(), "/srv/run".to_owned()),
            ])
            .into(),
            ..RemoteExtra::default()
        };
        let unit = UnitId::chosen("c1n1").unwrap();
        let directory = |peer| params_for(&unit, &remote, peer).remove("params").unwrap();
        let (one, other) = (directory(Peer::Receptor), directory(Peer::Receptor));
        assert!(
            one.starts_with("--private-data-dir=/srv/run/meshd_c1n1_") && one.ends_with(" --delete"),
            "{one}"
        );
        assert_ne!(one, other);
    }
}
