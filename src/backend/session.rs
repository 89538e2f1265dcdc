//! A session: a pair of halves that carry whole packets, over any transport.
//!
//! It owns what all transports share: a half that has failed stays over, and a close ends within its limit.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;
use tracing::debug;

use super::SessionEnd;
use super::framed::{FramedReader, FramedWriter};
use super::quic::half::{QuicReader, QuicWriter};
use super::udp::half::{UdpReader, UdpWriter};
use super::websocket::half::{WsReader, WsWriter};
use crate::congestion::InFlight;
use crate::tls::Secured;

/// How long a close waits for a peer that does not read the last packets.
const CLOSE_LIMIT: Duration = Duration::from_secs(3);

/// A link to one neighbour that carries whole packets both ways.
///
/// The halves are independent: each may be moved to a task of its own. After [`Writer::close`] the peer sees an
/// orderly end; if both halves are merely dropped, it sees some end or other.
#[derive(Debug)]
pub struct Session {
    /// The packets that the neighbour sends.
    pub reader: Reader,
    /// The packets for the neighbour.
    pub writer: Writer,
    /// The session's origin, for logs and status.
    pub info: SessionInfo,
}

impl Session {
    pub(super) fn new(reader: TransportReader, writer: TransportWriter, info: SessionInfo) -> Self {
        let reader = Reader { transport: reader, over: false };
        Self { reader, writer: Writer { transport: writer, over: false }, info }
    }
}

/// A session's origin. Everything in it but the certified nodes is for people to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionInfo {
    /// The transport's name: `tcp`, `tls`, `udp`, `ws`, `wss`, `quic`, `memory`.
    pub transport: &'static str,
    /// The other end's address, as text: numeric for accepted sessions, as configured for dialed ones.
    pub peer: String,
    /// The side that opened the session.
    pub direction: Direction,
    /// The node IDs that the neighbour's certificate names; the neighbour must be one of them. `None` if there is
    /// no certificate, if it names none, or if its profile turns this check off.
    pub certified_nodes: Option<Vec<String>>,
    /// Whether the other end is a newcomer: a host without a certificate, which must not become a neighbour.
    pub is_newcomer: bool,
}

/// The side that opened a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// The neighbour dialed one of our listeners.
    Inbound,
    /// We dialed the neighbour.
    Outbound,
}

/// The receiving half of a session.
#[derive(Debug)]
pub struct Reader {
    pub(super) transport: TransportReader,
    over: bool,
}

#[derive(Debug)]
pub(super) enum TransportReader {
    Tcp(FramedReader<OwnedReadHalf>),
    Tls(FramedReader<ReadHalf<Secured<TcpStream>>>),
    Udp(UdpReader),
    WebSocket(WsReader),
    Quic(QuicReader),
    #[cfg(test)]
    Memory(super::memory::MemoryReader),
}

impl Reader {
    /// Waits for at least one whole packet, then appends every packet that is already at hand to `out`, up
    /// to [`super::MAX_BATCH_PACKETS`] or about [`super::MAX_BATCH_BYTES`].
    ///
    /// Packets share the session's read buffer: a kept packet keeps up to 320 KiB alive, so code that stores
    /// packets for long (rather than queueing them for a while) copies them. A frame of length zero is
    /// delivered as an empty packet. Cancel safe: no byte is lost when the future is dropped.
    ///
    /// # Errors
    /// The session is over for good. The first error says why; every later call gives
    /// [`SessionEnd::AlreadyOver`] at once.
    pub async fn read_batch(&mut self, out: &mut Vec<BytesMut>) -> Result<(), SessionEnd> {
        if self.over {
            return Err(SessionEnd::AlreadyOver);
        }
        let read = match &mut self.transport {
            TransportReader::Tcp(reader) => reader.read_batch(out).await,
            TransportReader::Tls(reader) => reader.read_batch(out).await,
            TransportReader::Udp(reader) => reader.read_batch(out).await,
            TransportReader::WebSocket(reader) => reader.read_batch(out).await,
            TransportReader::Quic(reader) => reader.read_batch(out).await,
            #[cfg(test)]
            TransportReader::Memory(reader) => reader.read_batch(out).await,
        };
        self.over = read.is_err();
        read
    }
}

