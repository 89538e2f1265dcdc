//! `work …`: hands commands about units to the registry and carries payloads and results.
//!
//! Owns the lines around the raw bytes, and what a lost client means: if it was sending a payload the unit fails, if it
//! was reading results nothing happens to the unit. It decides nothing about units.

use std::fmt::Display;
use std::io;

use bytes::BytesMut;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::channel::Channel;
use super::peer::ClientPeer;
use super::stop::{AfterCommand, Stop};
use super::{Context, RequestRefusal};
use crate::rpc::follow::{ANSWER, KEEPS_PIECES};
use crate::rpc::request::{AdoptRequest, Follow, SubmitRequest, WorkRequest};
use crate::work::follow::Frames;
use crate::work::pieces::{Assembly, AssemblyError, PieceFrame};
use crate::work::{
    Assembled, Caller, Leftovers, Listing, Outcome, ResultStream, Started, UnitSubmission, WorkError,
};

/// Payload bytes handed on at a time.
const CHUNK: usize = 64 * 1024;

/// Carries out one command of a client.
pub(super) async fn execute(
    context: &Context,
    channel: &mut Channel,
    peer: &ClientPeer,
    request: WorkRequest,
    stop: &Stop,
) -> io::Result<AfterCommand> {
    let answer = match request {
        WorkRequest::Submit(request) if request.at_once => {
            let begun = begin(context, channel, peer, request).await;
            return stream(channel, begun, stop).await;
        }
        WorkRequest::Submit(request) => return submit(context, channel, peer, request).await,
        WorkRequest::Adopt(what) => adopt(context, peer, what).await,
        WorkRequest::Results(what) => {
            let output = context.work.results(&what.unit, what.start, &peer.caller(what.signature)).await;
            return results(channel, output, (&what.unit, what.ends_with_unit), stop).await;
        }
        WorkRequest::Stderr(what) => {
            let stderr = context.work.stderr(&what.unit, what.start, &peer.caller(what.signature)).await;
            return results(channel, stderr, (&what.unit, true), stop).await;
        }
        WorkRequest::Follow(Follow { unit, start, signature, .. }) => {
            let frames = Frames::open(&context.work, &unit, start, &peer.caller(signature)).await;
            return stream(channel, frames.map(|frames| (unit, frames)).map_err(Broken::Unit), stop).await;
        }
        WorkRequest::List { unit } => match context.work.listing(unit.as_deref(), &peer.caller(None)).await {
            Ok(listing) => return list(channel, listing).await,
            Err(error) => Err(error.into()),
        },
        WorkRequest::Status { unit, signature } => status(context, &peer.caller(signature), &unit).await,
        WorkRequest::Cancel { unit, signature } => {
            return cancel(context, channel, &unit, &peer.caller(signature)).await;
        }
        WorkRequest::Disclaim { unit, work_type, signature } => {
            disclaim(context, &peer.caller(signature), &unit, &work_type).await
        }
        WorkRequest::Release { unit, force, sweep, signature } => {
            let leftovers = if sweep { Leftovers::End } else { Leftovers::Stay };
            let outcome = context.work.release_with(&unit, force, leftovers, &peer.caller(signature)).await;
            outcome
                .map(|outcome| done(outcome, &unit, "released", "release pending"))
                .map_err(RequestRefusal::from)
        }
    };
    channel.answer(answer).await?;
    Ok(AfterCommand::Command)
}

/// Cancels a unit. Connections that read the unit's results stay open until the client has had time to act on the
/// answer.
async fn cancel(
    context: &Context,
    channel: &mut Channel,
    unit: &str,
    caller: &Caller,
) -> io::Result<AfterCommand> {
    let mut cancel = context.work.begin_cancel(unit);
    let outcome = context.work.cancel(unit, caller).await;
    if outcome.is_err() {
        cancel.refused();
    }
    let answer = outcome.map(|outcome| done(outcome, unit, "cancelled", "cancel pending"));
    channel.answer(answer.map_err(RequestRefusal::from)).await?;
    Ok(AfterCommand::Command)
}

fn done(outcome: Outcome, unit: &str, now: &str, later: &str) -> Value {
    match outcome {
        Outcome::Done => json!({ now: unit }),
        Outcome::Pending => json!({ later: unit }),
    }
}

async fn list(channel: &mut Channel, mut listing: Listing) -> io::Result<AfterCommand> {
    while let Some(piece) = listing.piece()? {
        channel.send(&piece).await?;
        // Lets other tasks run, because writing to a fast socket never waits.
        tokio::task::yield_now().await;
    }
    Ok(AfterCommand::Command)
}

async fn status(context: &Context, caller: &Caller, unit: &str) -> Result<Value, RequestRefusal> {
    context.work.check_look(unit, caller)?;
    Ok(serde_json::to_value(context.work.status(unit).await?)?)
}

