//! One connection to another node's control service, as a client of it: greeting, one line out, one line back.
//! Tells apart a connection that failed, which is worth another try, and a node that refused, which is not.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};

use crate::stream::Peer;
use crate::wire::{NodeId, ServiceName};
use crate::work::error::SUBMITTED_AGAIN;
use crate::work::signing::{CHOSEN_ID, Refusal};
use crate::work::status::RemoteExtra;
use crate::work::{Dialed, Dialer, Duplex, UnitId};

/// For dialling and for the greeting, each.
const CONNECT: Duration = Duration::from_secs(20);
const GREETING: Duration = Duration::from_secs(5);
/// For an answer; a cancel over there may take its grace and more.
const ANSWER: Duration = Duration::from_secs(60);
/// For the reason of a node that takes no more of a payload, which is there by then.
const LAST_WORD: Duration = Duration::from_secs(1);
/// Longest line taken, in bytes.
const MAX_LINE: u64 = 1024 * 1024;

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
    Refused(String),
    /// Something failed on this node: to be tried again.
    #[error("{0}")]
    Local(#[from] crate::work::WorkError),
}

impl From<io::Error> for StepError {
    fn from(error: io::Error) -> Self {
        let text = error.to_string();
        let tls = ["CRYPTO_ERROR", "cryptographic handshake", "TLS profile", "unknown TLS config"]
            .iter()
            .any(|sign| text.contains(sign));
        if tls { Self::Tls(text) } else { Self::Connection(text) }
    }
}

impl StepError {
    /// Whether the node said that it has no such unit.
    pub(super) fn is_unknown_unit(&self) -> bool {
        matches!(self, Self::Refused(text) if text.contains("unknown work unit"))
    }

    /// Whether the node said that the ID of the unit is another one's.
    pub(super) fn is_taken_id(&self) -> bool {
        matches!(self, Self::Refused(text) if text.contains("is already in use"))
    }

    /// Whether the node refused for a reason that will be gone in a while.
    pub(super) fn passes(&self) -> bool {
        matches!(self, Self::Refused(text) if Refusal::passes(text) || text.contains(SUBMITTED_AGAIN))
    }

    /// Whether the node does not know the command.
    pub(super) fn is_unknown_command(&self) -> bool {
        matches!(self, Self::Refused(text) if text == "bad command" || text.starts_with("Unknown command"))
    }
}

/// An open connection, past its greeting.
pub(super) struct Session {
    stream: BufReader<Box<dyn Duplex>>,
    /// What speaks at the other end.
    pub(super) peer: Peer,
}

impl Session {
    /// Dials the node's control service and checks that the right node answers.
    pub(super) async fn connect(dialer: &dyn Dialer, remote: &RemoteExtra) -> Result<Self, StepError> {
        let node = NodeId::new(&remote.remote_node).map_err(|e| StepError::Refused(e.to_string()))?;
        let tls = (!remote.tls_client.is_empty()).then(|| remote.tls_client.to_string());
        let dialing = dialer.dial(node.clone(), ServiceName::CONTROL, tls);
        let Dialed { stream, peer } = limited(CONNECT, "dialling", dialing).await?;
        let mut session = Self { stream: BufReader::new(stream), peer };
        let greeting = limited(GREETING, "the greeting", session.read_line()).await?;
        if greeting.strip_prefix("Receptor Control, node ") != Some(node.as_str()) {
            return Err(StepError::Connection(format!(
                "while expecting node ID {node}, got message: {greeting}"
            )));
        }
        Ok(session)
    }

    /// Sends one line and reads the line that answers.
    pub(super) async fn ask(&mut self, line: &str) -> Result<String, StepError> {
        self.send(line.as_bytes()).await?;
        self.answer().await
    }

    /// Reads an answer: a line that is no error.
    pub(super) async fn answer(&mut self) -> Result<String, StepError> {
        let line = limited(ANSWER, "an answer", self.read_line()).await?;
        match line.strip_prefix("ERROR:") {
            Some(error) => Err(StepError::Refused(error.trim().to_owned())),
            None => Ok(line),
        }
    }

    /// Sends bytes.
    pub(super) async fn send(&mut self, bytes: &[u8]) -> Result<(), StepError> {
        self.stream.write_all(bytes).await?;
        Ok(self.stream.flush().await?)
    }

