//! A control node's counters of its jobs and passes, for operators. No decision depends on them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::controller::core::{JobKind, JobState};
use crate::controller::store::{JobRow, Store};
use crate::counters::{ControllerCounters, Durations};

/// The counters since the driver started.
#[derive(Debug, Default)]
pub(in crate::controller) struct Figures {
    /// Locked only for arithmetic.
    finished: Mutex<BTreeMap<(JobKind, JobState), u64>>,
    start_delay: Durations,
    events: AtomicU64,
    pub(super) pass: Durations,
    pub(super) takeovers: AtomicU64,
    pub(in crate::controller) orphans: AtomicU64,
    pub(in crate::controller) payload_bytes: AtomicU64,
}

impl Figures {
    /// Counts a job whose end was shown by its units.
    pub(super) fn note_end(&self, row: &JobRow) {
        *self.finished.lock().entry((row.kind, row.state)).or_default() += 1;
        self.events.fetch_add(row.events, Ordering::Relaxed);
        if let Some(started) = row.started {
            self.start_delay.note(started.since(row.created));
        }
    }

    /// The counters now. Includes no open jobs while the store is away.
    pub(in crate::controller) async fn counters(&self, store: &Store) -> ControllerCounters {
        let (jobs, oldest) = store.open_jobs().await.unwrap_or_default();
        let (reads, writes, fenced) = store.figures();
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let finished = self.finished.lock();
        ControllerCounters {
            jobs,
            oldest_pending: oldest.as_secs_f64(),
            finished: finished
                .iter()
                .map(|((kind, state), count)| (kind.name(), state.name(), *count))
                .collect(),
            start_delay: self.start_delay.lengths(),
            events: read(&self.events),
            pass: self.pass.lengths(),
            reads,
            writes,
            takeovers: read(&self.takeovers),
            fenced,
            orphans: read(&self.orphans),
            payload_bytes: read(&self.payload_bytes),
            ..ControllerCounters::default()
        }
    }
}
