//! The serving half of `work follow`, how our own nodes follow a unit on another one over one connection: a line, then
//! frames until the unit is final. The frames are [`rpc::follow`](crate::rpc::follow)'s.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::registry::Registry;
use super::{Caller, ResultStream, WorkError};
use crate::rpc::follow::{ANSWER, Frame};

/// Answers a request to follow a unit: the line, then frames until the unit is final or the follower is gone. The caller
/// closes the connection afterwards.
///
/// # Errors
/// Before anything was written: an unknown unit, a caller who may not. Later [`WorkError::Connection`] alone: the
/// connection broke, or has to be broken as the output cannot be read.
pub async fn serve(
    registry: &Registry,
    unit: &str,
    start: u64,
    caller: &Caller,
    reader: &mut (impl AsyncRead + Unpin),
    writer: &mut (impl AsyncWrite + Unpin),
) -> Result<(), WorkError> {
    let results = registry.results(unit, start, caller).await?;
    let line = format!("{ANSWER}{unit}\n");
    writer.write_all(line.as_bytes()).await.map_err(WorkError::Connection)?;
    tokio::select! {
        served = send_all(registry, unit, results, writer) => served.map_err(|error| match error {
            WorkError::Connection(_) => error,
            // In words it would be taken for a frame.
            error => {
                tracing::warn!(unit, %error, "a follower is cut off");
                WorkError::Connection(io::Error::other(error))
            }
        }),
        // A follower says nothing more: whatever comes means that it is gone.
        _ = reader.read_u8() => Ok(()),
    }
}

async fn send_all(
    registry: &Registry,
    unit: &str,
    mut results: ResultStream,
    writer: &mut (impl AsyncWrite + Unpin),
) -> Result<(), WorkError> {
    let entry = registry.find(unit)?;
    let mut changes = entry.subscribe();
    let report = registry.status(unit).await?;
    if !report.state.is_final() {
        send(Frame::Status(report), writer).await?;
    }
    loop {
        tokio::select! {
            biased;
            chunk = results.next() => match chunk {
                Ok(Some(chunk)) => send(Frame::Output(chunk), writer).await?,
                Ok(None) => return send(Frame::Status(registry.report(&entry)), writer).await,
                // No waiting brings the rest back, unless the unit is no more.
                Err(WorkError::StdoutTruncated { found, .. }) => {
                    registry.find(unit)?;
                    return send(Frame::Status(registry.report_with(&entry, found)), writer).await;
                }
                Err(error) => return Err(error),
            },
            _ = changes.changed() => {
                changes.mark_unchanged();
                let report = registry.status_of(&entry).await;
                // A final status has to wait for the output.
                if !report.state.is_final() {
                    send(Frame::Status(report), writer).await?;
                }
            }
        }
    }
}

async fn send(frame: Frame, writer: &mut (impl AsyncWrite + Unpin)) -> Result<(), WorkError> {
    frame.write(writer).await.map_err(WorkError::Connection)
}
