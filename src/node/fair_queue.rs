//! Datagrams that wait for one link, by source: each source gets its turn, however much the others send.
//!
//! Stochastic fair queueing with deficit round robin: a few bits of a source's hash choose its bucket, a turn is
//! measured in bytes, and when the queue is full the fullest bucket loses its newest datagram.
//! Bounded in bytes; knows nothing of links.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::backend::PacketPool;

/// Most bytes that may wait.
pub(super) const LIMIT: usize = 4 << 20;
/// Buckets for sources.
const BUCKETS: usize = 32;
/// Bytes of a turn.
const QUANTUM: usize = 32 << 10;
/// Beyond this many waiting bytes, datagrams are copied, because each would otherwise keep the whole buffer
/// that it was read into, many times its own size.
const COPY_BEYOND: usize = 1 << 20;
/// Slots that an empty bucket keeps: enough for the datagrams of one read.
const IDLE_SLOTS: usize = 256;

#[derive(Debug, Default)]
struct Bucket {
    waiting: VecDeque<Bytes>,
    bytes: usize,
    /// Memory for copies of its datagrams, next to those that leave before and after them.
    copies: PacketPool,
}

/// The waiting datagrams.
#[derive(Debug, Default)]
pub(super) struct FairQueue {
    /// Created with the first datagram, because most links of a large mesh carry none.
    buckets: Vec<Bucket>,
    /// Buckets with datagrams, in the order of their turns.
    turns: VecDeque<usize>,
    bytes: usize,
}

/// A datagram that found no room.
#[derive(Debug)]
pub(super) struct NoRoom(pub(super) Bytes);

impl FairQueue {
    /// True if a source that waits for room may try again.
    pub(super) fn is_roomy(&self) -> bool {
        self.bytes <= LIMIT / 2
    }

    /// Bytes that wait.
    pub(super) fn waiting(&self) -> usize {
        self.bytes
    }

    /// Adds a datagram of `source`, a node's hash, if there is room.
    pub(super) fn push(&mut self, source: u64, datagram: Bytes) -> Result<(), NoRoom> {
        if self.bytes + datagram.len() > LIMIT {
            return Err(NoRoom(datagram));
        }
        let crowded = self.bytes > COPY_BEYOND;
        if self.buckets.is_empty() {
            self.buckets.resize_with(BUCKETS, Bucket::default);
        }
        let index = bucket_of(source);
        let bucket = &mut self.buckets[index];
        let datagram = if crowded { bucket.copies.copy(&datagram).freeze() } else { datagram };
        if bucket.waiting.is_empty() {
            self.turns.push_back(index);
        }
        bucket.bytes += datagram.len();
        self.bytes += datagram.len();
        bucket.waiting.push_back(datagram);
        Ok(())
    }

    /// Makes room by dropping the newest datagram of the fullest bucket. False if this is the bucket of `source`:
    /// then its new datagram must not be taken.
    pub(super) fn drop_for(&mut self, source: u64) -> bool {
        let sizes = self.buckets.iter().map(|bucket| bucket.bytes).enumerate();
        let Some((fullest, _)) = sizes.max_by_key(|(_, bytes)| *bytes) else { return false };
        if fullest == bucket_of(source) {
            return false;
        }
        let Some(dropped) = self.buckets[fullest].waiting.pop_back() else { return false };
        self.buckets[fullest].bytes -= dropped.len();
        self.bytes -= dropped.len();
        if self.buckets[fullest].waiting.is_empty() {
            self.turns.retain(|&turn| turn != fullest);
        }
        true
    }

    /// Moves datagrams to `batch`, turn by turn, until about `most` bytes have been moved.
    pub(super) fn take(&mut self, batch: &mut VecDeque<Bytes>, most: usize) {
        let mut taken = 0;
        while taken < most
            && let Some(index) = self.turns.pop_front()
        {
            let bucket = &mut self.buckets[index];
            let mut turn = 0;
            while turn < QUANTUM
                && let Some(datagram) = bucket.waiting.pop_front()
            {
                turn += datagram.len();
                batch.push_back(datagram);
            }
            bucket.bytes -= turn;
            self.bytes -= turn;
            taken += turn;
            if bucket.waiting.is_empty() {
                bucket.waiting.shrink_to(IDLE_SLOTS);
                bucket.copies = PacketPool::default();
            } else {
                self.turns.push_back(index);
            }
        }
    }
}

fn bucket_of(source: u64) -> usize {
    // Node hashes are uniform in all their bits.
    source as usize % BUCKETS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn datagram(mark: u8, len: usize) -> Bytes {
        Bytes::from(vec![mark; len])
    }

    fn fill(flows: &mut FairQueue, source: u64, mark: u8) {
        while flows.push(source, datagram(mark, 1 << 14)).is_ok() {}
    }

    #[test]
    fn a_small_source_gets_its_turn_beside_a_large_one() {
        let mut flows = FairQueue::default();
        fill(&mut flows, 1, 1);
        assert!(flows.drop_for(2), "the large source makes room");
        flows.push(2, datagram(2, 1 << 14)).unwrap();
        let mut batch = VecDeque::new();
        flows.take(&mut batch, 2 * QUANTUM);
        assert!(batch.iter().any(|d| d[0] == 2), "it waits for one turn of the other at most");
    }

    #[test]
    fn who_fills_the_queue_loses_its_own() {
        let mut flows = FairQueue::default();
        fill(&mut flows, 1, 1);
        assert!(!flows.drop_for(1));
        assert!(flows.bytes <= LIMIT);
    }

    #[test]
    fn what_goes_in_comes_out_in_the_order_of_its_source() {
        let mut flows = FairQueue::default();
        for i in 0..200 {
            flows.push(u64::from(i % 3), datagram(i, 1000)).unwrap();
        }
        let mut batch = VecDeque::new();
        flows.take(&mut batch, usize::MAX);
        assert_eq!((batch.len(), flows.bytes), (200, 0));
        for source in 0..3 {
            let marks: Vec<u8> = batch.iter().map(|d| d[0]).filter(|i| i % 3 == source).collect();
            assert!(marks.is_sorted());
        }
    }

    #[test]
    fn a_backlog_does_not_hold_the_buffers_it_was_read_into() {
        let mut flows = FairQueue::default();
        while flows.bytes <= COPY_BEYOND {
            flows.push(1, datagram(1, 1 << 14)).unwrap();
        }
        let buffer = Bytes::from(vec![3; 1 << 18]);
        flows.push(2, buffer.slice(..100)).unwrap();
        assert!(buffer.is_unique());
    }
}
