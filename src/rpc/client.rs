//! A client of a node's control service, over any kind of connection. Each operation opens its own connection, so that
//! an operation that stalls or fails does not affect the others. Knows nothing of command lines, terminals or tables.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::connection::limited;
use super::request::{Follow, Request, SubmitRequest};
use super::{CallError, CallLimits, ControlConnection, Duplex, FollowedOutput, PendingUnit, UnitReport};

/// The longest answer accepted: the status of a mesh of 1,000 nodes is several megabytes.
const ANSWER_SIZE: usize = 64 << 20;

/// A stream that is being opened.
pub type Dialing<'a> = Pin<Box<dyn Future<Output = Result<Box<dyn Duplex>, CallError>> + Send + 'a>>;

/// The way to one control service.
pub trait ControlDialer: Send + Sync + 'static {
    /// Opens a stream; [`CallError::Unreachable`] if nobody listens.
    fn dial(&self) -> Dialing<'_>;

    /// The address that it dials, for people.
    fn address(&self) -> String;

    /// Whether a stream's end proves that all of a payload was sent, as on a Unix socket. Elsewhere a client that died
    /// looks the same, so the payload's length is announced.
    fn ends_are_reliable(&self) -> bool;
}

/// How long to wait for what. Streams (payloads, results, tunnels) have no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// For dialling and the greeting together.
    pub connect: Duration,
    /// For one answer, once the request is written.
    pub answer: Duration,
    /// For the answer to a cancel or release, which comes once the unit's processes have ended, and to a link's test.
    pub ending: Duration,
    /// For a node to come back that went away while its results were followed.
    pub absence: Duration,
}

impl Default for Deadlines {
    /// 10 s to connect, 30 s for an answer, 60 s of absence: a node's own limits (10 s for a ping) are shorter.
    /// `ending` has no limit, because each node configures how long the processes of a work type get to end.
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            answer: Duration::from_secs(30),
            ending: Duration::MAX,
            absence: Duration::from_secs(60),
        }
    }
}

/// A client of one control service. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    dial: Arc<dyn ControlDialer>,
    pub(super) deadlines: Deadlines,
}

impl Client {
    /// A client of the control service that `dial` leads to; nothing is dialled yet.
    pub fn new(dial: impl ControlDialer, deadlines: Deadlines) -> Self {
        Self { dial: Arc::new(dial), deadlines }
    }

    /// Where the control service is expected.
    pub fn address(&self) -> String {
        self.dial.address()
    }

    /// Dials and reads the greeting.
    ///
    /// # Errors
    /// [`CallError`] that says what is not there, or what answered instead.
    pub async fn connect(&self) -> Result<ControlConnection, CallError> {
        self.connect_with(self.deadlines.answer).await
    }

    /// As [`Self::connect`], for a question whose answer may take long.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub async fn connect_for_long(&self) -> Result<ControlConnection, CallError> {
        self.connect_with(self.deadlines.ending).await
    }

    async fn connect_with(&self, answer: Duration) -> Result<ControlConnection, CallError> {
        let connect = self.deadlines.connect;
        let limits = CallLimits { greeting: connect, answer, answer_size: ANSWER_SIZE };
        let opened =
            async { ControlConnection::open(self.dial.dial().await?, &self.address(), limits).await };
        limited("greeting", connect, opened).await
    }

    /// Connects, sends one request and returns its answer.
    ///
    /// # Errors
    /// As [`Self::connect`] and [`ControlConnection::command`].
    pub async fn command(&self, request: &Request) -> Result<Value, CallError> {
        self.connect().await?.command(request).await
    }

    /// The same for a request whose answer may take long: until a unit's processes have ended, or a link is tested.
    pub async fn long_command(&self, request: &Request) -> Result<Value, CallError> {
        self.connect_for_long().await?.command(request).await
    }

    /// State, detail and size of `unit`.
    pub async fn unit_status(&self, unit: &str) -> Result<UnitReport, CallError> {
        self.connect().await?.unit_status(unit).await
    }

    /// Creates a unit that now waits for its payload.
    ///
    /// # Errors
    /// As [`Self::connect`]; [`CallError::Refused`] if the node does not accept the job.
    pub async fn submit(&self, mut request: SubmitRequest) -> Result<PendingUnit, CallError> {
        if self.dial.ends_are_reliable() {
            request.payload_length = None;
        }
        let mut connection = self.connect().await?;
        let unit = connection.submit(request).await?;
        Ok(PendingUnit::new(self.clone(), connection, unit))
    }

    /// Follows the standard output of `unit` from byte `start` on, across restarts of the node.
    ///
    /// # Errors
    /// As [`Self::connect`]; [`CallError::Refused`] for a unit the node does not have.
    pub async fn results(&self, unit: &str, start: u64) -> Result<FollowedOutput, CallError> {
        FollowedOutput::open(self.clone(), unit, start).await
    }

    /// What `unit` writes to its stderr, from byte `start` on to its end, over one connection.
    ///
    /// # Errors
    /// As [`Self::connect`]; [`CallError::Refused`] if its node does not have it apart.
    pub async fn stderr(&self, unit: &str, start: u64) -> Result<ControlConnection, CallError> {
        let mut connection = self.connect().await?;
        let what = Follow { unit: unit.to_owned(), start, signature: None, ends_with_unit: true };
        connection.stderr(what).await?;
        Ok(connection)
    }

    /// A unit's output over one connection, which is not resumed.
    pub(super) async fn output(&self, unit: &str, start: u64) -> Result<ControlConnection, CallError> {
        let mut connection = self.connect().await?;
        let what = Follow { unit: unit.to_owned(), start, signature: None, ends_with_unit: true };
        connection.results(what).await?;
        Ok(connection)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream};
    use tokio::time::sleep;

    use super::*;
    use crate::rpc::request::WorkRequest;

    /// A node that takes this long for each answer.
    struct SlowNode(Duration);

    impl ControlDialer for SlowNode {
        fn dial(&self) -> Dialing<'_> {
            let (near, far) = tokio::io::duplex(1024);
            tokio::spawn(answer_slowly(BufReader::new(far), self.0));
            Box::pin(async { Ok(Box::new(near) as Box<dyn Duplex>) })
        }

        fn address(&self) -> String {
            "slow".to_owned()
        }

        fn ends_are_reliable(&self) -> bool {
            true
        }
    }

    async fn answer_slowly(mut stream: BufReader<DuplexStream>, pause: Duration) {
        stream.write_all(b"Receptor Control, node slow\n").await.unwrap();
        let mut line = String::new();
        stream.read_line(&mut line).await.unwrap();
        sleep(pause).await;
        // A client that has given up does not read it.
        let _ = stream.write_all(b"{\"cancelled\":\"u\"}\n").await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancel_may_take_as_long_as_the_processes_do_and_a_question_may_not() {
        let client = Client::new(SlowNode(Duration::from_secs(600)), Deadlines::default());
        let cancel = Request::Work(WorkRequest::Cancel { unit: "u".to_owned(), signature: None });
        assert_eq!(client.long_command(&cancel).await.unwrap(), json!({"cancelled": "u"}));
        assert!(matches!(client.unit_status("u").await, Err(CallError::TimedOut { .. })));
    }
}
