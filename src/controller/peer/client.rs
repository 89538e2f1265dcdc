//! Asks another control node.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::time::timeout;

use super::{LINE, PeerAnswer, PeerError, PeerLine, PeerRequest, PeerVerb};
use crate::controller::core::{InstanceName, JobId};
use crate::controller::options::SharedOptions;
use crate::controller::store::Store;
use crate::rpc::Duplex;
use crate::wire::NodeId;
use crate::work::{Dialer, Registry};

/// Bytes that are read at a time.
const CHUNK: usize = 128 << 10;
/// How long the answer's line may take.
const LINE_WITHIN: Duration = Duration::from_secs(10);

/// The way to other control nodes.
pub struct PeerClient {
    pub(in crate::controller) node: InstanceName,
    pub(in crate::controller) store: Store,
    pub(in crate::controller) settings: SharedOptions,
    pub(in crate::controller) registry: Registry,
    pub(in crate::controller) dialer: Arc<dyn Dialer>,
}

impl std::fmt::Debug for PeerClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PeerClient")
    }
}

/// Bytes from another control node.
pub struct PeerStream(BufReader<Box<dyn Duplex>>);

impl std::fmt::Debug for PeerStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PeerStream")
    }
}

impl PeerStream {
    /// The next bytes, at most 128 KiB; `None` when all were sent. Dropping the future loses nothing.
    ///
    /// # Errors
    /// The connection ended too early.
    pub async fn next(&mut self) -> io::Result<Option<Bytes>> {
        let mut bytes = BytesMut::with_capacity(CHUNK);
        let count = self.0.read_buf(&mut bytes).await?;
        Ok((count > 0).then(|| bytes.freeze()))
    }
}

impl PeerClient {
    /// Asks a control node something about a job.
    ///
    /// # Errors
    /// The control node cannot be reached, or it refuses.
    pub async fn ask(
        &self,
        to: &InstanceName,
        verb: PeerVerb,
        job: JobId,
    ) -> Result<(PeerAnswer, PeerStream), PeerError> {
        let unreachable = |why: String| PeerError::Unreachable { node: to.clone(), why };
        let node = NodeId::new(to.as_str()).map_err(|error| unreachable(error.to_string()))?;
        let mut request = PeerRequest {
            node: self.node.to_string(),
            install: self.store.install_id().await?,
            job: job.0,
            verb,
            token: String::new(),
        };
        let signed = self.registry.sign_for_peer(&node, &job.to_string(), &request.bound());
        request.token = signed.map_err(|source| PeerError::Signing { node: to.clone(), source })?;
        let peers = self.settings.load().peers.clone();
        let dialed = self.dialer.dial(node, peers.service, peers.tls_client).await;
        let stream = dialed.map_err(|error| unreachable(error.to_string()))?.stream;
        let asked = timeout(LINE_WITHIN, exchange(stream, &request)).await;
        let asked = asked.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        match asked.map_err(|error| unreachable(error.to_string()))? {
            (PeerLine::Granted(answer), stream) => Ok((answer, PeerStream(stream))),
            (PeerLine::Refused { refused: why, missing }, _) => {
                let node = to.clone();
                Err(if missing { PeerError::Missing { node, why } } else { PeerError::Refused { node, why } })
            }
        }
    }
}

/// Sends a request and reads the line of its answer.
async fn exchange(
    stream: Box<dyn Duplex>,
    request: &PeerRequest,
) -> io::Result<(PeerLine, BufReader<Box<dyn Duplex>>)> {
    let mut stream = BufReader::new(stream);
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    stream.write_all(&line).await?;
    stream.flush().await?;
    let mut answer = Vec::new();
    (&mut stream).take(LINE).read_until(b'\n', &mut answer).await?;
    if answer.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok((serde_json::from_slice(&answer)?, stream))
}
