//! The events of a run in order: what the world did, and what was seen of the nodes from outside. The checker knows
//! nothing else, and the hash of a history tells two runs apart.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use meshd_machine as machine;

/// Something that was done or seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Note {
    /// A process of a job has started, for a unit of this name, and has read a payload with this digest.
    Started { tag: String, node: String, unit: String, pid: u32, payload: u64 },
    /// A process has written everything, and ended.
    Ended { tag: String, pid: u32 },
    /// A process was killed, or told to end, or could not write.
    Killed { tag: String, pid: u32 },
    /// A client's submission was answered.
    Accepted { tag: String, by: String, unit: String },
    /// A client was told that its cancel was done.
    Cancelled { tag: String },
    /// A client saw a unit in this state.
    Seen { tag: String, unit: String, state: u64, detail: String, size: u64 },
    /// A reader of a unit's output has reached its end. It has read since this time.
    Read { tag: String, unit: String, since: Duration, text: Text },
    /// A controller's row of a job that has ended.
    Row { tag: String, row: serde_json::Value },
    /// A unit was released.
    Released { tag: String, unit: String },
    /// A fault has ended processes of this node, or kept them from writing.
    Struck { node: String },
    /// A store has lost all commits since this time.
    Lost { since: Duration },
    /// A store's clock is wrong for a while.
    StoreClock,
    /// A node has lost what it had promised to keep.
    Robbed { node: String },
    /// Another node had this node's name until now.
    Doubled { node: String },
    /// A client was told that there is no such unit.
    Gone { tag: String, unit: String },
    /// Anything else that helps to understand a run.
    Told { text: String },
}

/// Notes with their times. Clones share them.
#[derive(Clone)]
pub(super) struct History {
    notes: Arc<Mutex<Vec<(Duration, Note)>>>,
    shown: bool,
    /// The directory of all files, whose name differs between runs.
    place: Arc<str>,
}

impl History {
    /// A new history. If `shown`, its notes are printed at once.
    pub(super) fn new(shown: bool, place: &str) -> Self {
        Self { notes: Arc::default(), shown, place: place.into() }
    }

    /// A note as a line, the same in each run of a seed.
    fn line(&self, at: Duration, note: &Note) -> String {
        format!("{:12.6} {note:?}", at.as_secs_f64()).replace(&*self.place, "")
    }

    pub(super) fn note(&self, note: Note) {
        if self.shown {
            println!("{}", self.line(machine::now(), &note));
        }
        self.notes.lock().unwrap().push((machine::now(), note));
    }

    pub(super) fn tell(&self, text: impl Into<String>) {
        self.note(Note::Told { text: text.into() });
    }

    pub(super) fn notes(&self) -> Vec<(Duration, Note)> {
        self.notes.lock().unwrap().clone()
    }

    /// Whether anything of that kind has happened.
    pub(super) fn has(&self, is_it: impl Fn(&Note) -> bool) -> bool {
        self.notes.lock().unwrap().iter().any(|(_, note)| is_it(note))
    }

    /// A hash that is the same for each run of a seed.
    pub(super) fn hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for (at, note) in self.notes.lock().unwrap().iter() {
            self.line(*at, note).hash(&mut hasher);
        }
        hasher.finish()
    }

    /// The last notes, for a failure's message.
    pub(super) fn tail(&self, count: usize) -> String {
        let notes = self.notes.lock().unwrap();
        let lines = notes.iter().skip(notes.len().saturating_sub(count));
        lines.map(|(at, note)| self.line(*at, note) + "\n").collect()
    }
}

/// For each loss of a store, the time since which its commits are lost.
pub(super) fn losses(notes: &[(Duration, Note)]) -> Vec<Duration> {
    let since = |note: &Note| if let Note::Lost { since } = note { Some(*since) } else { None };
    notes.iter().filter_map(|(_, note)| since(note)).collect()
}

/// The text that a reader got.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Text(pub(super) Arc<Vec<u8>>);

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes, {:016x}", self.0.len(), digest(&self.0))
    }
}

/// A hash that tells texts apart.
pub(super) fn digest(text: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}
