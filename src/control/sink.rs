//! What is known of the `events-sink` of a node: what it counts, and since when it fails. The sink writes it; the metrics and the
//! doctor read it.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use jiff::Timestamp;
use parking_lot::Mutex;

/// What an `events-sink` counts, and how it stands.
#[derive(Debug, Default)]
pub(crate) struct SinkCounters {
    /// Lines that were sent; those that were sent again count again.
    pub(crate) sent: AtomicU64,
    /// Lines for which there was no room.
    pub(crate) lost: AtomicU64,
    /// Bytes that wait on disk.
    pub(crate) waiting: AtomicU64,
    /// The most bytes that may wait; 0 without a sink.
    pub(crate) most: AtomicU64,
    /// Since when nothing can be sent, and why.
    pub(crate) failing: Mutex<Option<(Timestamp, String)>>,
}

impl SinkCounters {
    /// The receiver has taken lines.
    pub(crate) fn note_success(&self, lines: u64) {
        self.sent.fetch_add(lines, Relaxed);
        *self.failing.lock() = None;
    }

    /// Nothing could be sent.
    pub(crate) fn note_failure(&self, now: Timestamp, why: String) {
        let mut failing = self.failing.lock();
        let since = failing.as_ref().map_or(now, |(since, _)| *since);
        *failing = Some((since, why));
    }

    /// There is no sink any more.
    pub(crate) fn note_end(&self) {
        *self.failing.lock() = None;
        self.most.store(0, Relaxed);
    }
}
