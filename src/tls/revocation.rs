//! The connections that a profile has let in, so that they can be cut when their certificate is revoked.
//!
//! Owns the list of them and the byte stream that ends when cut. It refuses to know why one is cut.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use jiff::Timestamp;
use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::verify::Expected;

/// The certificate that a living connection was let in with.
#[derive(Debug, Clone)]
pub(super) struct Admitted {
    pub(super) chain: Vec<CertificateDer<'static>>,
    pub(super) expected: Expected,
    pub(super) since: Timestamp,
    cut: CancellationToken,
}

impl Admitted {
    pub(super) fn new(chain: Vec<CertificateDer<'static>>, expected: Expected, since: Timestamp) -> Self {
        Self { chain, expected, since, cut: CancellationToken::new() }
    }

    pub(super) fn cut(&self) {
        self.cut.cancel();
    }
}

/// All living connections of a profile.
#[derive(Debug, Default)]
pub(super) struct Live {
    inner: Arc<Mutex<List>>,
}

#[derive(Debug, Default)]
struct List {
    next: u64,
    admitted: BTreeMap<u64, Admitted>,
}

/// Keeps a connection in its profile's list until dropped.
#[derive(Debug)]
pub struct Guard {
    list: Arc<Mutex<List>>,
    number: u64,
    cut: CancellationToken,
}

impl Live {
    /// Notes a connection.
    pub(super) fn admit(&self, admitted: Admitted) -> Guard {
        let cut = admitted.cut.clone();
        let mut list = self.inner.lock();
        let number = list.next;
        list.next += 1;
        list.admitted.insert(number, admitted);
        drop(list);
        Guard { list: self.inner.clone(), number, cut }
    }

    /// True if there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.inner.lock().admitted.is_empty()
    }

    /// All of them.
    pub(super) fn all(&self) -> Vec<Admitted> {
        self.inner.lock().admitted.values().cloned().collect()
    }
}

impl Guard {
    /// Cancelled when the connection must end: its certificate is no longer accepted.
    pub fn cut(&self) -> &CancellationToken {
        &self.cut
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.list.lock().admitted.remove(&self.number);
    }
}

/// A byte stream that ends when it is cut.
#[derive(Debug)]
pub(super) struct Cuttable<S> {
    inner: S,
    guard: Guard,
    // One for each direction: they may be waited for by different tasks.
    reading: Pin<Box<WaitForCancellationFutureOwned>>,
    writing: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl<S> Cuttable<S> {
    pub(super) fn new(inner: S, guard: Guard) -> Self {
        let wait = || Box::pin(guard.cut.clone().cancelled_owned());
        Self { reading: wait(), writing: wait(), inner, guard }
    }

    pub(super) fn inner(&self) -> &S {
        &self.inner
    }

    fn check(&self) -> io::Result<()> {
        if self.guard.cut.is_cancelled() { Err(cut()) } else { Ok(()) }
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

impl<S: AsyncRead + Unpin> AsyncRead for Cuttable<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check()?;
        let this = &mut *self;
        let outcome = Pin::new(&mut this.inner).poll_read(cx, buf);
        or_cut(outcome, &mut this.reading, cx)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Cuttable<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.check()?;
        let this = &mut *self;
        let outcome = Pin::new(&mut this.inner).poll_write(cx, bytes);
        or_cut(outcome, &mut this.writing, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        let this = &mut *self;
        let outcome = Pin::new(&mut this.inner).poll_write_vectored(cx, slices);
        or_cut(outcome, &mut this.writing, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check()?;
        let this = &mut *self;
        let outcome = Pin::new(&mut this.inner).poll_flush(cx);
        or_cut(outcome, &mut this.writing, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let outcome = Pin::new(&mut this.inner).poll_shutdown(cx);
        or_cut(outcome, &mut this.writing, cx)
    }
}
