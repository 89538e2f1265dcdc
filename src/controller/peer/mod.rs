//! What control nodes of one install ask of each other, over a mesh service of their own: the output and the payload of a
//! job. Its cancel is in the store. Owns the lines of that protocol, who may ask, and how much it may cost. It does
//! not know how a service is opened, and decides nothing about jobs.
//!
//! A request is one line of JSON, with a token that is bound to all of it, to the node that is asked, and to one use. The
//! answer is one line, behind which the bytes follow to the end of the stream. [`client`] asks, [`server`] answers.

mod client;
mod server;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use self::client::{PeerClient, PeerStream};
pub use self::server::{Admitted, PeerServer};
use super::core::{InstanceName, JobId};
use super::output::OutputPart;
use super::service::Service;
use super::store::Kept;
use crate::work::{Dialer, WorkError};

/// The longest line in either direction, in bytes.
const LINE: u64 = 16 << 10;
/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "lowercase")]
pub enum PeerVerb {
    /// The output of a job. Where nothing of it is wanted there is only the answer.
    Output(OutputPart),
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

/// What a control node says of what it sends.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerAnswer {
    /// Bytes that are there now, of the wanted attempt if one was named.
    pub size: u64,
    /// The attempt whose output was begun last; 0 if there is none.
    pub attempt: u32,
    /// Where the output of each of the latest attempts begins.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub starts: Vec<(u32, u64)>,
    /// The children that wrote those.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<(u32, String)>,
    /// The job has ended, and the end of this is not that of its output.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
}

/// An answer's line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum PeerLine {
    Refused {
        refused: String,
        /// It has nothing of that job.
        missing: bool,
    },
    Granted(PeerAnswer),
}

/// Why another control node did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// There is no way to it.
    #[error("control node {node} cannot be reached: {why}")]
    Unreachable {
        /// The control node.
        node: InstanceName,
        /// The cause.
        why: String,
    },
    /// It refused.
    #[error("control node {node} refused: {why}")]
    Refused {
        /// The control node.
        node: InstanceName,
        /// Its words.
        why: String,
    },
    /// It has nothing of that job.
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
    /// No control node has it.
    #[error("no control node has it")]
    NoHolder,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] super::store::Error),
}

impl Service {
    /// Gives the controller the way to other control nodes. Returns what answers theirs.
    pub fn open_peers(&self, dialer: Arc<dyn Dialer>) -> PeerServer {
        let client = PeerClient::new(self.driver.clone(), self.registry.clone(), dialer);
        // A second call changes nothing.
        let _first = self.driver.base.peers.set(client);
        PeerServer::new(self.driver.clone(), self.registry.clone())
    }

    /// The output of a job that is not on this node, or not all of it, from a control node that has it: how many bytes it
    /// has now, and those that are wanted.
    ///
    /// # Errors
    /// No control node has it, or none of those that have it answers.
    pub async fn output_elsewhere(
        &self,
        job: JobId,
        part: OutputPart,
    ) -> Result<(PeerAnswer, PeerStream), PeerError> {
        let detail = self.driver.store.detail(job).await?;
        let peers = self.driver.base.peers.get().ok_or(PeerError::NoHolder)?;
        let holders = detail.holders.iter().filter(|(_, _, kept)| *kept == Kept::Output);
        let mut others: Vec<&InstanceName> =
            holders.map(|(node, _, _)| node).filter(|node| **node != self.driver.node).collect();
        // Who has all of it, and who drives it; others may lack the last of it.
        let is_complete = |node: &InstanceName| detail.complete.iter().any(|(holder, _)| holder == node);
        others.sort_by_key(|node| (!is_complete(node), Some(*node) != detail.row.controller_node.as_ref()));
        others.dedup();
        let mut last = PeerError::NoHolder;
        for node in others {
            match peers.ask(node, PeerVerb::Output(part), job).await {
                Ok((PeerAnswer { partial: true, .. }, _)) => {
                    let why = "it has not got all of it yet".to_owned();
                    last = PeerError::Refused { node: node.clone(), why };
                }
                Ok(found) => return Ok(found),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}
