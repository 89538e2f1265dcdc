//! The two halves of a QUIC session: packets as datagrams where they fit, on a stream where not.
//!
//! It owns that choice. Data packets that fit are datagrams, so that a lost one holds up no other; what the
//! protocol itself says goes on the stream, where it cannot get lost, and so does what is too large. The
//! order between the two ways is not kept.

use std::collections::VecDeque;
use std::io;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use quinn::{Connection, ConnectionError, RecvStream, SendDatagramError, SendStream, VarInt, WriteError};
use tracing::error;

use crate::backend::frame_reader::FrameReader;
use crate::backend::packet_pool::PacketPool;
use crate::backend::session::{TransportReader, TransportWriter};
use crate::backend::{MAX_BATCH_BYTES, MAX_BATCH_PACKETS, Reader, Session, SessionEnd, SessionInfo, Writer};
use crate::tls::Guard;
use crate::wire::{MAX_MESSAGE, MessageType, frame};

/// Packets handed to the stream at once.
const PACKETS_PER_WRITE: usize = 64;

/// The code of an orderly close; also the one that QUIC sends for a connection that is dropped.
const DONE: VarInt = VarInt::from_u32(0);
/// The code of a close because the certificate of the other side is no longer accepted.
const REVOKED: VarInt = VarInt::from_u32(1);

pub(super) fn session(connection: Connection, guard: Guard, info: SessionInfo) -> Session {
    let writer = QuicWriter {
        connection: connection.clone(),
        stream: None,
        begun: Vec::new(),
        prefixes: BytesMut::new(),
    };
    let reader = QuicReader {
        connection,
        stream: None,
        datagrams_over: false,
        streams_turn: false,
        pool: PacketPool::default(),
        guard,
    };
    let (reader, writer) = (TransportReader::Quic(reader), TransportWriter::Quic(writer));
    Session { reader: Reader::new(reader), writer: Writer::new(writer), info }
}

/// The receiving half of a QUIC session. Once both halves are dropped, the connection is closed.
#[derive(Debug)]
pub(crate) struct QuicReader {
    connection: Connection,
    /// `None` until the other side has said something on it.
    stream: Option<FrameReader<RecvStream>>,
    datagrams_over: bool,
    /// The last batch was all datagrams.
    streams_turn: bool,
    pool: PacketPool,
    guard: Guard,
}

impl QuicReader {
    pub(in crate::backend) async fn read_batch(&mut self, out: &mut Vec<BytesMut>) -> Result<(), SessionEnd> {
        // However many datagrams come: a cut holds, and the stream has its turn.
        if self.guard.cut().is_cancelled() {
            return Err(self.refuse());
        }
        if std::mem::take(&mut self.streams_turn)
            && let Some(read) = read_stream(&mut self.stream, &self.connection, out).now_or_never()
        {
            return read.map_err(|end| self.sorted(end));
        }
        if self.take_datagrams(out) {
            self.streams_turn = true;
            return Ok(());
        }
        loop {
            tokio::select! {
                biased;
                () = self.guard.cut().cancelled() => return Err(self.refuse()),
                read = read_stream(&mut self.stream, &self.connection, out) => {
                    return read.map_err(|end| self.sorted(end));
                }
                datagram = self.connection.read_datagram(), if !self.datagrams_over => match datagram {
                    Ok(datagram) => {
                        out.push(self.pool.copy(&datagram));
                        self.take_datagrams(out);
                        self.streams_turn = true;
                        return Ok(());
                    }
                    // The stream may still hold what came before.
                    Err(_lost) => self.datagrams_over = true,
                },
            }
        }
    }

    /// Ends the connection, as the other side's certificate is no longer accepted.
    fn refuse(&self) -> SessionEnd {
        self.connection.close(REVOKED, b"certificate no longer accepted");
        SessionEnd::Broken(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "the certificate of the other side is no longer accepted",
        ))
    }

    /// Appends the datagrams at hand; false if there are none.
    fn take_datagrams(&mut self, out: &mut Vec<BytesMut>) -> bool {
        let (start, mut bytes) = (out.len(), 0);
        while out.len() - start < MAX_BATCH_PACKETS && bytes < MAX_BATCH_BYTES {
            let Some(Ok(datagram)) = self.connection.read_datagram().now_or_never() else { break };
            bytes += datagram.len();
            out.push(self.pool.copy(&datagram));
        }
        out.len() > start
    }

    /// A connection that the other side has let go of is closed in order, whatever the stream says of it.
    fn sorted(&self, end: SessionEnd) -> SessionEnd {
        match (end, self.connection.close_reason()) {
            (SessionEnd::Broken(_), Some(ConnectionError::ApplicationClosed(close)))
                if close.error_code == DONE =>
            {
                SessionEnd::Closed
            }
            (SessionEnd::Broken(_), Some(reason)) => SessionEnd::Broken(reason.into()),
            (end, _) => end,
        }
    }
}

