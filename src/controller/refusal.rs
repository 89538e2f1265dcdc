//! Why a submission is refused. Each text completes `ERROR: controller: ` and says what to do.
//!
//! It names keys and positions and never shows a value of the stream, because values may be secrets.

use std::fmt;

use crate::rpc::strict::Misfit;

/// The longest header, and the longest kwargs line, in bytes.
pub const LINE_LIMIT: usize = 1 << 20;

/// What a stream must bring next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Awaited {
    /// The header, or the kwargs line.
    FirstLine,
    /// The kwargs line.
    Kwargs,
    /// The length of the zip, or the end line if there is no zip.
    ZipOrEnd,
    /// The rest of the zip.
    Zip,
    /// The end line.
    End,
    /// Nothing.
    Nothing,
}

impl fmt::Display for Awaited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FirstLine => "its first line",
            Self::Kwargs => "its kwargs line",
            Self::ZipOrEnd => "its zipfile line or its eof line",
            Self::Zip => "the end of its zip",
            Self::End => "its eof line",
            Self::Nothing => "nothing more",
        })
    }
}

/// Why a submission leaves neither unit nor row.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The first line is too long.
    #[error("the first line is longer than {LINE_LIMIT} bytes: put large values into files of the stream")]
    LongFirstLine,
    /// The first line is something else.
    #[error(
        "the first line is neither a header, {{\"controller\": 1, ...}}, nor the kwargs line of ansible-runner \
         transmit"
    )]
    NoHeader,
    /// The header is wrong.
    #[error("header: {0}")]
    Header(#[from] HeaderFault),
    /// The runner's stream after the header is wrong.
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
    /// The header is no JSON object.
    #[error("it is not a JSON object")]
    NotAnObject,
    /// The header has another version.
    #[error("controller: this node understands version 1 only")]
    Version,
    /// One of the header's keys is wrong.
    #[error(transparent)]
    Key(#[from] Misfit),
}

/// What is wrong with the framing of a runner's stream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StreamFault {
    /// A line that is too long.
    #[error("the stream is not from ansible-runner transmit: {0} is longer than {LINE_LIMIT} bytes")]
    LongLine(Awaited),
    /// The line is not the one that must come now.
    #[error("the stream is not from ansible-runner transmit: {0} is expected at byte {1}")]
    Unexpected(Awaited, u64),
    /// A byte inside the zip is not base64.
    #[error("the stream is damaged: its zip is not base64 at byte {0}")]
    BadZip(u64),
    /// The stream brings a project, and the header asks for another.
    #[error(
        "the stream brings files below project/, and the header's sync brings the project: leave out one of them"
    )]
    Project,
    /// The stream's zip is not understood, and the header asks for a project.
    #[error(
        "the header's sync brings the project, but meshd cannot tell whether the stream's zip brings one too: write \
         the stream with ansible-runner transmit"
    )]
    Unreadable,
    /// The stream ends too early.
    #[error("the stream ends after {1} bytes, before {0}")]
    EndsEarly(Awaited, u64),
}
