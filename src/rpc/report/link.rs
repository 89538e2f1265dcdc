//! What a test of a link found.

#![expect(missing_docs, reason = "the keys are specified in docs/protocol.md")]

use serde::{Deserialize, Serialize};

/// Times are in nanoseconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct LinkTestReport {
    #[serde(rename = "NodeID")]
    pub node_id: String,
    pub transport: String,
    pub address: String,
    /// Median round trip before the bytes are sent; none if no ping was answered.
    #[serde(rename = "RTT")]
    pub rtt: Option<u64>,
    /// Median round trip while the bytes are sent.
    #[serde(rename = "BusyRTT")]
    pub busy_rtt: Option<u64>,
    /// Longest round trip while the bytes are sent.
    #[serde(rename = "BusyRTTMax")]
    pub busy_rtt_max: Option<u64>,
    /// Share of the latest probes that stayed without an answer, from 0 to 1.
    pub probe_loss: f64,
    pub out: WayReport,
    pub back: WayReport,
}

/// What arrived one way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct WayReport {
    pub bytes: u64,
    /// From the first byte's arrival to the last one's.
    pub time: u64,
    /// Bytes per second.
    pub rate: u64,
}
