//! The client's half of the control socket. Owns dialling, the greeting, commands and their answers, sending a
//! payload, following results across a restart of the node, and raw tunnels to a service.
//! Knows nothing of command lines, terminals or tables, and nothing of how a node does what it is asked.

mod connection;
mod endpoint;
mod error;
mod results;
mod submit;
mod unit;

use std::time::Duration;

use serde_json::{Value, json};

pub use connection::{Command, Connection, Tunnel};
pub use endpoint::{DEFAULT_SOCKETS, Endpoint, InvalidEndpoint};
pub use error::ControlError;
pub use results::{ResultEvent, ResultStream};
pub use submit::{Submission, SubmitRequest, Submitted};
pub use unit::{UnitReport, UnitState};

use crate::tls::ClientProfile;

/// How long to wait for what. Streams (payloads, results, tunnels) have no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// For dialling and the greeting together.
    pub connect: Duration,
    /// For one answer, once the request is written.
    pub answer: Duration,
    /// For the answer to a cancel or release, which comes once the unit's processes have ended.
    pub ending: Duration,
    /// For a node that went away while results were followed to come back.
    pub absence: Duration,
}

impl Default for Deadlines {
    /// 10 s to connect, 30 s for an answer, 60 s of absence: a node's own limits (10 s for a ping) are shorter. How long
    /// processes get to end is configured on each node, for each work type.
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            answer: Duration::from_secs(30),
            ending: Duration::MAX,
            absence: Duration::from_secs(60),
        }
    }
}

/// A node's control service, by address. Cheap to clone; each operation opens a connection of its own, so that
/// one which stalls or fails leaves the others alone.
#[derive(Debug, Clone)]
pub struct Client {
    endpoint: Endpoint,
    deadlines: Deadlines,
    tls: Option<ClientProfile>,
}

impl Client {
    /// A client of the control service at `endpoint`; nothing is dialled yet.
    pub fn new(endpoint: Endpoint, deadlines: Deadlines) -> Self {
        Self { endpoint, deadlines, tls: None }
    }

    /// With a profile for `tls://` endpoints; without one the system's authorities are trusted.
    #[must_use]
    pub fn with_tls(self, profile: ClientProfile) -> Self {
        Self { tls: Some(profile), ..self }
    }

    /// Where the control service is expected.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Dials and reads the greeting.
    ///
    /// # Errors
    /// [`ControlError`] that says what is not there, or what answered instead.
    pub async fn connect(&self) -> Result<Connection, ControlError> {
        Connection::open(&self.endpoint, self.deadlines, self.tls.as_ref()).await
    }

    /// Connects, asks one command and returns its answer.
    ///
    /// # Errors
    /// As [`Self::connect`] and [`Connection::command`].
    pub async fn command(&self, command: &Command) -> Result<Value, ControlError> {
        self.connect().await?.command(command).await
    }

    /// Has a unit cancelled or released, by that subcommand, and returns the node's answer.
    ///
    /// # Errors
    /// As [`Self::command`].
    pub async fn end_unit(&self, subcommand: &str, unit: &str) -> Result<Value, ControlError> {
        let deadlines = Deadlines { answer: self.deadlines.ending, ..self.deadlines };
        Self { deadlines, ..self.clone() }.command(&work_command(subcommand, unit)).await
    }

    /// Creates a unit that now waits for its payload.
    ///
    /// # Errors
    /// As [`Self::connect`]; [`ControlError::Refused`] if the node does not take the job.
    pub async fn submit(&self, request: &SubmitRequest) -> Result<Submission, ControlError> {
        Submission::open(self, request).await
    }

    /// Follows the standard output of `unit` from byte `start` on, across restarts of the node.
    ///
    /// # Errors
    /// As [`Self::connect`]; [`ControlError::Refused`] for a unit the node does not have.
    pub async fn results(&self, unit: &str, start: u64) -> Result<ResultStream, ControlError> {
        ResultStream::open(self.clone(), unit, start).await
    }

    /// State, detail and size of `unit`.
    ///
    /// # Errors
    /// As [`Self::command`].
    pub async fn unit_status(&self, unit: &str) -> Result<UnitReport, ControlError> {
        UnitReport::from_answer(self.command(&work_command("status", unit)).await?)
    }
}

/// `work SUBCOMMAND` on one unit, as JSON: no unit ID, however odd, can then change the request's meaning.
pub fn work_command(subcommand: &str, unit: &str) -> Command {
    Command::json(&json!({"command": "work", "subcommand": subcommand, "unitid": unit}))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
    use tokio::net::UnixListener;
    use tokio::time::sleep;

    use super::*;

    /// A node that takes so long for each answer.
    async fn slow_node(listener: UnixListener, pause: Duration) {
        loop {
            let mut stream = BufReader::new(listener.accept().await.unwrap().0);
            stream.write_all(b"Receptor Control, node slow\n").await.unwrap();
            let mut line = String::new();
            stream.read_line(&mut line).await.unwrap();
            sleep(pause).await;
            // Whoever has given up does not read it.
            let _ = stream.write_all(b"{\"cancelled\":\"u\"}\n").await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancel_may_take_as_long_as_the_processes_do_and_a_question_may_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        tokio::spawn(slow_node(UnixListener::bind(&path).unwrap(), Duration::from_secs(600)));
        let client = Client::new(Endpoint::Unix(path), Deadlines::default());
        assert_eq!(client.end_unit("cancel", "u").await.unwrap(), json!({"cancelled": "u"}));
        assert!(matches!(client.unit_status("u").await, Err(ControlError::TimedOut { .. })));
    }
}
