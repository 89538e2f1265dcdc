//! How much a link carries each way, measured with an ordinary stream between two neighbours, whose bytes are
//! discarded.
//!
//! Owns the service that answers, the protocol of its streams (docs/protocol.md#link-tests), and the rule that a node
//! takes part in one test at a time, at either end. It does not know who may ask for a test, nor what else is measured
//! meanwhile. The stream takes turns with all others, so on a busy link the result is its fair share.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::node::NodeHandle;
use crate::os::coop::ByteBudget;
use crate::stream::{DialError, MeshStream, StreamListenError, StreamListener, Streams};
use crate::wire::{NameHash, NodeId, ServiceName};

/// The service that answers tests. No user's service has this name, because it begins with a control character.
const SERVICE: ServiceName = ServiceName::from_wire(*b"\x01linktst");

/// Bytes read or written at a time.
const BUFFER: usize = 64 << 10;
/// The longest line of either end.
const LINE: u64 = 1024;
/// How long each way may take beyond twice the test's time, because bytes under way still have to arrive.
const ARRIVAL_WITHIN: Duration = Duration::from_secs(30);
/// The shortest time for which a rate is computed.
const SHORTEST: Duration = Duration::from_millis(1);

/// How much is sent each way. Sending ends when either limit is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TestSize {
    /// The longest time.
    pub seconds: u64,
    /// The most bytes.
    pub bytes: u64,
}

impl TestSize {
    const LARGEST: Self = Self { seconds: 60, bytes: 1_000_000_000 };

    /// The size, reduced to the largest test that this node takes part in.
    fn bounded(self) -> Self {
        Self { seconds: self.seconds.min(Self::LARGEST.seconds), bytes: self.bytes.min(Self::LARGEST.bytes) }
    }

    /// How long one way may take.
    fn patience(self) -> Duration {
        Duration::from_secs(2 * self.seconds) + ARRIVAL_WITHIN
    }
}

/// The bytes that arrived one way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Carried {
    /// The number of bytes.
    pub bytes: u64,
    /// Nanoseconds from the first byte to the last.
    pub nanos: u64,
}

/// The bytes that arrived each way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BothWays {
    /// What arrived at the neighbour.
    pub out: Carried,
    /// What arrived at this node.
    pub back: Carried,
}

/// The answer to a tester's request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Consent {
    Go,
    /// This node takes part in another test.
    Busy,
    /// This node has no link with the tester.
    NoNeighbour,
}

/// Why a test has no result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkTestError {
    #[error("this node takes part in another link test: try again once it has ended")]
    Busy,
    #[error("{0} takes part in another link test: try again once it has ended")]
    BusyThere(NodeId),
    #[error("{0} does not have this node as a neighbour: see meshctl status there")]
    NoNeighbour(NodeId),
    #[error("{0} runs a version that does not answer link tests")]
    NotThere(NodeId),
    #[error(transparent)]
    Dial(DialError),
    #[error("the link test with {0} broke off: {1}")]
    Broken(NodeId, io::Error),
}

/// The link tests of one node. Clones share their state.
#[derive(Clone)]
pub(crate) struct LinkTests {
    streams: Streams,
    turn: Arc<Semaphore>,
}

impl LinkTests {
    /// Answers the tests of neighbours from now on, until `stop`.
    ///
    /// # Errors
    /// If the service cannot be opened, because the node has stopped.
    pub(crate) async fn start(streams: Streams, stop: CancellationToken) -> Result<Self, StreamListenError> {
        let listener = streams.listen(SERVICE, None).await?;
        let tests = Self { streams, turn: Arc::new(Semaphore::new(1)) };
        let serving = tests.clone();
        tokio::spawn(async move { stop.run_until_cancelled(serving.serve_all(listener)).await });
        Ok(tests)
    }

    /// Measures how much the link with `node` carries. Dropping the future ends the test.
    pub(crate) async fn run(&self, node: &NodeId, size: TestSize) -> Result<BothWays, LinkTestError> {
        let _turn = self.turn().ok_or(LinkTestError::Busy)?;
        let stream = self.streams.dial(node, SERVICE).await.map_err(|error| match error {
            DialError::ServiceUnknown { node, .. } => LinkTestError::NotThere(node),
            error => LinkTestError::Dial(error),
        })?;
        let broken = |error| LinkTestError::Broken(node.clone(), error);
        let mut stream = BufReader::new(stream);
        match within(ARRIVAL_WITHIN, ask(&mut stream, size)).await.map_err(broken)? {
            Consent::Go => {}
            Consent::Busy => return Err(LinkTestError::BusyThere(node.clone())),
            Consent::NoNeighbour => return Err(LinkTestError::NoNeighbour(node.clone())),
        }
        let out = within(size.patience(), async {
            pour(&mut stream, size).await?;
            read_line(&mut stream).await
        });
        let out = out.await.map_err(broken)?;
        let back = within(size.patience(), drain(&mut stream, size.bytes)).await.map_err(broken)?;
        Ok(BothWays { out, back })
    }

    fn turn(&self) -> Option<OwnedSemaphorePermit> {
        self.turn.clone().try_acquire_owned().ok()
    }

    /// Answers testers until the node stops. During a test, another tester is told that this node is busy.
    async fn serve_all(self, mut listener: StreamListener) {
        while let Some(stream) = listener.accept().await {
            let tests = self.clone();
            tokio::spawn(async move {
                if let Err(error) =
                    within(ARRIVAL_WITHIN + 2 * TestSize::LARGEST.patience(), tests.serve(stream)).await
                {
                    debug!(%error, "a neighbour's link test broke off");
                }
            });
        }
        warn!("this node has stopped answering link tests");
    }

