//! What waits to be written on one link: two lanes, bounded in bytes.
//!
//! Protocol messages go first and are never dropped: a link that cannot even carry those is broken, and
//! says so. Datagrams that come from other links are dropped at the tail when their lane is full, as any
//! network does; this node's own senders are told to wait instead.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use bytes::Bytes;
use tokio::sync::Notify;

/// Bytes of datagrams that may wait.
const DATA_LIMIT: usize = 4 << 20;
/// Bytes of protocol messages that may wait: far beyond what the largest mesh has to say at once.
const CONTROL_LIMIT: usize = 64 << 20;
/// Bytes of datagrams written before the lanes are looked at again.
const DATA_BATCH: usize = 256 << 10;
/// Slots that an empty lane keeps.
const IDLE_SLOTS: usize = 64;

/// A link's outgoing queue.
#[derive(Debug, Default)]
pub(super) struct Queue {
    lanes: Mutex<Lanes>,
    filled: Notify,
}

#[derive(Debug, Default)]
struct Lanes {
    control: VecDeque<Bytes>,
    control_bytes: usize,
    data: VecDeque<Bytes>,
    data_bytes: usize,
    closed: bool,
    dropped: u64,
    waiting: Vec<Waker>,
}

/// A datagram did not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Full;

/// Whether a datagram that does not fit is thereby lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IfFull {
    /// It is, and counts as dropped.
    Drop,
    /// Its sender keeps it and waits.
    Wait,
}

impl Queue {
    /// Queues a protocol message; false if the link cannot even keep up with those.
    pub(super) fn push_control(&self, message: Bytes) -> bool {
        let mut lanes = self.lock();
        if lanes.closed {
            return true;
        }
        if lanes.control_bytes + message.len() > CONTROL_LIMIT {
            return false;
        }
        lanes.control_bytes += message.len();
        lanes.control.push_back(message);
        drop(lanes);
        self.filled.notify_one();
        true
    }

    /// Queues a datagram if there is room for it.
    pub(super) fn push_data(&self, message: Bytes, if_full: IfFull) -> Result<(), Full> {
        let mut lanes = self.lock();
        if lanes.closed {
            return Ok(());
        }
        if lanes.data_bytes + message.len() > DATA_LIMIT {
            lanes.dropped += u64::from(if_full == IfFull::Drop);
            return Err(Full);
        }
        lanes.data_bytes += message.len();
        lanes.data.push_back(message);
        drop(lanes);
        self.filled.notify_one();
        Ok(())
    }

    /// True if a datagram would find room now; else `waker` is woken when there is some.
    pub(super) fn poll_room(&self, waker: &Waker) -> bool {
        let mut lanes = self.lock();
        if lanes.closed || lanes.data_bytes <= DATA_LIMIT / 2 {
            return true;
        }
        if !lanes.waiting.iter().any(|known| known.will_wake(waker)) {
            lanes.waiting.push(waker.clone());
        }
        false
    }

    /// Waits for messages and takes a batch of them, protocol messages first; false once the queue is
    /// closed and empty.
    pub(super) async fn take(&self, batch: &mut VecDeque<Bytes>) -> bool {
        loop {
            if self.try_take(batch) {
                return true;
            }
            if self.lock().closed {
                return false;
            }
            self.filled.notified().await;
        }
    }

    fn try_take(&self, batch: &mut VecDeque<Bytes>) -> bool {
        let mut lanes = self.lock();
        batch.append(&mut lanes.control);
        lanes.control_bytes = 0;
        lanes.control.shrink_to(IDLE_SLOTS);
        let mut taken = 0;
        while taken < DATA_BATCH
            && let Some(message) = lanes.data.pop_front()
        {
            taken += message.len();
            batch.push_back(message);
        }
        lanes.data_bytes -= taken;
        let roomy = lanes.data_bytes <= DATA_LIMIT / 2;
        let woken = if roomy { std::mem::take(&mut lanes.waiting) } else { Vec::new() };
        drop(lanes);
        woken.into_iter().for_each(Waker::wake);
        !batch.is_empty()
    }

    /// Takes no more messages; those that wait are still to be written.
    pub(super) fn close(&self) {
        let mut lanes = self.lock();
        lanes.closed = true;
        let woken = std::mem::take(&mut lanes.waiting);
        drop(lanes);
        woken.into_iter().for_each(Waker::wake);
        self.filled.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Lanes> {
        // No code that can panic runs under this lock.
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(len: usize) -> Bytes {
        Bytes::from(vec![7; len])
    }

    #[tokio::test]
    async fn protocol_messages_go_first_and_a_full_lane_drops_data_only() {
        let queue = Queue::default();
        let mut pushed = 0;
        while queue.push_data(message(1 << 16), IfFull::Drop).is_ok() {
            pushed += 1;
        }
        assert_eq!(pushed, DATA_LIMIT >> 16);
        assert_eq!(queue.push_data(message(1 << 16), IfFull::Wait), Err(Full));
        assert_eq!(queue.lock().dropped, 1);
        assert!(queue.push_control(message(3)));
        let mut batch = VecDeque::new();
        assert!(queue.take(&mut batch).await);
        assert_eq!(batch[0].len(), 3);
        assert!(batch.iter().map(Bytes::len).sum::<usize>() <= DATA_BATCH + 3);
    }

    #[tokio::test]
    async fn a_closed_queue_is_drained_and_then_ends() {
        let queue = Queue::default();
        queue.push_data(message(1), IfFull::Drop).unwrap();
        queue.close();
        queue.push_data(message(2), IfFull::Drop).unwrap();
        let mut batch = VecDeque::new();
        assert!(queue.take(&mut batch).await);
        assert_eq!(batch.drain(..).map(|m| m.len()).collect::<Vec<_>>(), [1]);
        assert!(!queue.take(&mut batch).await);
    }

    #[test]
    fn a_link_that_cannot_carry_the_protocol_says_so() {
        let queue = Queue::default();
        let large = message(1 << 20);
        let fitting = (0..).take_while(|_| queue.push_control(large.clone())).count();
        assert_eq!(fitting, CONTROL_LIMIT >> 20);
    }
}
