//! What a link has carried, and its state, for operators. The counters are atomic and updated once per batch. No
//! decision depends on them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::session::SessionShared;
use crate::congestion::InFlight;
use crate::counters::NeighborStats;
use crate::mesh::Neighbour;
use crate::wire::{Cost, NodeId};

/// Counts of messages in both directions.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    packets_in: AtomicU64,
    bytes_in: AtomicU64,
    packets_out: AtomicU64,
    bytes_out: AtomicU64,
}

impl Traffic {
    pub(super) fn heard(&self, packets: usize, bytes: usize) {
        self.packets_in.fetch_add(packets as u64, Ordering::Relaxed);
        self.bytes_in.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn sent(&self, packets: usize, bytes: usize) {
        self.packets_out.fetch_add(packets as u64, Ordering::Relaxed);
        self.bytes_out.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// The present state of a session with a neighbour.
#[derive(Debug, Clone, PartialEq)]
pub struct LinkStatus {
    /// The neighbour.
    pub node_id: NodeId,
    /// The session's number; each session has a new one.
    pub session: u64,
    /// The transport that carries it.
    pub transport: &'static str,
    /// The other end's address.
    pub address: String,
    /// Its cost.
    pub cost: Cost,
    /// Whether the neighbour answers our probes, so that its silence is noticed within seconds.
    pub probed: bool,
    /// Round-trip time, if known.
    pub rtt: Option<Duration>,
    /// Share of the latest probes that were not answered, from 0 to 1.
    pub probe_loss: f64,
    /// Bytes that wait to be sent.
    pub queued_bytes: u64,
    /// Bytes in flight, on a QUIC link.
    pub in_flight: Option<u64>,
    /// Datagrams that found no room in the queue.
    pub dropped: u64,
    /// Messages received.
    pub packets_in: u64,
    /// Bytes received, without framing.
    pub bytes_in: u64,
    /// Messages sent.
    pub packets_out: u64,
    /// Bytes sent, without framing.
    pub bytes_out: u64,
    /// What the neighbour sent about the mesh, and how much of that was dropped.
    pub told: NeighborStats,
}

impl LinkStatus {
    pub(super) fn of(node_id: NodeId, neighbour: &Neighbour, shared: &SessionShared) -> Self {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (queued, dropped) = shared.queue.stats();
        Self {
            node_id,
            session: neighbour.session.0,
            transport: shared.transport,
            address: shared.address.clone(),
            cost: neighbour.cost,
            probed: neighbour.is_meshd,
            rtt: neighbour.rtt,
            probe_loss: neighbour.loss,
            queued_bytes: queued as u64,
            in_flight: shared.in_flight.get().map(InFlight::bytes),
            dropped,
            packets_in: read(&shared.traffic.packets_in),
            bytes_in: read(&shared.traffic.bytes_in),
            packets_out: read(&shared.traffic.packets_out),
            bytes_out: read(&shared.traffic.bytes_out),
            told: neighbour.stats,
        }
    }
}