async fn disclaim(
    context: &Context,
    caller: &Caller,
    unit: &str,
    work_type: &str,
) -> Result<Value, RequestRefusal> {
    match context.work.disclaim(unit, work_type, caller).await? {
        None => Ok(json!({ "disclaimed": unit })),
        Some(report) => Ok(serde_json::to_value(report)?),
    }
}

async fn adopt(
    context: &Context,
    peer: &ClientPeer,
    mut what: AdoptRequest,
) -> Result<Value, RequestRefusal> {
    let caller = peer.caller(what.signature.take());
    let id = context.work.adopt(what, caller).await?;
    Ok(json!({"unitid": id, "result": "Adopted"}))
}

/// Sends frames until the unit is final or the follower is gone.
async fn tell(channel: &mut Channel, unit: &str, mut frames: Frames) -> io::Result<AfterCommand> {
    channel.send(format!("{ANSWER}{unit}\n")).await?;
    loop {
        let frame = tokio::select! {
            biased;
            frame = frames.next() => frame,
            () = channel.gone() => return Err(io::ErrorKind::ConnectionReset.into()),
        };
        match frame {
            Ok(Some(frame)) => frame.write(channel).await?,
            Ok(None) => return Ok(AfterCommand::Close),
            Err(error) => {
                tracing::warn!(unit, %error, "cannot follow the unit any further, disconnecting the client");
                return Err(io::Error::other(error));
            }
        }
    }
}

/// Streams output and status of a unit to one of our own nodes, which follows the unit or has just started it. The
/// connection ends afterwards, because a payload, not a command, may follow a line that was refused.
async fn stream(
    channel: &mut Channel,
    opened: Result<(String, Frames), Broken>,
    stop: &Stop,
) -> io::Result<AfterCommand> {
    match opened {
        Ok((unit, frames)) => stop.or_streamed(tell(channel, &unit, frames)).await,
        Err(Broken::Unit(error)) => refuse(channel, &error).await.map(|_| AfterCommand::Close),
        Err(Broken::Client { error, .. }) => Err(error),
    }
}

/// Creates a unit in one exchange, and starts it once its payload has arrived. After an error the unit is discarded.
async fn begin(
    context: &Context,
    channel: &mut Channel,
    peer: &ClientPeer,
    mut request: SubmitRequest,
) -> Result<(String, Frames), Broken> {
    let (payload_length, in_pieces) = (request.payload_length, request.in_pieces);
    let tokens = request.signature.take();
    let mut tokens = tokens.iter().flat_map(|both| both.split(' ')).map(str::to_owned);
    let (submitter, follower) = (peer.caller(tokens.next()), peer.caller(tokens.next()));
    let mut submission = context.work.submit(request, submitter).await?;
    let id = submission.id().to_string();
    let ready = async {
        let frames = Frames::open(&context.work, &id, 0, &follower).await?;
        match in_pieces {
            true => pieces(channel, &mut submission).await?,
            false => payload(channel, &mut submission, payload_length).await?,
        }
        Ok::<_, Broken>(frames)
    };
    match ready.await {
        Ok(frames) => {
            let arrived = submission.arrived().await;
            submission.finish_or_discard().await?;
            let keeps = if context.work.keep_pieces(arrived) { KEEPS_PIECES } else { "" };
            Ok((format!("{id}{keeps}"), frames))
        }
        Err(broken) => {
            submission.discard(broken.to_string()).await;
            Err(broken)
        }
    }
}

/// Answers with an error and takes the next command.
async fn refuse(channel: &mut Channel, error: &WorkError) -> io::Result<AfterCommand> {
    channel.refuse(&error.to_string()).await?;
    Ok(AfterCommand::Command)
}

async fn submit(
    context: &Context,
    channel: &mut Channel,
    peer: &ClientPeer,
    mut request: SubmitRequest,
) -> io::Result<AfterCommand> {
    let (payload_length, caller) = (request.payload_length, peer.caller(request.signature.take()));
    let mut submission = match context.work.submit(request, caller).await {
        Ok(submission) => submission,
        Err(error) => return refuse(channel, &error).await,
    };
    let id = submission.id().to_string();
    let created = format!("Work unit created with ID {id}. Send stdin data and EOF.\n");
    let paid = match channel.send(&created).await {
        Ok(()) => payload(channel, &mut submission, payload_length).await,
        Err(error) => Err(Broken::Client { error, received: 0 }),
    };
    match paid {
        Ok(()) => {}
        Err(Broken::Client { error, received }) => {
            let cause = format!("the client went away after {received} bytes");
            tracing::debug!(unit = id, %error, "the client left before its payload was complete");
            // An incomplete job leaves no unit. Nor does a unit of one of our own nodes, because that node submits it
            // again and may not know this ID.
            match submission.is_job() || channel.leads_to_our_own() {
                true => submission.discard(cause).await,
                false => abort(submission, &id, &cause).await,
            }
            return Err(error);
        }
        Err(Broken::Unit(error)) => {
            match &error {
                // A refused job leaves no unit.
                WorkError::Job(cause) => submission.discard(cause.clone()).await,
                _ => abort(submission, &id, &error).await,
            }
            channel.refuse(&error.to_string()).await?;
            // The rest of the payload must never be taken for commands.
            return Ok(AfterCommand::Close);
        }
    }
    match submission.finish().await {
        Ok(started) => channel.answer(Ok(json!({"result": result(started), "unitid": id}))).await?,
        Err(error) => channel.refuse(&error.to_string()).await?,
    }
    Ok(AfterCommand::Command)
}

