//! What the driver of a remote unit and those who wait for it tell each other. `remote` decides who says what, and
//! when.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::work::signing::PayloadHash;

/// Connects a remote unit's driver with those who wait for it. Only `remote` looks inside.
#[derive(Debug, Default)]
pub(crate) struct DriverLink {
    pub(crate) news: watch::Sender<DriverNews>,
    /// Changes whenever a client has recorded a new intent.
    pub(crate) intents: watch::Sender<u64>,
    /// Rises whenever more of an incomplete payload has been written to its file.
    pub(crate) growth: watch::Sender<u64>,
    /// Rises whenever a connection has been of use.
    pub(crate) progress: AtomicU64,
    /// Since when the other node has answered nothing.
    unanswered: Mutex<Option<Instant>>,
    /// Rises whenever the other node reports on the unit for the first time over a connection.
    contacts: watch::Sender<u64>,
    /// Whether a driver runs. A plain lock, never held across a wait.
    pub(crate) driven: Mutex<bool>,
    /// Held by blocking code while it reads the length of `stdout` or appends to it: after its caller was dropped, an
    /// append may still be under way when the next one begins.
    pub(crate) output: Arc<Mutex<()>>,
    /// Number of attempts to let the other node create the unit.
    attempts: AtomicU64,
    /// The other node has the unit but has not received the end of its payload, so the unit cannot have started.
    half_there: AtomicBool,
    /// The payload is sent as it is, because it could not be put together from pieces.
    goes_plainly: AtomicBool,
    /// Number of looks at a unit there that has not reacted: to the end of its payload, or to being ended.
    looks: AtomicU32,
    /// The hash of the payload of a signed unit, once it is computed. A complete payload never changes.
    pub(crate) payload_hash: OnceLock<PayloadHash>,
}

/// The driver's news for its clients.
#[derive(Debug, Clone, Default)]
pub(crate) struct DriverNews {
    /// Why the unit could not be started, if so.
    pub(crate) refused: Option<String>,
    /// Attempts that failed.
    pub(crate) failures: u64,
    /// When the other node agreed to cancel the unit.
    pub(crate) cancelled: Option<Instant>,
    /// The unit is released and deleted.
    pub(crate) released: bool,
    /// The other node does not know the unit any more.
    pub(crate) gone: bool,
    /// The other node does not know the unit now but may still run it.
    pub(crate) missing: bool,
}

impl DriverLink {
    /// Notes that a connection has been of use: the other node answered, accepted payload or sent output.
    pub(crate) fn note_progress(&self) {
        self.progress.fetch_add(1, Ordering::Relaxed);
        self.note_answered(true);
    }

    pub(crate) fn note_answered(&self, is_answer: bool) {
        let mut since = self.unanswered.lock();
        *since = if is_answer { None } else { since.or_else(|| Some(Instant::now())) };
    }

    /// How long the other node has not answered, although it was asked.
    pub(crate) fn unanswered_for(&self) -> Option<Duration> {
        self.unanswered.lock().map(|since| since.elapsed())
    }

    /// The other node said that it does not know the unit any more.
    pub(crate) fn is_gone(&self) -> bool {
        self.news.borrow().gone
    }

    /// Whether the other node said that it does not know the unit, and did not promise that it will not run it.
    pub(crate) fn is_missing(&self) -> bool {
        self.news.borrow().missing
    }

    pub(crate) fn note_missing(&self) {
        self.news.send_modify(|news| news.missing = true);
        // Wakes those who wait for a contact, so that they see that there is none.
        self.contacts.send_modify(|_| ());
    }

    pub(crate) fn note_contact(&self) {
        self.news.send_modify(|news| news.missing = false);
        self.contacts.send_modify(|count| *count += 1);
    }

    /// Rises with each connection over which the other node has reported on the unit, which shows that it has the unit.
    pub(crate) fn contacts(&self) -> watch::Receiver<u64> {
        self.contacts.subscribe()
    }

    /// The number of a new attempt. Only the unit of the latest attempt counts.
    pub(crate) fn begin_attempt(&self) -> u64 {
        self.attempts.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(crate) fn is_latest(&self, attempt: u64) -> bool {
        self.attempts.load(Ordering::Relaxed) == attempt
    }

    pub(crate) fn is_half_there(&self) -> bool {
        self.half_there.load(Ordering::Relaxed)
    }

    pub(crate) fn set_half_there(&self, half: bool) {
        self.half_there.store(half, Ordering::Relaxed);
        self.looks.store(0, Ordering::Relaxed);
    }

    pub(crate) fn goes_plainly(&self) -> bool {
        self.goes_plainly.load(Ordering::Relaxed)
    }

    pub(crate) fn send_plainly(&self) {
        self.goes_plainly.store(true, Ordering::Relaxed);
    }

    /// How often this was called before in the present attempt.
    pub(crate) fn look(&self) -> u32 {
        self.looks.fetch_add(1, Ordering::Relaxed)
    }
}
