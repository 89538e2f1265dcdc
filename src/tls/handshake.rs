//! TLS over any byte stream: the handshake, and the stream that comes of it.
//!
//! Owns the time that a handshake may take, and what its failures are called. It refuses to know sockets, and what is said over the stream.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

use super::ahead::Ahead;
use super::core::Core;
use super::error::HandshakeError;
use super::profile::{ClientProfile, ServerProfile};
use super::revocation::Cuttable;
use super::verify::{Expected, Verdict};

/// How long a handshake may take.
pub const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);

/// A stream past its handshake. It ends with an error when the peer's certificate is revoked.
#[derive(Debug)]
pub struct Secured<IO> {
    stream: Cuttable<TlsStream<Ahead<IO>>>,
    certified_nodes: Option<Vec<String>>,
    ends_like_tcp: bool,
}

impl<IO> Secured<IO> {
    /// The node IDs that the peer's certificate names; `None` if it names none, or none was shown, or the
    /// profile does not look at them.
    pub fn certified_nodes(&self) -> Option<&[String]> {
        self.certified_nodes.as_deref()
    }

    /// Takes a connection that is closed without TLS's own good-bye for one that has ended, not for a broken
    /// one. Receptor nodes do so, and their clients rely on it; whoever can cut the connection can then end
    /// a message early, so what is said over it must carry its own length or hash where that matters.
    #[must_use]
    pub fn ending_like_tcp(self) -> Self {
        Self { ends_like_tcp: true, ..self }
    }

    /// The stream below.
    pub fn io(&self) -> &IO {
        self.stream.inner().get_ref().0.io()
    }

    fn new(core: &Core, stream: TlsStream<Ahead<IO>>, expected: Expected) -> Self {
        let chain: Vec<CertificateDer<'static>> = match stream.get_ref().1.peer_certificates() {
            Some(chain) => chain.iter().map(|certificate| certificate.clone().into_owned()).collect(),
            None => Vec::new(),
        };
        let certified_nodes = core.certified_nodes(&chain);
        let stream = Cuttable::new(stream, core.admit(chain, expected));
        Self { stream, certified_nodes, ends_like_tcp: false }
    }
}

impl ServerProfile {
    /// The server's side of a handshake.
    ///
    /// # Errors
    /// Within [`HANDSHAKE_LIMIT`].
    pub async fn accept<IO>(&self, io: IO) -> Result<Secured<IO>, HandshakeError>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        self.accept_from(Expected::Anyone, io).await
    }

    /// The same where a neighbour in the mesh is expected.
    ///
    /// # Errors
    /// Within [`HANDSHAKE_LIMIT`].
    pub async fn accept_neighbour<IO>(&self, io: IO) -> Result<Secured<IO>, HandshakeError>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        self.accept_from(self.expected_neighbour(), io).await
    }

    async fn accept_from<IO>(&self, expected: Expected, io: IO) -> Result<Secured<IO>, HandshakeError>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        let (config, verdict) =
            self.config(expected.clone()).map_err(|error| failed(&self.core, error.to_string()))?;
        let accepting = TlsAcceptor::from(Arc::new(config)).accept(Ahead::new(io));
        let stream = finish(&self.core, accepting, &verdict).await?;
        Ok(Secured::new(&self.core, TlsStream::Server(stream), expected))
    }
}

impl ClientProfile {
    /// The client's side of a handshake with `host`, a name or an address, which the certificate must name.
    ///
    /// # Errors
    /// Within [`HANDSHAKE_LIMIT`].
    pub async fn connect<IO>(&self, io: IO, host: &str) -> Result<Secured<IO>, HandshakeError>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(bare.to_owned()).map_err(|_| {
            failed(&self.core, format!("{host:?} is no host name that a certificate could hold"))
        })?;
        let expected = Expected::Host(name.clone());
        let (config, verdict) =
            self.config(expected.clone()).map_err(|error| failed(&self.core, error.to_string()))?;
        let connecting = TlsConnector::from(Arc::new(config)).connect(name, Ahead::new(io));
        let stream = finish(&self.core, connecting, &verdict).await?;
        Ok(Secured::new(&self.core, TlsStream::Client(stream), expected))
    }
}

async fn finish<S>(
    core: &Core,
    handshake: impl Future<Output = io::Result<S>>,
    verdict: &Verdict,
) -> Result<S, HandshakeError> {
    match timeout(HANDSHAKE_LIMIT, handshake).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(explain(core.name(), &error, verdict)),
        Err(_elapsed) => {
            Err(failed(core, format!("the handshake took longer than {} s", HANDSHAKE_LIMIT.as_secs())))
        }
    }
}

fn failed(core: &Core, reason: String) -> HandshakeError {
    HandshakeError::Failed { profile: core.name().to_owned(), reason }
}

fn explain(profile: &str, error: &io::Error, verdict: &Verdict) -> HandshakeError {
    let profile = profile.to_owned();
    if let Some(rejection) = verdict.rejection() {
        return HandshakeError::Rejected { profile, rejection: Box::new(rejection.clone()) };
    }
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let reason = match tls {
        Some(error) => advice(error),
        None if error.kind() == io::ErrorKind::UnexpectedEof => {
            "the peer closed the connection inside the handshake: it may refuse our certificate, or not speak \
             TLS; its log says why"
                .to_owned()
        }
        None => error.to_string(),
    };
    HandshakeError::Failed { profile, reason }
}

/// The same error with what to do about it, where TLS is its cause.
fn in_plain_words(error: io::Error) -> io::Error {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(tls) => io::Error::new(error.kind(), advice(tls)),
        None => error,
    }
}

/// What rustls found, and what to do about it.
pub(super) fn advice(error: &rustls::Error) -> String {
    use rustls::{AlertDescription as Alert, Error};
    match error {
        Error::NoCertificatesPresented => {
            "the client shows no certificate: set cert and key in its tls-client, or drop requireclientcert"
                .to_owned()
        }
        Error::AlertReceived(Alert::CertificateRequired) => {
            "the peer demands a certificate: set cert and key in the tls-client".to_owned()
        }
        Error::AlertReceived(
            Alert::BadCertificate
            | Alert::CertificateUnknown
            | Alert::CertificateExpired
            | Alert::CertificateRevoked
            | Alert::UnknownCA
            | Alert::UnsupportedCertificate
            | Alert::AccessDenied
            | Alert::DecryptError,
        ) => format!("the peer does not accept our certificate ({error}); its log says why"),
        Error::AlertReceived(Alert::ProtocolVersion) | Error::PeerIncompatible(_) => {
            format!("the peers have no version or cipher of TLS in common ({error}): look at mintls13")
        }
        Error::InvalidMessage(_) => {
            format!("the peer does not speak TLS ({error}): set tls at both ends, or at none")
        }
        other => other.to_string(),
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncRead for Secured<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.stream).poll_read(cx, buf) {
            Poll::Ready(Err(e)) if self.ends_like_tcp && e.kind() == io::ErrorKind::UnexpectedEof => {
                Poll::Ready(Ok(()))
            }
            // A client of TLS 1.3 hears only now that the server does not accept its certificate.
            Poll::Ready(Err(error)) => Poll::Ready(Err(in_plain_words(error))),
            read => read,
        }
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Secured<IO> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
