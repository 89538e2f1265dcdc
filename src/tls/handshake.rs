//! TLS over any byte stream: the handshake, the stream that comes of it, and the handshakes of a listener.
//!
//! Owns the time that a handshake may take, how many may run at once, and what its failures are called. A secured
//! stream ends when its certificate is revoked. It refuses to know sockets, and what is said over the stream.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::error::HandshakeError;
use super::names::Names;
use super::profile::{ClientProfile, Profile, ServerProfile};
use super::read_ahead::ReadAhead;
use super::revocation::Guard;
use super::verify::{Expected, Verdict};

/// How long a handshake may take.
pub const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);

/// A stream past its handshake. It ends with an error when the peer's certificate is revoked.
#[derive(Debug)]
pub struct Secured<IO> {
    stream: TlsStream<ReadAhead<IO>>,
    guard: Guard,
    // One for each direction: they may be waited for by different tasks.
    reading: Pin<Box<WaitForCancellationFutureOwned>>,
    writing: Pin<Box<WaitForCancellationFutureOwned>>,
    certified_nodes: Option<Vec<String>>,
    ends_like_tcp: bool,
}

impl<IO: AsyncRead + AsyncWrite + Unpin> Secured<IO> {
    /// The node IDs that the peer's certificate names; `None` if it names none, or none was shown, or the
    /// profile does not look at them.
    pub fn certified_nodes(&self) -> Option<&[String]> {
        self.certified_nodes.as_deref()
    }

    /// Whom the peer's certificate names, which was verified; `None` if none was shown.
    pub fn names(&self) -> Option<Names> {
        let shown = self.stream.get_ref().1.peer_certificates().unwrap_or_default();
        Names::of(shown.first()?).ok()
    }

    /// Takes a connection that is closed without TLS's own close_notify for one that has ended, not for a broken
    /// one. Receptor nodes close so, and their clients rely on it; an attacker who cuts the connection can then end
    /// a message early, so messages must carry their own length or hash where that matters.
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
        Self { stream, reading: wait(), writing: wait(), guard, certified_nodes, ends_like_tcp: false }
    }

    /// Does something with the stream below, unless the connection is cut.
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

/// The outcome, or if there is none yet, whether the connection is cut meanwhile.
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
            self.config(expected.clone()).map_err(|error| failed(self, error.to_string()))?;
        let accepting = TlsAcceptor::from(Arc::new(config)).accept(ReadAhead::new(io));
        let stream = finish(self, accepting, &verdict).await?;
        Ok(Secured::new(self, TlsStream::Server(stream), expected))
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
        let name = ServerName::try_from(bare.to_owned())
            .map_err(|_| failed(self, format!("{host:?} is no host name that a certificate could hold")))?;
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
    verdict: &Verdict,
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

fn explain(profile: &str, error: &io::Error, verdict: &Verdict) -> HandshakeError {
    let profile = profile.to_owned();
    if let Some(rejection) = verdict.rejection() {
        return HandshakeError::Rejected { profile, rejection: Box::new(rejection.clone()) };
    }
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let reason = match tls {
        Some(error) => advice(error),
        // How a connection ends depends on what is on its way then: one cause, and one text.
        None if matches!(
            error.kind(),
            io::ErrorKind::UnexpectedEof
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::ConnectionAborted
                | io::ErrorKind::BrokenPipe
        ) =>
        {
            "the peer refused or went away inside the handshake: it does not accept our certificate, speaks no TLS, \
             or is down behind a forwarder; if it is up, its log says why"
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

/// The error of rustls, with what to do about it.
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

    /// One that is cut may still say good-bye.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let outcome = Pin::new(&mut this.stream).poll_shutdown(cx);
        or_cut(outcome, &mut this.writing, cx)
    }
}

/// Handshakes under way at once on one listener.
const MOST_HANDSHAKES: usize = 2_048;
/// From this many on, clients that may have made up their address have to show first that they get answers there.
const SUSPICIOUS_HANDSHAKES: usize = 64;

/// The concurrent handshakes of a listener, bounded in number, each of which leads to a `T`.
///
/// The oldest goes when there are too many, since an honest client needs a moment only: those who never finish displace
/// each other and keep nobody out.
#[derive(Debug)]
pub struct Handshakes<T> {
    running: JoinSet<T>,
    /// Oldest first; those that have ended are let go when room is needed.
    begun: VecDeque<AbortHandle>,
    most: usize,
}

impl<T> Default for Handshakes<T> {
    fn default() -> Self {
        Self { running: JoinSet::new(), begun: VecDeque::new(), most: MOST_HANDSHAKES }
    }
}

impl<T: Send + 'static> Handshakes<T> {
    /// Begins one. If there are too many, the oldest is cut.
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

    /// How many have not ended.
    pub fn under_way(&self) -> usize {
        self.begun.iter().filter(|one| !one.is_finished()).count()
    }

    /// Whether there are more of them than honest clients make.
    pub fn are_suspicious(&self) -> bool {
        self.under_way() >= SUSPICIOUS_HANDSHAKES
    }

    /// The result of the next one to end; pending while there are none. Cancel safe.
    pub async fn next(&mut self) -> T {
        loop {
            match self.running.join_next().await {
                Some(Ok(ended)) => return ended,
                // One that was cut or has panicked is gone; the listener goes on.
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
