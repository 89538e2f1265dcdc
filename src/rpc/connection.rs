//! One connection to a control service, as its client: the greeting, a line out, a line back, and the bytes after a
//! line. Owns limits of time and size. It does not know who is at the other end, nor what an answer means.

use std::time::Duration;

use serde_json::Value;
use tokio::io::{
    AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, ReadHalf,
    WriteHalf,
};
use tokio::time::timeout;

use super::request::{Follow, Request, SubmitRequest, WorkRequest};
use super::{CallError, ErrorLine, UnitReport, follow};

/// The longest greeting accepted, because another service may send without end.
const GREETING_LIMIT: usize = 4096;
/// Bytes of a payload that are sent at a time.
const CHUNK: usize = 256 << 10;
/// How long to wait for a node's reason after it stopped reading a payload. The reason is already under way then.
const LAST_WORD: Duration = Duration::from_secs(2);

/// How the greeting begins; the node's ID follows.
const GREETING: &str = "Receptor Control, node ";
/// The answer to a submission, around the unit's ID.
const CREATED: [&str; 2] = ["Work unit created with ID ", ". Send stdin data and EOF."];
/// The beginning of the line before results; the unit's ID follows.
const STREAMING: &str = "Streaming results for work unit ";

/// A stream in both directions; shutting its write side down lets the other side go on sending.
pub trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Duplex for T {}

type ControlStream = Box<dyn Duplex>;

/// What one connection may cost. Payloads, results and tunnels have no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallLimits {
    /// For the greeting.
    pub greeting: Duration,
    /// For one answer, once the request is written.
    pub answer: Duration,
    /// The longest answer, in bytes.
    pub answer_size: usize,
}

/// An open connection.
pub struct ControlConnection {
    answers: Answers,
    writer: WriteHalf<ControlStream>,
}

/// What the node says: its greeting, which has to come first, and one line for each request.
pub struct Answers {
    reader: BufReader<ReadHalf<ControlStream>>,
    greeting: Greeting,
    /// What was dialled, for error texts.
    address: String,
    limits: CallLimits,
}

#[derive(Debug, PartialEq, Eq)]
enum Greeting {
    Read,
    Awaited,
    /// Awaited; it has to name the node whose ID is the address.
    AwaitedOfNode,
}

impl ControlConnection {
    /// Reads the greeting. The address is for error texts.
    ///
    /// # Errors
    /// [`CallError::NotControl`] if something else listens there.
    pub async fn open(stream: ControlStream, address: &str, limits: CallLimits) -> Result<Self, CallError> {
        let mut connection = Self::new(stream, address, Greeting::Awaited, limits);
        connection.greeted().await?;
        Ok(connection)
    }

    /// A connection to `node`, whose greeting has to name it. Nothing is read yet, because requests need not wait for
    /// the greeting.
    pub fn to_node(stream: ControlStream, node: &str, limits: CallLimits) -> Self {
        Self::new(stream, node, Greeting::AwaitedOfNode, limits)
    }

    fn new(stream: ControlStream, address: &str, greeting: Greeting, limits: CallLimits) -> Self {
        let (reader, writer) = tokio::io::split(stream);
        let (reader, address) = (BufReader::new(reader), address.to_owned());
        Self { answers: Answers { reader, greeting, address, limits }, writer }
    }

    /// Reads the greeting, unless it was read before.
    ///
    /// # Errors
    /// [`CallError::NotControl`] if something else listens there.
    pub async fn greeted(&mut self) -> Result<(), CallError> {
        self.answers.greeted().await
    }

    /// Both directions, for sending without waiting for an answer.
    pub fn halves(&mut self) -> (&mut Answers, &mut WriteHalf<ControlStream>) {
        (&mut self.answers, &mut self.writer)
    }

    /// Sends a request and waits for its answer, a JSON value on one line.
    ///
    /// # Errors
    /// [`CallError::Refused`] with the node's words; others if no proper answer came.
    pub async fn command(&mut self, request: &Request) -> Result<Value, CallError> {
        let answer = self.ask(request).await?;
        parse_json(request.name(), &answer)
    }

    /// Asks for a unit's status.
    pub async fn unit_status(&mut self, unit: &str) -> Result<UnitReport, CallError> {
        let request = Request::Work(WorkRequest::Status { unit: unit.to_owned(), signature: None });
        UnitReport::from_answer(&self.command(&request).await?)
    }

    /// Creates a unit and returns its ID. Its payload has to be sent next, see [`Self::send_payload`].
    pub async fn submit(&mut self, request: SubmitRequest) -> Result<String, CallError> {
        let answer = self.ask(&Request::Work(WorkRequest::Submit(request))).await?;
        created_unit(&answer).map(str::to_owned).ok_or_else(|| unexpected("work submit", &answer))
    }

