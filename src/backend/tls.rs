//! A TCP connection with or without TLS, as sessions over TCP and WebSockets use it.
//!
//! It owns the handshake's place in accepting and dialing. Certificates and trust are the room `tls`'s.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::DialFailure;
use super::tcp::tune;
use crate::tls::{ClientProfile, HandshakeError, Secured, ServerProfile};

/// A connection.
#[derive(Debug)]
pub(super) enum Io {
    Plain(TcpStream),
    Secured(Box<Secured<TcpStream>>),
}

/// A connection after its handshake, if there is one.
pub(super) struct Connected {
    pub(super) io: Io,
    /// The node IDs that the peer's certificate names.
    pub(super) certified_nodes: Option<Vec<String>>,
}

impl Connected {
    fn plain(stream: TcpStream) -> Self {
        Self { io: Io::Plain(stream), certified_nodes: None }
    }

    fn secured(secured: Secured<TcpStream>) -> Self {
        let certified_nodes = secured.certified_nodes().map(<[String]>::to_vec);
        Self { io: Io::Secured(Box::new(secured)), certified_nodes }
    }
}

/// The server's side.
pub(super) async fn accept(
    stream: TcpStream,
    profile: Option<&ServerProfile>,
) -> Result<Connected, HandshakeError> {
    tune(&stream);
    match profile {
        None => Ok(Connected::plain(stream)),
        Some(profile) => profile.accept_neighbour(stream).await.map(Connected::secured),
    }
}

/// The client's side; the server's certificate must name `host`.
pub(super) async fn connect(
    stream: TcpStream,
    profile: Option<&ClientProfile>,
    host: &str,
    address: &str,
) -> Result<Connected, DialFailure> {
    tune(&stream);
    let Some(profile) = profile else { return Ok(Connected::plain(stream)) };
    let secured = profile.connect(stream, host).await.map(Connected::secured);
    secured.map_err(|source| DialFailure::Tls { address: address.to_owned(), source })
}

impl AsyncRead for Io {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Secured(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Io {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Secured(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Secured(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Secured(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
