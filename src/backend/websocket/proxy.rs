//! The way to a server through an HTTP proxy.
//!
//! It owns which proxy the environment names for a host, and the request that opens a tunnel. It does not know what
//! goes through the tunnel. Credentials are never printed.

use std::fmt;
use std::io;
use std::net::IpAddr;

use hyper_util::client::proxy::matcher::Matcher;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::http::{HeaderValue, Uri};

use crate::backend::tcp::join;

/// The longest answer that is read, in bytes.
const ANSWER_LIMIT: usize = 16 * 1024;

/// An HTTP proxy that opens tunnels.
#[derive(Clone, PartialEq, Eq)]
pub struct Proxy {
    /// `host:port`
    address: String,
    /// The value of the header that shows who we are.
    authorization: Option<HeaderValue>,
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Proxy {
    /// The proxy that HTTP_PROXY or, for `wss`, HTTPS_PROXY names for a server, unless NO_PROXY excepts the server.
    /// A server on this very host is never reached through a proxy.
    ///
    /// # Errors
    /// If the environment names the proxy by anything but `http://host:port`, with or without credentials.
    pub fn from_environment(secure: bool, host: &str, port: u16) -> io::Result<Option<Self>> {
        Self::choose(&Matcher::from_env(), secure, host, port)
    }

    pub(super) fn choose(rules: &Matcher, secure: bool, host: &str, port: u16) -> io::Result<Option<Self>> {
        if is_this_host(host) {
            return Ok(None);
        }
        let scheme = if secure { "https" } else { "http" };
        // A host that does not fit a URI is refused when it is dialed.
        let Ok(target) = format!("{scheme}://{}/", join(host, port)).parse::<Uri>() else { return Ok(None) };
        let Some(chosen) = rules.intercept(&target) else { return Ok(None) };
        let uri = chosen.uri();
        match (uri.scheme_str(), uri.host()) {
            (Some("http"), Some(proxy)) => Ok(Some(Self {
                address: join(proxy, uri.port_u16().unwrap_or(80)),
                authorization: chosen.basic_auth().cloned(),
            })),
            (other, _) => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!(
                    "the environment names a proxy of kind {:?} for {host}: only http://host:port is supported; set \
                     NO_PROXY={host} to connect without a proxy",
                    other.unwrap_or_default()
                ),
            )),
        }
    }

    /// The proxy's `host:port`.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }
}

fn is_this_host(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Asks the proxy at the other end of the connection for a tunnel to `target` (`host:port`).
pub(crate) async fn tunnel(mut stream: TcpStream, target: &str, proxy: &Proxy) -> io::Result<TcpStream> {
    let mut request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n").into_bytes();
    if let Some(authorization) = &proxy.authorization {
        request.extend_from_slice(b"Proxy-Authorization: ");
        request.extend_from_slice(authorization.as_bytes());
        request.extend_from_slice(b"\r\n");
    }
    request.extend_from_slice(b"\r\n");
    stream.write_all(&request).await?;
    let answer = read_answer(&mut stream).await?;
    let status = answer.split(|&byte| byte == b'\r').next().unwrap_or_default();
    let status = String::from_utf8_lossy(status).into_owned();
    let code = status.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1));
    if code == Some("200") {
        return Ok(stream);
    }
    let text = format!("the proxy {} refused to open a tunnel: {}", proxy.address, status.escape_debug());
    Err(io::Error::new(io::ErrorKind::ConnectionRefused, text))
}

/// Reads up to the blank line. Nothing can follow it, because the server speaks only when spoken to.
async fn read_answer(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        if answer.len() >= ANSWER_LIMIT {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the proxy's answer has no end"));
        }
        if stream.read_buf(&mut answer).await? == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the proxy closed the connection"));
        }
    }
    Ok(answer)
}