    /// Asks for a unit's output, which follows until the connection ends, see [`Self::reader`].
    pub async fn results(&mut self, what: Follow) -> Result<(), CallError> {
        self.begins(WorkRequest::Results(what), STREAMING).await
    }

    /// Asks for what a unit writes to its stderr, which follows until the connection ends.
    pub async fn stderr(&mut self, what: Follow) -> Result<(), CallError> {
        self.begins(WorkRequest::Stderr(what), STREAMING).await
    }

    /// Asks for a unit's output and states, as [`follow::Frame`]s.
    pub async fn follow(&mut self, what: Follow) -> Result<(), CallError> {
        self.begins(WorkRequest::Follow(what), follow::ANSWER).await
    }

    async fn begins(&mut self, request: WorkRequest, expected: &str) -> Result<(), CallError> {
        let request = Request::Work(request);
        let answer = self.ask(&request).await?;
        if answer.starts_with(expected) { Ok(()) } else { Err(unexpected(request.name(), &answer)) }
    }

    /// Turns the connection into a tunnel to `service` of `node`.
    ///
    /// # Errors
    /// [`CallError::Refused`] if the node cannot reach the service.
    pub async fn connect_to(
        mut self,
        node: String,
        service: String,
        tls: Option<String>,
    ) -> Result<Tunnel, CallError> {
        let answer = self.ask(&Request::Connect { node, service, tls }).await?;
        if answer != "Connecting" {
            return Err(unexpected("connect", &answer));
        }
        Ok(Tunnel(self))
    }

    /// Sends a request and waits for the line that answers it.
    async fn ask(&mut self, request: &Request) -> Result<String, CallError> {
        let line = request.to_line();
        let write = async {
            self.writer.write_all(line.as_bytes()).await?;
            // TLS may have accepted the end of a long line without sending it.
            self.writer.flush().await
        };
        let limit = self.answers.limits.answer;
        let asked = async {
            let written = write.await.map_err(CallError::io("sending a command"));
            // A server that refuses may close while we still write. Its refusal counts more than our failed write.
            let answer = self.answers.next("answer").await;
            match (written, answer) {
                (Err(failed), Err(CallError::Closed(_) | CallError::Io { .. })) => Err(failed),
                (_, answer) => answer,
            }
        };
        limited("answer", limit, asked).await
    }

    /// Sends a payload, calling `progress` with the bytes sent so far, and waits up to `limit` for the node's answer. A
    /// refusal ends the sending at once.
    ///
    /// # Errors
    /// [`CallError::Payload`] if it cannot be read, [`CallError::Refused`] if the node could not keep it or start the job.
    pub async fn send_payload(
        &mut self,
        mut payload: impl AsyncRead + Unpin,
        mut progress: impl FnMut(u64),
        limit: Duration,
    ) -> Result<Value, CallError> {
        let Self { answers, writer } = self;
        let sending = async {
            let (mut buffer, mut sent) = (vec![0; CHUNK], 0);
            loop {
                let count = payload.read(&mut buffer).await.map_err(CallError::Payload)?;
                if count == 0 {
                    return Ok(());
                }
                let write = async {
                    writer.write_all(&buffer[..count]).await?;
                    writer.flush().await
                };
                write.await.map_err(CallError::io("sending the payload"))?;
                sent += count as u64;
                progress(sent);
            }
        };
        let sent = tokio::select! {
            biased;
            _ = answers.reader.fill_buf() => None,
            sent = sending => Some(sent),
        };
        match sent {
            Some(Ok(())) => {
                self.writer.shutdown().await.map_err(CallError::io("ending the payload"))?;
                parse_json("work submit", &self.answer("answer to the payload", limit).await?)
            }
            Some(Err(failed @ CallError::Io { .. })) => match timeout(LAST_WORD, self.interruption()).await {
                Ok(refused @ CallError::Refused(_)) => Err(refused),
                Ok(_) | Err(_) => Err(failed),
            },
            Some(Err(failed)) => Err(failed),
            None => Err(self.interruption().await),
        }
    }

    /// What the node says before the end of the payload, usually an error.
    async fn interruption(&mut self) -> CallError {
        match self.answer("reason", self.answers.limits.answer).await {
            Ok(answer) => unexpected("work submit, in the middle of the payload", &answer),
            Err(error) => error,
        }
    }

    async fn answer(&mut self, what: &'static str, limit: Duration) -> Result<String, CallError> {
        limited(what, limit, self.answers.next(what)).await
    }

    /// The bytes after an answer.
    pub fn reader(&mut self) -> &mut BufReader<ReadHalf<ControlStream>> {
        self.answers.reader()
    }
}

