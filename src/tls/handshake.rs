//! TLS over any byte stream: the handshake, the secured stream, and the handshakes of a listener.
//!
//! Owns the time that a handshake may take, how many may run at once, and the texts of its failures. A secured
//! stream ends when its certificate is revoked. Knows nothing of sockets, nor of what is said over the stream.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::error::{HandshakeError, ProfileError};
use super::names::Names;
use super::profile::{ClientProfile, Profile, ServerProfile};
use super::read_ahead::ReadAhead;
use super::revocation::Guard;
use super::verify::{Expected, HandshakeVerdict};

/// How long a handshake may take.
pub const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);

/// A stream past its handshake. It ends with an error when the peer's certificate is revoked.
#[derive(Debug)]
pub struct Secured<IO> {
    stream: TlsStream<ReadAhead<IO>>,
    guard: Guard,
    // One for each direction, because different tasks may wait for them.
    reading: Pin<Box<WaitForCancellationFutureOwned>>,
    writing: Pin<Box<WaitForCancellationFutureOwned>>,
    certified_nodes: Option<Vec<String>>,
    is_newcomer: bool,
    ends_like_tcp: bool,
}

impl<IO: AsyncRead + AsyncWrite + Unpin> Secured<IO> {
    /// The node IDs that the peer's certificate names; `None` if it names none, if the peer showed none, or
    /// if the profile does not look at names.
    pub fn certified_nodes(&self) -> Option<&[String]> {
        self.certified_nodes.as_deref()
    }

    /// Whether the client is a newcomer, which was not asked for a certificate.
    pub fn is_newcomer(&self) -> bool {
        self.is_newcomer
    }

    /// The names in the peer's certificate, which the profile has accepted; `None` if the peer showed none.
    pub fn names(&self) -> Option<Names> {
        let shown = self.stream.get_ref().1.peer_certificates().unwrap_or_default();
        Names::of(shown.first()?).ok()
    }

    /// Treats a connection that is closed without TLS's close_notify as ended, not as broken, because receptor nodes
    /// close connections like this and their clients rely on it. An attacker who cuts the connection can then end a
    /// message early, so messages must carry their own length or hash where that matters.
    #[must_use]
    pub fn ending_like_tcp(self) -> Self {
        Self { ends_like_tcp: true, ..self }
    }

    /// The stream below.
    pub fn io(&self) -> &IO {
        self.stream.get_ref().0.io()
    }

    fn new(profile: &Profile, stream: TlsStream<ReadAhead<IO>>, expected: Expected) -> Self {
        let shown = stream.get_ref().1.peer_certificates().unwrap_or_default();
        let chain: Vec<CertificateDer<'static>> =
            shown.iter().map(|certificate| certificate.clone().into_owned()).collect();
        let certified_nodes = profile.certified_nodes(&chain);
        let guard = profile.admit(chain, expected);
        let wait = || Box::pin(guard.cut().clone().cancelled_owned());
        let (is_newcomer, ends_like_tcp) = (false, false);
        Self { stream, reading: wait(), writing: wait(), guard, certified_nodes, is_newcomer, ends_like_tcp }
    }

    /// Writes to the stream below, unless the connection is cut.
    fn write<T>(
        &mut self,
        cx: &mut Context<'_>,
        operation: impl FnOnce(Pin<&mut TlsStream<ReadAhead<IO>>>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if self.guard.cut().is_cancelled() {
            return Poll::Ready(Err(cut()));
        }
        or_cut(operation(Pin::new(&mut self.stream), cx), &mut self.writing, cx)
    }
}

fn cut() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the peer's certificate is no longer accepted")
}

/// The outcome, or an error if it is pending and the connection is cut.
fn or_cut<T>(
    outcome: Poll<io::Result<T>>,
    wait: &mut Pin<Box<WaitForCancellationFutureOwned>>,
    cx: &mut Context<'_>,
) -> Poll<io::Result<T>> {
    if outcome.is_pending() && wait.as_mut().poll(cx).is_ready() {
        return Poll::Ready(Err(cut()));
    }
    outcome
}

