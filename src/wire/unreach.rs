//! Unreachable notices: the payload that tells a sender why its datagram did not arrive.

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize};

use super::{NodeId, ServiceName, WireError};

/// Why a datagram did not arrive.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Problem {
    /// Nobody listens on the service.
    ServiceUnknown,
    /// The hops to live ran out on the way.
    MessageExpired,
    /// A firewall rule rejected it.
    BlockedByFirewall,
    /// A problem that this node does not know.
    Other(String),
}

impl Problem {
    /// The text on the wire, which clients also see.
    pub fn as_str(&self) -> &str {
        match self {
            Self::ServiceUnknown => "service unknown",
            Self::MessageExpired => "message expired",
            Self::BlockedByFirewall => "blocked by firewall",
            Self::Other(text) => text,
        }
    }
}

impl From<String> for Problem {
    fn from(text: String) -> Self {
        [Self::ServiceUnknown, Self::MessageExpired, Self::BlockedByFirewall]
            .into_iter()
            .find(|known| known.as_str() == text)
            .unwrap_or(Self::Other(text))
    }
}

impl From<Problem> for String {
    fn from(problem: Problem) -> Self {
        problem.as_str().to_owned()
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The addresses of the dropped datagram, and the reason. Keys are spelt as on the wire.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Unreachable {
    /// The node that sent the datagram.
    pub from_node: NodeId,
    /// The node that it was sent to.
    pub to_node: NodeId,
    /// The sender's service, which gets the notice. May be a name that no user can bind.
    #[serde(deserialize_with = "as_in_header")]
    pub from_service: ServiceName,
    /// The service that it was sent to. May be such a name as well.
    #[serde(deserialize_with = "as_in_header")]
    pub to_service: ServiceName,
    /// Why the datagram was dropped.
    pub problem: Problem,
}

/// A notice repeats service names from a header, which may hold any 8 bytes.
fn as_in_header<'de, D: Deserializer<'de>>(d: D) -> Result<ServiceName, D::Error> {
    let name = std::borrow::Cow::<str>::deserialize(d)?;
    let mut bytes = [0; 8];
    let room = bytes.get_mut(..name.len());
    let room = room.ok_or_else(|| serde::de::Error::custom("a service name has at most 8 bytes"))?;
    room.copy_from_slice(name.as_bytes());
    Ok(ServiceName::from_wire(bytes))
}

impl Unreachable {
    const WHAT: &str = "unreachable notice";

    /// Reads a datagram's payload.
    ///
    /// # Errors
    /// [`WireError::Json`] if it is not a notice.
    pub fn parse(payload: &[u8]) -> Result<Self, WireError> {
        serde_json::from_slice(payload).map_err(|source| WireError::Json { what: Self::WHAT, source })
    }

    /// The payload of the notice.
    ///
    /// # Errors
    /// [`WireError::Json`], which the fields' types rule out.
    pub fn payload(&self) -> Result<Bytes, WireError> {
        serde_json::to_vec(self)
            .map(Bytes::from)
            .map_err(|source| WireError::Json { what: Self::WHAT, source })
    }
}
