//! A bound address at which neighbours open sessions.
//!
//! It owns binding, with what the operator reads when it fails, and the loop that accepts TCP connections. What has to
//! happen on a connection before it is a session is each transport's business.

use std::any::Any;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;

use super::{AcceptError, ListenSpec, Session, quic, tcp, udp, websocket};
use crate::os::address::{open_first, plain, resolve};
use crate::tls::Handshakes;

/// Sessions that wait to be accepted.
pub(super) const BACKLOG: usize = 64;

/// How long a bind waits for the tasks of a listener that has just been closed.
pub(super) const REBIND_LIMIT: Duration = Duration::from_millis(300);
const REBIND_PAUSE: Duration = Duration::from_millis(20);

pub(super) type Accepted = Result<Session, AcceptError>;

/// A bound address at which neighbours can open sessions. Dropping it frees the address.
///
/// Handshakes run beside each other, so that a silent client never keeps others from being accepted.
#[derive(Debug)]
pub struct Listener {
    /// The transport and the address, for errors.
    name: String,
    local: String,
    accepted: mpsc::Receiver<Accepted>,
    /// Frees the address when it is dropped.
    _bound: Box<dyn Any + Send + Sync>,
}

impl Listener {
    /// Binds the address; from the moment it returns, dialers get through.
    ///
    /// # Errors
    /// The text names the address, and for an address in use says what to do.
    pub async fn bind(spec: &ListenSpec) -> io::Result<Self> {
        match spec {
            ListenSpec::Tcp(options) => tcp::listen(options).await,
            ListenSpec::Udp(options) => udp::listen(options).await,
            ListenSpec::WebSocket(options) => websocket::listen(options).await,
            ListenSpec::Quic(options) => quic::listen(options).await,
            #[cfg(test)]
            ListenSpec::Memory(options) => super::memory::listen(options),
        }
    }

    pub(super) fn new(
        transport: &str,
        local: String,
        accepted: mpsc::Receiver<Accepted>,
        bound: impl Any + Send + Sync,
    ) -> Self {
        Self { name: format!("{transport} {local}"), local, accepted, _bound: Box::new(bound) }
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

    /// Waits for the next session. Cancel safe.
    ///
    /// # Errors
    /// [`AcceptError::Transient`]: call again after the pause it names. [`AcceptError::Fatal`]: this
    /// listener will never accept again.
    pub async fn accept(&mut self) -> Result<Session, AcceptError> {
        // The sender lives as long as the listener, unless its task has panicked.
        self.accepted.recv().await.unwrap_or_else(|| {
            let source = io::ErrorKind::NotConnected.into();
            Err(AcceptError::Fatal { address: self.name.clone(), source })
        })
    }
}

/// Accepts TCP connections and opens a session on each, beside the others. `open` gives nothing for what is not worth a
/// line in an operator's log.
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

/// Binds an address. One that is in use is tried again until `limit` is over.
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

/// Why a listener has not started, and what the operator can do.
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
