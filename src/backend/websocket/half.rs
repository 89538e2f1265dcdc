//! The two halves of a WebSocket session.
//!
//! They share the library's socket under a lock that is held for as long as a system call takes, never while
//! one of them waits. It owns batches, and which endings are orderly.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use futures_util::{SinkExt, StreamExt};
use parking_lot::Mutex;
use tokio_tungstenite::tungstenite::{Error, Message};
use tracing::error;

use super::upgrade::Socket;
use crate::backend::packet_pool::PacketPool;
use crate::backend::session::{TransportReader, TransportWriter};
use crate::backend::{MAX_BATCH_BYTES, MAX_BATCH_PACKETS, Reader, Session, SessionEnd, SessionInfo, Writer};
use crate::wire::MAX_MESSAGE;

type Shared = Arc<Mutex<Socket>>;

pub(super) fn session(socket: Socket, info: SessionInfo) -> Session {
    let socket = Arc::new(Mutex::new(socket));
    let reader = WsReader { socket: socket.clone(), pool: PacketPool::default(), end: None };
    let writer = WsWriter { socket };
    let (reader, writer) = (TransportReader::WebSocket(reader), TransportWriter::WebSocket(writer));
    Session { reader: Reader::new(reader), writer: Writer::new(writer), info }
}

/// The receiving half of a WebSocket session.
#[derive(Debug)]
pub(crate) struct WsReader {
    socket: Shared,
    pool: PacketPool,
    /// An end that was found behind packets, returned by the next call.
    end: Option<SessionEnd>,
}

impl WsReader {
    pub(in crate::backend) async fn read_batch(&mut self, out: &mut Vec<BytesMut>) -> Result<(), SessionEnd> {
        if let Some(end) = self.end.take() {
            return Err(end);
        }
        poll_fn(|cx| self.poll_batch(cx, out)).await
    }

    fn poll_batch(&mut self, cx: &mut Context<'_>, out: &mut Vec<BytesMut>) -> Poll<Result<(), SessionEnd>> {
        let mut socket = self.socket.lock();
        let (start, mut bytes) = (out.len(), 0);
        for _ in 0..MAX_BATCH_PACKETS {
            let end = match socket.poll_next_unpin(cx) {
                Poll::Pending if out.len() > start => return Poll::Ready(Ok(())),
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Ok(Message::Binary(packet)))) => {
                    bytes += packet.len();
                    out.push(self.pool.copy(&packet));
                    if bytes >= MAX_BATCH_BYTES {
                        return Poll::Ready(Ok(()));
                    }
                    continue;
                }
                // The library answers pings by itself.
                Poll::Ready(Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_)))) => continue,
                Poll::Ready(Some(Ok(Message::Text(_)))) => SessionEnd::Broken(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "the peer sends text, which is no packet",
                )),
                Poll::Ready(Some(Ok(Message::Close(_))) | None) => SessionEnd::Closed,
                Poll::Ready(Some(Err(error))) => end_of(error),
            };
            if out.len() > start {
                self.end = Some(end);
                return Poll::Ready(Ok(()));
            }
            return Poll::Ready(Err(end));
        }
        if out.len() > start {
            return Poll::Ready(Ok(()));
        }
        // Nothing but pings: others get their turn.
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

fn end_of(error: Error) -> SessionEnd {
    match error {
        Error::ConnectionClosed | Error::AlreadyClosed => SessionEnd::Closed,
        other => SessionEnd::Broken(broken(other)),
    }
}

fn broken(error: Error) -> io::Error {
    match error {
        Error::Io(error) => error,
        other => io::Error::new(io::ErrorKind::InvalidData, other.to_string()),
    }
}

/// The sending half of a WebSocket session.
#[derive(Debug)]
pub(crate) struct WsWriter {
    socket: Shared,
}

impl WsWriter {
    pub(in crate::backend) async fn write_batch(&mut self, batch: &mut VecDeque<Bytes>) -> io::Result<()> {
        poll_fn(|cx| self.poll_batch(cx, batch)).await.map_err(broken)
    }

    /// A packet that was taken out of the batch is in the library's buffer, which the next call flushes.
    fn poll_batch(&self, cx: &mut Context<'_>, batch: &mut VecDeque<Bytes>) -> Poll<Result<(), Error>> {
        let mut socket = self.socket.lock();
        while !batch.is_empty() {
            ready!(socket.poll_ready_unpin(cx))?;
            let Some(packet) = batch.pop_front() else { break };
            if packet.len() > MAX_MESSAGE {
                error!(len = packet.len(), limit = MAX_MESSAGE, "dropped a packet that no link can carry");
                continue;
            }
            socket.start_send_unpin(Message::Binary(packet))?;
        }
        socket.poll_flush_unpin(cx)
    }

    pub(in crate::backend) async fn close(self) -> io::Result<()> {
        poll_fn(|cx| self.socket.lock().poll_close_unpin(cx)).await.map_err(broken)?;
        // As in `framed`: what nobody reads any more is read here, up to the peer's own end.
        while Arc::strong_count(&self.socket) == 1 {
            match poll_fn(|cx| self.socket.lock().poll_next_unpin(cx)).await {
                Some(Ok(_waste)) => {}
                Some(Err(Error::ConnectionClosed | Error::AlreadyClosed)) | None => break,
                Some(Err(error)) => return Err(broken(error)),
            }
        }
        Ok(())
    }
}
