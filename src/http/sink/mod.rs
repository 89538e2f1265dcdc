//! The directive `events-sink`: what `meshctl events` tells and the controller's audit, as lines of JSON for a receiver, each at
//! least once. Owns what becomes a line. A line is on disk before it is sent, and nothing that happens on the node waits for
//! it: this looks at the node as any watcher does.
//!
//! `buffer` keeps the lines, `sender` brings them to the receiver.

mod buffer;
mod sender;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use http::Uri;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use self::buffer::SinkBuffer;
use self::sender::SinkSender;
use super::token::TokenFile;
use super::web::{LIST_WITHIN, SNAPSHOT_EVERY, look};
use crate::control::{Context, SinkCounters};
use crate::os::answers::{AnswerDoor, AnswerRoom};
use crate::rpc::operation::{Answer, AuditPage, Operation};
use crate::rpc::report::controller::AuditRow;
use crate::rpc::report::events::{EventLog, MeshEvent};
use crate::tls::ClientProfile;
use crate::work::Caller;

/// Rows of the audit that are read at a time.
const ROWS: u32 = 500;
/// How long a number that is missing in the audit may yet come: PostgreSQL gives numbers before it commits.
const LATE: Duration = Duration::from_secs(30);

/// Settings of the directive.
#[derive(Debug)]
pub(crate) struct SinkOptions {
    pub(crate) address: Uri,
    pub(crate) tls: Option<ClientProfile>,
    pub(crate) token: Option<TokenFile>,
    /// Where lines wait, and the most bytes of them.
    pub(crate) directory: PathBuf,
    pub(crate) most: u64,
    pub(crate) events: bool,
    pub(crate) audit: bool,
}

/// The sink of a node.
pub(crate) struct EventSink {
    context: Context,
    shelf: Arc<SinkShelf>,
}

/// The buffer, for the one who fills it and the one who sends.
struct SinkShelf {
    // A lock rather than a task: it is held on threads for blocking work alone.
    buffer: Mutex<SinkBuffer>,
    news: Notify,
    options: SinkOptions,
    counters: Arc<SinkCounters>,
    /// The beginning of each line's ID.
    name: String,
    node: String,
}

impl SinkShelf {
    /// Does something with the buffer, on a thread that serves no links.
    async fn with<T: Send + 'static>(
        self: &Arc<Self>,
        act: impl FnOnce(&Self, &mut SinkBuffer) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let this = self.clone();
        let acted = spawn_blocking(move || {
            let mut buffer = this.buffer.lock();
            let acted = act(&this, &mut buffer);
            this.counters.waiting.store(buffer.waiting(), Relaxed);
            acted
        });
        acted.await.map_err(io::Error::other)?
    }

    /// Appends lines, and notes the last row of the audit among them.
    async fn append(self: &Arc<Self>, told: Vec<(&'static str, Value)>, audit: Option<i64>) {
        let append = move |this: &Self, buffer: &mut SinkBuffer| {
            let (mut lost, mut outcome) = (0, Ok(()));
            for (key, value) in told {
                let (seq, at) = (buffer.end(), Timestamp::now());
                let line = json!({"id": format!("{}{seq}", this.name), "node": this.node, "seq": seq, "at": at, key: value});
                let (more, written) = buffer.append(&line.to_string());
                lost += more;
                outcome = outcome.and(written);
            }
            this.counters.lost.fetch_add(lost, Relaxed);
            if lost > 0 {
                tracing::warn!(lost, "events for the sink are lost: its buffer is full");
            }
            // Rows that the disk does not take are read again.
            outcome.and_then(|()| audit.map_or(Ok(()), |id| buffer.note_audit(id)))
        };
        if let Err(error) = self.with(append).await {
            tracing::warn!(%error, "cannot keep events for the sink");
        }
        self.news.notify_one();
    }
}

impl EventSink {
    /// Opens the buffer. Blocks.
    ///
    /// # Errors
    /// The directory cannot be used.
    pub(crate) fn open(context: Context, options: SinkOptions) -> io::Result<Self> {
        let now = u64::try_from(Timestamp::now().as_millisecond()).unwrap_or_default();
        let buffer = SinkBuffer::open(&options.directory, options.most, now)?;
        let (node, counters) = (context.node.id().to_string(), context.observer.sink.clone());
        let name = format!("{node}/{:x}/", buffer.epoch);
        counters.waiting.store(buffer.waiting(), Relaxed);
        counters.most.store(options.most, Relaxed);
        let (buffer, news) = (Mutex::new(buffer), Notify::new());
        let shelf = Arc::new(SinkShelf { buffer, news, options, counters, name, node });
        Ok(Self { context, shelf })
    }

