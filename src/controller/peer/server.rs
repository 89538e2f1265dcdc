//! Answers other control nodes. Who asks must be a registered control node of the same install, must be the node that the
//! stream comes from, and must show a token for exactly this request. Before that a stream has nothing of what control
//! nodes share; after it, no control node takes what others need.

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

/// Streams of one control node that are served at a time, and as many that follow the output of a job.
const MOST: usize = 256;
/// How long a request, and the look at who sends it, may take.
const ASKED_WITHIN: Duration = Duration::from_secs(5);
/// How long the other side may take none of what is sent, and for its last bytes.
const STALLED: Duration = Duration::from_secs(60);
const CHUNK: usize = 128 << 10;

/// Answers other control nodes. Clones share it.
#[derive(Debug, Clone)]
pub struct PeerServer {
    driver: Arc<JobDriver>,
    registry: Registry,
    served: Places<InstanceName>,
    /// A job may run for days: those that follow it do not keep others from payloads.
    followed: Places<InstanceName>,
}

/// A request of a control node that may ask.
pub struct Admitted {
    server: PeerServer,
    request: PeerRequest,
    reader: BufReader<ReadHalf<Box<dyn Duplex>>>,
    writer: WriteHalf<Box<dyn Duplex>>,
    _place: Share<InstanceName>,
}

impl std::fmt::Debug for Admitted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Admitted").field("node", &self.request.node).finish_non_exhaustive()
    }
}

/// Why a request gets nothing.
enum Denied {
    /// There is nothing of that job here.
    Missing(String),
    /// The one who asks may not, or it cannot be known now.
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

/// What is sent behind the answer's line.
enum Content {
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
    pub(super) fn new(driver: Arc<JobDriver>, registry: Registry) -> Self {
        Self { driver, registry, served: Places::new(MOST), followed: Places::new(MOST) }
    }

    /// Reads what a stream from that node asks for. Whoever may not ask is told so, and one stream too many ends without
    /// an answer: it is opened again later.
    pub async fn admit(&self, stream: Box<dyn Duplex>, from: NameHash) -> Option<Admitted> {
        timeout(ASKED_WITHIN, self.admit_late(stream, from)).await.ok().flatten()
    }

    async fn admit_late(&self, stream: Box<dyn Duplex>, from: NameHash) -> Option<Admitted> {
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
        Some(Admitted { server: self.clone(), request, reader, writer, _place: place })
    }

    /// Finds what a request asks for.
    async fn grant(&self, request: &PeerRequest) -> Result<(PeerAnswer, Content), Denied> {
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
                Ok((answer, Content::Output(Box::new(reader))))
            }
            PeerVerb::Payload { from } => {
                let path = self.unit(job, Kept::Payload).await?.payload();
                let found = tokio::fs::metadata(&path).await;
                let size = found.map_err(|error| Denied::Missing(error.to_string()))?.len();
                Ok((PeerAnswer { size, ..PeerAnswer::default() }, Content::File { path, from }))
            }
        }
    }

    /// Checks who asks, and names it.
    async fn check(&self, request: &PeerRequest, from: NameHash) -> Result<InstanceName, Denied> {
        let is_sender = NodeId::new(&request.node).is_ok_and(|node| node.hash() == from);
        if !is_sender {
            let why = "the request names another node than the one that it comes from";
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
            false => Err(Denied::Refused(format!("{name} is no registered control node"))),
        }
    }

    /// The unit here that has something of a job.
    async fn unit(&self, job: JobId, kept: Kept) -> Result<JobUnit, Denied> {
        let holders = self.driver.store.holders(job, kept).await?;
        let own = holders.into_iter().filter(|(node, _)| *node == self.driver.node);
        let found = own.map(|(_, unit)| unit).find_map(|unit| self.registry.job_unit(&unit));
        found.ok_or_else(|| Denied::Missing(format!("the {} of job {job} is not here", kept.name())))
    }
}

impl Admitted {
    /// Serves the stream to its end.
    pub async fn serve(self) {
        let Self { server, request, mut reader, mut writer, _place } = self;
        let (line, content) = match server.grant(&request).await {
            Ok((answer, content)) => (PeerLine::Granted(answer), content),
            Err(denied) => (denied.told(&request), Content::Nothing),
        };
        let send = async {
            write_line(&mut writer, &line).await?;
            content.send(&mut writer).await?;
            writer.shutdown().await
        };
        let mut byte = [0];
        tokio::select! {
            sent = send => match sent {
                // The other side closes once it has all of it.
                Ok(()) => drop(timeout(STALLED, reader.read(&mut byte)).await),
                Err(error) => tracing::debug!(node = request.node, job = request.job, %error, "a stream to a control node ends early"),
            },
            // It has left; it sends nothing after its line.
            _gone = reader.read(&mut byte) => {}
        }
    }
}

impl Denied {
    /// The line that says so. What is refused is logged.
    fn told(self, request: &PeerRequest) -> PeerLine {
        match self {
            Self::Missing(refused) => PeerLine::Refused { refused, missing: true },
            Self::Refused(refused) => {
                tracing::warn!(
                    node = request.node,
                    job = request.job,
                    why = refused,
                    "a control node is refused"
                );
                PeerLine::Refused { refused, missing: false }
            }
        }
    }
}

impl Content {
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

/// The request, which is one line.
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
