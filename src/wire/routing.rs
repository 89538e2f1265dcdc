//! Routing updates: a node's list of its links, flooded through the mesh.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use super::{MessageType, NodeId, WireError, json};

/// The cost of a link: a finite number above zero.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Cost(f64);

/// A cost that is zero, negative or no number.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("a connection cost must be a positive number, not {0}")]
pub struct InvalidCost(pub f64);

impl Cost {
    /// The cost of a link for which none is configured.
    pub const DEFAULT: Self = Self(1.0);

    /// Checks a cost.
    ///
    /// # Errors
    /// [`InvalidCost`] if it is zero, negative or not finite.
    pub fn new(cost: f64) -> Result<Self, InvalidCost> {
        if cost.is_finite() && cost > 0.0 { Ok(Self(cost)) } else { Err(InvalidCost(cost)) }
    }

    /// The number.
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl Eq for Cost {}

impl Serialize for Cost {
    /// Whole numbers print without a fraction, as Go prints a float64.
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        const EXACT: f64 = 9_007_199_254_740_992.0;
        if self.0.fract() == 0.0 && self.0 <= EXACT {
            // The number is in range and whole, so nothing is lost.
            s.serialize_u64(self.0 as u64)
        } else {
            s.serialize_f64(self.0)
        }
    }
}

impl<'de> Deserialize<'de> for Cost {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Self::new(f64::deserialize(d)?).map_err(serde::de::Error::custom)
    }
}

/// One version of a node's list of its links. Keys are spelt as on the wire.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoutingUpdate {
    /// The node that these links belong to; `None` (an empty name) while the sender is still starting.
    #[serde(rename = "NodeID", with = "optional_node_id")]
    pub node_id: Option<NodeId>,
    /// 8 random alphanumerics that identify the update. A receptor node ignores a second copy with the same ID.
    #[serde(rename = "UpdateID", deserialize_with = "update_id")]
    pub update_id: String,
    /// Start time of the node in seconds, shifted left by 24 bits, plus a 24-bit number: the fraction of the
    /// second on our nodes, a random number on a Go node.
    #[serde(rename = "UpdateEpoch")]
    pub epoch: u64,
    /// Grows by one with each update of an epoch.
    #[serde(rename = "UpdateSequence")]
    pub sequence: u64,
    /// Neighbour to cost. Shared, because a node that forwards an update also stores the list.
    #[serde(rename = "Connections", deserialize_with = "null_is_empty")]
    pub connections: Arc<BTreeMap<NodeId, Cost>>,
    /// The neighbour that sent this copy.
    #[serde(rename = "ForwardingNode")]
    pub forwarding_node: NodeId,
    /// The epoch of a node that claims the sender's ID; 0 normally.
    #[serde(rename = "SuspectedDuplicate", default)]
    pub suspected_duplicate: u64,
}

impl RoutingUpdate {
    const WHAT: &str = "routing update";
    /// The longest accepted update ID, in bytes: every node stores it with the update.
    pub const MAX_UPDATE_ID: usize = 64;

    /// Reads a whole message, type byte included.
    ///
    /// # Errors
    /// [`WireError::Json`] if the body is not a routing update.
    pub fn parse(message: &[u8]) -> Result<Self, WireError> {
        json::parse(Self::WHAT, message)
    }

    /// The whole message, type byte included.
    ///
    /// # Errors
    /// [`WireError::TooLarge`] if no link could carry it.
    pub fn message(&self) -> Result<Bytes, WireError> {
        json::message(Self::WHAT, MessageType::RoutingUpdate, self)
    }
}

/// The fields that decide whether an update is new, parsed without the rest, because most copies in a flood are not
/// new.
#[derive(Debug, Clone, Deserialize)]
pub struct UpdateHead<'a> {
    /// As [`RoutingUpdate::node_id`], unchecked.
    #[serde(rename = "NodeID", borrow)]
    pub node_id: Cow<'a, str>,
    /// As [`RoutingUpdate::epoch`].
    #[serde(rename = "UpdateEpoch")]
    pub epoch: u64,
    /// As [`RoutingUpdate::sequence`].
    #[serde(rename = "UpdateSequence")]
    pub sequence: u64,
    /// As [`RoutingUpdate::connections`], unparsed.
    #[serde(rename = "Connections", borrow)]
    pub connections: &'a RawValue,
    /// As [`RoutingUpdate::forwarding_node`], unchecked.
    #[serde(rename = "ForwardingNode", borrow)]
    pub forwarding_node: Cow<'a, str>,
    /// As [`RoutingUpdate::suspected_duplicate`].
    #[serde(rename = "SuspectedDuplicate", default)]
    pub suspected_duplicate: u64,
}

impl<'a> UpdateHead<'a> {
    /// Parses a whole message, type byte included. On `None`, [`RoutingUpdate::parse`] gives the reason.
    pub fn parse(message: &'a [u8]) -> Option<Self> {
        serde_json::from_slice(message.get(1..)?).ok()
    }
}

fn update_id<'de, D: Deserializer<'de>>(d: D) -> Result<String, D::Error> {
    let id = String::deserialize(d)?;
    if id.len() > RoutingUpdate::MAX_UPDATE_ID {
        let (most, len) = (RoutingUpdate::MAX_UPDATE_ID, id.len());
        return Err(serde::de::Error::custom(format_args!(
            "an UpdateID has at most {most} bytes, this one {len}"
        )));
    }
    Ok(id)
}

fn null_is_empty<'de, D: Deserializer<'de>>(d: D) -> Result<Arc<BTreeMap<NodeId, Cost>>, D::Error> {
    Ok(Option::<BTreeMap<_, _>>::deserialize(d)?.unwrap_or_default().into())
}

/// A node ID that may be empty on the wire.
mod optional_node_id {
    use super::*;

    pub(super) fn serialize<S: Serializer>(node: &Option<NodeId>, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(node.as_ref().map_or("", NodeId::as_str))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<NodeId>, D::Error> {
        let name = std::borrow::Cow::<str>::deserialize(d)?;
        if name.is_empty() {
            return Ok(None);
        }
        NodeId::new(name).map(Some).map_err(serde::de::Error::custom)
    }
}
