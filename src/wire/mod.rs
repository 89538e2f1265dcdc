//! Every byte that travels between two nodes, and nothing else.
//!
//! This module owns the layout of messages: the 2-byte frame of stream links ([`frame`]), the 36-byte data
//! header ([`data`]), the JSON bodies of routing updates ([`routing`]), service advertisements
//! ([`advertisement`]) and unreachable notices ([`unreach`]), and the names that occur in them ([`name`]).
//! It parses and prints; it decides nothing, keeps no state and does no I/O.

pub mod advertisement;
pub mod data;
pub mod frame;
mod json;
pub mod name;
pub mod routing;
pub mod unreach;

pub use advertisement::{Advertisement, ConnType, WorkCommand};
pub use data::{DATA_HEADER_LEN, DataHeader};
pub use name::{InvalidNodeId, InvalidServiceName, NameHash, NodeId, ServiceName, is_localhost};
pub use routing::{Cost, RoutingUpdate};
pub use unreach::{Problem, Unreachable};

/// The largest message that any link can carry, in bytes: a TCP frame's length has 16 bits.
pub const MAX_MESSAGE: usize = 65_535;

/// The largest payload of a data message that the overlay promises to carry, in bytes.
pub const MAX_PAYLOAD: usize = 16_384;

/// Hops that a fresh data message may take.
pub const MAX_HOPS: u8 = 30;

/// Why bytes from a neighbour are not a valid message.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// A message without bytes, and so without a type.
    #[error("empty message")]
    Empty,
    /// The first byte names no known message type.
    #[error("unknown message type {0}")]
    UnknownType(u8),
    /// A data message that ends before its header does.
    #[error("data message of {0} bytes is shorter than its {DATA_HEADER_LEN}-byte header")]
    ShortHeader(usize),
    /// A JSON body that does not match its type.
    #[error("malformed {what}: {source}")]
    Json {
        /// The name of the body's type.
        what: &'static str,
        /// The parser's error.
        source: serde_json::Error,
    },
    /// A message that does not fit into a link's frame.
    #[error("{what} of {len} bytes is too large: a link carries {MAX_MESSAGE} bytes")]
    TooLarge {
        /// The name of the body's type.
        what: &'static str,
        /// The message's size in bytes, type byte included.
        len: usize,
    },
}

/// The type of a message: its first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MessageType {
    /// A datagram between two services.
    Data,
    /// A node's list of its links.
    RoutingUpdate,
    /// A service offered, or withdrawn, by a node.
    Advertisement,
    /// The sender refuses the session and closes it.
    Reject,
}

impl MessageType {
    /// Reads the type of a message.
    ///
    /// # Errors
    /// [`WireError::Empty`] and [`WireError::UnknownType`].
    pub fn of(message: &[u8]) -> Result<Self, WireError> {
        match message.first() {
            None => Err(WireError::Empty),
            Some(0) => Ok(Self::Data),
            Some(1) => Ok(Self::RoutingUpdate),
            Some(2) => Ok(Self::Advertisement),
            Some(3) => Ok(Self::Reject),
            Some(&other) => Err(WireError::UnknownType(other)),
        }
    }

    /// The byte that stands for this type.
    pub const fn byte(self) -> u8 {
        match self {
            Self::Data => 0,
            Self::RoutingUpdate => 1,
            Self::Advertisement => 2,
            Self::Reject => 3,
        }
    }
}

/// A complete reject message; its body is an empty JSON list.
pub const REJECT: &[u8] = &[3, b'[', b']'];

#[cfg(test)]
mod tests;
