//! What has happened, in order: what the world did, and what was seen from outside of the nodes. It is all that the checker
//! knows, and its hash tells two runs apart.

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
    /// It has written all that it had to, and ended.
    Ended { tag: String, pid: u32 },
    /// It was killed, or told to end, or could not write.
    Killed { tag: String, pid: u32 },
    /// A client's submission was answered.
    Accepted { tag: String, by: String, unit: String },
    /// A client was told that its cancel was done.
    Cancelled { tag: String },
    /// A client saw a unit in this state.
    Seen { tag: String, unit: String, state: u64, detail: String, size: u64 },
    /// A reader of a unit's output has come to its end.
    Read { tag: String, unit: String, text: Text },
    /// What a controller has of a job that has ended.
    Row { tag: String, row: serde_json::Value },
    /// A unit was released.
    Released { tag: String, unit: String },
    /// A fault has ended processes of this node, or kept them from writing.
    Struck { node: String },
    /// A store has lost what it committed since then.
    Lost { since: Duration },
    /// A store's clock is wrong for a while.
    StoreClock,
    /// A node has lost what it had promised to keep.
    Robbed { node: String },
    /// Another node had its name until now.
    Doubled { node: String },
    /// A client was told that there is no such unit.
    Gone { tag: String, unit: String },
    /// Anything else that helps to understand a run.
    Told { text: String },
}

/// Notes with their times. Clones are the same.
#[derive(Clone)]
pub(super) struct History {
    notes: Arc<Mutex<Vec<(Duration, Note)>>>,
    shown: bool,
    /// Where all files are: a name that no two runs have.
    place: Arc<str>,
}

impl History {
    /// One whose notes are printed at once, if they are to be.
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

    /// The same for the same run.
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

/// Since when a store has lost what it committed, once for each time.
pub(super) fn losses(notes: &[(Duration, Note)]) -> Vec<Duration> {
    let since = |note: &Note| if let Note::Lost { since } = note { Some(*since) } else { None };
    notes.iter().filter_map(|(_, note)| since(note)).collect()
}

/// What a reader got.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Text(pub(super) Arc<Vec<u8>>);

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes, {:016x}", self.0.len(), digest(&self.0))
    }
}

/// Tells texts apart.
pub(super) fn digest(text: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}
