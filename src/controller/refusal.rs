//! Why a submission is refused. Each text completes `ERROR: controller: ` and says what to do.
//!
//! It names keys and positions and never shows a value of the stream, as those may be secrets.

use super::stream::Awaited;
use crate::rpc::strict::Misfit;

/// The longest header, and the longest kwargs line, in bytes.
pub const LINE_LIMIT: usize = 1 << 20;

/// Why a submission leaves neither unit nor row.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The first line does not end in time.
    #[error("the first line is longer than {LINE_LIMIT} bytes: put large values into files of the stream")]
    LongFirstLine,
    /// The first line is something else.
    #[error(
        "the first line is neither a header, {{\"controller\": 1, ...}}, nor the kwargs line of ansible-runner \
         transmit"
    )]
    NoHeader,
    /// The header itself.
    #[error("header: {0}")]
    Header(#[from] HeaderFault),
    /// The runner's stream behind it.
    #[error("{0}")]
    Stream(#[from] StreamFault),
    /// More bytes than `maxpayload`.
    #[error("the payload is larger than {limit} bytes, the maxpayload of this node")]
    TooLarge {
        /// The most bytes that are accepted.
        limit: u64,
    },
}

/// What is wrong with a header.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeaderFault {
    /// It is no JSON object.
    #[error("it is not a JSON object")]
    NotAnObject,
    /// It is of another version.
    #[error("controller: this node understands version 1 only")]
    Version,
    /// One of its keys.
    #[error(transparent)]
    Key(#[from] Misfit),
}

/// What is wrong with the framing of a runner's stream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StreamFault {
    /// A line that is too long.
    #[error("the stream is not from ansible-runner transmit: {0} is longer than {LINE_LIMIT} bytes")]
    LongLine(Awaited),
    /// Another line than the one that must come now.
    #[error("the stream is not from ansible-runner transmit: {0} should stand at byte {1}")]
    Unexpected(Awaited, u64),
    /// A byte inside a zip that is no base64.
    #[error("the stream is damaged: its zip is no base64 at byte {0}")]
    BadZip(u64),
    /// It brings a project, and the header asks for another one.
    #[error(
        "the stream brings files below project/, and the header's sync brings the project: leave out one of them"
    )]
    Project,
    /// Its zip is not understood, and the header asks for a project.
    #[error(
        "the header's sync brings the project, and nobody can tell whether the stream's zip brings one too: let \
         ansible-runner transmit write the stream"
    )]
    Unreadable,
    /// It ends too early.
    #[error("the stream ends after {1} bytes, before {0}")]
    EndsEarly(Awaited, u64),
}