    /// Ready when the other node says something unasked, which ends what goes on: an error, as a rule.
    pub(super) async fn speaks(&mut self) -> StepError {
        if let Err(error) = self.stream.fill_buf().await {
            return error.into();
        }
        match self.answer().await {
            Ok(line) => StepError::Connection(format!("unexpected answer: {line}")),
            Err(error) => error,
        }
    }

    /// Why the other node takes no more, if it says so.
    pub(super) async fn refusal(&mut self) -> Option<StepError> {
        match tokio::time::timeout(LAST_WORD, self.answer()).await {
            Ok(Err(error @ StepError::Refused(_))) => Some(error),
            Ok(_) | Err(_) => None,
        }
    }

    /// Says that nothing more will be sent.
    pub(super) async fn shut_down(&mut self) -> Result<(), StepError> {
        Ok(self.stream.shutdown().await?)
    }

    /// The stream itself, for what comes after the lines.
    pub(super) fn stream(&mut self) -> &mut BufReader<Box<dyn Duplex>> {
        &mut self.stream
    }

    async fn read_line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        (&mut self.stream).take(MAX_LINE).read_until(b'\n', &mut line).await?;
        if line.pop() != Some(b'\n') {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(String::from_utf8_lossy(&line).trim_end_matches('\r').to_owned())
    }
}

async fn limited<T>(
    limit: Duration,
    what: &str,
    work: impl Future<Output = io::Result<T>>,
) -> Result<T, StepError> {
    match tokio::time::timeout(limit, work).await {
        Ok(done) => Ok(done?),
        Err(_) => Err(StepError::Connection(format!("{what} took longer than {limit:?}"))),
    }
}

/// The line that submits the unit over there, under the ID that was chosen for it, if one was.
pub(super) fn submit_line(remote: &RemoteExtra, id: Option<&UnitId>, signature: Option<&str>) -> String {
    let mut line: Map<String, Value> = Map::new();
    for (name, value) in remote.remote_params.iter() {
        line.insert(name.to_owned(), value.into());
    }
    let fixed = BTreeMap::from([
        ("command", "work"),
        ("subcommand", "submit"),
        ("node", &remote.remote_node),
        ("worktype", &remote.remote_work_type),
        ("tlsclient", &remote.tls_client),
    ]);
    for (name, value) in fixed {
        line.insert(name.into(), value.into());
    }
    // No parameter can pass for a signature, or for the unit's ID.
    line.remove("signature");
    line.remove(CHOSEN_ID);
    if let Some(id) = id {
        line.insert(CHOSEN_ID.into(), id.as_str().into());
    }
    if let Some(signature) = signature {
        line.insert("signature".into(), signature.into());
    }
    format!("{}\n", Value::Object(line))
}

/// The line of another subcommand about a unit over there.
pub(super) fn unit_line(subcommand: &str, unit: &str, signature: Option<&str>) -> String {
    let mut line = serde_json::json!({"command": "work", "subcommand": subcommand, "unitid": unit});
    if let Some(signature) = signature {
        line["signature"] = signature.into();
    }
    format!("{line}\n")
}

/// The unit's ID in the answer to a submission.
pub(super) fn parse_created(answer: &str) -> Option<&str> {
    let id = answer.split_once(" with ID ")?.1;
    let id = id.split_once(". Send").map_or(id, |(id, _)| id);
    Some(id.trim_end_matches('.')).filter(|id| id.parse::<crate::work::UnitId>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_every_release_are_read() {
        for (answer, id) in [
            ("Work unit created with ID abcd1234. Send stdin data and EOF.", Some("abcd1234")),
            ("Work unit created with ID 10.0.0.1-abcd. Send stdin data and EOF.", Some("10.0.0.1-abcd")),
            ("Work unit created with ID ../../etc. Send stdin data and EOF.", None),
            ("Work unit created", None),
        ] {
            assert_eq!(parse_created(answer), id, "{answer}");
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
        let line: BTreeMap<String, String> = serde_json::from_str(&submit_line(&remote, None, None)).unwrap();
        assert_eq!((line["command"].as_str(), line["params"].as_str()), ("work", "x"));
        assert_eq!((line["node"].as_str(), line["worktype"].as_str()), ("n2", "echo"));
        assert!(!line.contains_key(CHOSEN_ID));
        let id = UnitId::chosen("n1abcd1234").unwrap();
        let line: BTreeMap<String, String> =
            serde_json::from_str(&submit_line(&remote, Some(&id), None)).unwrap();
        assert_eq!(line[CHOSEN_ID], "n1abcd1234");
    }
}
