//! One stream connection, as a plain byte stream with half-close.
//!
//! How a connection ends matters to receptor nodes: a close that overtakes data makes them lose what they
//! have not read yet. So only the dialer closes, when both sides have said all; the listener's side waits
//! for that, for a while.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use quinn::{Connection, RecvStream, SendStream, VarInt};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::socket::service_at;
use super::watch::Gone;
use crate::tls::Guard;
use crate::wire::{NameHash, ServiceName};

/// How a connection that has served its purpose is closed (contract section 5).
const NORMAL_CLOSE: (VarInt, &[u8]) = (VarInt::from_u32(0), b"normal close");
/// How a connection is closed whose certificate is no longer accepted.
const REVOKED: (VarInt, &[u8]) = (VarInt::from_u32(501), b"certificate no longer accepted");
/// How a connection is closed that cannot serve its purpose.
const ABORTED: VarInt = VarInt::from_u32(500);
/// How a read that nobody waits for any more is cancelled (contract section 5).
const READ_CANCELLED: VarInt = VarInt::from_u32(499);
/// How long the end of a connection is waited for.
const LINGER: Duration = Duration::from_secs(30);

/// Which end of the connection this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Dialer,
    Listener,
}

/// A byte stream to a service on another node. Shutting it down ends the direction of writing only;
/// dropping it ends both in good order.
#[derive(Debug)]
pub struct MeshStream {
    connection: Connection,
    side: Side,
    /// Taken when the stream is dropped.
    halves: Option<(SendStream, RecvStream)>,
    /// Keeps the watch on the far end alive.
    _gone: Gone,
}

impl MeshStream {
    pub(super) fn new(
        connection: Connection,
        side: Side,
        halves: (SendStream, RecvStream),
        gone: Gone,
        guard: Option<Guard>,
    ) -> Self {
        tokio::spawn(end_when_gone(connection.clone(), gone.clone(), guard));
        Self { connection, side, halves: Some(halves), _gone: gone }
    }

    /// Where the other end is: the hash of its node and its service.
    pub fn remote(&self) -> Option<(NameHash, ServiceName)> {
        service_at(self.connection.remote_address())
    }

    /// Ready once the connection is no more, for whatever reason. Does not borrow the stream.
    pub fn closed(&self) -> impl Future<Output = ()> + Send + use<> {
        let connection = self.connection.clone();
        async move {
            let _cause = connection.closed().await;
        }
    }

    /// Ends the connection at once, so that the other side does not take it for complete. What it has not
    /// received yet is lost.
    pub fn abort(mut self, reason: &str) {
        self.halves = None;
        self.connection.close(ABORTED, reason.as_bytes());
    }

    fn halves(&mut self) -> io::Result<&mut (SendStream, RecvStream)> {
        self.halves.as_mut().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

/// Ends a connection when its far end is known not to be there, or its certificate is no longer accepted.
async fn end_when_gone(connection: Connection, gone: Gone, guard: Option<Guard>) {
    let cut = async {
        match &guard {
            Some(guard) => guard.cut().cancelled().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = cut => connection.close(REVOKED.0, REVOKED.1),
        _ended = connection.closed() => {}
        () = gone.unknown.cancelled() => connection.close(NORMAL_CLOSE.0, b"service unknown"),
        () = gone.restarted.cancelled() => connection.close(NORMAL_CLOSE.0, b"node restarted"),
    }
}

impl AsyncRead for MeshStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let (_, recv) = self.halves()?;
        AsyncRead::poll_read(Pin::new(recv), cx, buf)
    }
}

impl AsyncWrite for MeshStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let (send, _) = self.halves()?;
        AsyncWrite::poll_write(Pin::new(send), cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let (send, _) = self.halves()?;
        // Ended twice, or stopped by the peer: either way nothing more is written.
        let _already = send.finish();
        Poll::Ready(Ok(()))
    }
}

impl Drop for MeshStream {
    fn drop(&mut self) {
        let Some((send, recv)) = self.halves.take() else { return };
        let (connection, side) = (self.connection.clone(), self.side);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(end(connection, side, send, recv));
        } else {
            connection.close(NORMAL_CLOSE.0, NORMAL_CLOSE.1);
        }
    }
}

/// Ends a connection in good order: what was written arrives, what nobody will read is refused.
async fn end(connection: Connection, side: Side, mut send: SendStream, mut recv: RecvStream) {
    let _already = send.finish();
    let _ended = recv.stop(READ_CANCELLED);
    let said_all = async {
        let _acknowledged = send.stopped().await;
        if side == Side::Listener {
            connection.closed().await;
        }
    };
    tokio::select! {
        _ended = connection.closed() => {}
        () = said_all => {}
        () = tokio::time::sleep(LINGER) => {}
    }
    connection.close(NORMAL_CLOSE.0, NORMAL_CLOSE.1);
}