/// The sending half of a session. Dropped without [`Writer::close`], it may lose what was written last.
#[derive(Debug)]
pub struct Writer {
    pub(super) transport: TransportWriter,
    over: bool,
}

#[derive(Debug)]
pub(super) enum TransportWriter {
    Tcp(FramedWriter<OwnedReadHalf, OwnedWriteHalf>),
    Tls(FramedWriter<ReadHalf<Secured<TcpStream>>, WriteHalf<Secured<TcpStream>>>),
    Udp(UdpWriter),
    WebSocket(WsWriter),
    // Boxed because it is large, and few sessions use QUIC.
    Quic(Box<QuicWriter>),
    #[cfg(test)]
    Memory(super::memory::MemoryWriter),
}

impl Writer {
    /// Hands all packets of the batch to the transport, in order, and drains `batch`. Waits while the peer is slow.
    ///
    /// A packet beyond [`crate::wire::MAX_MESSAGE`] is the caller's mistake: it is dropped with an error in
    /// the log and the packets around it are sent. Cancel safe: packets that were taken out of `batch` are
    /// sent by the next call or by [`Writer::close`], the others are still in `batch`.
    ///
    /// # Errors
    /// The session is over for good; the packets left in `batch` were not sent.
    pub async fn write_batch(&mut self, batch: &mut VecDeque<Bytes>) -> Result<(), SessionEnd> {
        if self.over {
            return Err(SessionEnd::AlreadyOver);
        }
        let written = match &mut self.transport {
            TransportWriter::Tcp(writer) => writer.frames.write_batch(batch).await,
            TransportWriter::Tls(writer) => writer.frames.write_batch(batch).await,
            TransportWriter::Udp(writer) => writer.write_batch(batch).await,
            TransportWriter::WebSocket(writer) => writer.write_batch(batch).await,
            TransportWriter::Quic(writer) => writer.write_batch(batch).await,
            #[cfg(test)]
            TransportWriter::Memory(writer) => writer.write_batch(batch).await,
        };
        self.over = written.is_err();
        written.map_err(SessionEnd::Broken)
    }

    /// Bytes taken out of a batch that the transport has not taken yet, as far as is known. The link moves if this
    /// number or the batch shrinks between two calls.
    pub fn unsent(&self) -> usize {
        match &self.transport {
            TransportWriter::Tcp(writer) => writer.frames.unsent(),
            TransportWriter::Tls(writer) => writer.frames.unsent(),
            TransportWriter::Quic(writer) => writer.unsent(),
            // These keep at most the packet at hand.
            TransportWriter::Udp(_) | TransportWriter::WebSocket(_) => 0,
            #[cfg(test)]
            TransportWriter::Memory(writer) => writer.unsent(),
        }
    }

    /// The data under way on the network; `None` if the transport does not know it.
    pub(crate) fn in_flight(&self) -> Option<InFlight> {
        match &self.transport {
            TransportWriter::Quic(writer) => writer.in_flight(),
            TransportWriter::Tcp(_)
            | TransportWriter::Tls(_)
            | TransportWriter::Udp(_)
            | TransportWriter::WebSocket(_) => None,
            #[cfg(test)]
            TransportWriter::Memory(_) => None,
        }
    }

    /// Ends the sending direction in order: the peer gets all that was written and then reads
    /// [`SessionEnd::Closed`]. Takes a few seconds at most, however slow the peer is.
    ///
    /// Drop the [`Reader`] first if nothing more is to be read. The close then discards what the peer still sends;
    /// left unread, these bytes would make the kernel discard our last packets.
    pub async fn close(self) {
        if self.over {
            return;
        }
        let closing = async {
            match self.transport {
                TransportWriter::Tcp(writer) => writer.close().await,
                TransportWriter::Tls(writer) => writer.close().await,
                TransportWriter::WebSocket(writer) => writer.close().await,
                TransportWriter::Quic(writer) => writer.close().await,
                // Every packet written has left already, and UDP has no message for the end of a session.
                TransportWriter::Udp(_) => io::Result::Ok(()),
                #[cfg(test)]
                TransportWriter::Memory(writer) => writer.close().await,
            }
        };
        match timeout(CLOSE_LIMIT, closing).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => debug!(%error, "the connection broke while it was being closed"),
            Err(_elapsed) => debug!("the peer did not close its side in time"),
        }
    }
}
