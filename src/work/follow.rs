//! Following a unit on another node over one connection: how both of our own nodes do it. The follower sends one
//! JSON line with subcommand `follow`, which a Go node refuses as a bad command; our own answers one line and then
//! frames, output and status as they come, until the final status, which follows the last byte of output.
//!
//! A frame is a kind (1 status, 2 output), the body's length in 4 bytes, big-endian, and the body: a unit's report
//! as JSON, or bytes of stdout.

use std::io;

use bytes::{Buf, Bytes};
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::registry::Registry;
use super::status::UnitReport;
use super::unit::State;
use super::{Caller, ResultStream, WorkError};

/// The subcommand of `work`.
pub const SUBCOMMAND: &str = "follow";
/// How the line begins that precedes the frames; the unit's ID follows.
pub const ANSWER: &str = "Following work unit ";
/// Longest body taken, in bytes; output comes in far smaller pieces.
const MAX_BODY: u32 = 1024 * 1024;
const STATUS: u8 = 1;
const OUTPUT: u8 = 2;

/// The line that asks for following a unit from byte `start` of its output on.
pub fn request(unit: &str, start: u64, signature: Option<&str>) -> String {
    let mut line = serde_json::json!({
        "command": "work", "subcommand": SUBCOMMAND, "unitid": unit, "startpos": start,
    });
    if let Some(signature) = signature {
        line["signature"] = signature.into();
    }
    format!("{line}\n")
}

/// Answers such a request: the line, then frames until the unit is final or the follower is gone. The caller
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
    let entry = registry.inner.find(unit)?;
    let mut changes = entry.subscribe();
    let report = registry.status(unit).await?;
    if !report.state.is_final() {
        send_status(&report, writer).await?;
    }
    loop {
        tokio::select! {
            biased;
            chunk = results.next() => match chunk {
                Ok(Some(chunk)) => send(OUTPUT, chunk, writer).await?,
                Ok(None) => return send_status(&registry.inner.report(&entry), writer).await,
                // No waiting brings the rest back, unless the unit is no more.
                Err(WorkError::StdoutTruncated { found, .. }) => {
                    registry.inner.find(unit)?;
                    return send_status(&registry.inner.report_with(&entry, found), writer).await;
                }
                Err(error) => return Err(error),
            },
            _ = changes.changed() => {
                changes.mark_unchanged();
                registry.inner.make_sure(std::slice::from_ref(&entry)).await;
                let report = registry.inner.report(&entry);
                // A final status has to wait for the output.
                if !report.state.is_final() {
                    send_status(&report, writer).await?;
                }
            }
        }
    }
}

async fn send_status(report: &UnitReport, writer: &mut (impl AsyncWrite + Unpin)) -> Result<(), WorkError> {
    let body = serde_json::to_vec(report).map_err(|e| WorkError::Connection(e.into()))?;
    send(STATUS, body.into(), writer).await
}

async fn send(kind: u8, body: Bytes, writer: &mut (impl AsyncWrite + Unpin)) -> Result<(), WorkError> {
    let mut header = [kind, 0, 0, 0, 0];
    header[1..].copy_from_slice(&(body.len() as u32).to_be_bytes());
    let sent = writer.write_all_buf(&mut Buf::chain(&header[..], body)).await;
    match sent {
        Ok(()) => writer.flush().await.map_err(WorkError::Connection),
        Err(error) => Err(WorkError::Connection(error)),
    }
}

/// What a follower receives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Frame {
    /// How the unit stands.
    Status(RemoteReport),
    /// The next bytes of its output.
    Output(Vec<u8>),
}

/// The part of another node's status answer that concerns a follower.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "RawReport")]
pub(super) struct RemoteReport {
    pub(super) state: State,
    pub(super) detail: String,
    pub(super) stdout_size: u64,
    /// Of a unit whose process has ended, if the node tells it.
    pub(super) exit_code: Option<i32>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct RawReport {
    state: u64,
    #[serde(default)]
    detail: String,
    #[serde(default)]
    stdout_size: i64,
    #[serde(default)]
    exit_code: Option<i32>,
}

impl TryFrom<RawReport> for RemoteReport {
    type Error = String;
    fn try_from(raw: RawReport) -> Result<Self, String> {
        let state =
            State::from_number(raw.state).ok_or_else(|| format!("there is no state {}", raw.state))?;
        let stdout_size = u64::try_from(raw.stdout_size).unwrap_or(0);
        Ok(Self { state, detail: raw.detail, stdout_size, exit_code: raw.exit_code })
    }
}

impl Frame {
    /// Reads the next frame.
    ///
    /// # Errors
    /// The connection's end at any point, and a frame that is none.
    pub(super) async fn read(reader: &mut (impl AsyncRead + Unpin)) -> io::Result<Self> {
        let kind = reader.read_u8().await?;
        let length = reader.read_u32().await?;
        if length > MAX_BODY {
            return Err(io::Error::other(format!("a frame of {length} bytes is too long")));
        }
        let mut body = vec![0; length as usize];
        reader.read_exact(&mut body).await?;
        match kind {
            STATUS => serde_json::from_slice(&body).map(Self::Status).map_err(io::Error::other),
            OUTPUT => Ok(Self::Output(body)),
            other => Err(io::Error::other(format!("unknown kind of frame {other}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn frames_come_back_and_lies_are_refused() {
        let mut bytes = Vec::new();
        send(OUTPUT, Bytes::from_static(b"abc"), &mut bytes).await.unwrap();
        send(STATUS, br#"{"State":3,"Detail":"x","StdoutSize":3}"#[..].into(), &mut bytes).await.unwrap();
        let mut reader = &bytes[..];
        assert_eq!(Frame::read(&mut reader).await.unwrap(), Frame::Output(b"abc".into()));
        let report =
            RemoteReport { state: State::Failed, detail: "x".into(), stdout_size: 3, exit_code: None };
        assert_eq!(Frame::read(&mut reader).await.unwrap(), Frame::Status(report));
        for bad in
            [&b""[..], b"\x02\xff\xff\xff\xff", b"\x02\0\0\0\x05abc", b"\x09\0\0\0\0", b"\x01\0\0\0\x02{}"]
        {
            assert!(Frame::read(&mut &bad[..]).await.is_err(), "{bad:?}");
        }
    }
}
