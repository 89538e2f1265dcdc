//! Reading answers: JSON of bounded size, refusals with the server's own message, lines of a watch, bytes of a log.
//! Owns what counts as the proper end of each. Sends nothing.

use std::io;
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use futures_util::{StreamExt as _, stream};
use http::{Response, StatusCode, header};
use http_body_util::{BodyExt as _, Limited};
use kube::client::Body;
use serde_json::Value;

use super::failure::words;
use super::rights::MayPass;
use super::{LogStream, PodChange, PodChanges};
use crate::pods::api_error::ApiError;

/// Most bytes of an answer, and of one event of a watch.
const MOST_OF_ANSWER: usize = 64 * 1024 * 1024;
const MOST_OF_EVENT: usize = 8 * 1024 * 1024;
/// Most bytes of a message that is no Status object.
const MOST_OF_MESSAGE: usize = 1024;

/// The JSON of a successful answer, or the refusal.
pub(super) async fn json(response: Response<Body>) -> Result<Value, ApiError> {
    let response = successful(response).await?;
    let bytes = bytes(response.into_body()).await?;
    serde_json::from_slice(&bytes).map_err(|_| {
        ApiError::Unreachable(
            "the answer is not JSON, so the server does not speak the Kubernetes API".into(),
        )
    })
}

/// The answer if it is a success, or the refusal.
pub(super) async fn successful(response: Response<Body>) -> Result<Response<Body>, ApiError> {
    if response.status().is_success() {
        return Ok(response);
    }
    Err(refusal(response).await)
}

/// Why an answer is no success.
pub(super) async fn refusal(response: Response<Body>) -> ApiError {
    let status = response.status();
    let after = response.headers().get(header::RETRY_AFTER);
    let after = after.and_then(|value| value.to_str().ok()?.trim().parse().ok()).map(Duration::from_secs);
    let may_pass = response.extensions().get::<MayPass>().is_some();
    let body = bytes(response.into_body()).await.unwrap_or_default();
    match ApiError::from_status(status.as_u16(), message(status, &body), after) {
        ApiError::Forbidden(message) if may_pass => ApiError::Busy { message, retry_after: after },
        error => error,
    }
}

fn message(status: StatusCode, body: &[u8]) -> String {
    let parsed = serde_json::from_slice::<Value>(body).ok();
    if let Some(message) = parsed.as_ref().and_then(|value| value["message"].as_str()) {
        return message.to_owned();
    }
    let text = String::from_utf8_lossy(&body[..body.len().min(MOST_OF_MESSAGE)]);
    match text.trim() {
        "" => status.to_string(),
        text => format!("{status}: {text}"),
    }
}

async fn bytes(body: Body) -> Result<Vec<u8>, ApiError> {
    match Limited::new(body, MOST_OF_ANSWER).collect().await {
        Ok(collected) => Ok(collected.to_bytes().into()),
        Err(error) => Err(ApiError::Unreachable(words(&*error).into())),
    }
}

/// The bytes of a log. Without a Content-Length or a Transfer-Encoding, nothing shows whether all of it arrived.
pub(super) fn log(response: Response<Body>) -> LogStream {
    let headers = response.headers();
    let has_end =
        headers.contains_key(header::CONTENT_LENGTH) || headers.contains_key(header::TRANSFER_ENCODING);
    let body = response.into_body().into_data_stream();
    let bytes = body.map(|piece| piece.map_err(|error| io::Error::other(words(&error))));
    if has_end {
        return Box::pin(bytes.fuse());
    }
    let cut = || Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the connection was closed"));
    Box::pin(bytes.chain(stream::once(async move { cut() })))
}

/// The events of a watch, one per line.
pub(super) fn changes(response: Response<Body>) -> PodChanges {
    let body = response.into_body().into_data_stream();
    let state = (body, BytesMut::new());
    Box::pin(stream::try_unfold(state, |(mut body, mut held)| async move {
        let mut searched = 0;
        loop {
            if let Some(end) = held[searched..].iter().position(|byte| *byte == b'\n') {
                let line = held.split_to(searched + end);
                held.advance(1);
                return Ok(Some((change(&line)?, (body, held))));
            }
            searched = held.len();
            match body.next().await {
                Some(Ok(_)) if searched > MOST_OF_EVENT => {
                    return Err(ApiError::Unreachable("an event of the watch is too long".into()));
                }
                Some(Ok(piece)) => held.extend_from_slice(&piece),
                Some(Err(error)) => return Err(ApiError::Unreachable(words(&error).into())),
                None => return Ok(None),
            }
        }
    }))
}

fn change(line: &[u8]) -> Result<PodChange, ApiError> {
    let mut event: Value = serde_json::from_slice(line)
        .map_err(|_| ApiError::Unreachable("an event of the watch is not JSON".into()))?;
    let object = event["object"].take();
    match event["type"].as_str().unwrap_or_default() {
        "ADDED" | "MODIFIED" => Ok(PodChange::Applied(object)),
        "DELETED" => Ok(PodChange::Deleted(object)),
        "BOOKMARK" => Ok(PodChange::Bookmark(version(&object))),
        _ if object["code"] == 410 => Ok(PodChange::Expired),
        _ => {
            let code = object["code"].as_u64().and_then(|code| u16::try_from(code).ok()).unwrap_or(500);
            let message = object["message"].as_str().unwrap_or("the watch ended with an error").to_owned();
            Err(ApiError::from_status(code, message, None))
        }
    }
}

/// The `resourceVersion` of an object or a list.
pub(super) fn version(object: &Value) -> String {
    object["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned()
}
