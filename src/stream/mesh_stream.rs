//! A byte stream to a service on another node, with half-close.
//!
//! Owns reading and writing. How a stream ends depends on its connection, which is its own ([`Exclusive`]) or shared
//! with other streams ([`Shared`]). Refuses to know what a stream carries.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use quinn::{Connection, RecvStream, SendStream, StoppedError, VarInt, WriteError};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::connection::Exclusive;
use super::mux::Shared;
use super::socket::service_at;
use super::tls::Peer;
use super::windows::{Turn, Windows};
use crate::wire::{NameHash, ServiceName};

/// A byte stream to a service on another node. Shutting it down ends only the direction of writing; dropping it ends
/// both. If a stream of [`Streams::dial_shared`](super::Streams::dial_shared) is dropped without a shutdown, it does
/// not look complete to the other end; any other stream does.
#[derive(Debug)]
pub struct MeshStream {
    connection: Connection,
    windows: Arc<Windows>,
    turn: Turn,
    certified: bool,
    /// Taken when the stream ends.
    open: Option<(Halves, Carrier)>,
}

/// The connection below a stream.
#[derive(Debug)]
pub(super) enum Carrier {
    Exclusive(Exclusive),
    Shared(Shared),
}

/// Both directions of a stream, and what has happened on them.
#[derive(Debug)]
pub(super) struct Halves {
    pub(super) send: SendStream,
    pub(super) recv: RecvStream,
    /// Whether the stream was shut down.
    pub(super) shut: bool,
    /// Whether any byte was received.
    pub(super) heard: bool,
    /// Set while a writer waits.
    refusal: Option<PeerStopped>,
}

/// Ready when the peer reads no more, or has received everything.
struct PeerStopped(Pin<Box<dyn Future<Output = Result<Option<VarInt>, StoppedError>> + Send + Sync>>);

impl std::fmt::Debug for PeerStopped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Refusal")
    }
}

impl MeshStream {
    pub(super) fn new(
        connection: Connection,
        windows: Arc<Windows>,
        (send, recv): (SendStream, RecvStream),
        carrier: Carrier,
    ) -> Self {
        let halves = Halves { send, recv, shut: false, heard: false, refusal: None };
        Self { connection, windows, turn: Turn::default(), certified: false, open: Some((halves, carrier)) }
    }

    /// Sets whether a verified certificate names the node at the other end.
    pub(super) fn certified(mut self, certified: bool) -> Self {
        self.certified = certified;
        self
    }

    /// Whether a certificate that this end demanded and verified names the node of [`Self::remote`].
    pub fn is_certified(&self) -> bool {
        self.certified
    }

    /// The kind of node at the other end.
    pub fn peer(&self) -> Peer {
        Peer::of(&self.connection)
    }

    /// Whether the other end is known to be one of our own nodes.
    pub fn leads_to_our_own(&self) -> bool {
        self.peer().shares()
    }

    /// The other end: the hash of its node, and its service.
    pub fn remote(&self) -> Option<(NameHash, ServiceName)> {
        service_at(self.connection.remote_address())
    }

    /// Ready once the connection has ended, for whatever reason, or, on a shared connection, the other end has stopped
    /// reading this stream. Does not borrow the stream.
    pub fn closed(&self) -> impl Future<Output = ()> + Send + use<> {
        let connection = self.connection.clone();
        let stopped = match &self.open {
            Some((halves, Carrier::Shared(_))) => Some(halves.send.stopped()),
            Some((_, Carrier::Exclusive(_))) | None => None,
        };
        async move {
            if let Some(stopped) = stopped {
                tokio::select! {
                    _cause = connection.closed() => return,
                    // In any other case everything has arrived, or the connection has ended.
                    stopped = stopped => if matches!(stopped, Ok(Some(_))) { return },
                }
            }
            connection.closed().await;
        }
    }

    /// Ends the stream at once, so that it does not look complete to the other side. Bytes that have not arrived yet
    /// are lost.
    pub fn abort(mut self, reason: &str) {
        match self.open.take() {
            Some((_, Carrier::Exclusive(exclusive))) => exclusive.abort(&self.connection, reason),
            Some((halves, Carrier::Shared(shared))) => shared.abort(halves),
            None => {}
        }
    }

    fn halves(&mut self) -> io::Result<&mut Halves> {
        self.open.as_mut().map(|(halves, _)| halves).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl AsyncRead for MeshStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let halves = self.halves()?;
        let read = AsyncRead::poll_read(Pin::new(&mut halves.recv), cx, buf);
        let bytes = buf.filled().len() - before;
        if bytes > 0 {
            halves.heard = true;
            self.windows.read(&self.connection, bytes);
        }
        read
    }
}

impl AsyncWrite for MeshStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let Self { connection, windows, turn, open, .. } = &mut *self;
        let Some((Halves { send, refusal, .. }, _)) = open else {
            return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
        };
        if windows.yields(turn) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let written = AsyncWrite::poll_write(Pin::new(&mut *send), cx, buf);
        if written.is_pending() {
            windows.blocked(connection, turn);
            // A writer that waits for room on the connection is not woken by quinn when the peer stops its stream, nor
            // later when there is room. It would wait until the connection ends.
            let stopped = refusal.get_or_insert_with(|| PeerStopped(Box::pin(send.stopped())));
            let stopped = ready!(stopped.0.as_mut().poll(cx));
            *refusal = None;
            return match stopped {
                Ok(Some(code)) => Poll::Ready(Err(WriteError::Stopped(code).into())),
                // `poll_write` above has registered the waker.
                Ok(None) | Err(_) => Poll::Pending,
            };
        }
        if let Poll::Ready(Ok(bytes)) = written {
            windows.wrote(turn, bytes);
        }
        written
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let halves = self.halves()?;
        // Fails if the stream was ended before or stopped by the peer: nothing more is written in either case.
        let _already = halves.send.finish();
        halves.shut = true;
        Poll::Ready(Ok(()))
    }
}

impl Drop for MeshStream {
    fn drop(&mut self) {
        self.windows.wrote(&mut self.turn, 0);
        let connection = self.connection.clone();
        match self.open.take() {
            Some((halves, Carrier::Exclusive(exclusive))) => exclusive.end(connection, halves),
            Some((halves, Carrier::Shared(shared))) => shared.end(connection, halves),
            None => {}
        }
    }
}
