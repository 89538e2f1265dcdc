//! What the authority of a mesh knows of its nodes: hosts that ask to become one, open invitations, and when certificates
//! end. It holds no secret, and no request of a host.

#![expect(missing_docs, reason = "the keys are specified in docs/controller-reference.md")]

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Lenient;
use super::names::names;

names! {
    /// What becomes of a host that asks.
    enum HostState {
        /// Nobody has decided yet.
        Waits = "waits",
        Approved = "approved",
        Rejected = "rejected",
    }
}

names! {
    /// What was done about a node of the mesh, as the audit names it.
    enum NodeAct {
        Add = "node.add",
        Approve = "node.approve",
        /// A host asks without a token.
        Ask = "node.ask",
        Invite = "node.invite",
        Join = "node.join",
        Reject = "node.reject",
        Remove = "node.remove",
        Renew = "node.renew",
        /// A token was taken back.
        Uninvite = "node.uninvite",
    }
}

/// All that the authority here knows.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct EnrolmentReport {
    /// Whether this node has an authority; without one the rest is empty.
    pub authority: bool,
    pub hosts: Vec<AskingHost>,
    pub invites: Vec<OpenInvite>,
    /// The first ones by name, if there are thousands.
    pub nodes: Vec<MeshMember>,
}

/// A host that asks without a token, and came back within the last hour.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct AskingHost {
    /// The name that it has given itself.
    pub node: String,
    pub address: String,
    pub fingerprint: String,
    pub since: Timestamp,
    pub state: Lenient<HostState>,
}

/// An invitation that can still be used.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct OpenInvite {
    pub node: String,
    pub role: String,
    pub used: u32,
    pub uses: u32,
    pub expires: Timestamp,
}

/// A node that was not removed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct MeshMember {
    pub node: String,
    pub role: String,
    /// When its newest certificate ends.
    pub ends: Option<Timestamp>,
}

/// What was done about a node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct NodeActed {
    pub node: String,
    pub act: Lenient<NodeAct>,
}
