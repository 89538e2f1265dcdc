//! `controller`: one operation of the node's controller, answered in one line, behind which a stream may follow. What
//! operations there are is decided by the controller, which implements [`Operations`]. It is never served over the mesh.

use std::io;
use std::pin::Pin;

use bytes::Bytes;
use serde_json::{Map, Value};
use tokio::io::AsyncWriteExt as _;

use super::channel::Channel;
use super::session::{Next, Peer, Stop};
use super::{Context, access};
use crate::counters::ControllerCounters;
use crate::os::answers::is_small;
use crate::rpc::operation::{self, Answer, Operation, OperationCode, OperationRefusal};
use crate::work::Caller;
use crate::work::jobs::NO_CONTROLLER;

/// The controller of a node.
pub(crate) trait Operations: Send + Sync + 'static {
    /// Carries out one operation for somebody who may ask for it. What it makes run has no more rights than they have.
    fn operate<'a>(
        &'a self,
        operation: Operation,
        who: &'a Caller,
    ) -> Pin<Box<dyn Future<Output = Operated> + Send + 'a>>;

    /// What is counted of it; `None` before its store is there.
    fn figures(&self) -> Pin<Box<dyn Future<Output = Option<ControllerCounters>> + Send + '_>>;

    /// The `tls-client` profile with which it reaches control services of other nodes.
    fn tls_client(&self) -> Option<String>;
}

/// What an operation is answered with, and what follows, up to the end of the connection.
pub(crate) type Operated = Result<(Answer, Option<Box<dyn OperationStream>>), OperationRefusal>;

/// The bytes behind an answer.
pub(crate) trait OperationStream: Send {
    /// The next bytes, a bounded number; `None` at the end, also where the rest cannot be read. Dropping the future loses
    /// nothing.
    fn next(&mut self) -> Pin<Box<dyn Future<Output = Option<Bytes>> + Send + '_>>;
}

/// Carries out an operation of a client.
pub(super) async fn execute(
    context: &Context,
    channel: &mut Channel,
    peer: &Peer,
    operation: Map<String, Value>,
    stop: &Stop,
) -> io::Result<Next> {
    let (answer, rest) = match operate(context, peer, operation).await {
        Ok((answer, rest)) => (Ok(answer), rest),
        Err(refused) => (Err(refused), None),
    };
    let small = answer.as_ref().map_or(true, is_small);
    let line = move || format!("{}\n", operation::line(&answer)).into_bytes();
    if small {
        channel.send(line()).await?;
    } else {
        channel.send_large(line).await?;
    }
    let Some(mut rest) = rest else { return Ok(Next::Command) };
    let streamed = async {
        // One piece at a time: a client that reads slowly makes nobody wait but its own session.
        while let Some(piece) = next_piece(channel, &mut *rest).await? {
            channel.write_all(&piece).await?;
            channel.flush().await?;
        }
        Ok(Next::Close)
    };
    stop.or_streamed(streamed).await
}

/// The next piece, for as long as the client is there.
async fn next_piece(channel: &mut Channel, rest: &mut dyn OperationStream) -> io::Result<Option<Bytes>> {
    tokio::select! {
        biased;
        piece = rest.next() => Ok(piece),
        () = channel.gone() => Err(io::ErrorKind::ConnectionReset.into()),
    }
}

async fn operate(context: &Context, peer: &Peer, operation: Map<String, Value>) -> Operated {
    let refused = |message: &str| Err(OperationRefusal::new(OperationCode::Refused, message));
    if let Err(why) = access::check_operator(&peer.caller) {
        return refused(why);
    }
    let Some(controller) = &context.controller else {
        return refused(NO_CONTROLLER);
    };
    controller.operate(Operation::parse(operation)?, &peer.caller).await
}
