//! The two halves of a QUIC session: packets on streams, and those of one flow always on the same stream.
//!
//! It owns the choice of the stream. A flow keeps its order, because the streams of services above take disorder
//! for loss, and a lost packet delays only the flows that share its stream. Protocol messages and pings have a
//! stream of their own that goes first. Packets that the network does not take wait in the node's queues, where
//! others can overtake them: the connection holds about as much as may be in flight.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::task::Poll;

use bytes::{Bytes, BytesMut};
use quinn::{Connection, ConnectionError, PathStats, RecvStream, SendStream, VarInt, WriteError};
use tracing::error;

use crate::backend::SessionEnd;
use crate::backend::frame_reader::FrameReader;
use crate::congestion::InFlight;
use crate::tls::Guard;
use crate::wire::{DataHeader, MAX_MESSAGE, MessageType, frame};

/// Packets taken from a batch at once.
const PACKETS_PER_WRITE: usize = 64;
/// Streams for flows, in addition to the first one, which is for the protocol.
const FLOW_LANES: usize = 8;
/// All streams of one direction.
pub(super) const LANES: usize = 1 + FLOW_LANES;
/// Bytes that may be under way to us: at first, and at most, on a path that is long and fast.
pub(super) const RECEIVE_WINDOW: u32 = 2 << 20;
pub(super) const LARGEST_RECEIVE_WINDOW: u32 = 32 << 20;
/// Bytes that the connection may hold in addition to those in flight and those kept for repetition.
const UNSENT: u64 = 64 << 10;
/// For this many windows after a loss, its gap may still be open, or another loss is to be expected.
const REPAIR_WINDOWS: u64 = 8;

/// The code of an orderly close; QUIC sends the same for a dropped connection.
const DONE: VarInt = VarInt::from_u32(0);
/// The code of a close because the other side's certificate is no longer accepted.
const REVOKED: VarInt = VarInt::from_u32(1);

pub(super) fn halves(connection: Connection, guard: Guard) -> (QuicReader, QuicWriter) {
    let in_flight = InFlight::on(&connection);
    let writer = QuicWriter {
        connection: connection.clone(),
        in_flight: in_flight.clone(),
        streams: Default::default(),
        begun: Default::default(),
        prefixes: BytesMut::new(),
        window: 0,
        repairs: Repairs::default(),
    };
    let reader = QuicReader {
        connection,
        in_flight,
        streams: Vec::new(),
        turn: 0,
        window: RECEIVE_WINDOW,
        passed: 0,
        blocked: 0,
        guard,
    };
    (reader, writer)
}

/// The receiving half of a QUIC session. Once both halves are dropped, the connection is closed.
#[derive(Debug)]
pub(crate) struct QuicReader {
    connection: Connection,
    in_flight: Option<InFlight>,
    /// The streams on which the other side has sent something, and which it has not ended yet.
    streams: Vec<FrameReader<RecvStream>>,
    /// The index of the stream that was read last.
    turn: usize,
    /// Bytes that may be under way to us, and bytes read since this window was last checked.
    window: u32,
    passed: usize,
    /// How often the other side has reported that the window holds it up.
    blocked: u64,
    guard: Guard,
}

impl QuicReader {
    pub(in crate::backend) async fn read_batch(&mut self, out: &mut Vec<BytesMut>) -> Result<(), SessionEnd> {
        let before = out.len();
        loop {
            let connection = self.connection.clone();
            tokio::select! {
                biased;
                // Checked first, so that a cut takes effect however much comes.
                () = self.guard.cut().cancelled() => return Err(self.refuse()),
                accepted = connection.accept_uni(), if self.streams.len() < LANES => match accepted {
                    Ok(stream) => self.streams.push(FrameReader::new(stream)),
                    Err(error) if self.streams.is_empty() => {
                        return Err(self.sorted(SessionEnd::Broken(error.into())));
                    }
                    // The connection is over, but the streams give what they still hold before they report it.
                    Err(_ended) => self.read_streams(out).await?,
                },
                read = read_any(&mut self.streams, &mut self.turn, out) => self.took(read, out)?,
            }
            if out.len() > before {
                return Ok(());
            }
        }
    }

