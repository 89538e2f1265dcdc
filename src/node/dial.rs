//! The peers that this node dials, also while there is no session with them, and who answered there last. Owns nothing that
//! decides: it is for operators alone.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::backend::DialSpec;
use crate::wire::NodeId;

/// A peer that is dialled for as long as it is configured.
#[derive(Debug)]
pub(super) struct Dial {
    address: String,
    host_and_port: String,
    /// A plain lock, for reading and replacing alone.
    answered: Mutex<Option<NodeId>>,
}

impl Dial {
    /// A node has introduced itself there.
    pub(super) fn note(&self, node: &NodeId) {
        *self.answered.lock() = Some(node.clone());
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
}

/// All of them, in the order in which they were configured. Locked for a look or an entry.
#[derive(Debug, Default)]
pub(super) struct Dials(Mutex<Vec<Weak<Dial>>>);

impl Dials {
    pub(super) fn add(&self, spec: &DialSpec) -> Arc<Dial> {
        let (address, host_and_port) = (spec.to_string(), spec.address());
        let dial = Arc::new(Dial { address, host_and_port, answered: Mutex::default() });
        let mut all = self.0.lock();
        all.retain(|known| known.strong_count() > 0);
        all.push(Arc::downgrade(&dial));
        dial
    }

    pub(super) fn all(&self) -> Vec<DialStatus> {
        let all = self.0.lock();
        let known = all.iter().filter_map(Weak::upgrade);
        let status = |dial: Arc<Dial>| DialStatus {
            address: dial.address.clone(),
            host_and_port: dial.host_and_port.clone(),
            node_id: dial.answered.lock().clone(),
        };
        known.map(status).collect()
    }
}
