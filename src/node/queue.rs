//! The messages that wait to be written on one link, bounded in bytes.
//!
//! Protocol messages go first, within the link's share of the node's [`Budget`]. Pings and notices come next, so that a
//! busy link still answers. All other datagrams share the rest by source. A datagram that does not fit is dropped, but
//! this node's own senders wait instead. Knows nothing of routes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use super::budget::Budget;
use super::fair_queue::{FairQueue, NoRoom};
use crate::wire::DataHeader;

/// Bytes of protocol messages in one batch, before the other lanes get a turn.
const CONTROL_BATCH: usize = 256 << 10;
/// Most bytes of pings and notices that may wait.
const EXPRESS_LIMIT: usize = 64 << 10;
/// Slots that an empty lane keeps.
const IDLE_SLOTS: usize = 64;

/// A link's outgoing queue.
#[derive(Debug)]
pub(super) struct Queue {
    lanes: Mutex<Lanes>,
    filled: Notify,
    budget: Arc<Budget>,
    /// Whether its neighbour still lacks updates or advertisements.
    behind: AtomicBool,
}

#[derive(Debug, Default)]
struct Lanes {
    control: VecDeque<Bytes>,
    /// Bytes of protocol messages that wait or are being written; `writing` counts only the latter.
    control_bytes: usize,
    writing: usize,
    express: VecDeque<Bytes>,
    express_bytes: usize,
    data: FairQueue,
    closed: bool,
    dropped: u64,
    waiting: Vec<Waker>,
}

/// A datagram did not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Full;

/// What happens to a datagram that does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IfFull {
    /// It is dropped and counted, or else a datagram of a source that has more waiting.
    Drop,
    /// Its sender keeps it and waits.
    Wait,
}

impl Queue {
    /// An empty queue that shares `budget` with other queues.
    pub(super) fn new(budget: Arc<Budget>) -> Self {
        Self { lanes: Mutex::default(), filled: Notify::new(), budget, behind: AtomicBool::new(false) }
    }

    /// Queues a protocol message; false if this exceeds the link's share of the budget.
    pub(super) fn push_control(&self, message: Bytes) -> bool {
        let mut lanes = self.lock();
        if lanes.closed {
            return true;
        }
        if !self.budget.take(lanes.control_bytes, message.len()) {
            return false;
        }
        lanes.control_bytes += message.len();
        lanes.control.push_back(message);
        drop(lanes);
        self.filled.notify_one();
        true
    }

    /// Bytes of protocol messages that may be queued now; `None` if a long message might not fit.
    pub(super) fn room(&self) -> Option<usize> {
        let lanes = self.lock();
        if lanes.closed { None } else { self.budget.room(lanes.control_bytes) }
    }

    /// Notes whether the neighbour still lacks more than is queued.
    pub(super) fn set_behind(&self, behind: bool) {
        self.behind.store(behind, Ordering::Relaxed);
    }

    /// True if the neighbour still lacks more than is queued.
    pub(super) fn is_behind(&self) -> bool {
        self.behind.load(Ordering::Relaxed)
    }

    /// Queues a datagram, whose header is given, if there is room for it.
    pub(super) fn push_data(&self, header: &DataHeader, message: Bytes, if_full: IfFull) -> Result<(), Full> {
        let mut lanes = self.lock();
        if lanes.closed {
            return Ok(());
        }
        lanes.push_data(header, message, if_full)?;
        drop(lanes);
        self.filled.notify_one();
        Ok(())
    }

    /// Queues relayed datagrams in one go. Those that find no room are dropped and counted.
    pub(super) fn push_burst(&self, datagrams: &mut Vec<(DataHeader, Bytes)>) {
        let mut lanes = self.lock();
        if lanes.closed {
            return datagrams.clear();
        }
        for (header, message) in datagrams.drain(..) {
            let _counted = lanes.push_data(&header, message, IfFull::Drop);
        }
        drop(lanes);
        self.filled.notify_one();
    }

    /// True if there is room for datagrams now; otherwise `waker` is woken when there is.
    pub(super) fn poll_room(&self, waker: &Waker) -> bool {
        let mut lanes = self.lock();
        if lanes.closed || lanes.data.is_roomy() {
            return true;
        }
        if !lanes.waiting.iter().any(|known| known.will_wake(waker)) {
            lanes.waiting.push(waker.clone());
        }
        false
    }

    /// Waits for messages and takes a batch of them, with about `most_data` bytes of datagrams at most. Called once the
    /// last batch is written, whose room it gives back. False once the queue is closed and empty.
    pub(super) async fn take(&self, batch: &mut VecDeque<Bytes>, most_data: usize) -> bool {
        loop {
            if self.try_take(batch, most_data) {
                return true;
            }
            if self.lock().closed {
                return false;
            }
            self.filled.notified().await;
        }
    }

    fn try_take(&self, batch: &mut VecDeque<Bytes>, most_data: usize) -> bool {
        let mut lanes = self.lock();
        let written = std::mem::take(&mut lanes.writing);
        lanes.control_bytes -= written;
        self.budget.release(written);
        while lanes.writing < CONTROL_BATCH
            && let Some(message) = lanes.control.pop_front()
        {
            lanes.writing += message.len();
            batch.push_back(message);
        }
        if lanes.control.is_empty() {
            lanes.control.shrink_to(IDLE_SLOTS);
        }
        batch.append(&mut lanes.express);
        lanes.express_bytes = 0;
        lanes.data.take(batch, most_data);
        let roomy = lanes.data.is_roomy();
        let woken = if roomy { std::mem::take(&mut lanes.waiting) } else { Vec::new() };
        drop(lanes);
        woken.into_iter().for_each(Waker::wake);
        !batch.is_empty()
    }