    async fn read_streams(&mut self, out: &mut Vec<BytesMut>) -> Result<(), SessionEnd> {
        if self.streams.is_empty() {
            let reason = self.connection.closed().await;
            return Err(self.sorted(SessionEnd::Broken(reason.into())));
        }
        let read = read_any(&mut self.streams, &mut self.turn, out).await;
        self.took(read, out)
    }

    fn took(&mut self, read: Result<(), SessionEnd>, out: &[BytesMut]) -> Result<(), SessionEnd> {
        match read {
            Ok(()) => {
                self.widen(out.iter().map(BytesMut::len).sum());
                if self.in_flight.as_ref().is_some_and(InFlight::let_acknowledge) {
                    // quinn offers no other way to wake a connection.
                    self.connection.set_receive_window(VarInt::from_u32(self.window));
                }
                Ok(())
            }
            // The other side ends its first stream last, once everything on the others has arrived.
            Err(SessionEnd::Closed) if self.streams.len() > 1 => {
                self.streams.swap_remove(self.turn);
                Ok(())
            }
            Err(end) => Err(self.sorted(end)),
        }
    }

    /// Doubles the window if it holds the other side up.
    fn widen(&mut self, bytes: usize) {
        self.passed += bytes;
        if self.window == LARGEST_RECEIVE_WINDOW || self.passed < self.window as usize / 2 {
            return;
        }
        self.passed = 0;
        let blocked = self.connection.stats().frame_rx.data_blocked;
        if std::mem::replace(&mut self.blocked, blocked) != blocked {
            self.window = (self.window * 2).min(LARGEST_RECEIVE_WINDOW);
            self.connection.set_receive_window(VarInt::from_u32(self.window));
        }
    }

    /// Ends the connection because the other side's certificate is no longer accepted.
    fn refuse(&self) -> SessionEnd {
        self.connection.close(REVOKED, b"certificate no longer accepted");
        SessionEnd::Broken(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "the certificate of the other side is no longer accepted",
        ))
    }

    /// A connection that the other side closed or dropped has ended in order, whatever its streams report.
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

/// Reads from the next stream that has packets, in turn, or waits for one. Cancel safe.
async fn read_any(
    streams: &mut [FrameReader<RecvStream>],
    turn: &mut usize,
    out: &mut Vec<BytesMut>,
) -> Result<(), SessionEnd> {
    poll_fn(|cx| {
        for _ in 0..streams.len() {
            *turn = (*turn + 1) % streams.len();
            // The bytes already read stay with the stream, and so does its waker for this task.
            if let Poll::Ready(read) = pin!(streams[*turn].read_batch(out)).poll(cx) {
                return Poll::Ready(read);
            }
        }
        Poll::Pending
    })
    .await
}

/// The sending half of a QUIC session.
#[derive(Debug)]
pub(crate) struct QuicWriter {
    connection: Connection,
    in_flight: Option<InFlight>,
    /// The stream of each lane; `None` before the lanes are opened.
    streams: [Option<SendStream>; LANES],
    /// Frames of packets taken from batches that the lane's stream has not taken yet.
    begun: [Vec<Bytes>; LANES],
    prefixes: BytesMut,
    /// Bytes that the connection may hold.
    window: u64,
    repairs: Repairs,
}

/// Tells whether gaps of lost packets may still be open at the other side.
#[derive(Debug, Default)]
struct Repairs {
    lost: u64,
    /// The number of packets sent when a loss was last noticed.
    sent: u64,
}

impl Repairs {
    /// Whether the last loss is so recent that its gap may be open: gaps are filled within a few windows.
    fn are_under_way(&mut self, path: &PathStats) -> bool {
        if std::mem::replace(&mut self.lost, path.lost_packets) != path.lost_packets {
            self.sent = path.sent_packets;
        }
        let windows = REPAIR_WINDOWS * path.cwnd / u64::from(path.current_mtu.max(1));
        self.lost > 0 && path.sent_packets - self.sent < windows
    }
}

