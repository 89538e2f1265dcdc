//! The HTTP server of a ws-listener: reads one request of a connection and answers it.
//!
//! It owns the bounds of a request, paths, origins, and the answers to requests for no WebSocket. It refuses to
//! know sessions, and who logs what. Its callers limit the time.

use std::io;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy, sink};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::handshake::server::{create_response_with_body, write_response};
use tokio_tungstenite::tungstenite::http::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderName, ORIGIN, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use tokio_tungstenite::tungstenite::http::{HeaderValue, Method, Request, Response, StatusCode};

/// The most bytes of a request up to its blank line, and the most header lines: proxies add cookies and tokens by
/// the dozen.
const MAX_HEAD: usize = 64 * 1024;
const MAX_LINES: usize = 1_000;

/// How long a client may go on sending after it was answered.
const LINGER: Duration = Duration::from_secs(1);

/// The first byte of a client's TLS; no HTTP request begins with it.
const TLS_RECORD: u8 = 0x16;

/// The path that load balancers ask for, to learn whether this port serves.
const HEALTH: &str = "/healthz";

/// Headers that every browser sends and no page can suppress. Nodes send none of them.
const OF_BROWSERS: [&str; 3] = ["accept-language", "sec-fetch-mode", "sec-fetch-site"];

/// How a request was answered.
#[derive(Debug)]
pub(super) enum UpgradeAnswer {
    /// The connection is a WebSocket from here on.
    Upgraded,
    /// The client asked for a WebSocket, or for TLS, and was refused with this answer.
    Refused(String),
    /// The client asked for something else, or for nothing.
    Other,
}

/// Reads a request and answers it. Unless it is upgraded, the connection is of no further use.
///
/// # Errors
/// If the connection fails before the answer is out.
pub(super) async fn serve<IO>(io: &mut IO, path: &str) -> io::Result<UpgradeAnswer>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let Some(head) = read_head(io).await? else { return Ok(UpgradeAnswer::Other) };
    if is_tls(&head) {
        let text = "the client speaks TLS, and this listener does not: set tls at both ends, or at none";
        let _gone = refuse(io, &told(StatusCode::BAD_REQUEST, text), true).await;
        return Ok(UpgradeAnswer::Refused(format!("{}: {text}", StatusCode::BAD_REQUEST)));
    }
    let request = match parse(&head) {
        Ok(request) => request,
        Err(status) => {
            return refuse(io, &told(status, &reason(status)), true).await.map(|()| UpgradeAnswer::Other);
        }
    };
    let wants_upgrade = wants_websocket(&request);
    let answer = answer(&request, path, wants_upgrade);
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
        io.write_all(&bytes(&answer, true)?).await?;
        io.flush().await?;
        return Ok(UpgradeAnswer::Upgraded);
    }
    refuse(io, &answer, request.method() != Method::HEAD).await?;
    let text = || format!("{}: {}", answer.status(), answer.body().trim_end());
    Ok(if wants_upgrade { UpgradeAnswer::Refused(text()) } else { UpgradeAnswer::Other })
}