impl ServerProfile {
    /// The server's side of a handshake.
    ///
    /// # Errors
    /// The handshake fails, or takes longer than [`HANDSHAKE_LIMIT`].
    pub async fn accept<IO>(&self, io: IO) -> Result<Secured<IO>, HandshakeError>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        self.accept_from(Expected::Anyone, self.config(Expected::Anyone), io).await
    }

    /// The same for a neighbour in the mesh, or a newcomer.
    ///
    /// # Errors
    /// The handshake fails, or takes longer than [`HANDSHAKE_LIMIT`].
    pub async fn accept_neighbour<IO>(&self, io: IO) -> Result<Secured<IO>, HandshakeError>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        self.accept_from(self.expected_neighbour(), self.neighbour_config(), io).await
    }

    async fn accept_from<IO>(
        &self,
        expected: Expected,
        config: Result<(ServerConfig, HandshakeVerdict), ProfileError>,
        io: IO,
    ) -> Result<Secured<IO>, HandshakeError>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        let (config, verdict) = config.map_err(|error| failed(self, error.to_string()))?;
        let accepting = TlsAcceptor::from(Arc::new(config)).accept(ReadAhead::new(io));
        let stream = finish(self, accepting, &verdict).await?;
        let is_newcomer = verdict.is_newcomer();
        Ok(Secured { is_newcomer, ..Secured::new(self, TlsStream::Server(stream), expected) })
    }
}

impl ClientProfile {
    /// The client's side of a handshake with `host`, a name or an address, which the certificate must name.
    ///
    /// # Errors
    /// The handshake fails, or takes longer than [`HANDSHAKE_LIMIT`].
    pub async fn connect<IO>(&self, io: IO, host: &str) -> Result<Secured<IO>, HandshakeError>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(bare.to_owned()).map_err(|_| {
            failed(self, format!("{host:?} is not a host name that a certificate could hold"))
        })?;
        let expected = Expected::Host(name.clone());
        let (config, verdict) =
            self.config(expected.clone()).map_err(|error| failed(self, error.to_string()))?;
        let connecting = TlsConnector::from(Arc::new(config)).connect(name, ReadAhead::new(io));
        let stream = finish(self, connecting, &verdict).await?;
        Ok(Secured::new(self, TlsStream::Client(stream), expected))
    }
}

async fn finish<S>(
    profile: &Profile,
    handshake: impl Future<Output = io::Result<S>>,
    verdict: &HandshakeVerdict,
) -> Result<S, HandshakeError> {
    match timeout(HANDSHAKE_LIMIT, handshake).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(explain(profile.name(), &error, verdict)),
        Err(_elapsed) => {
            Err(failed(profile, format!("the handshake took longer than {} s", HANDSHAKE_LIMIT.as_secs())))
        }
    }
}

fn failed(profile: &Profile, reason: String) -> HandshakeError {
    HandshakeError::Failed { profile: profile.name().to_owned(), reason }
}

fn explain(profile: &str, error: &io::Error, verdict: &HandshakeVerdict) -> HandshakeError {
    let profile = profile.to_owned();
    if let Some(rejection) = verdict.rejection() {
        return HandshakeError::Rejected { profile, rejection: Box::new(rejection.clone()) };
    }
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let reason = match tls {
        Some(error) => advice(error),
        // All of these have one cause: which error it is depends on what is under way when the peer closes.
        None if matches!(
            error.kind(),
            io::ErrorKind::UnexpectedEof
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::ConnectionAborted
                | io::ErrorKind::BrokenPipe
        ) =>
        {
            "the peer broke off the handshake: it does not accept our certificate, does not speak TLS, or is down \
             behind a forwarder; if it is up, its log says why"
                .to_owned()
        }
        None => error.to_string(),
    };
    HandshakeError::Failed { profile, reason }
}

/// The same error, with advice if TLS is its cause.
fn in_plain_words(error: io::Error) -> io::Error {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(tls) => io::Error::new(error.kind(), advice(tls)),
        None => error,
    }
}

