//! `controller`: one operation of the node's controller. The answer is one line, after which a stream may follow. This
//! file does not know which operations there are; the controller does. Operations are never served over the mesh.

use std::io;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use serde_json::{Map, Value};
use tokio::io::AsyncWriteExt as _;

use super::channel::Channel;
use super::peer::ClientPeer;
use super::stop::{AfterCommand, Stop};
use super::{Context, access};
use crate::os::answers::is_small;
use crate::rpc::operation::{self, Operated, Operation, OperationCode, OperationRefusal};
use crate::work::jobs::NO_CONTROLLER;

/// Carries out an operation of a client.
pub(super) async fn execute(
    context: &Context,
    channel: &mut Channel,
    peer: &ClientPeer,
    operation: Map<String, Value>,
    stop: &Stop,
) -> io::Result<AfterCommand> {
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
    let Some(mut rest) = rest else { return Ok(AfterCommand::Command) };
    let streamed = async {
        // One piece at a time, so that a client that reads slowly delays only its own session.
        while let Some(piece) = next_piece(channel, &mut rest).await? {
            channel.write_all(&piece).await?;
            channel.flush().await?;
        }
        Ok(AfterCommand::Close)
    };
    stop.or_streamed(streamed).await
}

/// The next piece; an error if the client leaves first.
async fn next_piece(
    channel: &mut Channel,
    rest: &mut BoxStream<'static, Bytes>,
) -> io::Result<Option<Bytes>> {
    tokio::select! {
        biased;
        piece = rest.next() => Ok(piece),
        () = channel.gone() => Err(io::ErrorKind::ConnectionReset.into()),
    }
}

async fn operate(context: &Context, peer: &ClientPeer, operation: Map<String, Value>) -> Operated {
    let refused = |message: &str| Err(OperationRefusal::new(OperationCode::Refused, message));
    if let Err(why) = access::check_operator(&peer.caller) {
        return refused(why);
    }
    let Some(controller) = &context.controller else {
        return refused(NO_CONTROLLER);
    };
    controller.operate(Operation::parse(operation)?, &peer.caller).await
}
