//! Names on the wire: node IDs, service names, and the hash that stands for a node ID in a data header.
//!
//! A value of one of these types is valid; nobody downstream checks it again.

use std::borrow::Borrow;
use std::fmt;

use arcstr::ArcStr;
use highway::{HighwayHash, HighwayHasher};
use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The longest node ID, in bytes. In practice IDs are DNS names, which end at 253.
pub const MAX_NODE_ID: usize = 255;

/// A node's ID: 1 to [`MAX_NODE_ID`] bytes of UTF-8 without control characters. Never `localhost`, by which
/// every node means itself. A value is as large as a pointer and cheap to clone, because a node of a large mesh
/// holds each name in several tables.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(ArcStr);

/// Why a text is not a node ID.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidNodeId {
    /// The text is empty.
    #[error("a node ID may not be empty")]
    Empty,
    /// More than [`MAX_NODE_ID`] bytes.
    #[error("a node ID has at most {MAX_NODE_ID} bytes, this one has {0}")]
    TooLong(usize),
    /// `localhost`, in any case.
    #[error("node ID \"localhost\" is reserved: it always means the local node")]
    Reserved,
    /// Control characters would break the line protocol and forge log lines.
    #[error("a node ID may not contain control characters")]
    Control,
}

/// Whether a name is `localhost`, in any case.
pub fn is_localhost(name: &str) -> bool {
    name.eq_ignore_ascii_case("localhost")
}

impl NodeId {
    /// The node that a client on node `own` means by a name: `localhost` in any case is `own` itself.
    ///
    /// # Errors
    /// [`InvalidNodeId`] says which rule the name breaks.
    pub fn resolve(name: &str, own: &Self) -> Result<Self, InvalidNodeId> {
        if is_localhost(name) { Ok(own.clone()) } else { Self::new(name) }
    }

    /// Checks a name.
    ///
    /// # Errors
    /// [`InvalidNodeId`] says which rule it breaks.
    pub fn new(name: impl AsRef<str>) -> Result<Self, InvalidNodeId> {
        let name = name.as_ref();
        if name.is_empty() {
            return Err(InvalidNodeId::Empty);
        }
        if name.len() > MAX_NODE_ID {
            return Err(InvalidNodeId::TooLong(name.len()));
        }
        if is_localhost(name) {
            return Err(InvalidNodeId::Reserved);
        }
        if name.chars().any(char::is_control) {
            return Err(InvalidNodeId::Control);
        }
        Ok(Self(name.into()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The hash that stands for this name in a data header.
    pub fn hash(&self) -> NameHash {
        NameHash::of(&self.0)
    }
}

impl Borrow<str> for NodeId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl std::str::FromStr for NodeId {
    type Err = InvalidNodeId;
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Self::new(s)
    }
}

impl Serialize for NodeId {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for NodeId {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_str(NodeIdVisitor)
    }
}

/// Builds a node ID from borrowed text, without a copy in between, because floods are full of names.
struct NodeIdVisitor;

impl Visitor<'_> for NodeIdVisitor {
    type Value = NodeId;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a node ID")
    }

    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<NodeId, E> {
        NodeId::new(name).map_err(E::custom)
    }
}

/// HighwayHash-64 of a node ID under an all-zero key; big-endian on the wire.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameHash(pub u64);

impl NameHash {
    /// Hashes a node ID's bytes.
    pub fn of(name: &str) -> Self {
        Self(HighwayHasher::default().hash64(name.as_bytes()))
    }
}

impl fmt::Debug for NameHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Display for NameHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A service on a node, the counterpart of a port: at most 8 bytes, right-padded with NUL as on the wire.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceName([u8; 8]);

/// Why a text is not a service name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidServiceName {
    /// The text is empty.
    #[error("a service name may not be empty")]
    Empty,
    /// The header has room for 8 bytes.
    #[error("service name {0:?} too long: at most 8 bytes are possible")]
    TooLong(String),
    /// NUL is the padding, and control characters would break the line protocol.
    #[error("service name {0:?} contains control characters")]
    Control(String),
}

impl ServiceName {
    /// The reserved service that answers pings.
    pub const PING: Self = Self(*b"ping\0\0\0\0");
    /// The reserved service that unreachable notices come from and go to.
    pub const UNREACH: Self = Self(*b"unreach\0");
    /// The default name of the control service.
    pub const CONTROL: Self = Self(*b"control\0");

    /// Checks a name.
    ///
    /// # Errors
    /// [`InvalidServiceName`] says which rule it breaks.
    pub fn new(name: &str) -> Result<Self, InvalidServiceName> {
        if name.is_empty() {
            return Err(InvalidServiceName::Empty);
        }
        if name.len() > 8 {
            return Err(InvalidServiceName::TooLong(name.into()));
        }
        if name.chars().any(char::is_control) {
            return Err(InvalidServiceName::Control(name.into()));
        }
        let mut bytes = [0; 8];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        Ok(Self(bytes))
    }

    /// Takes the 8 bytes of a header unchecked: a peer may have sent any bytes.
    pub const fn from_wire(bytes: [u8; 8]) -> Self {
        Self(bytes)
    }

    /// The 8 bytes for a header.
    pub const fn to_wire(self) -> [u8; 8] {
        self.0
    }

    /// True for the services that the node answers itself, which nobody may bind.
    pub fn is_reserved(self) -> bool {
        self == Self::PING || self == Self::UNREACH
    }

    /// The name as text, with padding removed and invalid UTF-8 replaced.
    pub fn to_text(self) -> String {
        let end = self.0.iter().rposition(|&b| b != 0).map_or(0, |p| p + 1);
        String::from_utf8_lossy(&self.0[..end]).into_owned()
    }
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.to_text())
    }
}

impl fmt::Debug for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_text())
    }
}

impl std::str::FromStr for ServiceName {
    type Err = InvalidServiceName;
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Self::new(s)
    }
}

impl Serialize for ServiceName {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&self.to_text())
    }
}

impl<'de> Deserialize<'de> for ServiceName {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let name = std::borrow::Cow::<str>::deserialize(d)?;
        Self::new(&name).map_err(serde::de::Error::custom)
    }
}
