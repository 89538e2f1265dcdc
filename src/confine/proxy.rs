//! The only way to the network: a proxy on the loopback, outside the fence. It opens tunnels, and passes on requests of
//! plain HTTP, to the allowed hosts. It resolves names itself and checks the addresses before it connects, so that
//! neither redirects nor a name server get around the rules. If the environment names a proxy, that proxy resolves the
//! names and connects. Clients need the command's password, because all users of the machine can reach the loopback.
//! Refuses to know what the command is for.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream, lookup_host};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::hosts::AllowedHosts;
use crate::backend::{Proxy, tunnel};

/// Most connections at a time; others wait.
const MOST_CONNECTIONS: usize = 64;
/// The longest head of a request, in bytes.
const LONGEST_HEAD: usize = 16 << 10;
/// How long a client may take to send the head.
const HEAD_WITHIN: Duration = Duration::from_secs(30);
/// How long a host may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(60);
/// A header with which a client (our ssh wrapper) asks for a connection without another proxy.
const DIRECT: &str = "direct:";
const AUTHORIZATION: &str = "proxy-authorization:";
/// Headers of plain HTTP that are not passed on.
const OF_PROXY: [&str; 5] = ["connection:", "proxy-connection:", AUTHORIZATION, "keep-alive:", DIRECT];

/// Why there is no connection.
enum NoWay {
    NoRequest,
    Stranger,
    NotAllowed,
    Unreachable(io::Error),
}

impl NoWay {
    fn answer(&self) -> &'static [u8] {
        match self {
            Self::NoRequest => b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            // Some clients send their password only after this answer.
            Self::Stranger => {
                b"HTTP/1.1 407 For one sync\r\nProxy-Authenticate: Basic realm=\"meshd\"\r\nContent-Length: 0\r\n\
                  Connection: close\r\n\r\n"
            }
            Self::NotAllowed => {
                b"HTTP/1.1 403 Not among projecthosts\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            }
            Self::Unreachable(_) => {
                b"HTTP/1.1 502 Unreachable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            }
        }
    }
}

/// What a client asks for.
#[derive(Debug, PartialEq, Eq)]
struct ProxyRequest {
    host: String,
    port: u16,
    is_direct: bool,
    /// The head of a request of plain HTTP, as its server reads it. `None` for a tunnel.
    head: Option<String>,
}

/// The hosts that may be reached, and the credentials that clients have to send.
struct ProxyPolicy {
    hosts: AllowedHosts,
    authorization: String,
}

/// Serves until the process ends; `login` is a name and a password, as in a URL.
pub(super) async fn serve(listener: TcpListener, hosts: AllowedHosts, login: &str) {
    let authorization = format!("Basic {}", STANDARD.encode(login));
    let (policy, slots) =
        (Arc::new(ProxyPolicy { hosts, authorization }), Arc::new(Semaphore::new(MOST_CONNECTIONS)));
    loop {
        let Ok(slot) = slots.clone().acquire_owned().await else { return };
        let Ok((client, _)) = listener.accept().await else { continue };
        let policy = policy.clone();
        tokio::spawn(async move {
            let _slot = slot;
            pass(client, &policy).await;
        });
    }
}

async fn pass(mut client: TcpStream, policy: &ProxyPolicy) {
    let (mut server, greeting) = match reach(&mut client, policy).await {
        Ok(reached) => reached,
        // The client may have gone, and does not have to read it.
        Err(refused) => return drop(client.write_all(refused.answer()).await),
    };
    let greeted = match greeting {
        Some(head) => server.write_all(head.as_bytes()).await,
        None => client.write_all(b"HTTP/1.1 200 Connected\r\n\r\n").await,
    };
    if greeted.is_ok() {
        // An error needs no report, because both ends see their connection end.
        drop(copy_bidirectional(&mut client, &mut server).await);
    }
}

/// Connects to the server that a client asks for. For plain HTTP, also returns the head to send to it first.
async fn reach(client: &mut TcpStream, policy: &ProxyPolicy) -> Result<(TcpStream, Option<String>), NoWay> {
    let head = timeout(HEAD_WITHIN, read_head(client)).await.ok().flatten().ok_or(NoWay::NoRequest)?;
    let request = ProxyRequest::parse(&head).ok_or(NoWay::NoRequest)?;
    if !shows(&head, &policy.authorization) {
        return Err(NoWay::Stranger);
    }
    let ProxyRequest { host, port, is_direct, head } = request;
    let by_proxy = (!is_direct).then_some(head.is_none());
    Ok((connect(&host, port, by_proxy, &policy.hosts).await?, head))
}

fn shows(head: &str, authorization: &str) -> bool {
    let mut shown = head.lines().filter(|line| begins(line, AUTHORIZATION));
    shown.any(|line| line[AUTHORIZATION.len()..].trim() == authorization)
}

/// Whether a line begins with that header.
fn begins(line: &str, header: &str) -> bool {
    line.get(..header.len()).is_some_and(|it| it.eq_ignore_ascii_case(header))
}

/// Reads up to the blank line. Byte by byte, because the next bytes are not the proxy's to read.
async fn read_head(client: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() >= LONGEST_HEAD {
            return None;
        }
        head.push(client.read_u8().await.ok()?);
    }
    String::from_utf8(head).ok()
}

