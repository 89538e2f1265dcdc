//! `controller`: one operation of the node's controller, answered in one line. What operations there are is decided by the
//! controller, which implements [`Operations`]. It is never served over the mesh.

use std::pin::Pin;

use serde_json::{Map, Value, json};

use super::Context;
use super::session::Peer;
use crate::work::Origin;

/// Who asks, with all rights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operator {
    /// A client of the Unix socket.
    Unix,
    /// A client with a certificate.
    Certificate,
}

/// The controller of a node.
pub(crate) trait Operations: Send + Sync + 'static {
    /// Carries out one operation, and returns the whole answer.
    fn operate(
        &self,
        operation: Map<String, Value>,
        who: Operator,
    ) -> Pin<Box<dyn Future<Output = Value> + Send + '_>>;
}

pub(super) async fn answer(context: &Context, peer: &Peer, operation: Map<String, Value>) -> Value {
    let refused =
        |code: &str, message: &str| json!({"ok": false, "error": {"code": code, "message": message}});
    let who = match peer.origin {
        Origin::Unix => Operator::Unix,
        Origin::Tcp => Operator::Certificate,
        Origin::Mesh { .. } => return refused("refused", "operations are not served over the mesh"),
    };
    match &context.controller {
        Some(controller) => controller.operate(operation, who).await,
        None => refused("refused", "this node is no control node: configure work-controller"),
    }
}