impl QuicWriter {
    pub(in crate::backend) async fn write_batch(&mut self, batch: &mut VecDeque<Bytes>) -> io::Result<()> {
        self.open_lanes().await?;
        loop {
            self.write_begun().await?;
            if batch.is_empty() {
                return Ok(());
            }
            self.begin(batch);
        }
    }

    pub(in crate::backend) fn unsent(&self) -> usize {
        self.begun.iter().flatten().map(Bytes::len).sum()
    }

    pub(in crate::backend) fn in_flight(&self) -> Option<InFlight> {
        self.in_flight.clone()
    }

    /// Opens all lanes, which the other side allows from the start. The first lane has priority.
    async fn open_lanes(&mut self) -> io::Result<()> {
        for (number, lane) in self.streams.iter_mut().enumerate().filter(|(_, lane)| lane.is_none()) {
            let stream = self.connection.open_uni().await?;
            stream.set_priority(i32::from(number == 0)).map_err(io::Error::from)?;
            *lane = Some(stream);
        }
        Ok(())
    }

    /// Moves packets from the batch to their lanes.
    fn begin(&mut self, batch: &mut VecDeque<Bytes>) {
        for packet in batch.drain(..PACKETS_PER_WRITE.min(batch.len())) {
            let Some(prefix) = frame::prefix(packet.len()) else {
                error!(len = packet.len(), limit = MAX_MESSAGE, "dropped a packet that no frame can carry");
                continue;
            };
            self.prefixes.extend_from_slice(&prefix);
            self.begun[lane_of(&packet)].extend([self.prefixes.split().freeze(), packet]);
        }
    }

    async fn write_begun(&mut self) -> io::Result<()> {
        for lane in 0..LANES {
            while !self.begun[lane].is_empty() {
                self.fit_window();
                let Some(stream) = &mut self.streams[lane] else { break };
                let begun = &mut self.begun[lane];
                // `write_chunks` removes written bytes from the front, also of a chunk that was written in part.
                let written = stream.write_chunks(begun).await?;
                begun.drain(..written.chunks);
                begun.retain(|chunk| !chunk.is_empty());
            }
        }
        Ok(())
    }

    /// Lets the connection hold what may be in flight, and a little for the acknowledgements to come. While packets
    /// are lost, it may also hold what has arrived after a gap, because that stays until the gap is filled.
    fn fit_window(&mut self) {
        let path = self.connection.stats().path;
        let fits = self.in_flight.as_ref().map_or(path.cwnd, InFlight::window);
        let held = if self.repairs.are_under_way(&path) { fits * 4 } else { fits * 5 / 4 };
        let window = held + UNSENT;
        if window.abs_diff(self.window) > self.window / 8 {
            self.window = window;
            self.connection.set_send_window(window);
        }
    }

    /// Ends the streams and waits until the other side has all of them, the first stream last. Once both halves are
    /// gone, the connection is closed.
    pub(in crate::backend) async fn close(mut self) -> io::Result<()> {
        self.open_lanes().await?;
        self.write_begun().await?;
        for stream in self.streams.iter_mut().rev().flatten() {
            // The stream was not finished before, because closing takes the writer.
            let _open = stream.finish();
            stream.stopped().await.map_err(|error| io::Error::from(WriteError::from(error)))?;
        }
        Ok(())
    }
}

/// The lane of a packet's flow.
fn lane_of(packet: &[u8]) -> usize {
    if packet.first() != Some(&MessageType::Data.byte()) {
        return 0;
    }
    match DataHeader::parse(packet) {
        Ok(header) if !header.is_express() => {
            let services =
                [header.from_service, header.to_service].map(|service| u64::from_be_bytes(service.to_wire()));
            let flow = header.from_node.0
                ^ header.to_node.0.rotate_left(32)
                ^ services[0]
                ^ services[1].rotate_left(16);
            // Names of services differ in their letters, so the multiplication makes all bits count.
            1 + (flow.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize % FLOW_LANES
        }
        Ok(_) | Err(_) => 0,
    }
}

#[cfg(test)]
impl QuicReader {
    pub(super) fn streams(&self) -> usize {
        self.streams.len()
    }

    pub(super) fn revoke(&self) {
        self.guard.cut().cancel();
    }
}
