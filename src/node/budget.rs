//! The bound on protocol messages that wait to be written, over all links of a node.
//!
//! Owns the bound and each link's share of it: a megabyte, and less where many links hold much. Stalled links thus
//! leave room for one that reads, and a link that holds little gets some as long as there is any. Knows no messages.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::Notify;

use crate::wire::MAX_MESSAGE;

/// Bytes of protocol messages that may wait or be in writing on all links together.
pub(super) const LIMIT: usize = 64 << 20;
/// The most that one link may hold: enough to keep its writer busy.
const MOST: usize = 1 << 20;
/// Where room is scarce, a link may hold this fraction of what the others leave.
const PARTS: usize = 5;
/// Kept for links that hold less than a long message.
const RESERVE: usize = LIMIT / 4;

/// The shared bound.
#[derive(Debug, Default)]
pub(super) struct Budget {
    used: AtomicUsize,
    wanted: AtomicBool,
    freed: Notify,
}

impl Budget {
    /// Takes `len` bytes for a link that holds `held` already; false if that is more than its share. One task takes,
    /// others only give back.
    pub(super) fn take(&self, held: usize, len: usize) -> bool {
        let free = self.free();
        let fits = len <= free && (held + len <= MAX_MESSAGE || held + len <= share(free, held));
        if fits {
            self.used.fetch_add(len, Ordering::SeqCst);
        }
        fits
    }

    /// Bytes that a link which holds `held` may take of what can wait, beyond which a last message may go; `None` if
    /// that might not fit. Half of its share is kept for what cannot wait.
    pub(super) fn room(&self, held: usize) -> Option<usize> {
        let free = self.free();
        let room = (share(free, held) / 2).saturating_sub(held);
        if room >= MAX_MESSAGE {
            return Some(room);
        }
        // One message always fits.
        (held == 0 && free >= MAX_MESSAGE).then_some(1)
    }

    /// Gives bytes back.
    pub(super) fn release(&self, bytes: usize) {
        if bytes > 0 {
            self.used.fetch_sub(bytes, Ordering::SeqCst);
            if self.wanted.load(Ordering::SeqCst) {
                self.freed.notify_one();
            }
        }
    }

    /// Whether [`Budget::freed`] is to fire. Set it before looking for room.
    pub(super) fn want(&self, wanted: bool) {
        self.wanted.store(wanted, Ordering::SeqCst);
    }

    /// Waits until bytes have been given back.
    pub(super) async fn freed(&self) {
        self.freed.notified().await;
    }

    fn free(&self) -> usize {
        LIMIT.saturating_sub(self.used.load(Ordering::SeqCst))
    }
}

/// The share of a link that holds `held` bytes now.
fn share(free: usize, held: usize) -> usize {
    ((free.saturating_sub(RESERVE) + held) / PARTS).min(MOST)
}
