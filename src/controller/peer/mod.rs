//! Control nodes of one install ask each other for the output and the payload of a job, over a mesh service of their
//! own. Cancels go through the store instead. Owns the lines of this protocol, who may ask, and how much answers may
//! cost. It does not know how a service is opened, and decides nothing about jobs.
//!
//! A request is one line of JSON. Its token is bound to the whole request, to the node that is asked, and to one use.
//! The answer is one line, after which the bytes follow until the end of the stream. [`client`] asks, [`server`]
//! answers.

mod client;
mod server;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use self::client::{PeerClient, PeerStream};
pub use self::server::{AdmittedRequest, PeerServer};
use super::core::InstanceName;
use crate::work::WorkError;

/// The longest line in either direction, in bytes.
const LINE: u64 = 16 << 10;

/// Which bytes of a job's output are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WantedOutput {
    /// The first byte, counted from the beginning of the attempt if one is named. It may be beyond the end.
    pub from: u64,
    /// Whether to read until the job ends, and not only the bytes that exist now.
    pub follow: bool,
    /// The attempt; `None` for all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
}

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "lowercase")]
pub enum PeerVerb {
    /// The output of a job. If the wanted part is empty, only the answer's line is sent.
    Output(WantedOutput),
    /// The payload of a job.
    Payload {
        /// The first byte wanted.
        from: u64,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct PeerRequest {
    /// The node that asks.
    node: String,
    /// The install ID of its store.
    install: String,
    job: i64,
    #[serde(flatten)]
    verb: PeerVerb,
    token: String,
}

impl PeerRequest {
    /// What its token is bound to, besides the job.
    fn bound(&self) -> BTreeMap<String, String> {
        let verb = serde_json::to_string(&self.verb).expect("words, numbers and flags become JSON");
        let pairs = [("peer", &self.node), ("install", &self.install), ("asked", &verb)];
        pairs.into_iter().map(|(name, value)| (name.to_owned(), value.clone())).collect()
    }
}

/// What a control node says about the bytes that it sends.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerAnswer {
    /// Bytes that it has now, of the wanted attempt if one was named.
    pub size: u64,
    /// The attempt whose output was begun last; 0 if there is none.
    pub attempt: u32,
    /// Where the output of each of the latest attempts begins.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub starts: Vec<(u32, u64)>,
    /// The children that wrote the output of the latest attempts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<(u32, String)>,
    /// The job has ended, but these bytes end before its output does.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
}

/// An answer's line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum PeerLine {
    Refused {
        refused: String,
        /// The control node has nothing of the job.
        missing: bool,
    },
    Granted(PeerAnswer),
}

/// Why another control node did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// The control node cannot be reached.
    #[error("control node {node} cannot be reached: {why}")]
    Unreachable {
        /// The control node.
        node: InstanceName,
        /// The cause.
        why: String,
    },
    /// The control node refused.
    #[error("control node {node} refused: {why}")]
    Refused {
        /// The control node.
        node: InstanceName,
        /// Its words.
        why: String,
    },
    /// The control node has nothing of the job.
    #[error("control node {node}: {why}")]
    Missing {
        /// The control node.
        node: InstanceName,
        /// Its words.
        why: String,
    },
    /// The request cannot be signed.
    #[error("a request to control node {node} cannot be signed: {source}")]
    Signing {
        /// The control node.
        node: InstanceName,
        /// The cause.
        source: WorkError,
    },
    /// No control node has the wanted bytes.
    #[error("no control node has it")]
    NoHolder,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] super::store::Error),
}
