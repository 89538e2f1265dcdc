//! A bound address at which neighbours open sessions.
//!
//! It owns binding, the text that the operator reads when binding fails, and the loop that accepts TCP connections.
//! Each transport owns how a connection becomes a session.

use std::any::Any;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;

use super::{AcceptError, Session};
use crate::os::address::{open_first, plain, resolve};
use crate::tls::Handshakes;

/// The most sessions that wait to be accepted.
pub(super) const BACKLOG: usize = 64;

/// How long a bind retries while a listener that was just closed still holds the address.
pub(super) const REBIND_LIMIT: Duration = Duration::from_millis(300);
const REBIND_PAUSE: Duration = Duration::from_millis(20);

pub(super) type Accepted = Result<Session, AcceptError>;

/// A bound address at which neighbours can open sessions. Dropping it frees the address.
///
/// Handshakes run concurrently, so a silent client never keeps others from being accepted.
#[derive(Debug)]
pub struct Listener {
    /// The transport and the address, for errors.
    name: String,
    local: String,
    accepted: mpsc::Receiver<Accepted>,
    /// Where newcomers go; without it they are sent away.
    newcomers: Option<mpsc::Sender<Session>>,
    /// Frees the address when it is dropped.
    _bound: Box<dyn Any + Send + Sync>,
}

impl Listener {
    pub(super) fn new(
        transport: &str,
        local: String,
        accepted: mpsc::Receiver<Accepted>,
        bound: impl Any + Send + Sync,
    ) -> Self {
        let name = format!("{transport} {local}");
        Self { name, local, accepted, newcomers: None, _bound: Box::new(bound) }
    }

    /// A listener whose sessions come from a task that holds the address. The task gets the listener's name.
    pub(super) fn serve<F>(
        transport: &str,
        local: SocketAddr,
        task: impl FnOnce(String, mpsc::Sender<Accepted>) -> F,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (sessions, accepted) = mpsc::channel(BACKLOG);
        let task = tokio::spawn(task(format!("{transport} {local}"), sessions));
        Self::new(transport, local.to_string(), accepted, AbortOnDropHandle::new(task))
    }

    /// The address that was bound, with the real port where the configured one was 0.
    pub fn local_addr(&self) -> String {
        self.local.clone()
    }

    /// Has newcomers go there, as long as there is room; without a place for them they are sent away.
    #[must_use]
    pub fn with_newcomers(self, newcomers: Option<mpsc::Sender<Session>>) -> Self {
        Self { newcomers, ..self }
    }

    /// Waits for the next session with a neighbour. Cancel safe.
    ///
    /// # Errors
    /// [`AcceptError::Transient`]: call again after the pause it names. [`AcceptError::Fatal`]: this
    /// listener will never accept again.
    pub async fn accept(&mut self) -> Result<Session, AcceptError> {
        loop {
            match self.accepted.recv().await {
                Some(Ok(session)) if session.info.is_newcomer => {
                    // Without room it is closed, and the newcomer tries again.
                    if let Some(newcomers) = &self.newcomers {
                        drop(newcomers.try_send(session));
                    }
                }
                Some(accepted) => return accepted,
                // The sender lives as long as the listener, unless the listener's task has panicked.
                None => {
                    let source = io::ErrorKind::NotConnected.into();
                    return Err(AcceptError::Fatal { address: self.name.clone(), source });
                }
            }
        }
    }
}

/// Accepts TCP connections and opens their sessions concurrently. `open` gives `None` for a failure that is not
/// worth a line in an operator's log.
pub(super) async fn accept_tcp<F>(
    socket: tokio::net::TcpListener,
    name: String,
    sessions: mpsc::Sender<Accepted>,
    open: impl Fn(TcpStream, String) -> F,
) where
    F: Future<Output = Option<Accepted>> + Send + 'static,
{
    let mut opening = Handshakes::default();
    loop {
        let accepted = tokio::select! {
            accepted = socket.accept() => accepted,
            opened = opening.next() => {
                if let Some(accepted) = opened && sessions.send(accepted).await.is_err() {
                    return;
                }
                continue;
            }
        };
        match accepted {
            Ok((stream, peer)) => opening.begin(open(stream, plain(peer).to_string())),
            Err(source) => {
                let error = AcceptError::sort(name.clone(), source);
                let pause = error.pause();
                if sessions.send(Err(error)).await.is_err() {
                    return;
                }
                let Some(pause) = pause else { return };
                sleep(pause).await;
            }
        }
    }
}

/// Binds an address. While it is in use, tries again until `limit` is over.
pub(super) async fn bind<T>(
    transport: &str,
    address: &str,
    limit: Duration,
    bind: impl Fn(SocketAddr) -> io::Result<T>,
) -> io::Result<T> {
    let binding = async {
        let candidates = resolve(address).await?;
        let deadline = Instant::now() + limit;
        loop {
            match open_first(candidates.clone(), &bind) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < deadline => {
                    sleep(REBIND_PAUSE).await;
                }
                outcome => return outcome,
            }
        }
    };
    let failed =
        |source: io::Error| io::Error::new(source.kind(), cannot_listen(transport, address, &source));
    binding.await.map_err(failed)
}

/// Why a listener did not start, and what the operator can do.
fn cannot_listen(transport: &str, address: &str, source: &io::Error) -> String {
    let advice = match source.kind() {
        io::ErrorKind::AddrInUse => {
            "; stop the program that holds the port (`ss -ltunp` names it) or choose another port"
        }
        io::ErrorKind::AddrNotAvailable => "; this host has no such address (`ip address` lists its own)",
        io::ErrorKind::PermissionDenied => "; ports below 1024 need CAP_NET_BIND_SERVICE",
        _ => "",
    };
    format!("cannot listen on {transport} {address}: {source}{advice}")
}
