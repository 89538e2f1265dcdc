//! What `doctor` learns of a node: what the node finds wrong with itself, or why it was not asked.

#![expect(missing_docs, reason = "the keys are specified in docs/protocol.md")]

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::Lenient;
use super::finding::Finding;
use super::names::names;

names! {
    /// Why a node said nothing of itself.
    enum NoAnswerCause {
        /// No route leads there.
        NoRoute = "no-route",
        /// It has no control service in the mesh.
        NoService = "no-service",
        /// A firewall rule of the mesh rejects it.
        Firewall = "firewall",
        /// Nothing came back when a stream to its control service was opened.
        NoStream = "no-stream",
        /// The two do not agree on TLS.
        Tls = "tls",
        /// It does not know the question: a node of receptor, or one from before it.
        OtherMake = "other-make",
        /// The request has no signature: the asking node has no key.
        Unsigned = "unsigned",
        /// It has no key to verify the signature with.
        NoKey = "no-key",
        /// It has another key than the one that signed.
        WrongKey = "wrong-key",
        /// The token's times and its clock do not go together.
        Clock = "clock",
        /// Anything else.
        Other = "other",
    }
}

/// A node's answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DoctorReport {
    #[serde(rename = "NodeID")]
    pub node_id: String,
    pub version: String,
    /// The node's clock when it answered.
    pub time: Option<Timestamp>,
    /// Whether it can sign requests to other nodes.
    pub signs: bool,
    pub findings: Vec<Finding>,
    /// Then nothing is known of it.
    pub refused: Option<NoAnswer>,
}

/// Why a node was not examined.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NoAnswer {
    pub cause: Lenient<NoAnswerCause>,
    /// For people.
    pub text: String,
}

impl NoAnswer {
    /// For this cause, in these words.
    pub fn new(cause: NoAnswerCause, text: impl ToString) -> Self {
        Self { cause: Lenient::Known(cause), text: text.to_string() }
    }
}
