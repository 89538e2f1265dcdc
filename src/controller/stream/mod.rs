//! The runner's stream, in both directions: lines of JSON, and zips in base64 between them.
//!
//! `scan` cuts the bytes into lines and zips, `line` says what a line is. [`Submission`] checks a stream on its way in
//! and finds what the stream asks for ([`Asked`]), [`KwargsChange`] rewrites its kwargs line on the way to a child,
//! [`WorkerOutput`] reads what comes back. All of them are fed bytes and need little memory, however long the stream
//! is. Zips are read once their stream is stored: [`StoredZip`]. None of them opens or writes anything itself.

mod asked;
mod directory;
mod events;
mod failures;
mod kwargs;
mod line;
mod output;
mod scan;
mod stats;
mod submission;
mod tail;
mod zip;

pub use self::asked::{Asked, RunSummary};
pub use self::events::EventReader;
pub use self::failures::{FailedTask, FailureReport};
pub use self::kwargs::{KwargsChange, KwargsError, limit};
pub use self::line::UNREACHABLE;
pub use self::output::{WorkerOutput, lost_line};
pub use self::scan::{Piece, Scanner};
pub use self::stats::{HostStats, MOST_HOSTS, Recap, RecapCounts};
pub use self::submission::{Submission, WholeSubmission};
pub use self::zip::{StoredZip, StoredZipReader};

#[cfg(test)]
mod tests;
