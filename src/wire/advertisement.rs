//! Service advertisements: they announce a service and flood through the mesh unchanged.

use std::collections::BTreeMap;

use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{MessageType, NodeId, ServiceName, WireError, json};

/// How a service is spoken to. Newer nodes may send other numbers, which are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ConnType(pub u8);

impl ConnType {
    /// Single datagrams.
    pub const DATAGRAM: Self = Self(0);
    /// Streams under the mesh's own fixed-name certificate.
    pub const STREAM: Self = Self(1);
    /// Streams under a TLS profile of the user.
    pub const STREAM_TLS: Self = Self(2);
}

/// A kind of work that a node accepts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct WorkCommand {
    /// Name of the work type.
    #[serde(rename = "WorkType")]
    pub work_type: String,
    /// True if submissions must be signed.
    #[serde(rename = "Secure")]
    pub secure: bool,
}

/// One service of one node. Keys are spelt as on the wire.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advertisement {
    /// The node that offers the service.
    #[serde(rename = "NodeID")]
    pub node_id: NodeId,
    /// The service.
    #[serde(rename = "Service")]
    pub service: ServiceName,
    /// Of two advertisements of a service, the later one counts.
    #[serde(rename = "Time")]
    pub time: Timestamp,
    /// How it is spoken to.
    #[serde(rename = "ConnType")]
    pub conn_type: ConnType,
    /// Free-form description; `type` = `Control Service` marks the control service.
    #[serde(rename = "Tags")]
    pub tags: Option<BTreeMap<String, String>>,
    /// Work types; only the control service has them.
    #[serde(rename = "WorkCommands", default)]
    pub work_commands: Option<Vec<WorkCommand>>,
}

/// An advertisement, and whether it withdraws the service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdvertisementMessage {
    /// The service that is offered or withdrawn.
    pub advertisement: Advertisement,
    /// True to withdraw the service.
    pub cancel: bool,
}

/// The layout on the wire. It repeats the fields because `serde(flatten)` ruins error messages.
#[derive(Serialize, Deserialize)]
struct Wire {
    #[serde(rename = "NodeID")]
    node_id: NodeId,
    #[serde(rename = "Service")]
    service: ServiceName,
    #[serde(rename = "Time")]
    time: Timestamp,
    #[serde(rename = "ConnType")]
    conn_type: ConnType,
    #[serde(rename = "Tags", default)]
    tags: Option<BTreeMap<String, String>>,
    #[serde(rename = "WorkCommands", default)]
    work_commands: Option<Vec<WorkCommand>>,
    #[serde(rename = "Cancel", default)]
    cancel: bool,
}

impl AdvertisementMessage {
    /// The name in error messages.
    pub const WHAT: &str = "service advertisement";

    /// Reads a whole message, type byte included.
    ///
    /// # Errors
    /// [`WireError::Json`] if the body is not an advertisement.
    pub fn parse(message: &[u8]) -> Result<Self, WireError> {
        let Wire { node_id, service, time, conn_type, tags, work_commands, cancel } =
            json::parse(Self::WHAT, message)?;
        let advertisement = Advertisement { node_id, service, time, conn_type, tags, work_commands };
        Ok(Self { advertisement, cancel })
    }

    /// The whole message, type byte included.
    ///
    /// # Errors
    /// [`WireError::TooLarge`] if no link could carry it.
    pub fn message(&self) -> Result<Bytes, WireError> {
        let ad = self.advertisement.clone();
        let wire = Wire {
            node_id: ad.node_id,
            service: ad.service,
            time: ad.time,
            conn_type: ad.conn_type,
            tags: ad.tags,
            work_commands: ad.work_commands,
            cancel: self.cancel,
        };
        json::message(Self::WHAT, MessageType::Advertisement, &wire)
    }
}
