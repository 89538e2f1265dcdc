//! One stream connection, as a plain byte stream with half-close.
//!
//! How a connection ends matters to receptor nodes: a close that overtakes data makes them lose what they
//! have not read yet. So only the dialer closes, when both sides have said all; the listener's side waits
//! for that, for a while.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use quinn::{Connection, RecvStream, SendStream, StoppedError, VarInt, WriteError};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::sleep;

use super::far_end::Gone;
use super::mux::{Lease, Peer};
use super::socket::service_at;
use super::windows::Windows;
use crate::tls::Guard;
use crate::wire::{NameHash, ServiceName};

/// How a connection that has served its purpose is closed (docs/protocol.md#stream-closing).
const NORMAL_CLOSE: (VarInt, &[u8]) = (VarInt::from_u32(0), b"normal close");
/// How a connection is closed whose certificate is no longer accepted.
const REVOKED: (VarInt, &[u8]) = (VarInt::from_u32(501), b"certificate no longer accepted");
/// How a connection is closed that cannot serve its purpose.
const ABORTED: VarInt = VarInt::from_u32(500);
/// How a read that nobody waits for any more is cancelled (docs/protocol.md#stream-closing).
const READ_CANCELLED: VarInt = VarInt::from_u32(499);
/// How long a far end that is said to have started again may take, beside its round trips, to answer.
const SIGN_OF_LIFE: Duration = Duration::from_secs(1);
/// How often it is asked: what its former life has sent may still be on its way.
const QUESTIONS: usize = 3;
/// How long the end of a connection is waited for once nothing moves on it any more.
const LINGER: Duration = Duration::from_secs(30);

/// How often it is looked at within that time.
const LOOKS: u32 = 6;
/// Acknowledgements that come within that time though nothing moves: what keeps a connection alive has some, too.
const IDLE_ACKS: u64 = 4;

/// Which end of the connection this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Dialer,
    Listener,
}

/// A byte stream to a service on another node. Shutting it down ends the direction of writing only;
/// dropping it ends both: in good order, or, if it is strict and was not shut down, so that the other side
/// cannot take what it has for all.
#[derive(Debug)]
pub struct MeshStream {
    connection: Connection,
    side: Side,
    /// Taken when the stream is dropped.
    halves: Option<(SendStream, RecvStream)>,
    windows: Arc<Windows>,
    /// Keeps the watch on the far end alive.
    _gone: Option<Gone>,
    /// The place on a connection that has other streams too, which is then not this one's to close.
    lease: Option<Lease>,
    /// Whether anything has come.
    heard: bool,
    /// Given up, not ended, when it is dropped before it was shut down.
    strict: bool,
    shut: bool,
    /// A verified certificate names the node at the other end.
    certified: bool,
    /// There once a writer has had to wait.
    refusal: Option<Refusal>,
}

/// Ready when the peer reads no more, or has everything.
struct Refusal(Pin<Box<dyn Future<Output = Result<Option<VarInt>, StoppedError>> + Send + Sync>>);

impl std::fmt::Debug for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Refusal")
    }
}

impl MeshStream {
    pub(super) fn new(
        connection: Connection,
        side: Side,
        halves: (SendStream, RecvStream),
        gone: Gone,
        windows: Arc<Windows>,
        guard: Option<Guard>,
    ) -> Self {
        tokio::spawn(end_when_gone(connection.clone(), gone.clone(), windows.clone(), guard));
        Self::of(connection, side, halves, Some(gone), windows, None)
    }

    /// Makes it strict, as streams that share a connection are.
    pub(super) fn strict(mut self) -> Self {
        self.strict = true;
        self
    }

    /// Notes whether a verified certificate names the node at the other end.
    pub(super) fn certified(mut self, certified: bool) -> Self {
        self.certified = certified;
        self
    }

    /// Whether a certificate that this end demanded and verified names the node that [`Self::remote`] tells of.
    pub fn is_certified(&self) -> bool {
        self.certified
    }

    /// What is at the other end.
    pub fn peer(&self) -> Peer {
        Peer::of(&self.connection)
    }