impl Answers {
    /// Reads the greeting, unless it was read before.
    ///
    /// # Errors
    /// [`CallError::NotControl`] if something else listens there, or another node.
    pub async fn greeted(&mut self) -> Result<(), CallError> {
        if self.greeting == Greeting::Read {
            return Ok(());
        }
        let line = read_line(&mut self.reader, "greeting", GREETING_LIMIT);
        let line = limited("greeting", self.limits.greeting, line).await?;
        match line.strip_prefix(GREETING) {
            Some(node) if self.greeting == Greeting::Awaited || node == self.address => {
                self.greeting = Greeting::Read;
                Ok(())
            }
            _ => Err(CallError::NotControl { address: self.address.clone(), greeting: excerpt(&line) }),
        }
    }

    /// The line that answers a request, without a limit of time.
    ///
    /// # Errors
    /// [`CallError::Refused`] with the node's words; others if no proper answer came.
    pub async fn next(&mut self, what: &'static str) -> Result<String, CallError> {
        self.greeted().await?;
        read_answer(&mut self.reader, what, self.limits.answer_size).await
    }

    /// The bytes after an answer.
    pub fn reader(&mut self) -> &mut BufReader<ReadHalf<ControlStream>> {
        &mut self.reader
    }
}

/// Raw bytes to and from a service somewhere in the mesh.
pub struct Tunnel(ControlConnection);

impl Tunnel {
    /// The two directions; shutting the writer down half-closes.
    pub fn split(self) -> (impl AsyncRead, impl AsyncWrite) {
        (self.0.answers.reader, self.0.writer)
    }

    /// Talks to the control service at the tunnel's other end.
    ///
    /// # Errors
    /// [`CallError::NotControl`] if the service is no control service.
    pub async fn into_connection(self) -> Result<ControlConnection, CallError> {
        let mut connection = self.0;
        let answers = &mut connection.answers;
        (answers.greeting, answers.address) = (Greeting::Awaited, "the service".to_owned());
        connection.greeted().await?;
        Ok(connection)
    }
}

/// The unit's ID in the answer to a submission.
fn created_unit(answer: &str) -> Option<&str> {
    let [before, after] = CREATED;
    answer.strip_prefix(before)?.strip_suffix(after)
}

/// Runs `work` with a limit of time.
pub(super) async fn limited<T>(
    what: &'static str,
    after: Duration,
    work: impl Future<Output = Result<T, CallError>>,
) -> Result<T, CallError> {
    timeout(after, work).await.unwrap_or(Err(CallError::TimedOut { what, after }))
}

/// Reads an answer line; `ERROR:` becomes [`CallError::Refused`].
async fn read_answer<R: AsyncBufRead + Unpin>(
    reader: &mut R,
    what: &'static str,
    limit: usize,
) -> Result<String, CallError> {
    let line = read_line(reader, what, limit).await?;
    match line.strip_prefix("ERROR:") {
        Some(text) => Err(CallError::Refused(ErrorLine::new(text.trim()))),
        None => Ok(line),
    }
}

/// Reads an answer that must be JSON.
fn parse_json(question: &'static str, line: &str) -> Result<Value, CallError> {
    serde_json::from_str(line).map_err(|_| unexpected(question, line))
}

fn unexpected(question: &'static str, answer: &str) -> CallError {
    CallError::Protocol { question, answer: excerpt(answer) }
}

/// At most 200 characters of what a stranger sent.
fn excerpt(text: &str) -> String {
    match text.char_indices().nth(200) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

async fn read_line<R: AsyncBufRead + Unpin>(
    reader: &mut R,
    what: &'static str,
    limit: usize,
) -> Result<String, CallError> {
    let mut line = Vec::new();
    loop {
        let buffer = reader.fill_buf().await.map_err(CallError::io("waiting for an answer"))?;
        if buffer.is_empty() {
            return Err(CallError::Closed(what));
        }
        let end = buffer.iter().position(|byte| *byte == b'\n');
        line.extend_from_slice(&buffer[..end.unwrap_or(buffer.len())]);
        let used = end.map_or(buffer.len(), |end| end + 1);
        reader.consume(used);
        if line.len() > limit {
            let answer = format!("a line of more than {limit} bytes");
            return Err(CallError::Protocol { question: what, answer });
        }
        if end.is_some() {
            let text = String::from_utf8_lossy(&line);
            return Ok(text.trim_end_matches('\r').to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_every_release_are_read() {
        for (answer, id) in [
            ("Work unit created with ID abcd1234. Send stdin data and EOF.", Some("abcd1234")),
            ("Work unit created with ID 10.0.0.1-abcd. Send stdin data and EOF.", Some("10.0.0.1-abcd")),
            ("Work unit created", None),
        ] {
            assert_eq!(created_unit(answer), id, "{answer}");
        }
    }
}
