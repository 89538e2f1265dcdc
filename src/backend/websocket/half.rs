//! The two halves of a WebSocket session.
//!
//! Both share the library's socket under a lock that is held only for a system call, never while a half waits. This
//! file owns batches, and which endings are orderly.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use futures_util::{SinkExt, StreamExt};
use parking_lot::Mutex;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::{Error, Message};
use tracing::error;

use crate::backend::packet_pool::PacketPool;
use crate::backend::tls::Io;
use crate::backend::{MAX_BATCH_BYTES, MAX_BATCH_PACKETS, SessionEnd};
use crate::wire::MAX_MESSAGE;

pub(super) type Socket = WebSocketStream<Io>;
type SharedSocket = Arc<Mutex<Socket>>;

pub(super) fn halves(socket: Socket) -> (WsReader, WsWriter) {
    let socket = Arc::new(Mutex::new(socket));
    let reader = WsReader { socket: socket.clone(), pool: PacketPool::default(), end: None };
    (reader, WsWriter { socket })
}

/// The receiving half of a WebSocket session.
#[derive(Debug)]
pub(crate) struct WsReader {
    socket: SharedSocket,
    pool: PacketPool,
    /// An end that was found after packets; the next call returns it.
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
                    "the peer sent text, which is not a packet",
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
        // Only pings came: lets other tasks run.
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
    socket: SharedSocket,
}

impl WsWriter {
    pub(in crate::backend) async fn write_batch(&mut self, batch: &mut VecDeque<Bytes>) -> io::Result<()> {
        poll_fn(|cx| self.poll_batch(cx, batch)).await.map_err(broken)
    }

    /// Each packet taken out of the batch is in the library's buffer, and the next call flushes it.
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
        // As in `framed`: reads to the end of the peer's stream what no reader takes any more.
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
