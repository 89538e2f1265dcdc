//! The runner's stream, in both directions: lines of JSON, and zips in base64 between them.
//!
//! `scan` cuts the bytes into lines and zips, `line` says what a line is. [`Submission`] checks a stream on its
//! way in and finds what it has [`Asked`] for, [`KwargsChange`] rewrites its first line on the way to a child,
//! [`WorkerOutput`] reads what comes back. All of them are fed bytes and need little memory however long the stream is.
//! What is in a zip is read once its stream is stored: [`StoredZip`]. None of them opens or writes anything itself.

mod asked;
mod directory;
mod events;
mod kwargs;
mod line;
mod output;
mod scan;
mod stats;
mod submission;
mod tail;
mod zip;

pub use self::asked::{Asked, RunSummary};
pub use self::events::EventFilter;
pub use self::kwargs::{KwargsChange, KwargsError, limit};
pub use self::output::{WorkerOutput, lost_line};
pub use self::scan::{Piece, Scanner};
pub use self::stats::{HostStats, MOST_HOSTS, Recap, RecapCounts};
pub use self::submission::{Accepted, Awaited, Submission};
pub use self::zip::{StoredZip, ZipReader};

#[cfg(test)]
mod tests;