    /// Whether the other end is one of our own nodes, as far as that is known.
    pub fn leads_to_our_own(&self) -> bool {
        self.lease.is_some()
    }

    /// One stream of several on a connection, which somebody else watches over.
    pub(super) fn shared(
        connection: Connection,
        side: Side,
        halves: (SendStream, RecvStream),
        gone: Option<Gone>,
        windows: Arc<Windows>,
        lease: Lease,
    ) -> Self {
        Self::of(connection, side, halves, gone, windows, Some(lease))
    }

    fn of(
        connection: Connection,
        side: Side,
        halves: (SendStream, RecvStream),
        _gone: Option<Gone>,
        windows: Arc<Windows>,
        lease: Option<Lease>,
    ) -> Self {
        let (halves, strict) = (Some(halves), lease.is_some());
        let (heard, shut, certified, refusal) = (false, false, false, None);
        Self { connection, side, halves, windows, _gone, lease, heard, strict, shut, certified, refusal }
    }

    /// Where the other end is: the hash of its node and its service.
    pub fn remote(&self) -> Option<(NameHash, ServiceName)> {
        service_at(self.connection.remote_address())
    }

    /// Ready once the connection is no more, for whatever reason, or nobody at the other end reads this stream of
    /// it. Does not borrow the stream.
    pub fn closed(&self) -> impl Future<Output = ()> + Send + use<> {
        let connection = self.connection.clone();
        let stopped = self.halves.as_ref().filter(|_| self.lease.is_some()).map(|(send, _)| send.stopped());
        async move {
            let refused = async {
                let told = match stopped {
                    Some(stopped) => stopped.await,
                    None => std::future::pending().await,
                };
                // Everything has arrived, or the connection says the rest.
                if !matches!(told, Ok(Some(_))) {
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                _cause = connection.closed() => {}
                () = refused => {}
            }
        }
    }

    /// Ends the connection at once, so that the other side does not take it for complete. What it has not
    /// received yet is lost.
    pub fn abort(mut self, reason: &str) {
        let halves = self.halves.take();
        match (&self.lease, halves) {
            (None, _) => self.connection.close(ABORTED, reason.as_bytes()),
            (Some(_), Some((mut send, mut recv))) => {
                let _already = send.reset(ABORTED);
                let _ended = recv.stop(ABORTED);
            }
            (Some(_), None) => {}
        }
    }

    fn halves(&mut self) -> io::Result<&mut (SendStream, RecvStream)> {
        self.halves.as_mut().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

/// Closes a connection that has served its purpose.
pub(super) fn close(connection: &Connection) {
    connection.close(NORMAL_CLOSE.0, NORMAL_CLOSE.1);
}

/// Ends a connection when its far end is known not to be there, or its certificate is no longer accepted. Returns when
/// it has ended, for whatever reason.
pub(super) async fn end_when_gone(
    connection: Connection,
    gone: Gone,
    windows: Arc<Windows>,
    guard: Option<Guard>,
) {
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
        () = outlived(&connection, &gone, &windows) => connection.close(NORMAL_CLOSE.0, b"node restarted"),
    }
}

/// Ends when the far end is said to have started again, and does not answer any more. Word of a restart is a routing
/// update, which any node can make up, and which the new life's first packets may overtake: it proves nothing.
async fn outlived(connection: &Connection, gone: &Gone, windows: &Windows) {
    let mut restarts = gone.restarts();
    // The sender lives in `gone`.
    while restarts.changed().await.is_ok() {
        for _ in 0..QUESTIONS {
            let heard = || connection.stats().udp_rx.datagrams;
            let before = heard();
            windows.ask(connection);
            sleep(SIGN_OF_LIFE + connection.rtt() * 4).await;
            if heard() == before {
                return;
            }
        }
    }
}

impl AsyncRead for MeshStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let (_, recv) = self.halves()?;
        let read = AsyncRead::poll_read(Pin::new(recv), cx, buf);
        let bytes = buf.filled().len() - before;
        if bytes > 0 {
            self.heard = true;
            self.windows.read(&self.connection, bytes);
        }
        read
    }
}

