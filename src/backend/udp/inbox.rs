//! Datagrams of one session, between the task that reads a shared socket and the session's reader.
//!
//! It is bounded in bytes: a datagram that does not fit is lost, as it would be in the kernel. It knows neither
//! addresses nor sockets.

use std::collections::VecDeque;

use bytes::BytesMut;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use crate::backend::packet_pool::PacketPool;
use crate::backend::{MAX_BATCH_BYTES, MAX_BATCH_PACKETS};

/// The most bytes that may wait; each datagram counts [`OVERHEAD`] more than its bytes.
const MOST_WAITING: usize = 2 << 20;
/// The cost of a waiting datagram in addition to its bytes.
const OVERHEAD: usize = 64;

/// A session's datagrams that wait to be read. Shared by the socket's task and the session's reader.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    state: Mutex<InboxState>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct InboxState {
    waiting: VecDeque<BytesMut>,
    bytes: usize,
    pool: PacketPool,
    closed: bool,
}

/// The inbox was closed by the listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Closed;

impl Inbox {
    /// Adds a datagram, or drops it if it does not fit.
    pub(super) fn push(&self, datagram: &[u8]) {
        let mut state = self.lock();
        let size = datagram.len() + OVERHEAD;
        if state.closed || state.bytes + size > MOST_WAITING {
            return;
        }
        let packet = state.pool.copy(datagram);
        state.bytes += size;
        state.waiting.push_back(packet);
        drop(state);
        self.changed.notify_one();
    }

    /// Takes no more datagrams. The reader gets [`Closed`] once it has taken those that still wait.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_one();
    }

    /// Waits for datagrams and appends a batch of them. Cancel safe.
    pub(super) async fn take(&self, out: &mut Vec<BytesMut>) -> Result<(), Closed> {
        loop {
            if self.take_waiting(out)? {
                return Ok(());
            }
            self.changed.notified().await;
        }
    }

    fn take_waiting(&self, out: &mut Vec<BytesMut>) -> Result<bool, Closed> {
        let mut state = self.lock();
        let (mut packets, mut bytes) = (0, 0);
        while packets < MAX_BATCH_PACKETS && bytes < MAX_BATCH_BYTES {
            let Some(packet) = state.waiting.pop_front() else { break };
            state.bytes -= packet.len() + OVERHEAD;
            packets += 1;
            bytes += packet.len();
            out.push(packet);
        }
        if packets == 0 && state.closed { Err(Closed) } else { Ok(packets > 0) }
    }

    /// Locks the state. No code that runs under the lock can leave the state half changed.
    fn lock(&self) -> MutexGuard<'_, InboxState> {
        self.state.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_does_not_fit_is_lost_and_the_rest_is_kept() {
        let inbox = Inbox::default();
        let fits = MOST_WAITING / (1_000 + OVERHEAD);
        (0..2 * fits).for_each(|_| inbox.push(&[7; 1_000]));
        inbox.close();
        let mut packets = Vec::new();
        while inbox.take(&mut packets).await.is_ok() {}
        assert_eq!(packets.len(), fits);
        assert!(packets.iter().all(|packet| packet[..] == [7; 1_000]));
    }

    #[tokio::test]
    async fn a_waiting_reader_is_woken_by_a_datagram_and_by_the_end() {
        let inbox = Inbox::default();
        let mut packets = Vec::new();
        let (taken, ()) = tokio::join!(inbox.take(&mut packets), async { inbox.push(&[]) });
        assert_eq!(taken, Ok(()));
        let (taken, ()) = tokio::join!(inbox.take(&mut packets), async { inbox.close() });
        assert_eq!(taken, Err(Closed));
        assert_eq!(packets, [&[][..]]);
    }
}