/// The text of an error of rustls, with advice.
pub(super) fn advice(error: &rustls::Error) -> String {
    use rustls::{AlertDescription as Alert, Error};
    match error {
        Error::NoCertificatesPresented => {
            "the client sent no certificate: set cert and key in its tls-client, or remove requireclientcert here"
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
            format!("the peers have no TLS version or cipher in common ({error}): check mintls13")
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
        let this = &mut *self;
        if this.guard.cut().is_cancelled() {
            return Poll::Ready(Err(cut()));
        }
        let read = Pin::new(&mut this.stream).poll_read(cx, buf);
        match ready!(or_cut(read, &mut this.reading, cx)) {
            Err(e) if this.ends_like_tcp && e.kind() == io::ErrorKind::UnexpectedEof => Poll::Ready(Ok(())),
            // A client of TLS 1.3 learns only now that the server does not accept its certificate.
            read => Poll::Ready(read.map_err(in_plain_words)),
        }
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Secured<IO> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.write(cx, |stream, cx| stream.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.write(cx, |stream, cx| stream.poll_write_vectored(cx, slices))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.write(cx, |stream, cx| stream.poll_flush(cx))
    }

    /// A connection that is cut may still send its close_notify.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let outcome = Pin::new(&mut this.stream).poll_shutdown(cx);
        or_cut(outcome, &mut this.writing, cx)
    }
}

/// The most handshakes that are under way on one listener.
const MOST_HANDSHAKES: usize = 2_048;
/// From this many handshakes on, a client must first prove that it receives what is sent to its address.
const SUSPICIOUS_HANDSHAKES: usize = 64;

/// The concurrent handshakes of a listener, bounded in number. Each results in a `T`.
///
/// When there are too many, the oldest is cut. An honest client needs only a moment, so clients that never finish
/// displace each other and keep nobody out.
#[derive(Debug)]
pub struct Handshakes<T> {
    running: JoinSet<T>,
    /// Oldest first. Handshakes that have ended are removed when room is needed.
    begun: VecDeque<AbortHandle>,
    most: usize,
}

impl<T> Default for Handshakes<T> {
    fn default() -> Self {
        Self { running: JoinSet::new(), begun: VecDeque::new(), most: MOST_HANDSHAKES }
    }
}

impl<T: Send + 'static> Handshakes<T> {
    /// Begins a handshake. If there are too many, the oldest is cut.
    pub fn begin(&mut self, handshake: impl Future<Output = T> + Send + 'static) {
        if self.begun.len() >= self.most {
            self.begun.retain(|one| !one.is_finished());
        }
        if self.begun.len() >= self.most
            && let Some(oldest) = self.begun.pop_front()
        {
            oldest.abort();
        }
        self.begun.push_back(self.running.spawn(handshake));
    }

    /// How many handshakes have not ended.
    pub fn under_way(&self) -> usize {
        self.begun.iter().filter(|one| !one.is_finished()).count()
    }

    /// Whether there are more handshakes than honest clients make.
    pub fn are_suspicious(&self) -> bool {
        self.under_way() >= SUSPICIOUS_HANDSHAKES
    }

    /// The result of the next handshake to end; pending while there is none. Cancel safe.
    pub async fn next(&mut self) -> T {
        loop {
            match self.running.join_next().await {
                Some(Ok(ended)) => return ended,
                // A handshake was cut or has panicked: the listener goes on.
                Some(Err(_gone)) => {}
                None => return std::future::pending().await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    #[tokio::test]
    async fn who_never_finishes_is_displaced_and_who_does_is_not() {
        let mut handshakes = Handshakes { most: 10, ..Handshakes::default() };
        for round in 0..100 {
            handshakes.begin(async { pending::<u32>().await });
            handshakes.begin(ready(round));
            assert_eq!(handshakes.next().await, round);
            assert!(handshakes.under_way() <= 10);
            assert!(handshakes.running.len() <= 20, "{} tasks are kept", handshakes.running.len());
        }
        assert_eq!(handshakes.under_way(), 9, "silent ones stay while there is room");
    }
}
