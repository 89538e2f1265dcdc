//! Answers: a status, headers, and a body that is there or comes as a stream. It knows no connections, nor who gets what.

use std::io;

use bytes::Bytes;
use futures_util::{Stream, TryStreamExt as _};
use http::header::{CONTENT_TYPE, HeaderName};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Frame;
use serde::Serialize;

pub(super) const TEXT: &str = "text/plain; charset=utf-8";

/// A body. An error in it cuts the connection, so that no client takes a part for the whole.
pub(crate) type HttpBody = UnsyncBoxBody<Bytes, io::Error>;

/// What a client gets.
pub(crate) type HttpAnswer = Response<HttpBody>;

/// One whose body is there.
pub(super) fn whole(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> HttpAnswer {
    let body = Full::new(body.into()).map_err(|never| match never {}).boxed_unsync();
    let mut answer = with(Response::new(body), CONTENT_TYPE, content_type);
    *answer.status_mut() = status;
    answer
}

pub(super) fn text(status: StatusCode, body: impl Into<Bytes>) -> HttpAnswer {
    whole(status, TEXT, body)
}

/// None of the types that are answered can fail to be printed.
pub(super) fn json(status: StatusCode, value: &impl Serialize) -> HttpAnswer {
    let mut line = serde_json::to_vec(value).unwrap_or_default();
    line.push(b'\n');
    whole(status, "application/json", line)
}

/// One whose body comes piece by piece, as the client reads it.
pub(super) fn stream(
    content_type: &'static str,
    pieces: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
) -> HttpAnswer {
    let body = StreamBody::new(pieces.map_ok(Frame::data)).boxed_unsync();
    with(Response::new(body), CONTENT_TYPE, content_type)
}

/// The same with one more header.
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