impl AsyncWrite for MeshStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let Self { connection, halves: Some((send, _)), windows, refusal, .. } = &mut *self else {
            return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
        };
        let written = AsyncWrite::poll_write(Pin::new(send), cx, buf);
        if let Poll::Ready(Ok(bytes)) = written {
            windows.wrote(connection, bytes);
        }
        if written.is_ready() {
            return written;
        }
        // A writer that waits for room on the connection is not told by quinn that its stream is refused meanwhile, and
        // afterwards, as its stream has no room either, not of new room: it would wait for as long as the connection
        // lives.
        let refused = refusal.get_or_insert_with(|| Refusal(Box::pin(send.stopped())));
        let told = std::task::ready!(refused.0.as_mut().poll(cx));
        *refusal = None;
        match told {
            Ok(Some(code)) => Poll::Ready(Err(WriteError::Stopped(code).into())),
            // The write itself says the rest, and wakes whoever waits.
            Ok(None) | Err(_) => Poll::Pending,
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let (send, _) = self.halves()?;
        // Ended twice, or stopped by the peer: either way nothing more is written.
        let _already = send.finish();
        self.shut = true;
        Poll::Ready(Ok(()))
    }
}

impl Drop for MeshStream {
    fn drop(&mut self) {
        let Some((mut send, recv)) = self.halves.take() else { return };
        let given_up = self.strict && !self.shut;
        if given_up {
            let _already = send.reset(ABORTED);
        }
        let (connection, side) = (self.connection.clone(), self.side);
        match (tokio::runtime::Handle::try_current(), self.lease.take()) {
            (Ok(runtime), Some(lease)) => {
                if side == Side::Dialer && !self.heard {
                    lease.retire_connection();
                }
                match given_up {
                    // Nothing of it has to arrive any more; whether the reset does, nobody tells.
                    true => drop((lease, stop(recv))),
                    false => drop(runtime.spawn(end_shared(connection, send, recv, lease))),
                }
            }
            (Ok(_), None) if given_up => connection.close(ABORTED, b"given up"),
            (Ok(runtime), None) => drop(runtime.spawn(end(connection, side, send, recv))),
            (Err(_), _) => close(&connection),
        }
    }
}

/// Nobody will read what still comes.
fn stop(mut recv: RecvStream) {
    let _ended = recv.stop(READ_CANCELLED);
}

/// Ready once nothing has moved on a connection for [`LINGER`]. Megabytes may wait here for a slow link, and as long
/// as it takes some of them they are not lost; a peer that has died is found out by its silence.
async fn stands_still(connection: &Connection) {
    let (mut last, mut still) = (movement(connection), 0);
    while still < LOOKS {
        sleep(LINGER / LOOKS).await;
        let now = movement(connection);
        if now.0 == last.0 && now.1 <= last.1 + IDLE_ACKS {
            still += 1;
        } else {
            (last, still) = (now, 0);
        }
    }
}

/// How much was sent on streams and how often anything was acknowledged, in frames.
fn movement(connection: &Connection) -> (u64, u64) {
    let stats = connection.stats();
    (stats.frame_tx.stream, stats.frame_rx.acks)
}

/// Ends a connection in good order: what was written arrives, what nobody will read is refused.
async fn end(connection: Connection, side: Side, mut send: SendStream, recv: RecvStream) {
    let _already = send.finish();
    stop(recv);
    let said_all = async {
        let _acknowledged = send.stopped().await;
        if side == Side::Listener {
            connection.closed().await;
        }
    };
    tokio::select! {
        _ended = connection.closed() => {}
        () = said_all => {}
        () = stands_still(&connection) => {}
    }
    close(&connection);
}

/// The same for one stream of several: its place is free once what was written has arrived.
async fn end_shared(connection: Connection, mut send: SendStream, recv: RecvStream, lease: Lease) {
    let _already = send.finish();
    stop(recv);
    tokio::select! {
        _ended = connection.closed() => {}
        _acknowledged = send.stopped() => {}
        () = stands_still(&connection) => {}
    }
    drop(lease);
}
