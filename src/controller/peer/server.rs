//! Answers other control nodes. Who asks must be a registered control node of the same install, must be the node that the
//! stream comes from, and must show a token for exactly this request.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{
    AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader,
};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::{LINE, LINE_WITHIN, PeerAnswer, PeerLine, PeerRequest, PeerVerb};
use crate::controller::core::{InstanceName, JobId};
use crate::controller::driver::JobDriver;
use crate::controller::output::{OutputError, OutputReader};
use crate::controller::store::{Error, Kept};
use crate::rpc::Duplex;
use crate::wire::{NameHash, NodeId};
use crate::work::Registry;
use crate::work::jobs::JobUnit;

/// Streams that are served at a time, and as many that follow the output of a job.
const MOST: usize = 256;
/// How long the other side may take none of what is sent, and for its last bytes.
const STALLED: Duration = Duration::from_secs(60);
const CHUNK: usize = 128 << 10;

/// Answers other control nodes. Clones share it.
#[derive(Debug, Clone)]
pub struct PeerServer {
    driver: Arc<JobDriver>,
    registry: Registry,
    slots: Arc<Semaphore>,
    /// A job may run for days: those that follow it do not keep others from payloads and cancels.
    followed: Arc<Semaphore>,
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
        let slots = || Arc::new(Semaphore::new(MOST));
        Self { driver, registry, slots: slots(), followed: slots() }
    }

    /// Serves one stream from that node, to its end.
    pub async fn serve(&self, stream: Box<dyn Duplex>, from: NameHash) {
        // One stream too many ends without an answer, and is opened again later.
        let Ok(slot) = self.slots.try_acquire() else { return };
        let (reader, mut writer) = tokio::io::split(stream);
        let mut reader = BufReader::new(reader);
        let asked = timeout(LINE_WITHIN, read_request(&mut reader)).await;
        let Ok(Ok(request)) = asked else { return };
        let _slot = match request.verb {
            PeerVerb::Output(part) if part.follow => {
                let Ok(followed) = self.followed.try_acquire() else { return };
                drop(slot);
                followed
            }
            PeerVerb::Output(_) | PeerVerb::Payload { .. } | PeerVerb::Cancel => slot,
        };
        let (line, content) = match self.grant(&request, from).await {
            Ok((answer, content)) => (PeerLine::Granted(answer), content),
            Err(Denied::Missing(refused)) => (PeerLine::Refused { refused, missing: true }, Content::Nothing),
            Err(Denied::Refused(refused)) => {
                tracing::warn!(
                    node = request.node,
                    job = request.job,
                    why = refused,
                    "a control node is refused"
                );
                (PeerLine::Refused { refused, missing: false }, Content::Nothing)
            }
        };
        let send = async {
            let mut line = serde_json::to_vec(&line)?;
            line.push(b'\n');
            write(&mut writer, &line).await?;
            self.send(content, &mut writer).await?;
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

    /// Checks a request, and finds what it asks for.
    async fn grant(&self, request: &PeerRequest, from: NameHash) -> Result<(PeerAnswer, Content), Denied> {
        self.check(request, from).await?;
        let job = JobId(request.job);
        match request.verb {
            PeerVerb::Output(part) => {
                let reader = OutputReader::open(&self.driver, &self.registry, job, part).await?;
                let attempt = reader.unit().extra().output_attempt;
                Ok((PeerAnswer { size: reader.size(), attempt }, Content::Output(Box::new(reader))))
            }
            PeerVerb::Payload { from } => {
                let path = self.unit(job, Kept::Payload).await?.payload();
                let found = tokio::fs::metadata(&path).await;
                let size = found.map_err(|error| Denied::Missing(error.to_string()))?.len();
                Ok((PeerAnswer { size, ..PeerAnswer::default() }, Content::File { path, from }))
            }
            PeerVerb::Cancel => {
                self.driver.store.cancel(None, job).await?;
                self.driver.show(job).await?;
                self.driver.wake.notify_one();
                Ok((PeerAnswer::default(), Content::Nothing))
            }
        }
    }

    /// Checks who asks.
    async fn check(&self, request: &PeerRequest, from: NameHash) -> Result<(), Denied> {
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
            true => Ok(()),
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

    async fn send(&self, content: Content, writer: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        match content {
            Content::Nothing => Ok(()),
            Content::Output(mut reader) => {
                while let Some(bytes) = reader.next().await.map_err(io::Error::other)? {
                    write(writer, &bytes).await?;
                }
                Ok(())
            }
            Content::File { path, from } => {
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

async fn write(writer: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    let sent = async {
        writer.write_all(bytes).await?;
        writer.flush().await
    };
    timeout(STALLED, sent).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}
