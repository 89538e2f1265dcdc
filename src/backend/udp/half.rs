//! The two halves of a UDP session; a dialer's has a socket of its own, a listener's a share of one port.
//!
//! It owns batches, and which errors of a socket end a session. `hub` owns who gets a share.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::hub::HubMember;
use super::socket::{DatagramRoute, DatagramSocket, Slots};
use crate::backend::packet_pool::PacketPool;
use crate::backend::{MAX_BATCH_BYTES, MAX_BATCH_PACKETS, SessionEnd};

/// The receiving half of a UDP session.
#[derive(Debug)]
pub(in crate::backend) struct UdpReader {
    pub(super) source: DatagramSource,
}

#[derive(Debug)]
pub(super) enum DatagramSource {
    Own { socket: Arc<DatagramSocket>, slots: Slots, pool: PacketPool },
    Shared(Arc<HubMember>),
}

impl UdpReader {
    pub(in crate::backend) async fn read_batch(&mut self, out: &mut Vec<BytesMut>) -> Result<(), SessionEnd> {
        let read = match &mut self.source {
            DatagramSource::Own { socket, slots, pool } => receive(socket, slots, pool, out).await,
            DatagramSource::Shared(member) => member.inbox.take(out).await.map_err(|_closed| displaced()),
        };
        read.map_err(SessionEnd::Broken)
    }
}

fn displaced() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the session's place went to another source")
}

async fn receive(
    socket: &DatagramSocket,
    slots: &mut Slots,
    pool: &mut PacketPool,
    out: &mut Vec<BytesMut>,
) -> io::Result<()> {
    let (start, mut bytes) = (out.len(), 0);
    loop {
        let received = socket.try_receive(slots, |_route, datagram| {
            bytes += datagram.len();
            out.push(pool.copy(datagram));
        });
        match received {
            Ok(()) if out.len() - start >= MAX_BATCH_PACKETS || bytes >= MAX_BATCH_BYTES => return Ok(()),
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if out.len() > start {
                    return Ok(());
                }
                socket.readable().await?;
            }
            // Gives the received datagrams first; the socket repeats the error if it persists.
            Err(_) if out.len() > start => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// The sending half of a UDP session.
#[derive(Debug)]
pub(in crate::backend) struct UdpWriter {
    pub(super) sink: DatagramSink,
}

#[derive(Debug)]
pub(super) enum DatagramSink {
    Own { socket: Arc<DatagramSocket>, route: DatagramRoute },
    Shared(Arc<HubMember>),
}

impl UdpWriter {
    pub(in crate::backend) async fn write_batch(&mut self, batch: &mut VecDeque<Bytes>) -> io::Result<()> {
        let (socket, route) = match &self.sink {
            DatagramSink::Own { socket, route } => (&**socket, *route),
            DatagramSink::Shared(member) => (&member.hub.socket, member.route),
        };
        while !batch.is_empty() {
            match socket.try_send(route, batch) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => socket.writable().await?,
                Err(error) => match &self.sink {
                    DatagramSink::Own { .. } => return Err(error),
                    // The port serves others too, so this packet is dropped: an unreachable neighbour falls silent.
                    DatagramSink::Shared(_) => drop(batch.pop_front()),
                },
            }
        }
        Ok(())
    }
}