impl ProxyRequest {
    fn parse(head: &str) -> Option<Self> {
        let (first, headers) = head.split_once("\r\n")?;
        let [method, target, version]: [&str; 3] = first.split(' ').collect::<Vec<_>>().try_into().ok()?;
        let is_direct = headers.lines().any(|line| begins(line, DIRECT));
        if method == "CONNECT" {
            let (host, port) = host_and_port(target, None)?;
            return Some(Self { host, port, is_direct, head: None });
        }
        let target = target.strip_prefix("http://")?;
        let (place, path) = target.split_at(target.find('/').unwrap_or(target.len()));
        let (host, port) = host_and_port(place, Some(80))?;
        let path = if path.is_empty() { "/" } else { path };
        let kept = headers
            .lines()
            .filter(|line| !line.is_empty() && !OF_PROXY.iter().any(|name| begins(line, name)));
        let kept: String = kept.map(|line| format!("{line}\r\n")).collect();
        let head = Some(format!("{method} {path} {version}\r\n{kept}Connection: close\r\n\r\n"));
        Some(Self { host, port, is_direct, head })
    }
}

fn host_and_port(place: &str, usual: Option<u16>) -> Option<(String, u16)> {
    let (host, port) = match place.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => place.split_at(place.find(':').unwrap_or(place.len())),
    };
    let port = match port.strip_prefix(':') {
        Some(digits) => digits.parse().ok()?,
        None if port.is_empty() => usual?,
        None => return None,
    };
    let host = host.trim_end_matches('.');
    (!host.is_empty() && !host.contains('@')).then(|| (host.to_ascii_lowercase(), port))
}

/// Connects as a command may, for this process itself. `is_tls` chooses the proxy that the environment names.
pub(super) async fn reach_for_self(
    host: &str,
    port: u16,
    is_tls: bool,
    hosts: &AllowedHosts,
) -> io::Result<TcpStream> {
    connect(host, port, Some(is_tls), hosts).await.map_err(|why| match why {
        NoWay::Unreachable(error) => error,
        NoWay::NotAllowed | NoWay::NoRequest | NoWay::Stranger => {
            let text = "its address is one of this machine, link-local, or a cloud's metadata server";
            io::Error::new(io::ErrorKind::PermissionDenied, text)
        }
    })
}

/// Connects to a host. `by_proxy` is whether TLS follows, and none without the environment's proxy.
async fn connect(
    host: &str,
    port: u16,
    by_proxy: Option<bool>,
    hosts: &AllowedHosts,
) -> Result<TcpStream, NoWay> {
    let proxy = by_proxy.map_or(Ok(None), |is_tls| Proxy::from_environment(is_tls, host, port));
    if let Some(proxy) = proxy.map_err(NoWay::Unreachable)? {
        if !hosts.allows_name(host) {
            return Err(NoWay::NotAllowed);
        }
        let stream = open(TcpStream::connect(proxy.address())).await?;
        let target = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        return open(tunnel(stream, &target, &proxy)).await;
    }
    let found = lookup_host((host, port)).await.map_err(NoWay::Unreachable)?;
    let (allowed, others): (Vec<SocketAddr>, Vec<_>) =
        found.partition(|address| hosts.allows(host, address.ip()));
    if allowed.is_empty() {
        let nothing = || NoWay::Unreachable(io::ErrorKind::NotFound.into());
        return Err(if others.is_empty() { nothing() } else { NoWay::NotAllowed });
    }
    let stream = open(TcpStream::connect(allowed.as_slice())).await?;
    match (stream.local_addr(), stream.peer_addr()) {
        (Ok(own), Ok(peer)) if own.ip() == peer.ip() && !hosts.allows_own_address(peer.ip()) => {
            Err(NoWay::NotAllowed)
        }
        (Ok(_), Ok(_)) => Ok(stream),
        (Err(error), _) | (_, Err(error)) => Err(NoWay::Unreachable(error)),
    }
}

async fn open(opening: impl Future<Output = io::Result<TcpStream>>) -> Result<TcpStream, NoWay> {
    let opened = timeout(CONNECT, opening).await.unwrap_or_else(|late| Err(late.into()));
    opened.map_err(NoWay::Unreachable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_tunnels_or_plain() {
        let tunnel =
            |host: &str, port, is_direct| ProxyRequest { host: host.into(), port, is_direct, head: None };
        for (head, expected) in [
            ("CONNECT Git.example:443 HTTP/1.1\r\nHost: x\r\n\r\n", Some(tunnel("git.example", 443, false))),
            ("CONNECT [::1]:22 HTTP/1.1\r\nDirect: 1\r\n\r\n", Some(tunnel("::1", 22, true))),
            ("CONNECT git.example HTTP/1.1\r\n\r\n", None),
            ("CONNECT :443 HTTP/1.1\r\n\r\n", None),
            ("CONNECT a@b:443 HTTP/1.1\r\n\r\n", None),
            ("GET / HTTP/1.1\r\n\r\n", None),
            ("GET http://a b HTTP/1.1\r\n\r\n", None),
            ("GET https://a/ HTTP/1.1\r\n\r\n", None),
        ] {
            assert_eq!(ProxyRequest::parse(head), expected, "{head}");
        }
        let plain =
            "GET http://a.example:8080/x?y HTTP/1.1\r\nHost: a\r\nProxy-Connection: keep-alive\r\n\r\n";
        let request = ProxyRequest::parse(plain).unwrap();
        assert_eq!((request.host.as_str(), request.port), ("a.example", 8080));
        let head = "GET /x?y HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        assert_eq!(request.head.as_deref(), Some(head));
    }
}