    async fn serve(&self, stream: MeshStream) -> io::Result<()> {
        let tester = stream.remote().map(|(node, _service)| node);
        let mut stream = BufReader::new(stream);
        let size: TestSize = within(ARRIVAL_WITHIN, read_line(&mut stream)).await?;
        let size = size.bounded();
        let (turn, consent) = match (has_link(self.streams.node(), tester).await, self.turn()) {
            (false, _) => (None, Consent::NoNeighbour),
            (true, None) => (None, Consent::Busy),
            (true, Some(turn)) => (Some(turn), Consent::Go),
        };
        write_line(&mut stream, &consent).await?;
        if turn.is_none() {
            return stream.shutdown().await;
        }
        let arrived = drain(&mut stream, size.bytes).await?;
        write_line(&mut stream, &arrived).await?;
        pour(&mut stream, size).await
    }
}

async fn has_link(node: &NodeHandle, with: Option<NameHash>) -> bool {
    node.links().await.iter().any(|link| Some(link.node_id.hash()) == with)
}

async fn within<T>(limit: Duration, done: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(limit, done).await.unwrap_or_else(|_elapsed| Err(io::ErrorKind::TimedOut.into()))
}

async fn ask(stream: &mut BufReader<MeshStream>, size: TestSize) -> io::Result<Consent> {
    write_line(stream, &size).await?;
    read_line(stream).await
}

async fn write_line(to: &mut (impl AsyncWrite + Unpin), line: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(line)?;
    line.push(b'\n');
    to.write_all(&line).await?;
    to.flush().await
}

async fn read_line<T: DeserializeOwned>(from: &mut (impl AsyncBufReadExt + Unpin)) -> io::Result<T> {
    let mut line = Vec::new();
    from.take(LINE).read_until(b'\n', &mut line).await?;
    Ok(serde_json::from_slice(&line)?)
}

/// Sends bytes until `size` is reached, then ends the stream.
async fn pour(to: &mut (impl AsyncWrite + Unpin), size: TestSize) -> io::Result<()> {
    let end = Instant::now() + Duration::from_secs(size.seconds);
    let (bytes, mut left, mut budget) = (vec![0; BUFFER], size.bytes, ByteBudget::default());
    while left > 0 && Instant::now() < end {
        let count = usize::try_from(left).unwrap_or(BUFFER).min(BUFFER);
        // All bytes are the same, so a piece that was sent in part needs no care.
        let Ok(written) = timeout_at(end, to.write(&bytes[..count])).await else { break };
        let written = written?;
        left -= written as u64;
        budget.spend(written).await;
    }
    to.shutdown().await
}

/// Reads bytes to their end; fails if there are more than `most`.
async fn drain(from: &mut (impl AsyncRead + Unpin), most: u64) -> io::Result<Carried> {
    let (mut buffer, mut budget) = (vec![0; BUFFER], ByteBudget::default());
    let (mut bytes, mut span) = (0, None);
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 {
            break;
        }
        bytes += read as u64;
        if bytes > most {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "more bytes than agreed"));
        }
        let now = Instant::now();
        span = Some((span.map_or(now, |(first, _last)| first), now));
        budget.spend(read).await;
    }
    let time = span.map_or(SHORTEST, |(first, last): (Instant, Instant)| (last - first).max(SHORTEST));
    Ok(Carried { bytes, nanos: u64::try_from(time.as_nanos()).unwrap_or(u64::MAX) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The link carries 1 MB/s, in pieces of up to 50,000 bytes that are delayed by as long as they take.
    #[tokio::test(start_paused = true)]
    async fn the_rate_is_that_at_which_bytes_arrive() {
        let (mut near, mut far) = tokio::io::duplex(50_000);
        let size = TestSize { seconds: 2, bytes: u64::MAX };
        let sending = tokio::spawn(async move { pour(&mut near, size).await });
        let (mut slow, to) = tokio::io::duplex(1 << 20);
        let pipe = tokio::spawn(async move {
            let (mut step, mut to) = (vec![0; 50_000], to);
            while let Ok(count @ 1..) = far.read(&mut step).await {
                tokio::time::sleep(Duration::from_micros(count as u64)).await;
                to.write_all(&step[..count]).await.unwrap();
            }
        });
        let carried = drain(&mut slow, u64::MAX).await.unwrap();
        sending.await.unwrap().unwrap();
        pipe.await.unwrap();
        let rate = carried.bytes as f64 / Duration::from_nanos(carried.nanos).as_secs_f64();
        assert!((0.95e6..1.06e6).contains(&rate), "{carried:?}");
        assert!((1_900_000..2_200_000).contains(&carried.bytes), "{carried:?}");
    }

    #[tokio::test]
    async fn no_more_is_sent_or_taken_than_was_agreed_on() {
        let (mut near, mut far) = tokio::io::duplex(1 << 20);
        let size = TestSize { seconds: u64::MAX >> 40, bytes: 100_001 };
        pour(&mut near, size).await.unwrap();
        assert_eq!(drain(&mut far, 100_001).await.unwrap().bytes, 100_001);
        let (mut near, mut far) = tokio::io::duplex(1 << 20);
        pour(&mut near, size).await.unwrap();
        assert!(drain(&mut far, 100_000).await.is_err());
        let asked = TestSize { seconds: u64::MAX, bytes: u64::MAX };
        assert_eq!(asked.bounded(), TestSize::LARGEST);
    }
}
