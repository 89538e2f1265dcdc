//! Submits a job: sends the payload as a stream, and reads the node's last answer. Owns the rule that a payload that
//! stops half way must never look complete. A closed connection looks complete to a Go node, and over TCP to any node,
//! so the unit is released first.

use serde_json::Value;
use tokio::io::AsyncRead;

use super::request::{Request, WorkRequest};
use super::{CallError, Client, ControlConnection};

/// Multiplies the time for the last answer, because the node first puts the whole payload on disk.
const DISK_FACTOR: u32 = 10;

/// The node's last answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubmitEnd {
    /// The unit's ID.
    pub unit: String,
    /// `Job Started`, or `Job Submitted` when it runs elsewhere.
    pub result: String,
}

/// A unit that waits for its payload. Dropping it closes the connection, which a node may take for the payload's
/// end and start the job: call [`Self::abandon`] instead.
pub struct PendingUnit {
    client: Client,
    connection: ControlConnection,
    unit: String,
}

impl PendingUnit {
    pub(super) fn new(client: Client, connection: ControlConnection, unit: String) -> Self {
        Self { client, connection, unit }
    }

    /// The unit's ID.
    pub fn unit(&self) -> &str {
        &self.unit
    }

    /// Sends the whole payload, calling `progress` with the bytes sent so far, and waits for the node's answer. A
    /// refusal ends the sending at once.
    ///
    /// # Errors
    /// [`CallError::Payload`] if `payload` fails (then [`Self::abandon`] the unit), [`CallError::Refused`]
    /// if the node could not keep the payload or start the job.
    pub async fn send(
        &mut self,
        payload: impl AsyncRead + Unpin,
        progress: impl FnMut(u64),
    ) -> Result<SubmitEnd, CallError> {
        let limit = self.client.deadlines.answer * DISK_FACTOR;
        let answer = self.connection.send_payload(payload, progress, limit).await?;
        let text = |key| answer.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
        match (text("unitid"), text("result")) {
            (Some(unit), Some(result)) => Ok(SubmitEnd { unit: unit.to_owned(), result: result.to_owned() }),
            _ => Err(CallError::Protocol { question: "work submit", answer: answer.to_string() }),
        }
    }

    /// Gives the unit up: it is released before the connection closes, so that no job starts with part of its
    /// payload. Returns the node's answer: `released` or `release pending`.
    ///
    /// # Errors
    /// Those of [`Client::command`]; the unit may then start with what was sent.
    pub async fn abandon(self) -> Result<Value, CallError> {
        let Self { client, connection, unit } = self;
        let request = WorkRequest::Release { unit, force: false, sweep: false, signature: None };
        let answer = client.command(&Request::Work(request)).await;
        drop(connection);
        answer
    }
}
