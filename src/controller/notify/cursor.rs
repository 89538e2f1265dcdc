//! How far a target is, and when it is tried again: what the store keeps of it, as a document of each target. `now` is the
//! store's clock in milliseconds.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::courier::Receipt;
use crate::controller::store::{Error, Store, StoredDocument};
use crate::os::back_off::BackOff;

/// The kind of the documents.
pub(super) const KIND: &str = "notify";
/// The pauses between tries.
const PAUSES: BackOff = BackOff::new(Duration::from_secs(1), LONGEST);
const LONGEST: Duration = Duration::from_secs(300);
/// How often a notice is tried that its endpoint refuses.
const REFUSED: u32 = 5;
/// A notice that is older is dropped.
pub(super) const OLDEST: Duration = Duration::from_secs(24 * 3600);

/// How far a target is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct NoticeCursor {
    /// The number of the last ended job that is done with.
    pub cursor: i64,
    /// Failed tries of the next notice in a row.
    pub tries: u32,
    /// Not tried before.
    pub next: i64,
    /// Since when nothing could be delivered.
    pub failing_since: Option<i64>,
    /// What the last failure was.
    pub error: Option<String>,
    /// The last delivery.
    pub delivered: Option<i64>,
    /// Notices, or ended jobs that may have been some, that were given up.
    pub dropped: u64,
    /// The control node that delivers now, and until when it may.
    pub holder: String,
    /// See `holder`.
    pub until: i64,
    /// The version of the document that was read or written last.
    #[serde(skip)]
    pub(super) version: i64,
}

impl NoticeCursor {
    pub(super) fn read(document: &StoredDocument) -> Result<Self, Error> {
        let wrong = |error| Error::Corrupt(format!("how far the target {} is: {error}", document.name));
        let cursor = serde_json::from_str(&document.body).map_err(wrong)?;
        Ok(Self { version: document.version, ..cursor })
    }

    /// Returns whether nobody else has written since.
    pub(super) async fn save(&mut self, store: &Store, name: &str) -> Result<bool, Error> {
        let body = serde_json::to_string(self).map_err(|error| Error::Corrupt(error.to_string()))?;
        let (kind, name, version) = (KIND.to_owned(), name.to_owned(), self.version);
        self.version += 1;
        store.write_document(StoredDocument { kind, name, version, body }).await
    }

    /// How long a control node has to wait before it may deliver; none if it may now. A longer pause than there can be
    /// comes from a clock that was set back, and does not count.
    pub(super) fn wait(&self, node: &str, now: i64) -> Option<Duration> {
        let held = if self.holder == node { 0 } else { self.until };
        let wait = held.max(self.next).saturating_sub(now);
        let wait = u64::try_from(wait).ok().filter(|wait| *wait > 0).map(Duration::from_millis);
        wait.filter(|wait| *wait <= LONGEST)
    }

    /// A control node delivers, for so long at most until it writes again.
    pub(super) fn claim(&mut self, node: &str, now: i64, lasts: Duration) {
        self.holder = node.to_owned();
        self.until = now.saturating_add(i64::try_from(lasts.as_millis()).unwrap_or(i64::MAX));
    }

    /// Lets others deliver.
    pub(super) fn release(&mut self) {
        (self.holder, self.until) = (String::new(), 0);
    }

    /// Goes on behind this number.
    pub(super) fn pass(&mut self, number: i64) {
        (self.cursor, self.tries, self.next) = (number, 0, 0);
    }

    /// Gives up what ended up to this number.
    pub(super) fn drop(&mut self, number: i64, count: u64) {
        self.dropped += count;
        self.pass(number);
    }

    /// Notes what came of the notice about this number. Returns whether it is done with.
    pub(super) fn note(&mut self, number: i64, receipt: Receipt, now: i64) -> bool {
        let (why, is_refused) = match receipt {
            Receipt::Delivered(_) => {
                self.pass(number);
                (self.failing_since, self.error, self.delivered) = (None, None, Some(now));
                return true;
            }
            Receipt::Refused(why) => (why, true),
            Receipt::Failed(why) => (why, false),
        };
        self.tries = self.tries.saturating_add(1);
        self.failing_since.get_or_insert(now);
        self.error = Some(why);
        if is_refused && self.tries >= REFUSED {
            self.drop(number, 1);
            return true;
        }
        let pause = PAUSES.after(self.tries).as_millis();
        self.next = now.saturating_add(i64::try_from(pause).unwrap_or(i64::MAX));
        false
    }
}
