//! The peers that this node dials, also while there is no session with them: who answered there last, and why the last
//! session ended. Owns nothing that decides: it is for operators alone.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::backend::{DialSpec, Direction};
use crate::wire::NodeId;

/// A peer that is dialled for as long as it is configured.
#[derive(Debug)]
pub(super) struct Dial {
    address: String,
    host_and_port: String,
    /// A plain lock, for reading and replacing alone.
    state: Mutex<DialState>,
}

#[derive(Debug, Default)]
struct DialState {
    answered: Option<NodeId>,
    ended: Option<LinkEnd>,
}

/// Why there is no session, as of the last one or the last attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkEnd {
    /// There was one, which ended.
    Lost(String),
    /// None came up.
    Failed(String),
    /// This node refused it.
    Refused(String),
    /// The peer refused it.
    RefusedByPeer,
    /// The neighbour is linked already, by a session of that direction.
    InReserve(Direction),
}

impl Dial {
    /// A node has introduced itself there.
    pub(super) fn note(&self, node: &NodeId) {
        self.state.lock().answered = Some(node.clone());
    }

    /// A session is up.
    pub(super) fn note_up(&self) {
        self.state.lock().ended = None;
    }

    /// A session has ended, or there was none. True if the last one did not end for the same reason.
    pub(super) fn note_end(&self, end: &LinkEnd) -> bool {
        let last = self.state.lock().ended.replace(end.clone());
        last.as_ref() != Some(end)
    }
}

/// A peer that is dialled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DialStatus {
    /// What carries the link, and where it leads.
    pub address: String,
    /// The latter alone.
    pub host_and_port: String,
    /// The node that answered there last, if one has.
    pub node_id: Option<NodeId>,
    /// Why it has no session, unless it has one or was never dialled.
    pub ended: Option<LinkEnd>,
}

/// All of them, in the order in which they were configured. Locked for a look or an entry.
#[derive(Debug, Default)]
pub(super) struct Dials(Mutex<Vec<Weak<Dial>>>);

impl Dials {
    pub(super) fn add(&self, spec: &DialSpec) -> Arc<Dial> {
        let (address, host_and_port) = (spec.to_string(), spec.address());
        let dial = Arc::new(Dial { address, host_and_port, state: Mutex::default() });
        let mut all = self.0.lock();
        all.retain(|known| known.strong_count() > 0);
        all.push(Arc::downgrade(&dial));
        dial
    }

    pub(super) fn all(&self) -> Vec<DialStatus> {
        let all = self.0.lock();
        let known = all.iter().filter_map(Weak::upgrade);
        let status = |dial: Arc<Dial>| {
            let DialState { answered, ended } = &*dial.state.lock();
            DialStatus {
                address: dial.address.clone(),
                host_and_port: dial.host_and_port.clone(),
                node_id: answered.clone(),
                ended: ended.clone(),
            }
        };
        known.map(status).collect()
    }
}
