//! Saved jobs: files of a directory on this control node, each with what `meshctl job run` takes. Somebody starts one by
//! its name, and gives values for the variables that it asks for.
//!
//! `file` reads the text of a file by its `rules`, and `vars` what may be given at the start; both are pure. `directory`
//! has the set as it is on disk, and `shelf` as it was at the last reload. `start` makes of a saved job and the given
//! values what any client submits: a header, and the parts of a stream. `hook` judges what a forge sends to start one;
//! `schedule` has the times at which one starts by itself, and `ticks` decides which of them is due. Knows nothing of units
//! and the store: `operations` hands all to the door, and `service::schedules` keeps what has been started.

mod directory;
mod file;
mod hook;
mod rules;
mod schedule;
mod shelf;
mod start;
mod ticks;
mod vars;

pub(crate) use self::directory::{LoadedJob, SavedEntry, SavedJobs};
pub(crate) use self::file::SavedJob;
pub(crate) use self::hook::{HookRates, Judged};
pub use self::schedule::{LoadedSchedule, Schedule, Timetable};
pub(crate) use self::shelf::SavedShelf;
pub(crate) use self::start::{NodeGuards, RESERVED, saved_label};
pub(crate) use self::ticks::next_starts;
pub use self::ticks::{Due, OpenJob, ScheduleLook, ScheduleState, TakenTick};
pub(crate) use self::vars::SavedVar;

/// What is wrong with a file, and in which line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}{}: {what}", self.place())]
pub(crate) struct SavedFault {
    /// The path.
    pub file: String,
    /// Counted from 1; 0 is the file as a whole.
    pub line: u64,
    /// For people.
    pub what: String,
}

impl SavedFault {
    fn place(&self) -> String {
        if self.line == 0 { String::new() } else { format!(":{}", self.line) }
    }
}

#[cfg(test)]
mod tests;
