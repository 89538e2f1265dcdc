//! Submitting a job: the request line, the payload as a stream, the node's last word.
//! Owns the rule that a payload which stops half way must never look like a whole one: a closed connection does
//! look whole to a Go node, and over TCP to any, so the unit is released first.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, ReadHalf, WriteHalf};

use super::connection::{Stream, excerpt, limited, parse_json, read_answer};
use super::{Client, Command, ControlError, Deadlines, Endpoint, work_command};

const CHUNK: usize = 256 << 10;
/// The last answer comes after the node has put the whole payload on disk, which large ones make slow.
const DISK_FACTOR: u32 = 10;

/// A job to be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SubmitRequest {
    /// Node to run it on; `localhost` is the node asked.
    pub node: String,
    /// Work type there.
    pub work_type: String,
    /// Everything else the work type takes, by name; names of the request's own fields are left out.
    pub params: BTreeMap<String, String>,
    /// TLS profile of the node asked, for its connection to the node that runs the job.
    pub tls_client: Option<String>,
    /// How long it may take to start, in Go's notation.
    pub ttl: Option<String>,
    /// True to have the node asked sign the request.
    pub sign_work: bool,
    /// Bytes of payload, if that can be known. Told where the end of a connection says less than on a Unix socket.
    pub payload_length: Option<u64>,
}

impl SubmitRequest {
    /// The request as one line; all values are strings, as nodes demand.
    pub fn command(&self, endpoint: &Endpoint) -> Command {
        let mut fields = Map::new();
        let mut set = |key: &str, value: &str| {
            fields.entry(key).or_insert_with(|| Value::from(value));
        };
        set("command", "work");
        set("subcommand", "submit");
        set("node", &self.node);
        set("worktype", &self.work_type);
        if let Some(profile) = &self.tls_client {
            set("tlsclient", profile);
        }
        if let Some(ttl) = &self.ttl {
            set("ttl", ttl);
        }
        if self.sign_work {
            set("signwork", "true");
        }
        match (endpoint, self.payload_length) {
            (Endpoint::Tcp { .. } | Endpoint::Tls { .. }, Some(length)) => {
                set("payloadlength", &length.to_string());
            }
            (Endpoint::Tcp { .. } | Endpoint::Tls { .. }, None) | (Endpoint::Unix(_), _) => {}
        }
        for (key, value) in &self.params {
            set(key, value);
        }
        Command::json(&Value::Object(fields))
    }
}

/// What the node said last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Submitted {
    /// The unit's ID.
    pub unit: String,
    /// `Job Started`, or `Job Submitted` when it runs elsewhere.
    pub result: String,
}

/// A unit that waits for its payload. Dropping it closes the connection, which a node may take for the payload's
/// end and start the job: call [`Self::abandon`] instead.
pub struct Submission {
    client: Client,
    unit: String,
    reader: BufReader<ReadHalf<Stream>>,
    writer: WriteHalf<Stream>,
    deadlines: Deadlines,
}

impl Submission {
    pub(super) async fn open(client: &Client, request: &SubmitRequest) -> Result<Self, ControlError> {
        let mut connection = client.connect().await?;
        let answer = connection.ask(&request.command(client.endpoint())).await?;
        let unit = answer
            .strip_prefix("Work unit created with ID ")
            .and_then(|rest| rest.strip_suffix(". Send stdin data and EOF."))
            .ok_or_else(|| ControlError::Protocol { question: "work submit", answer: excerpt(&answer) })?;
        let (unit, deadlines) = (unit.to_owned(), connection.deadlines());
        let (reader, writer) = tokio::io::split(connection.into_stream());
        Ok(Self { client: client.clone(), unit, reader: BufReader::new(reader), writer, deadlines })
    }

    /// The unit's ID.
    pub fn unit(&self) -> &str {
        &self.unit
    }

    /// Sends the whole payload, calling `progress` with the bytes sent so far, and waits for the node's answer.
    /// A refusal in the middle of the payload ends it at once.
    ///
    /// # Errors
    /// [`ControlError::Payload`] if `payload` fails (then [`Self::abandon`] the unit), [`ControlError::Refused`]
    /// if the node could not keep the payload or start the job.
    pub async fn send(
        &mut self,
        payload: impl AsyncRead + Unpin,
        progress: impl FnMut(u64),
    ) -> Result<Submitted, ControlError> {
        let answer = {
            let mut answer = std::pin::pin!(read_answer(&mut self.reader, "answer to the payload"));
            let copied = tokio::select! {
                biased;
                early = &mut answer => return Err(early_end(early)),
                copied = copy(payload, &mut self.writer, progress) => copied,
            };
            match copied {
                Ok(()) => {
                    let after = self.deadlines.answer * DISK_FACTOR;
                    limited("answer to the payload", after, answer).await?
                }
                // The reason for a broken pipe is what the node said before it closed.
                Err(broken @ ControlError::Io { .. }) => {
                    match limited("answer to the payload", self.deadlines.answer, answer).await {
                        Err(refused @ ControlError::Refused(_)) => return Err(refused),
                        Ok(_) | Err(_) => return Err(broken),
                    }
                }
                Err(error) => return Err(error),
            }
        };
        let parsed = parse_json("work submit", &answer)?;
        let text = |key| parsed.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
        match (text("unitid"), text("result")) {
            (Some(unit), Some(result)) => Ok(Submitted { unit: unit.to_owned(), result: result.to_owned() }),
            _ => Err(ControlError::Protocol { question: "work submit", answer: excerpt(&answer) }),
        }
    }

    /// Gives the unit up: it is released before the connection closes, so that no job starts with part of its
    /// payload. Returns the node's answer: `released` or `release pending`.
    ///
    /// # Errors
    /// Those of [`Client::command`]; the unit may then start with what was sent.
    pub async fn abandon(self) -> Result<Value, ControlError> {
        self.client.command(&work_command("release", &self.unit)).await
    }
}

fn early_end(early: Result<String, ControlError>) -> ControlError {
    match early {
        Err(error) => error,
        Ok(answer) => ControlError::Protocol {
            question: "work submit, in the middle of the payload",
            answer: excerpt(&answer),
        },
    }
}

async fn copy(
    mut payload: impl AsyncRead + Unpin,
    writer: &mut (impl AsyncWrite + Unpin),
    mut progress: impl FnMut(u64),
) -> Result<(), ControlError> {
    let mut buffer = vec![0; CHUNK];
    let mut sent = 0_u64;
    loop {
        let count = payload.read(&mut buffer).await.map_err(ControlError::Payload)?;
        if count == 0 {
            break;
        }
        writer.write_all(&buffer[..count]).await.map_err(ControlError::io("sending the payload"))?;
        sent += count as u64;
        progress(sent);
    }
    writer.shutdown().await.map_err(ControlError::io("ending the payload"))
}
