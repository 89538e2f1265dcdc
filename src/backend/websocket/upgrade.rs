//! From a TCP connection to a WebSocket, on either side.
//!
//! It owns paths, origins and headers, and the words for what goes wrong. Limits of time are its callers'.

use std::io;

use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};
use tokio_tungstenite::tungstenite::http::header::{HOST, HeaderName, HeaderValue, ORIGIN};
use tokio_tungstenite::tungstenite::http::{self, StatusCode};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{self, client::IntoClientRequest};
use tokio_tungstenite::{WebSocketStream, accept_hdr_async_with_config, client_async_with_config};

use super::half::session;
use super::{Proxy, WsDialOptions, WsListenOptions, proxy, transport};
use crate::backend::tcp::{self, join};
use crate::backend::tls::{self, Connected, Io};
use crate::backend::{DialFailure, Direction, Session, SessionInfo};
use crate::tls::HandshakeError;
use crate::wire::MAX_MESSAGE;

/// Bytes read at once.
const READ_BUFFER: usize = 64 * 1024;
/// Bytes gathered before they are written, unless a batch ends before.
const WRITE_BUFFER: usize = 128 * 1024;

/// How both sides speak: no message may be longer than a packet.
fn settings() -> WebSocketConfig {
    WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER)
        .write_buffer_size(WRITE_BUFFER)
        .max_write_buffer_size(WRITE_BUFFER + 4 * MAX_MESSAGE)
        .max_message_size(Some(MAX_MESSAGE))
        .max_frame_size(Some(MAX_MESSAGE))
}

/// Why a connection did not become a WebSocket.
#[derive(Debug)]
pub(super) enum Refused {
    Tls(HandshakeError),
    Http(tungstenite::Error),
}

/// The server's side.
pub(super) async fn accept(
    stream: TcpStream,
    options: &WsListenOptions,
    peer: &str,
) -> Result<Session, Refused> {
    let accepted = tls::accept(stream, options.tls.as_ref()).await.map_err(Refused::Tls)?;
    let Connected { io, certified_nodes } = accepted;
    let path = options.path.clone();
    #[expect(clippy::result_large_err, reason = "the library wants it so")]
    let check = move |request: &Request, response: Response| check_request(request, &path).map(|()| response);
    let socket = accept_hdr_async_with_config(io, check, Some(settings())).await.map_err(Refused::Http)?;
    let (peer, transport) = (peer.to_owned(), options.transport());
    Ok(session(socket, SessionInfo { transport, peer, direction: Direction::Inbound, certified_nodes }))
}

#[expect(clippy::result_large_err, reason = "the library wants it so")]
fn check_request(request: &Request, path: &str) -> Result<(), ErrorResponse> {
    if !serves(path, request.uri().path()) {
        return Err(refusal(StatusCode::NOT_FOUND, "no mesh at this path\n"));
    }
    let header = |name| request.headers().get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    // Browsers say on whose page a script runs: no page elsewhere may lead its readers' browsers here.
    let foreign = header(ORIGIN)
        .is_some_and(|origin| !origin_host(origin).eq_ignore_ascii_case(header(HOST).unwrap_or_default()));
    if foreign {
        return Err(refusal(StatusCode::FORBIDDEN, "the origin is not this host\n"));
    }
    Ok(())
}

/// True if a listener at `path` answers a request for `asked`; a path with a slash at its end stands for all
/// below it.
fn serves(path: &str, asked: &str) -> bool {
    asked == path || (path.ends_with('/') && asked.starts_with(path))
}

fn origin_host(origin: &str) -> &str {
    origin.split_once("://").map_or(origin, |(_scheme, host)| host).trim_end_matches('/')
}

fn refusal(status: StatusCode, text: &str) -> ErrorResponse {
    let mut response = ErrorResponse::new(Some(text.to_owned()));
    *response.status_mut() = status;
    response
}

/// The client's side, from the name of the host on.
pub(super) async fn connect(options: &WsDialOptions) -> Result<Session, DialFailure> {
    let address = options.address();
    let failed = |source: io::Error| DialFailure::Connect { address: address.clone(), source };
    let request = request(options).map_err(failed)?;
    let stream = open(&address, options.proxy.as_ref()).await?;
    let Connected { io, certified_nodes } =
        tls::connect(stream, options.tls.as_ref(), &options.host, &address).await?;
    let (socket, _response) = client_async_with_config(request, io, Some(settings()))
        .await
        .map_err(|error| failed(explain(error, &options.path)))?;
    let (peer, transport) = (address.clone(), options.transport());
    Ok(session(socket, SessionInfo { transport, peer, direction: Direction::Outbound, certified_nodes }))
}

async fn open(address: &str, through: Option<&Proxy>) -> Result<TcpStream, DialFailure> {
    match through {
        None => tcp::connect(address).await,
        Some(through) => {
            let stream = tcp::connect(through.address()).await?;
            let tunnel = proxy::tunnel(stream, address, through);
            tunnel.await.map_err(|source| DialFailure::Connect { address: address.to_owned(), source })
        }
    }
}

fn request(options: &WsDialOptions) -> io::Result<http::Request<()>> {
    let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidInput, what);
    let secure = options.tls.is_some();
    let host = match (secure, options.port) {
        (false, 80) | (true, 443) => join(&options.host, 0).trim_end_matches(":0").to_owned(),
        (_, port) => join(&options.host, port),
    };
    let mut request = format!("{}://{host}{}", transport(secure), options.path)
        .into_client_request()
        .map_err(|error| invalid(format!("no WebSocket address: {error}")))?;
    let origin = format!("{}://{host}", if secure { "https" } else { "http" });
    let origin = HeaderValue::from_str(&origin).map_err(|error| invalid(error.to_string()))?;
    request.headers_mut().insert(ORIGIN, origin);
    if let Some((name, value)) = &options.extra_header {
        let name = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| invalid(format!("{name:?} is no name of a header")))?;
        // The value may be a secret, so it is not repeated.
        let value = HeaderValue::from_str(value)
            .map_err(|_| invalid(format!("the value of the extra header {name} cannot be sent")))?;
        request.headers_mut().append(name, value);
    }
    Ok(request)
}

fn explain(error: tungstenite::Error, path: &str) -> io::Error {
    match error {
        tungstenite::Error::Io(error) => error,
        tungstenite::Error::Http(response) => {
            let advice = match response.status() {
                StatusCode::NOT_FOUND => format!("; is {path} the path of its ws-listener?"),
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                    "; does it want an extraheader?".to_owned()
                }
                _ => String::new(),
            };
            io::Error::other(format!(
                "the server answers {} instead of a WebSocket{advice}",
                response.status()
            ))
        }
        other => io::Error::other(format!("the server does not speak WebSocket: {other}")),
    }
}

pub(super) type Socket = WebSocketStream<Io>;
