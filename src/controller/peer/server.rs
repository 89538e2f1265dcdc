//! Answers other control nodes. The asker must be a registered control node of the same install, must be the node that
//! the stream comes from, and must show a token for exactly this request. Until then a stream takes no place of a
//! control node, and the places of each control node are limited.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{
    AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader,
    ReadHalf, WriteHalf,
};
use tokio::time::timeout;

use super::{LINE, PeerAnswer, PeerLine, PeerRequest, PeerVerb};
use crate::controller::core::{InstanceName, JobId};
use crate::controller::driver::JobDriver;
use crate::controller::output::{OutputError, OutputReader};
use crate::controller::store::{Error, Kept};
use crate::os::places::{Places, Share};
use crate::rpc::Duplex;
use crate::wire::{NameHash, NodeId};
use crate::work::Registry;
use crate::work::jobs::JobUnit;

/// Streams of one control node that are served at a time. As many more may follow the output of a job.
const MOST_STREAMS: usize = 256;
/// How long it may take to read a request and to check its sender.
const ASKED_WITHIN: Duration = Duration::from_secs(5);
/// How long the other side may read nothing of what is sent, and how long it may take for the last bytes.
const STALLED: Duration = Duration::from_secs(60);
const CHUNK: usize = 128 << 10;

/// Answers other control nodes. Clones share it.
#[derive(Debug, Clone)]
pub struct PeerServer {
    driver: Arc<JobDriver>,
    registry: Registry,
    served: Places<InstanceName>,
    /// Followers are counted apart: a job may run for days, and its followers must not keep others from payloads.
    followed: Places<InstanceName>,
}

/// A request of a control node that may ask.
pub struct AdmittedRequest {
    server: PeerServer,
    request: PeerRequest,
    reader: BufReader<ReadHalf<Box<dyn Duplex>>>,
    writer: WriteHalf<Box<dyn Duplex>>,
    _place: Share<InstanceName>,
}

impl std::fmt::Debug for AdmittedRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Admitted").field("node", &self.request.node).finish_non_exhaustive()
    }
}

/// Why a request gets nothing.
enum Denied {
    /// This node has nothing of the job.
    Missing(String),
    /// The asker may not ask, or this cannot be checked now.
    Refused(String),
}

impl From<Error> for Denied {
    fn from(error: Error) -> Self {
        Self::Refused(error.to_string())
    }
}

impl From<OutputError> for Denied {
    fn from(error: OutputError) -> Self {
        match error {
            OutputError::Store(error) => error.into(),
            OutputError::Elsewhere(_) | OutputError::Missing(_) => Self::Missing(error.to_string()),
        }
    }
}

/// What is sent after the answer's line.
enum AnswerContent {
    Nothing,
    /// The output of a job.
    Output(Box<OutputReader>),
    /// A file, from a byte on.
    File {
        path: PathBuf,
        from: u64,
    },
}

impl PeerServer {
    pub(in crate::controller) fn new(driver: Arc<JobDriver>, registry: Registry) -> Self {
        Self { driver, registry, served: Places::new(MOST_STREAMS), followed: Places::new(MOST_STREAMS) }
    }

    /// Reads what a stream from that node asks for. A node that may not ask is told so. A stream above the limit ends
    /// without an answer, and the other node opens it again later.
    pub async fn admit(&self, stream: Box<dyn Duplex>, from: NameHash) -> Option<AdmittedRequest> {
        timeout(ASKED_WITHIN, self.admit_late(stream, from)).await.ok().flatten()
    }

    async fn admit_late(&self, stream: Box<dyn Duplex>, from: NameHash) -> Option<AdmittedRequest> {
        let (reader, mut writer) = tokio::io::split(stream);
        let mut reader = BufReader::new(reader);
        let request = read_request(&mut reader).await.ok()?;
        let name = match self.check(&request, from).await {
            Ok(name) => name,
            Err(denied) => {
                let _it_has_left = write_line(&mut writer, &denied.told(&request)).await;
                let _it_has_left = writer.shutdown().await;
                return None;
            }
        };
        let places = match request.verb {
            PeerVerb::Output(part) if part.follow => &self.followed,
            PeerVerb::Output(_) | PeerVerb::Payload { .. } => &self.served,
        };
        let place = places.take(&name)?;
        Some(AdmittedRequest { server: self.clone(), request, reader, writer, _place: place })
    }

    /// Finds what a request asks for.
    async fn grant(&self, request: &PeerRequest) -> Result<(PeerAnswer, AnswerContent), Denied> {
        let job = JobId(request.job);
        match request.verb {
            PeerVerb::Output(part) => {
                let reader = OutputReader::open(&self.driver, &self.registry, job, part).await?;
                let extra = reader.unit().extra();
                let answer = PeerAnswer {
                    size: reader.size(),
                    attempt: extra.output_attempt,
                    starts: extra.output_starts.into_iter().collect(),
                    children: extra.output_children.into_iter().collect(),
                    partial: !reader.is_whole(),
                };
                Ok((answer, AnswerContent::Output(Box::new(reader))))
            }
            PeerVerb::Payload { from } => {
                let path = self.unit(job, Kept::Payload).await?.payload();
                let found = tokio::fs::metadata(&path).await;
                let size = found.map_err(|error| Denied::Missing(error.to_string()))?.len();
                Ok((PeerAnswer { size, ..PeerAnswer::default() }, AnswerContent::File { path, from }))
            }
        }
    }