fn result(started: Started) -> &'static str {
    match started {
        Started::Started => "Job Started",
        Started::Submitted => "Job Submitted",
    }
}

/// Which side broke while a payload was carried.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error("the client went away after {received} bytes")]
    Client {
        #[source]
        error: io::Error,
        received: u64,
    },
    #[error(transparent)]
    Unit(#[from] WorkError),
}

/// Hands the payload on until the client has closed its writing side. The payload is incomplete if the client is gone
/// by then, or has sent less than it announced.
async fn payload(
    channel: &mut Channel,
    submission: &mut UnitSubmission,
    announced: Option<u64>,
) -> Result<(), Broken> {
    let mut received = 0;
    let broken = |received| move |error| Broken::Client { error, received };
    let mut chunk = BytesMut::with_capacity(CHUNK);
    while channel.read_buf(&mut chunk).await.map_err(broken(received))? > 0 {
        received += chunk.len() as u64;
        submission.write(&chunk).await.map_err(Broken::Unit)?;
        chunk.clear();
    }
    match announced {
        Some(announced) if announced < received => {
            Err(Broken::Unit(WorkError::PayloadTooLong { announced, received }))
        }
        Some(announced) if announced > received => Err(Broken::Unit(WorkError::PayloadTooShort { received })),
        Some(_) | None if !channel.still_listens() => Err(broken(received)(io::ErrorKind::BrokenPipe.into())),
        Some(_) | None => Ok(()),
    }
}

/// Hands a payload on that comes in pieces.
async fn pieces(channel: &mut Channel, submission: &mut UnitSubmission) -> Result<(), Broken> {
    let mut assembly = Assembly::default();
    loop {
        let lost = |received| move |error| Broken::Client { error, received };
        let frame = match PieceFrame::read(channel).await {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(Broken::Unit(AssemblyError::Invalid.into()));
            }
            read => read.map_err(lost(assembly.length()))?,
        };
        match submission.assemble(&mut assembly, frame).await.map_err(Broken::Unit)? {
            Assembled::Answer(line) => channel.send(line).await.map_err(lost(assembly.length()))?,
            // Few bytes may ask for much work.
            Assembled::More => tokio::task::yield_now().await,
            Assembled::Whole => break,
        }
    }
    // The payload's sender ends it once it is durable there.
    payload(channel, submission, Some(0)).await
}

async fn abort(submission: UnitSubmission, unit: &str, cause: &(impl Display + Sync)) {
    tracing::info!(unit, %cause, "the payload stopped half way, the unit fails");
    submission.abort(cause.to_string()).await;
}

async fn results(
    channel: &mut Channel,
    output: Result<ResultStream, WorkError>,
    (unit, ends_with_unit): (&str, bool),
    stop: &Stop,
) -> io::Result<AfterCommand> {
    let mut output = match output {
        Ok(output) => output,
        Err(error) => return refuse(channel, &error).await,
    };
    channel.send(&format!("Streaming results for work unit {unit}\n")).await?;
    let streamed = async {
        while let Some(chunk) = next_chunk(channel, &mut output).await? {
            channel.write_all(&chunk).await?;
            // TLS buffers bytes that the socket does not take yet: without a flush they would stay here while no more
            // output comes.
            channel.flush().await?;
        }
        if !ends_with_unit {
            tokio::select! {
                () = output.farewell() => {}
                () = channel.gone() => {}
            }
        }
        Ok(AfterCommand::Close)
    };
    stop.or_streamed(streamed).await
}

/// The next output; an error if the client leaves first. A failure half way can only be shown by closing the
/// connection.
async fn next_chunk(channel: &mut Channel, output: &mut ResultStream) -> io::Result<Option<bytes::Bytes>> {
    let chunk = tokio::select! {
        biased;
        chunk = output.next() => chunk,
        () = channel.gone() => return Err(io::ErrorKind::ConnectionReset.into()),
    };
    chunk.or_else(|error| {
        tracing::warn!(%error, "cannot read the rest of the results");
        Ok(None)
    })
}
