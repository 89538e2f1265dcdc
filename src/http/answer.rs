//! Answers: a status, headers, and a body, whole or as a stream. Knows nothing of connections, nor who gets what.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::unfold;
use futures_util::{Stream, TryStreamExt as _};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderName};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Frame;
use serde::Serialize;
use tokio::time::timeout;

use crate::os::answers::AnswerRoom;

pub(super) const TEXT: &str = "text/plain; charset=utf-8";
pub(super) const JSON: &str = "application/json";
/// How long a large answer may wait for room that others take, and how many of its bytes are sent at a time.
const ROOM_WITHIN: Duration = Duration::from_secs(10);
const PIECE: usize = 16 << 10;

/// A body. An error in a body cuts the connection, so that no client takes a part for the whole.
pub(crate) type HttpBody = UnsyncBoxBody<Bytes, io::Error>;

/// What a client gets.
pub(crate) type HttpAnswer = Response<HttpBody>;

/// An answer with its whole body.
pub(super) fn whole(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> HttpAnswer {
    let body = Full::new(body.into()).map_err(|never| match never {}).boxed_unsync();
    let mut answer = with(Response::new(body), CONTENT_TYPE, content_type);
    *answer.status_mut() = status;
    answer
}

pub(super) fn text(status: StatusCode, body: impl Into<Bytes>) -> HttpAnswer {
    whole(status, TEXT, body)
}

pub(super) fn json(status: StatusCode, value: &impl Serialize) -> HttpAnswer {
    whole(status, JSON, line(value))
}

/// A value as a line of JSON. No type that is answered can fail to be printed.
pub(super) fn line(value: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(value).unwrap_or_default();
    line.push(b'\n');
    line
}

/// An answer that may be large: its body is made once there is room for it, and the room is free again when the body
/// has been sent. `None` if there is no room in time.
pub(super) async fn large<K: Ord + Clone + Send + 'static>(
    content_type: &'static str,
    mut room: AnswerRoom<K>,
    make: impl Fn() -> Vec<u8> + Send + Sync + 'static,
) -> Option<HttpAnswer> {
    let body = timeout(ROOM_WITHIN, room.print(make)).await.ok()??;
    let length = body.len();
    // In pieces, because hyper copies what it is handed at once, whether the client reads or not.
    let pieces = unfold((Bytes::from(body), room), async |(mut rest, room)| {
        let piece = rest.split_to(rest.len().min(PIECE));
        (!piece.is_empty()).then_some((Ok(piece), (rest, room)))
    });
    let mut answer = stream(content_type, pieces);
    answer.headers_mut().insert(CONTENT_LENGTH, length.into());
    Some(answer)
}

/// An answer whose body comes piece by piece, as the client reads it.
pub(super) fn stream(
    content_type: &'static str,
    pieces: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
) -> HttpAnswer {
    let body = StreamBody::new(pieces.map_ok(Frame::data)).boxed_unsync();
    with(Response::new(body), CONTENT_TYPE, content_type)
}

/// The same answer with one more header.
pub(super) fn with(mut answer: HttpAnswer, name: HeaderName, value: &'static str) -> HttpAnswer {
    answer.headers_mut().insert(name, HeaderValue::from_static(value));
    answer
}

/// The token in a header `Authorization`.
pub(super) fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bearer_token_stands_behind_its_scheme() {
        for (value, token) in [
            ("Bearer abc", Some("abc")),
            ("bearer  abc ", Some("abc")),
            ("Basic abc", None),
            ("Bearer", None),
            ("Bearerabc", None),
        ] {
            assert_eq!(bearer(value.as_bytes()), token.map(str::as_bytes), "{value}");
        }
    }
}