    /// Checks who asks. Returns the asker's name.
    async fn check(&self, request: &PeerRequest, from: NameHash) -> Result<InstanceName, Denied> {
        let is_sender = NodeId::new(&request.node).is_ok_and(|node| node.hash() == from);
        if !is_sender {
            let why = "the request does not come from the node that it names";
            return Err(Denied::Refused(why.to_owned()));
        }
        let verified = self.registry.verify_peer(&request.token, &request.job.to_string(), &request.bound());
        verified.map_err(|error| Denied::Refused(error.to_string()))?;
        let store = &self.driver.store;
        if store.install_id().await? != request.install {
            return Err(Denied::Refused("the request comes from another install".to_owned()));
        }
        let name = InstanceName::from(request.node.as_str());
        let mut registry = store.registry().await?;
        match registry.instance_mut(&name).is_ok_and(|record| record.instance.node_type.controls()) {
            true => Ok(name),
            false => Err(Denied::Refused(format!("{name} is not a registered control node"))),
        }
    }

    /// The unit of this node that keeps this part of a job.
    async fn unit(&self, job: JobId, kept: Kept) -> Result<JobUnit, Denied> {
        let holders = self.driver.store.holders(job, kept).await?;
        let own = holders.into_iter().filter(|(node, _)| *node == self.driver.node);
        let found = own.map(|(_, unit)| unit).find_map(|unit| self.registry.job_unit(&unit));
        found.ok_or_else(|| Denied::Missing(format!("the {} of job {job} is not here", kept.name())))
    }
}

impl AdmittedRequest {
    /// Serves the stream to its end.
    pub async fn serve(self) {
        let Self { server, request, mut reader, mut writer, _place } = self;
        let (line, content) = match server.grant(&request).await {
            Ok((answer, content)) => (PeerLine::Granted(answer), content),
            Err(denied) => (denied.told(&request), AnswerContent::Nothing),
        };
        let send = async {
            write_line(&mut writer, &line).await?;
            content.send(&mut writer).await?;
            writer.shutdown().await
        };
        let mut byte = [0];
        tokio::select! {
            sent = send => match sent {
                // The other side closes the stream once it has all bytes.
                Ok(()) => drop(timeout(STALLED, reader.read(&mut byte)).await),
                Err(error) => tracing::debug!(node = request.node, job = request.job, %error, "a stream to another control node broke off"),
            },
            // The other side sends nothing after its line, so anything that arrives means that it has left.
            _gone = reader.read(&mut byte) => {}
        }
    }
}

impl Denied {
    /// The line for the other side. A refusal is also logged.
    fn told(self, request: &PeerRequest) -> PeerLine {
        match self {
            Self::Missing(refused) => PeerLine::Refused { refused, missing: true },
            Self::Refused(refused) => {
                tracing::warn!(
                    node = request.node,
                    job = request.job,
                    why = refused,
                    "refused a request of another control node"
                );
                PeerLine::Refused { refused, missing: false }
            }
        }
    }
}

impl AnswerContent {
    async fn send(self, writer: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        match self {
            Self::Nothing => Ok(()),
            Self::Output(mut reader) => {
                while let Some(bytes) = reader.next().await.map_err(io::Error::other)? {
                    write(writer, &bytes).await?;
                }
                Ok(())
            }
            Self::File { path, from } => {
                use tokio::io::AsyncSeekExt as _;
                let mut file = tokio::fs::File::open(path).await?;
                file.seek(io::SeekFrom::Start(from)).await?;
                let mut buffer = vec![0; CHUNK];
                loop {
                    match file.read(&mut buffer).await? {
                        0 => return Ok(()),
                        count => write(writer, &buffer[..count]).await?,
                    }
                }
            }
        }
    }
}

/// Reads the request, which is one line.
async fn read_request(reader: &mut (impl AsyncBufRead + Unpin)) -> io::Result<PeerRequest> {
    let mut line = Vec::new();
    reader.take(LINE).read_until(b'\n', &mut line).await?;
    Ok(serde_json::from_slice(&line)?)
}

async fn write_line(writer: &mut (impl AsyncWrite + Unpin), line: &PeerLine) -> io::Result<()> {
    let mut line = serde_json::to_vec(line)?;
    line.push(b'\n');
    write(writer, &line).await
}

async fn write(writer: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    let sent = async {
        writer.write_all(bytes).await?;
        writer.flush().await
    };
    timeout(STALLED, sent).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}
