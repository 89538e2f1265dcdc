//! The peers that this node dials, even while there is no session with them: who answered there last, and why sessions
//! ended. For operators and the log alone: no other decision depends on it.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::backend::{DialSpec, Direction};
use crate::wire::NodeId;

/// A peer that is dialled while it is configured.
#[derive(Debug)]
pub(super) struct Dial {
    address: String,
    host_and_port: String,
    /// A plain lock, because it is held only to read or change the state.
    state: Mutex<DialState>,
}

#[derive(Debug, Default)]
struct DialState {
    answered: Option<NodeId>,
    /// Why sessions have ended since one was last up, each reason once.
    ends: Vec<LinkEnd>,
}

/// Most reasons that are remembered for a dial.
const MOST_ENDS: usize = 16;

/// Why there is no session: how the last session or attempt ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkEnd {
    /// A session was up and ended.
    Lost(String),
    /// No session came up.
    Failed(String),
    /// This node refused the session.
    Refused(String),
    /// The peer refused the session.
    RefusedByPeer,
    /// The neighbour is linked already, by a session in that direction.
    InReserve(Direction),
}

impl Dial {
    /// A node has introduced itself at this address.
    pub(super) fn note(&self, node: &NodeId) {
        self.state.lock().answered = Some(node.clone());
    }

    /// A session is up.
    pub(super) fn note_up(&self) {
        self.state.lock().ends.clear();
    }

    /// A session has ended, or none came up. True if none has ended for this reason since one was last up. Remembers
    /// several reasons, because a refusal may show as a reject or, if the connection closes before we read it, as a
    /// lost link.
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
    /// The transport, and the address that is dialled.
    pub address: String,
    /// The address that is dialled, alone.
    pub host_and_port: String,
    /// The node that answered there last, if any has.
    pub node_id: Option<NodeId>,
    /// Why it has no session: the last refusal if there was one, else the last reason. `None` if it has one or was
    /// never dialled.
    pub ended: Option<LinkEnd>,
}

/// All dials, in the order of configuration. Locked only to read the list or add an entry.
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
