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
    /// Why sessions have ended since the last one was up, each reason once.
    ends: Vec<LinkEnd>,
}

/// Reasons that are remembered of a dial.
const MOST_ENDS: usize = 16;

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
        self.state.lock().ends.clear();
    }

    /// A session has ended, or there was none. True if none has ended for that reason since one was up: what a peer refuses
    /// may end now by its word, and now by a connection that it closed before that was read.
    pub(super) fn note_end(&self, end: &LinkEnd) -> bool {
        let ends = &mut self.state.lock().ends;
        let is_news = !ends.contains(end);
        ends.retain(|known| known != end);
        ends.push(end.clone());
        ends.drain(..ends.len().saturating_sub(MOST_ENDS));
        is_news
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
    /// Why it has no session, unless it has one or was never dialled: a refusal if there was one, else the last reason.
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
            let DialState { answered, ends } = &*dial.state.lock();
            let is_refusal = |end: &&LinkEnd| matches!(end, LinkEnd::Refused(_) | LinkEnd::RefusedByPeer);
            let ended = ends.iter().rfind(is_refusal).or(ends.last());
            DialStatus {
                address: dial.address.clone(),
                host_and_port: dial.host_and_port.clone(),
                node_id: answered.clone(),
                ended: ended.cloned(),
            }
        };
        known.map(status).collect()
    }
}
