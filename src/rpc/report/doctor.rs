//! What `doctor` learns of a node: what the node finds wrong with itself, or why it was not asked.

#![expect(missing_docs, reason = "the keys are specified in docs/protocol.md")]

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::Lenient;
use super::finding::Finding;
use super::names::names;
use super::node::EndingCertificate;

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

/// Why a node does not know the request `doctor`.
pub const NO_DOCTOR_COMMAND: &str = "it is a receptor node, or a meshd that is too old for this question";

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
    /// Its certificates that have to be renewed.
    pub certificates_ending: Vec<EndingCertificate>,
    /// Why nothing else is known of the node.
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

    /// What it means that this node was not examined, and what to do. `signs`: whether the asking node has a key.
    pub fn finding(&self, node: &str, signs: bool) -> Finding {
        let Self { cause, text } = self;
        let is_other = cause.known() == Some(NoAnswerCause::OtherMake);
        let more = match cause.known() {
            Some(NoAnswerCause::WrongKey) => {
                return Finding::fault(
                    "work-verification",
                    format_args!("{text}: it refuses all signed work from here"),
                    format_args!(
                        "put the public half of this node's work-signing key into the work-verification of {node}"
                    ),
                );
            }
            Some(NoAnswerCause::NoKey) => "; or, to be asked from here, configure work-verification there",
            Some(NoAnswerCause::Unsigned) if !signs => "; or configure work-signing here",
            Some(NoAnswerCause::NoService) => "; it has no control-service in the mesh, or runs no jobs",
            Some(NoAnswerCause::Firewall) => "; a firewallrule rejects its control service",
            Some(NoAnswerCause::Tls) => {
                "; or give --tls-client with a profile of this node that its control service accepts"
            }
            // The findings of the way or of the clock say it.
            Some(
                NoAnswerCause::Unsigned
                | NoAnswerCause::Clock
                | NoAnswerCause::NoRoute
                | NoAnswerCause::NoStream
                | NoAnswerCause::OtherMake
                | NoAnswerCause::Other,
            )
            | None => "",
        };
        let what = match cause.known() == Some(NoAnswerCause::NoKey) {
            true => "it has no key to verify who asks: a hop node needs none",
            false if is_other => NO_DOCTOR_COMMAND,
            false => text,
        };
        Finding::not_asked("", what, format_args!("on the host of {node}: meshctl doctor{more}"))
    }
}
