//! From a TCP connection to a WebSocket, on either side.
//!
//! It owns how both sides speak, the dialer's request, and the text about an answer that is no WebSocket. `request`
//! owns a listener's answers. Its callers limit the time.

use std::io;

use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::http::header::{CONTENT_TYPE, HeaderName, HeaderValue, ORIGIN};
use tokio_tungstenite::tungstenite::http::{self, StatusCode};
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{self, client::IntoClientRequest};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};

use super::half::{Socket, halves};
use super::options::{WsDialOptions, WsListenOptions, transport};
use super::proxy::{self, Proxy};
use super::request::{self, UpgradeAnswer};
use crate::backend::session::{TransportReader, TransportWriter};
use crate::backend::tcp::{self, join};
use crate::backend::tls::{self, Connected};
use crate::backend::{DialFailure, Direction, Session, SessionInfo};
use crate::tls::HandshakeError;
use crate::wire::MAX_MESSAGE;

/// Bytes read at once.
const READ_BUFFER: usize = 64 * 1024;
/// Bytes gathered before they are written, unless the batch ends earlier.
const WRITE_BUFFER: usize = 128 * 1024;
/// The most of a server's answer that is shown, in characters.
const LONGEST_LINE: usize = 600;

/// The settings of both sides: no message may be longer than a packet.
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
pub(super) enum UpgradeRefused {
    Tls(HandshakeError),
    /// The client asked for a WebSocket, and was given this answer.
    Upgrade(String),
    /// The client asked for something else.
    NotAsked,
    Broken(io::Error),
}

/// Does the server's side of the upgrade.
pub(super) async fn accept(
    stream: TcpStream,
    options: &WsListenOptions,
    peer: &str,
) -> Result<Session, UpgradeRefused> {
    let accepted = tls::accept(stream, options.tls.as_ref()).await.map_err(UpgradeRefused::Tls)?;
    let Connected { mut io, certified_nodes, is_newcomer } = accepted;
    match request::serve(&mut io, &options.path).await.map_err(UpgradeRefused::Broken)? {
        UpgradeAnswer::Upgraded => {}
        UpgradeAnswer::Refused(answer) => return Err(UpgradeRefused::Upgrade(answer)),
        UpgradeAnswer::Other => return Err(UpgradeRefused::NotAsked),
    }
    let socket = WebSocketStream::from_raw_socket(io, Role::Server, Some(settings())).await;
    let (peer, transport, direction) = (peer.to_owned(), options.transport(), Direction::Inbound);
    Ok(session(socket, SessionInfo { transport, peer, direction, certified_nodes, is_newcomer }))
}

/// Does the client's side, beginning with the resolution of the host's name.
pub(super) async fn connect(options: &WsDialOptions) -> Result<Session, DialFailure> {
    let address = options.address();
    let failed = |source: io::Error| DialFailure::Connect { address: address.clone(), source };
    let request = request(options).map_err(failed)?;
    let stream = open(&address, options.proxy.as_ref()).await?;
    let Connected { io, certified_nodes, is_newcomer } =
        tls::connect(stream, options.tls.as_ref(), &options.host, &address).await?;
    let (socket, _response) = client_async_with_config(request, io, Some(settings()))
        .await
        .map_err(|error| failed(explain(error, &options.path)))?;
    let (peer, transport, direction) = (address.clone(), options.transport(), Direction::Outbound);
    Ok(session(socket, SessionInfo { transport, peer, direction, certified_nodes, is_newcomer }))
}

fn session(socket: Socket, info: SessionInfo) -> Session {
    let (reader, writer) = halves(socket);
    Session::new(TransportReader::WebSocket(reader), TransportWriter::WebSocket(writer), info)
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
        .map_err(|error| invalid(format!("not a WebSocket address: {error}")))?;
    let origin = format!("{}://{host}", if secure { "https" } else { "http" });
    let origin = HeaderValue::from_str(&origin).map_err(|error| invalid(error.to_string()))?;
    request.headers_mut().insert(ORIGIN, origin);
    if let Some((name, value)) = &options.extra_header {
        let name = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| invalid(format!("{name:?} is not the name of a header")))?;
        // The value is not repeated, because it may be a secret.
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
            let status = response.status();
            let said = said(&response);
            let advice = match status {
                StatusCode::NOT_FOUND => format!("; is {path} the path of its ws-listener?"),
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN if said.is_empty() => {
                    "; does it want an extraheader?".to_owned()
                }
                _ => String::new(),
            };
            io::Error::other(format!("the server answers {status} instead of a WebSocket{said}{advice}"))
        }
        other => io::Error::other(format!("the server does not speak WebSocket: {other}")),
    }
}

/// The first line of an answer that is written for people, if it says more than the status.
fn said(response: &http::Response<Option<Vec<u8>>>) -> String {
    let kind = response.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let body = response.body().as_deref().filter(|_| kind.starts_with(b"text/plain")).unwrap_or_default();
    let line = body.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let printable = |c: char| if c.is_control() { '?' } else { c };
    let line: String =
        String::from_utf8_lossy(line).trim().chars().take(LONGEST_LINE).map(printable).collect();
    let is_news = !line.is_empty() && response.status().canonical_reason() != Some(line.as_str());
    if is_news { format!(": {line}") } else { String::new() }
}
