//! Ping and traceroute: whether a node answers, and the path to it.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::handle::NodeHandle;
use super::socket::{BindError, OverlaySocket};
use crate::mesh::SendError;
use crate::wire::{MAX_HOPS, NodeId, Problem, ServiceName};

/// How long an answer may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// How long the pings for one hop wait in turn. There are several, because one lost packet must not end a traceroute.
const WAITS: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(7)];

/// The result of one ping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PingReply {
    /// The node that answered, or that reported the failure.
    pub from: Option<NodeId>,
    /// Time until the answer or the failure.
    pub elapsed: Duration,
    /// Why the ping failed, if it did.
    pub error: Option<PingError>,
}

/// Why a ping did not arrive.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PingError {
    /// A node on the way dropped it.
    #[error("{0}")]
    Unreachable(Problem),
    /// It could not be sent.
    #[error(transparent)]
    Send(#[from] SendError),
    /// No answer.
    #[error("timeout")]
    Timeout,
    /// This node has stopped.
    #[error("netceptor shutdown")]
    Stopped,
}

impl NodeHandle {
    /// Sends one ping that may take `hops` hops.
    pub async fn ping(&self, target: &NodeId, hops: u8) -> PingReply {
        self.ping_within(ANSWER_WITHIN, target, hops).await
    }

    async fn ping_within(&self, limit: Duration, target: &NodeId, hops: u8) -> PingReply {
        let socket = match self.bind_ephemeral().await {
            Ok(socket) => socket,
            Err(BindError::InUse(_) | BindError::Stopped) => {
                return PingReply { from: None, elapsed: Duration::ZERO, error: Some(PingError::Stopped) };
            }
        };
        let start = Instant::now();
        let (from, error) = tokio::time::timeout(limit, exchange(&socket, target, hops))
            .await
            .unwrap_or((None, Some(PingError::Timeout)));
        PingReply { from, elapsed: start.elapsed(), error }
    }

    /// Pings with 0, 1, 2, … hops until the target answers or a ping fails for another reason than its hops.
    /// Returns a reply for each node on the path; those from nodes before the target carry no error. A ping without
    /// an answer is sent again.
    pub async fn traceroute(&self, target: &NodeId) -> Vec<PingReply> {
        let mut way = Vec::new();
        for hops in 0..=MAX_HOPS {
            let mut reply = self.ping_again(target, hops).await;
            let goes_on = reply.error == Some(PingError::Unreachable(Problem::MessageExpired));
            if goes_on {
                reply.error = None;
            }
            way.push(reply);
            if !goes_on {
                break;
            }
        }
        way
    }

    /// Pings until an answer or an error other than a timeout comes; else returns the last timeout.
    async fn ping_again(&self, target: &NodeId, hops: u8) -> PingReply {
        let [first, others @ ..] = WAITS;
        let mut reply = self.ping_within(first, target, hops).await;
        for wait in others {
            if reply.error != Some(PingError::Timeout) {
                break;
            }
            reply = self.ping_within(wait, target, hops).await;
        }
        reply
    }
}

async fn exchange(socket: &OverlaySocket, target: &NodeId, hops: u8) -> (Option<NodeId>, Option<PingError>) {
    if let Err(error) = socket.send_to(target, ServiceName::PING, Bytes::new(), hops).await {
        return (Some(socket.node().id().clone()), Some(error.into()));
    }
    tokio::select! {
        answer = socket.receive() => match answer {
            Some(_) => (Some(target.clone()), None),
            None => (None, Some(PingError::Stopped)),
        },
        notice = socket.unreachable() => match notice {
            Some((notice, by)) => (Some(by), Some(PingError::Unreachable(notice.problem))),
            None => (None, Some(PingError::Stopped)),
        },
    }
}