    /// Takes no more messages; waiting ones are still to be written.
    pub(super) fn close(&self) {
        let mut lanes = self.lock();
        lanes.closed = true;
        let woken = std::mem::take(&mut lanes.waiting);
        drop(lanes);
        woken.into_iter().for_each(Waker::wake);
        self.filled.notify_one();
    }

    /// Bytes that wait, and how many datagrams found no room so far.
    pub(super) fn stats(&self) -> (usize, u64) {
        let lanes = self.lock();
        (lanes.control_bytes + lanes.express_bytes + lanes.data.waiting(), lanes.dropped)
    }

    fn lock(&self) -> MutexGuard<'_, Lanes> {
        // No code that can panic runs under this lock.
        self.lanes.lock()
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.budget.release(self.lock().control_bytes);
    }
}

impl Lanes {
    fn push_data(&mut self, header: &DataHeader, message: Bytes, if_full: IfFull) -> Result<(), Full> {
        if header.is_express() && self.express_bytes + message.len() <= EXPRESS_LIMIT {
            self.express_bytes += message.len();
            self.express.push_back(message);
            return Ok(());
        }
        let source = header.from_node.0;
        match (self.data.push(source, message), if_full) {
            (Ok(()), _) => Ok(()),
            (Err(NoRoom(_)), IfFull::Wait) => Err(Full),
            (Err(NoRoom(message)), IfFull::Drop) => {
                self.dropped += 1;
                if !self.data.drop_for(source) {
                    return Err(Full);
                }
                self.data.push(source, message).map_err(|NoRoom(_)| Full)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::budget::LIMIT;
    use super::*;
    use crate::wire::{MAX_HOPS, NameHash, ServiceName};

    /// Bytes that one call takes.
    const ALL: usize = 256 << 10;

    fn message(len: usize) -> Bytes {
        Bytes::from(vec![7; len])
    }

    fn from(source: u64, service: ServiceName) -> DataHeader {
        let (from_node, to_node) = (NameHash(source), NameHash(99));
        DataHeader { hops: MAX_HOPS, from_node, to_node, from_service: service, to_service: service }
    }

    fn bulk(source: u64) -> DataHeader {
        from(source, ServiceName::CONTROL)
    }

    #[tokio::test]
    async fn the_protocol_goes_first_then_pings_then_the_rest() {
        let queue = Queue::new(Arc::default());
        while queue.push_data(&bulk(1), message(1 << 14), IfFull::Drop).is_ok() {}
        assert_eq!(queue.push_data(&bulk(1), message(1 << 14), IfFull::Wait), Err(Full));
        assert_eq!(queue.lock().dropped, 1, "who waits loses nothing");
        queue.push_data(&from(1, ServiceName::PING), message(2), IfFull::Drop).unwrap();
        assert!(queue.push_control(message(3)));
        let mut batch = VecDeque::new();
        assert!(queue.take(&mut batch, ALL).await);
        assert_eq!((batch[0].len(), batch[1].len()), (3, 2));
        assert!(batch.iter().map(Bytes::len).sum::<usize>() <= ALL + (1 << 16));
    }

    #[tokio::test]
    async fn a_closed_queue_is_drained_and_then_ends() {
        let queue = Queue::new(Arc::default());
        queue.push_data(&bulk(1), message(1), IfFull::Drop).unwrap();
        queue.close();
        queue.push_data(&bulk(1), message(2), IfFull::Drop).unwrap();
        let mut batch = VecDeque::new();
        assert!(queue.take(&mut batch, ALL).await);
        assert_eq!(batch.drain(..).map(|m| m.len()).collect::<Vec<_>>(), [1]);
        assert!(!queue.take(&mut batch, ALL).await);
    }

    #[test]
    fn a_source_that_fills_a_link_does_not_shut_others_out() {
        let queue = Queue::new(Arc::default());
        while queue.push_data(&bulk(1), message(1 << 14), IfFull::Drop).is_ok() {}
        assert_eq!(queue.push_data(&bulk(2), message(1 << 14), IfFull::Drop), Ok(()));
    }

    #[test]
    fn all_links_share_one_room_and_leave_some_of_it() {
        let budget = Arc::<Budget>::default();
        let fill = || {
            let queue = Queue::new(budget.clone());
            let filled = (0..).take_while(|_| queue.push_control(message(1 << 12))).count() << 12;
            (queue, filled)
        };
        let links: Vec<_> = (0..200).map(|_| fill()).collect();
        let least = links.iter().map(|(_, filled)| *filled).min();
        assert!(least.is_some_and(|least| least >= 60_000), "each has room for a long message: {least:?}");
        assert!(links.iter().map(|(_, filled)| filled).sum::<usize>() <= LIMIT);
        let first = links[0].1;
        assert!(least.is_some_and(|least| first > 10 * least), "{first} bytes where there was room");
        drop(links);
        assert_eq!(fill().1, first, "what is gone leaves its room");
    }

    #[tokio::test]
    async fn what_is_being_written_still_takes_room() {
        let queue = Queue::new(Arc::default());
        while queue.push_control(message(1 << 14)) {}
        let mut batch = VecDeque::new();
        assert!(queue.take(&mut batch, ALL).await);
        assert!(!queue.push_control(message(1 << 14)), "nothing is written yet");
        assert!(queue.take(&mut batch, ALL).await);
        assert!(queue.push_control(message(1 << 14)));
    }
}
