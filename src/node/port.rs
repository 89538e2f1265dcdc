//! A bound service's inbox: datagrams that have arrived and wait to be read, bounded in bytes.
//!
//! Pushing never waits: a datagram that does not fit is dropped and counted, as by a UDP socket.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use parking_lot::{Mutex, MutexGuard};

use crate::mesh::Datagram;
use crate::wire::{NodeId, Unreachable};

/// Most bytes that may wait.
const MOST_WAITING: usize = 8 << 20;
/// Bytes that a datagram counts beyond its payload, so that empty datagrams are bounded, too.
const OVERHEAD: usize = 128;
/// Most notices that may wait.
const MOST_NOTICES: usize = 1024;

/// A notice that a datagram of this service did not arrive.
#[derive(Debug, Clone)]
pub(super) struct Notice {
    pub(super) notice: Unreachable,
    pub(super) reported_by: NodeId,
}

/// The inbox.
#[derive(Debug, Default)]
pub(super) struct ServicePort {
    inbox: Mutex<PortState>,
    /// Datagrams that found no room, here and at the node's other services.
    dropped: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct PortState {
    datagrams: VecDeque<Datagram>,
    bytes: usize,
    reader: Option<Waker>,
    notices: VecDeque<Notice>,
    notice_reader: Option<Waker>,
    closed: bool,
}

impl ServicePort {
    /// An empty inbox that counts dropped datagrams in `dropped`.
    pub(super) fn new(dropped: Arc<AtomicU64>) -> Self {
        Self { dropped, ..Self::default() }
    }

    /// Bytes that wait.
    pub(super) fn waiting(&self) -> usize {
        self.lock().bytes
    }

    /// Puts a datagram in, or drops it.
    pub(super) fn push(&self, datagram: Datagram) {
        let size = datagram.payload.len() + OVERHEAD;
        let mut inbox = self.lock();
        if inbox.bytes + size > MOST_WAITING || inbox.closed {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        inbox.bytes += size;
        inbox.datagrams.push_back(datagram);
        let reader = inbox.reader.take();
        drop(inbox);
        reader.into_iter().for_each(Waker::wake);
    }

    /// Puts a notice in; if there are too many, the oldest is dropped.
    pub(super) fn push_notice(&self, notice: Notice) {
        let mut inbox = self.lock();
        if inbox.notices.len() >= MOST_NOTICES {
            inbox.notices.pop_front();
        }
        inbox.notices.push_back(notice);
        let reader = inbox.notice_reader.take();
        drop(inbox);
        reader.into_iter().for_each(Waker::wake);
    }

    /// Passes datagrams to `each` until it returns false, because it can take no more. Pending while there are
    /// none; `Ready(false)` once the node has stopped and none is left.
    pub(super) fn poll_take(
        &self,
        cx: &mut Context<'_>,
        mut each: impl FnMut(Datagram) -> bool,
    ) -> Poll<bool> {
        let mut inbox = self.lock();
        let mut any = false;
        while let Some(datagram) = inbox.datagrams.pop_front() {
            inbox.bytes -= datagram.payload.len() + OVERHEAD;
            any = true;
            if !each(datagram) {
                break;
            }
        }
        if any || inbox.closed {
            return Poll::Ready(any);
        }
        inbox.reader = Some(cx.waker().clone());
        Poll::Pending
    }

    /// The next notice; `None` once the node has stopped.
    pub(super) fn poll_notice(&self, cx: &mut Context<'_>) -> Poll<Option<Notice>> {
        let mut inbox = self.lock();
        if let Some(notice) = inbox.notices.pop_front() {
            return Poll::Ready(Some(notice));
        }
        if inbox.closed {
            return Poll::Ready(None);
        }
        inbox.notice_reader = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Ends the service: readers get the remaining datagrams and notices, then the end.
    pub(super) fn close(&self) {
        let mut inbox = self.lock();
        inbox.closed = true;
        let wakers = [inbox.reader.take(), inbox.notice_reader.take()];
        drop(inbox);
        wakers.into_iter().flatten().for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, PortState> {
        // No code that can panic runs under this lock.
        self.inbox.lock()
    }
}