/// A request up to its blank line, cut off beyond the most that is allowed; `None` if the stream ends before.
async fn read_head(io: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<BytesMut>> {
    let mut head = BytesMut::new();
    loop {
        let searched = head.len().saturating_sub(3);
        head.reserve(4 * 1024);
        if io.read_buf(&mut head).await? == 0 {
            return Ok(None);
        }
        let tail = &head[searched..];
        let ends = |blank: &[u8]| tail.windows(blank.len()).any(|window| window == blank);
        if head.len() > MAX_HEAD || is_tls(&head) || ends(b"\n\r\n") || ends(b"\n\n") {
            return Ok(Some(head));
        }
    }
}

fn is_tls(head: &[u8]) -> bool {
    head.first() == Some(&TLS_RECORD)
}

/// The request, or the status that says what is wrong with it. Nothing may follow the blank line of an upgrade,
/// because a neighbour speaks only once it is answered.
fn parse(head: &[u8]) -> Result<Request<()>, StatusCode> {
    let mut lines = vec![httparse::EMPTY_HEADER; MAX_LINES];
    let mut raw = httparse::Request::new(&mut lines);
    let end = match raw.parse(head) {
        Ok(httparse::Status::Complete(end)) => end,
        Ok(httparse::Status::Partial) if head.len() <= MAX_HEAD => return Err(StatusCode::BAD_REQUEST),
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return Err(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
        }
        Err(httparse::Error::Version) => return Err(StatusCode::HTTP_VERSION_NOT_SUPPORTED),
        Err(_) => return Err(StatusCode::BAD_REQUEST),
    };
    let target = raw.path.unwrap_or_default();
    let mut request = Request::builder().method(raw.method.unwrap_or_default()).uri(target);
    for line in raw.headers.iter() {
        request = request.header(line.name, line.value);
    }
    let request = request.body(()).map_err(|_| StatusCode::BAD_REQUEST)?;
    if end < head.len() && wants_websocket(&request) {
        return Err(StatusCode::BAD_REQUEST);
    }
    Ok(request)
}

/// The start of a WebSocket, or the answer given instead. HTTP/1.0 is taken for 1.1, as a Go node does.
fn answer(request: &Request<()>, path: &str, wants_upgrade: bool) -> Response<String> {
    let asked = request.uri().path();
    if asked == HEALTH && !wants_upgrade && matches!(*request.method(), Method::GET | Method::HEAD) {
        return told(StatusCode::OK, "ok");
    }
    if !serves(path, asked) {
        return told(StatusCode::NOT_FOUND, "no mesh at this path");
    }
    // Browsers name the page whose script connects. No page from elsewhere may make its readers' browsers connect
    // here.
    let (origin, host) = (header(request, &ORIGIN), header(request, &HOST).unwrap_or_default());
    let foreign = origin.filter(|origin| wants_upgrade && !origin_host(origin).eq_ignore_ascii_case(host));
    if let Some(origin) = foreign {
        let text = format!(
            "the Origin header ({origin:.64}) does not match the Host header ({host:.64}): a proxy must pass Host on \
             (nginx: proxy_set_header Host $http_host)"
        );
        return told(StatusCode::FORBIDDEN, &text);
    }
    // A page from elsewhere can make its own host name resolve to this node. Its `Host` then matches its origin,
    // and only these headers tell its browser from a node.
    if wants_upgrade && OF_BROWSERS.iter().any(|name| request.headers().contains_key(*name)) {
        return told(
            StatusCode::FORBIDDEN,
            "this is the WebSocket of a mesh, which no browser's page belongs to",
        );
    }
    create_response_with_body(request, String::new).unwrap_or_else(|error| {
        let mut answer = told(StatusCode::BAD_REQUEST, &format!("this is the WebSocket of a mesh: {error}"));
        answer.headers_mut().insert(SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
        answer
    })
}

fn wants_websocket(request: &Request<()>) -> bool {
    header(request, &UPGRADE).is_some_and(|protocol| protocol.eq_ignore_ascii_case("websocket"))
}

fn header<'a>(request: &'a Request<()>, name: &HeaderName) -> Option<&'a str> {
    request.headers().get(name).and_then(|value| value.to_str().ok())
}

/// Whether a listener at `path` answers a request for `asked`; a path that ends with a slash stands for all below
/// it.
fn serves(path: &str, asked: &str) -> bool {
    asked == path || (path.ends_with('/') && asked.starts_with(path))
}

fn origin_host(origin: &str) -> &str {
    origin.split_once("://").map_or(origin, |(_scheme, host)| host).trim_end_matches('/')
}

fn reason(status: StatusCode) -> String {
    status.canonical_reason().unwrap_or_default().to_lowercase()
}

/// An answer that ends the connection.
fn told(status: StatusCode, text: &str) -> Response<String> {
    let mut answer = Response::new(format!("{text}\n"));
    *answer.status_mut() = status;
    let length = HeaderValue::from(answer.body().len());
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(CONTENT_LENGTH, length);
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    answer
}

/// Head and body in one piece, so that a client reads them at once.
fn bytes(answer: &Response<String>, with_body: bool) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    write_response(&mut bytes, answer).map_err(io::Error::other)?;
    let body = answer.body().as_bytes();
    bytes.extend_from_slice(if with_body { body } else { &[] });
    Ok(bytes)
}

/// Sends the answer, and reads what the client still sends. Closing with unread bytes would reset the connection,
/// and a reset can overtake the answer.
async fn refuse<IO>(io: &mut IO, answer: &Response<String>, with_body: bool) -> io::Result<()>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    io.write_all(&bytes(answer, with_body)?).await?;
    io.shutdown().await?;
    let _the_answer_is_out = timeout(LINGER, copy(io, &mut sink())).await;
    Ok(())
}
