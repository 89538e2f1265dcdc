//! The bound on protocol messages that wait to be written, over all links of a node.
//!
//! Owns the bound and each link's share of it: a megabyte, and less if other links hold much. So stalled links leave
//! room for links that read, and a link that holds little gets room while there is any. Knows no messages.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::Notify;

use crate::wire::MAX_MESSAGE;

/// Most bytes of protocol messages that wait or are being written, on all links together.
pub(super) const LIMIT: usize = 64 << 20;
/// Most bytes of one link: enough to keep its writer busy.
const MOST_OF_LINK: usize = 1 << 20;
/// A link may hold at most one part in this many of the bytes that others leave beyond the reserve.
const PARTS: usize = 5;
/// Reserved for links that hold less than a long message.
const RESERVE: usize = LIMIT / 4;

/// The shared bound.
#[derive(Debug, Default)]
pub(super) struct Budget {
    used: AtomicUsize,
    wanted: AtomicBool,
    freed: Notify,
}

impl Budget {
    /// Takes `len` bytes for a link that already holds `held`; false if this exceeds its share. Only one task may take;
    /// others may give back meanwhile.
    pub(super) fn take(&self, held: usize, len: usize) -> bool {
        let free = self.free();
        let fits = len <= free && (held + len <= MAX_MESSAGE || held + len <= share(free, held));
        if fits {
            self.used.fetch_add(len, Ordering::SeqCst);
        }
        fits
    }

    /// How many bytes of messages that can wait a link may take now that holds `held`; the last message may exceed
    /// this. `None` if a long message might not fit. Half of the link's share is kept for messages that cannot wait.
    pub(super) fn room(&self, held: usize) -> Option<usize> {
        let free = self.free();
        let room = (share(free, held) / 2).saturating_sub(held);
        if room >= MAX_MESSAGE {
            return Some(room);
        }
        // An idle link may take one message, if a long one would fit.
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

    /// Sets whether [`Budget::freed`] is to fire. Set before looking for room, so that no release is missed.
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
    ((free.saturating_sub(RESERVE) + held) / PARTS).min(MOST_OF_LINK)
}