/// Reads from the stream, or waits until there is one. Cancel safe.
async fn read_stream(
    stream: &mut Option<FrameReader<RecvStream>>,
    connection: &Connection,
    out: &mut Vec<BytesMut>,
) -> Result<(), SessionEnd> {
    let frames = match stream {
        Some(frames) => frames,
        None => {
            let opened = connection.accept_uni().await.map_err(io::Error::from)?;
            stream.insert(FrameReader::new(opened))
        }
    };
    frames.read_batch(out).await
}

/// The sending half of a QUIC session.
#[derive(Debug)]
pub(crate) struct QuicWriter {
    connection: Connection,
    /// `None` before the first packet on it.
    stream: Option<SendStream>,
    /// Packets that were taken from batches and that the stream has not taken yet.
    begun: Vec<Bytes>,
    prefixes: BytesMut,
}

impl QuicWriter {
    pub(in crate::backend) async fn write_batch(&mut self, batch: &mut VecDeque<Bytes>) -> io::Result<()> {
        loop {
            self.write_begun().await?;
            let Some(first) = batch.front().cloned() else { return Ok(()) };
            if self.goes_as_datagram(&first) && self.send_datagram(first).await? {
                batch.pop_front();
            } else {
                self.begin(batch);
            }
        }
    }

    pub(in crate::backend) fn unsent(&self) -> usize {
        self.begun.iter().map(Bytes::len).sum()
    }

    fn goes_as_datagram(&self, packet: &Bytes) -> bool {
        packet.first() == Some(&MessageType::Data.byte())
            && self.connection.max_datagram_size().is_some_and(|most| packet.len() <= most)
    }

    /// False if the connection cannot take it: what the network carries may have become less.
    async fn send_datagram(&self, packet: Bytes) -> io::Result<bool> {
        match self.connection.send_datagram_wait(packet).await {
            Ok(()) => Ok(true),
            Err(
                SendDatagramError::TooLarge
                | SendDatagramError::Disabled
                | SendDatagramError::UnsupportedByPeer,
            ) => Ok(false),
            Err(SendDatagramError::ConnectionLost(error)) => Err(error.into()),
        }
    }

    /// Moves the first packet, and those behind it that go the same way, from the batch to what is begun.
    fn begin(&mut self, batch: &mut VecDeque<Bytes>) {
        for taken in 0..PACKETS_PER_WRITE {
            let another = batch.front().is_some_and(|packet| taken == 0 || !self.goes_as_datagram(packet));
            let Some(packet) = batch.pop_front_if(|_| another) else { break };
            let Some(prefix) = frame::prefix(packet.len()) else {
                error!(len = packet.len(), limit = MAX_MESSAGE, "dropped a packet that no frame can carry");
                continue;
            };
            self.prefixes.extend_from_slice(&prefix);
            self.begun.extend([self.prefixes.split().freeze(), packet]);
        }
    }

    async fn write_begun(&mut self) -> io::Result<()> {
        while !self.begun.is_empty() {
            let stream = match &mut self.stream {
                Some(stream) => stream,
                // The other side allows one from the start.
                None => self.stream.insert(self.connection.open_uni().await?),
            };
            // Written bytes are removed from the front, also of a chunk that was written in part.
            let written = stream.write_chunks(&mut self.begun).await?;
            self.begun.drain(..written.chunks);
            self.begun.retain(|chunk| !chunk.is_empty());
        }
        Ok(())
    }

    /// Ends the stream and waits until the other side has all of it, and so the datagrams from before it are
    /// under way at least. Once both halves are gone, the connection is closed.
    pub(in crate::backend) async fn close(mut self) -> io::Result<()> {
        self.write_begun().await?;
        let stream = match &mut self.stream {
            Some(stream) => stream,
            None => self.stream.insert(self.connection.open_uni().await?),
        };
        // It was not finished before, as closing takes the writer.
        let _open = stream.finish();
        stream.stopped().await.map(|_code| ()).map_err(|error| WriteError::from(error).into())
    }
}

#[cfg(test)]
impl QuicReader {
    pub(super) fn datagrams_received(&self) -> u64 {
        self.connection.stats().frame_rx.datagram
    }

    pub(super) fn revoke(&self) {
        self.guard.cut().cancel();
    }
}
