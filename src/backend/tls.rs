//! Sessions over TLS connections over TCP.
//!
//! It owns the handshake's place in dialing and accepting, and an end of the connection that loses nothing.
//! Addresses and sockets are `tcp`'s, certificates and trust the room `tls`'s business.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::io::{ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tracing::debug;

use super::frame_reader::FrameReader;
use super::frame_writer::FrameWriter;
use super::tcp::CLOSE_LIMIT;
use super::{DialFailure, Direction, Reader, Session, SessionEnd, SessionInfo, Writer};
use crate::tls::{ClientProfile, HandshakeError, Secured, ServerProfile};

pub(super) const TRANSPORT: &str = "tls";

/// The server's side of a handshake.
pub(super) async fn accept(
    profile: ServerProfile,
    stream: TcpStream,
    peer: String,
) -> Result<Session, HandshakeError> {
    profile.accept_neighbour(stream).await.map(|secured| session(secured, peer, Direction::Inbound))
}

/// The client's side of a handshake with the host in `address`.
pub(super) async fn connect(
    profile: &ClientProfile,
    stream: TcpStream,
    address: &str,
) -> Result<Session, DialFailure> {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    match profile.connect(stream, host).await {
        Ok(secured) => Ok(session(secured, address.to_owned(), Direction::Outbound)),
        Err(source) => Err(DialFailure::Tls { address: address.to_owned(), source }),
    }
}

fn session(secured: Secured<TcpStream>, peer: String, direction: Direction) -> Session {
    let certified_nodes = secured.certified_nodes().map(<[String]>::to_vec);
    let (receiving, sending) = tokio::io::split(secured);
    let returned = Returned::default();
    let writer = TlsWriter { frames: FrameWriter::new(sending), returned: returned.clone() };
    let reader = TlsReader { frames: Some(FrameReader::new(receiving)), returned };
    Session {
        reader: Reader::Tls(reader),
        writer: Writer::Tls(writer),
        info: SessionInfo { transport: TRANSPORT, peer, direction, certified_nodes },
    }
}

type Frames = FrameReader<ReadHalf<Secured<TcpStream>>>;

/// The reading half of a session whose reader was dropped: the writer needs it to close well.
type Returned = Arc<Mutex<Option<Frames>>>;

/// The receiving half of a TLS session.
#[derive(Debug)]
pub struct TlsReader {
    /// Taken when this is dropped.
    frames: Option<Frames>,
    returned: Returned,
}

impl TlsReader {
    pub(super) async fn read_batch(&mut self, out: &mut Vec<BytesMut>) -> Result<(), SessionEnd> {
        match &mut self.frames {
            Some(frames) => frames.read_batch(out).await,
            None => Err(SessionEnd::AlreadyOver),
        }
    }
}

impl Drop for TlsReader {
    fn drop(&mut self) {
        *self.returned.lock() = self.frames.take();
    }
}

/// The sending half of a TLS session.
#[derive(Debug)]
pub struct TlsWriter {
    frames: FrameWriter<WriteHalf<Secured<TcpStream>>>,
    returned: Returned,
}

impl TlsWriter {
    pub(super) async fn write_batch(&mut self, batch: &mut VecDeque<Bytes>) -> Result<(), SessionEnd> {
        self.frames.write_batch(batch).await
    }

    pub(super) fn unsent(&self) -> usize {
        self.frames.unsent()
    }

    pub(super) async fn close(mut self) {
        let closing = async {
            self.frames.finish().await?;
            let returned = self.returned.lock().take();
            // As with TCP: unread bytes at the close would take our last ones with them.
            if let Some(mut reader) = returned {
                let mut waste = Vec::new();
                while reader.read_batch(&mut waste).await.is_ok() {
                    waste.clear();
                }
            }
            io::Result::Ok(())
        };
        match timeout(CLOSE_LIMIT, closing).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => debug!(%error, "the connection broke while it was closed"),
            Err(_elapsed) => debug!("the peer did not follow the close in time"),
        }
    }
}
