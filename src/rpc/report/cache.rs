//! What a node keeps of payloads that other nodes have sent, so that they need not be sent again.

#![expect(missing_docs, reason = "the keys are specified in docs/protocol.md")]

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CacheReport {
    /// Those with most bytes.
    pub callers: Vec<CallerCache>,
    /// How many callers are not among them.
    pub more_callers: usize,
    /// Of all callers.
    pub pieces: usize,
    pub bytes: u64,
    /// The most bytes that there may be; 0 if nothing is kept.
    pub most: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CallerCache {
    /// The node's name, or its hash if nobody knows the name any more.
    pub node: String,
    /// Whether a certificate proved the name.
    pub certified: bool,
    pub pieces: usize,
    pub bytes: u64,
}