    /// Gathers and sends until `stop`.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let sender = SinkSender::new(self.shelf.clone());
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.gather() => {}
            () = sender.run() => {}
        }
        self.shelf.counters.note_end();
    }

    async fn gather(&self) {
        let room = AnswerDoor::new().room("the sink".to_owned());
        let mut log = EventLog::new(look(&self.context, &room).await, 1);
        let gap = MeshEvent::gap(0, self.shelf.node.clone(), None, Timestamp::now());
        let mut told: Vec<_> = self.shelf.options.events.then(|| ("event", json!(gap))).into_iter().collect();
        let mut ticks = interval(SNAPSHOT_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let rows = self.rows().await;
            let audit = rows.last().map(|row| row.id);
            told.extend(rows.iter().map(|row| ("audit", json!(row))));
            if !told.is_empty() {
                self.shelf.append(std::mem::take(&mut told), audit).await;
            }
            ticks.tick().await;
            if self.shelf.options.events {
                // `None` means that the process ends.
                let Some((after, events)) = self.changes(log, &room).await else { return };
                log = after;
                told.extend(events.iter().map(|event| ("event", json!(event))));
            }
        }
    }

    async fn changes(
        &self,
        mut log: EventLog,
        room: &AnswerRoom<String>,
    ) -> Option<(EventLog, Vec<MeshEvent>)> {
        let now = look(&self.context, room).await;
        let compare = move || {
            let events = log.add(now);
            (log, events)
        };
        room.off_thread(compare).await
    }

    /// New rows of the audit. While the buffer is half full they stay in the store, which loses none.
    async fn rows(&self) -> Vec<AuditRow> {
        let Some(controller) = self.context.controller.as_ref().filter(|_| self.shelf.options.audit) else {
            return Vec::new();
        };
        let place = self.shelf.with(|_, buffer| Ok(buffer.has_room().then(|| buffer.audit()))).await;
        let Ok(Some(after)) = place else { return Vec::new() };
        let ask = Operation::ListAudit(AuditPage { limit: Some(ROWS), after: Some(after) });
        match timeout(LIST_WITHIN, controller.operate(ask, &Caller::default())).await {
            Ok(Ok((Answer::ListAudit(found), _))) => complete(found.rows, after, Timestamp::now()),
            Ok(_) | Err(_) => Vec::new(),
        }
    }
}

/// The rows up to the first that another, smaller number may yet come before.
fn complete(rows: Vec<AuditRow>, after: i64, now: Timestamp) -> Vec<AuditRow> {
    let mut last = after;
    let is_late = |row: &AuditRow| row.at.parse().is_ok_and(|at: Timestamp| at + LATE > now);
    let is_next = |row: &AuditRow| {
        let follows = row.id == last + 1 || !is_late(row);
        last = row.id;
        follows
    };
    rows.into_iter().take_while(is_next).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_may_yet_be_committed_is_waited_for() {
        let now: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        let rows = |ids: &[(i64, u32)]| -> Vec<AuditRow> {
            let row = |(id, second): &(i64, u32)| AuditRow {
                id: *id,
                at: format!("2026-01-01T00:00:{second:02}Z"),
                ..AuditRow::default()
            };
            ids.iter().map(row).collect()
        };
        let ids = |found: &[(i64, u32)], after| -> Vec<i64> {
            complete(rows(found), after, now).iter().map(|row| row.id).collect()
        };
        assert_eq!(ids(&[(5, 50), (6, 51), (8, 52), (9, 53)], 4), [5, 6], "7 may come");
        assert_eq!(ids(&[(5, 1), (8, 2), (9, 50)], 4), [5, 8, 9], "7 never came");
        assert_eq!(ids(&[(100, 1)], 0), [100], "the oldest are deleted in time");
        assert_eq!(ids(&[], 4), [0; 0]);
    }
}
