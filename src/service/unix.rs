//! Unix socket proxies: from a local socket into the mesh, and from a service of the mesh to a socket.
//!
//! Owns the Unix side. [`crate::os::unix_socket`] owns the socket's file and lock, `copy` carries the bytes, and
//! `accept` manages the connections.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::accept::{self, AcceptSource, Arrival, ServiceTarget};
use super::copy::LocalSocket;
use crate::node::NodeHandle;
use crate::os::unix_socket::{UnixBindError, UnixSocket};
use crate::stream::{StreamListenError, StreamListener, Streams};
use crate::tls::{ClientProfile, ServerProfile};
use crate::wire::{NodeId, ServiceName};

/// A local socket whose connections lead to a service of the mesh.
#[derive(Debug)]
pub(crate) struct UnixSocketServer {
    socket: UnixSocket,
    target: ServiceTarget,
}

impl UnixSocketServer {
    /// Binds the socket with file mode `mode`, and replaces a stale one. Needs a tokio runtime.
    ///
    /// # Errors
    /// If the socket cannot be bound.
    pub(crate) fn bind(
        path: &Path,
        mode: u32,
        streams: Streams,
        node: NodeId,
        service: ServiceName,
    ) -> Result<Self, UnixBindError> {
        let socket = UnixSocket::bind(path, mode)?;
        Ok(Self { socket, target: ServiceTarget { streams, node, service, tls: None } })
    }

    /// Sets the TLS profile of the service.
    #[must_use]
    pub(crate) fn with_tls(self, tls: Option<ClientProfile>) -> Self {
        Self { target: ServiceTarget { tls, ..self.target }, ..self }
    }

    /// Serves until `stop`; the socket's file is removed once this returns.
    pub(crate) async fn run(self, stop: CancellationToken) {
        accept::inward(self.socket, self.target, stop).await;
    }
}

/// A connection that, read again after its end, fails if nobody is left at the other side.
pub(super) struct UnixSide {
    socket: UnixStream,
    at_end: bool,
}

impl From<UnixStream> for UnixSide {
    fn from(socket: UnixStream) -> Self {
        Self { socket, at_end: false }
    }
}

impl LocalSocket for UnixSide {}

impl AsyncRead for UnixSide {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // An empty write fails if the peer is gone. Unix sockets have no keepalive that would notice.
        if self.at_end
            && let Err(error) = self.socket.try_write(&[])
            && error.kind() != io::ErrorKind::WouldBlock
        {
            return Poll::Ready(Err(error));
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.socket).poll_read(context, buffer))?;
        self.at_end = buffer.filled().len() == before;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for UnixSide {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

impl AcceptSource for UnixSocket {
    type Socket = UnixStream;
    type Side = UnixSide;

    async fn accept(&self) -> io::Result<Arrival<UnixStream>> {
        let (socket, peer) = Self::accept(self).await?;
        Ok((socket, peer, None))
    }

    fn open(&self, socket: UnixStream) -> impl Future<Output = io::Result<UnixSide>> + Send + 'static {
        std::future::ready(Ok(socket.into()))
    }
}

/// A service of the mesh, whose streams lead to a Unix socket.
#[derive(Debug)]
pub(crate) struct UnixSocketClient {
    node: NodeHandle,
    listener: StreamListener,
    path: PathBuf,
}

impl UnixSocketClient {
    /// Opens the service and advertises it, with TLS if a profile is given. Does not check whether anybody listens on
    /// the socket; each stream does.
    ///
    /// # Errors
    /// If the service cannot be opened.
    pub(crate) async fn listen(
        streams: &Streams,
        service: ServiceName,
        path: PathBuf,
        tls: Option<ServerProfile>,
    ) -> Result<Self, StreamListenError> {
        let filename = path.to_string_lossy().into_owned();
        info!(%service, filename, "proxy service open");
        let tags =
            BTreeMap::from([("type".to_owned(), "Unix Proxy".to_owned()), ("filename".to_owned(), filename)]);
        let listener = streams.listen_with(service, Some(tags), tls).await?;
        Ok(Self { node: streams.node().clone(), listener, path })
    }

    /// Serves until `stop`; the service is free again once this returns.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let path = self.path;
        let serve = |stream, stop| {
            let target = path.to_string_lossy().into_owned();
            let path = path.clone();
            let connect = async move { Ok(UnixSide::from(UnixStream::connect(path).await?)) };
            accept::join(connect, stream, target, stop)
        };
        accept::outward(&self.node, self.listener, accept::MOST, serve, stop).await;
    }
}
