//! The header of data messages, 36 bytes in front of the payload (docs/protocol.md#data-header).

use bytes::{BufMut, Bytes, BytesMut};

use super::{MessageType, NameHash, ServiceName, WireError};

/// Size of the header in bytes.
pub const DATA_HEADER_LEN: usize = 36;

/// The offset of the remaining hops: a forwarding node lowers this byte in place.
pub const HOPS_OFFSET: usize = 1;

/// The addresses in front of a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataHeader {
    /// How often the message may still be forwarded.
    pub hops: u8,
    /// Hash of the sending node's ID.
    pub from_node: NameHash,
    /// Hash of the destination node's ID.
    pub to_node: NameHash,
    /// The sender's service.
    pub from_service: ServiceName,
    /// The destination's service.
    pub to_service: ServiceName,
}

impl DataHeader {
    /// Reads the header of a data message. Ignores the two bytes that should be zero, as a Go node does.
    ///
    /// # Errors
    /// [`WireError::ShortHeader`] if the message ends inside the header.
    pub fn parse(message: &[u8]) -> Result<Self, WireError> {
        let header: &[u8; DATA_HEADER_LEN] =
            message.first_chunk().ok_or(WireError::ShortHeader(message.len()))?;
        let eight = |at: usize| -> [u8; 8] {
            let mut field = [0; 8];
            field.copy_from_slice(&header[at..at + 8]);
            field
        };
        Ok(Self {
            hops: header[HOPS_OFFSET],
            from_node: NameHash(u64::from_be_bytes(eight(4))),
            to_node: NameHash(u64::from_be_bytes(eight(12))),
            from_service: ServiceName::from_wire(eight(20)),
            to_service: ServiceName::from_wire(eight(28)),
        })
    }

    /// Whether it is a ping, an answer to a ping, or a notice: these go first, so that an operator can examine a link
    /// in trouble.
    pub fn is_express(&self) -> bool {
        [self.from_service, self.to_service]
            .iter()
            .any(|service| [ServiceName::PING, ServiceName::UNREACH].contains(service))
    }

    /// The 36 bytes of this header.
    pub fn to_bytes(&self) -> [u8; DATA_HEADER_LEN] {
        let mut header = [0; DATA_HEADER_LEN];
        header[0] = MessageType::Data.byte();
        header[HOPS_OFFSET] = self.hops;
        header[4..12].copy_from_slice(&self.from_node.0.to_be_bytes());
        header[12..20].copy_from_slice(&self.to_node.0.to_be_bytes());
        header[20..28].copy_from_slice(&self.from_service.to_wire());
        header[28..36].copy_from_slice(&self.to_service.to_wire());
        header
    }

    /// A whole message: this header in front of `payload`.
    pub fn message(&self, payload: &[u8]) -> Bytes {
        let mut message = BytesMut::with_capacity(DATA_HEADER_LEN + payload.len());
        message.put_slice(&self.to_bytes());
        message.put_slice(payload);
        message.freeze()
    }
}
