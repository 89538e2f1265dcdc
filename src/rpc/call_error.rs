//! What can go wrong between a client and a node, in words that say what to do. Owns no exit codes.

use std::{io, time::Duration};

use super::ErrorLine;

/// A request that did not get its answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// No connection, with the text of the dialer.
    #[error("{0}")]
    Unreachable(String),
    /// Something listens, but its first line is not a control service's.
    #[error("{address} is not a node's control service: it greeted with {greeting:?}")]
    NotControl {
        /// What was dialled.
        address: String,
        /// The line it sent, cut short.
        greeting: String,
    },
    /// No answer in time.
    #[error("no {what} within {}: the node is up but stuck, or too busy; see its log", crate::duration::print(*.after))]
    TimedOut {
        /// What was waited for.
        what: &'static str,
        /// The limit.
        after: Duration,
    },
    /// The node refused the request, with its own words.
    #[error("{0}")]
    Refused(ErrorLine),
    /// The connection ended in the middle of something.
    #[error("the node closed the connection before its {0} came: it may have been stopped or restarted")]
    Closed(&'static str),
    /// An answer that does not fit the question.
    #[error("unexpected answer to {question}: {answer}")]
    Protocol {
        /// What had been asked.
        question: &'static str,
        /// The answer, cut short, or what is wrong with it.
        answer: String,
    },
    /// The payload could not be read: nothing is wrong with the node.
    #[error("cannot read the payload: {0}")]
    Payload(#[source] io::Error),
    /// The connection broke.
    #[error("connection to the node failed while {doing}: {source}")]
    Io {
        /// What was under way.
        doing: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// A node that was followed went away and stayed away.
    #[error("node gone for {} at byte {position} of the results of unit {unit}: {cause}", crate::duration::print(*.after))]
    Absent {
        /// The unit followed.
        unit: String,
        /// How many bytes have arrived, counted from the start of the unit's output.
        position: u64,
        /// How long the client waited for the node.
        after: Duration,
        /// The last attempt's outcome.
        cause: Box<CallError>,
    },
    /// The unit is final, but the node hands out fewer bytes than it says there are.
    #[error("results of unit {unit} end at byte {position} of {size}: its stdout file was cut or removed")]
    Truncated {
        /// The unit followed.
        unit: String,
        /// How many bytes have arrived.
        position: u64,
        /// How many there should be.
        size: u64,
    },
}

impl CallError {
    /// True if the node, or the way to it, is gone: a later attempt may succeed.
    pub fn is_absence(&self) -> bool {
        match self {
            Self::Unreachable(_)
            | Self::TimedOut { .. }
            | Self::Closed(_)
            | Self::Io { .. }
            | Self::Absent { .. } => true,
            Self::NotControl { .. }
            | Self::Refused(_)
            | Self::Protocol { .. }
            | Self::Payload(_)
            | Self::Truncated { .. } => false,
        }
    }

    /// Wraps an I/O error with what was being done.
    pub(super) fn io(doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { doing, source }
    }
}
