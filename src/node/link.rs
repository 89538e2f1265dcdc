//! Keeps listeners open and peers dialled while the configuration wants them. Knows nothing of what sessions carry.

use std::io;
use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::dial::Dial;
use super::driver::{Input, NewSession};
use super::handle::NodeHandle;
use super::link_log::{LinkLog, cannot_reach, host_of};
use super::pending_sessions::PendingSessions;
use crate::backend::{self, AcceptError, DialSpec, Direction, ListenSpec, Listener, Redial, Session};
use crate::mesh::LinkPolicy;

/// A listener, or a peer to dial.
#[derive(Debug, Clone)]
pub enum LinkSpec {
    /// Accepts sessions.
    Listen {
        /// Where it listens.
        spec: ListenSpec,
        /// The policy for its sessions.
        policy: LinkPolicy,
    },
    /// Dials, and dials again when the session is lost.
    Dial {
        /// Whom it dials.
        spec: DialSpec,
        /// False: one attempt only.
        redial: bool,
        /// The policy for its sessions.
        policy: LinkPolicy,
    },
}

/// A listener that is open, or a peer that is dialled.
#[derive(Debug)]
pub struct LinkHandle {
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
    local_addr: Option<String>,
    /// Keeps a peer listed while it is configured, even if it is not dialled again.
    _dial: Option<Arc<Dial>>,
}

impl LinkHandle {
    /// The address of a listener.
    pub fn local_addr(&self) -> Option<&str> {
        self.local_addr.as_deref()
    }

    /// Closes the listener, or stops dialling the peer, and ends its sessions.
    pub async fn stop(self) {
        self.stop.cancel();
        let _late = tokio::time::timeout(super::handle::LINK_STOP_LIMIT, self.task).await;
    }
}

impl NodeHandle {
    /// Opens a listener, or starts to dial a peer.
    ///
    /// # Errors
    /// If the listener's address is not available. A peer that cannot be reached is no error, because it is
    /// dialled again.
    pub async fn add_link(&self, spec: LinkSpec) -> io::Result<LinkHandle> {
        let stop = self.stop_token().child_token();
        let dial = match &spec {
            LinkSpec::Listen { .. } => None,
            LinkSpec::Dial { spec, .. } => Some(self.dial_table().add(spec)),
        };
        let pending = PendingSessions::default();
        let link = LinkTask { node: self.clone(), stop: stop.clone(), pending, dial: dial.clone() };
        let (task, local_addr) = match spec {
            LinkSpec::Listen { spec, policy } => {
                let listener = Listener::bind(&spec).await?.with_newcomers(self.newcomers());
                let address = listener.local_addr();
                info!(%address, "listening");
                (tokio::spawn(link.accept_all(listener, policy)), Some(address))
            }
            LinkSpec::Dial { spec, redial, policy } => {
                (tokio::spawn(link.keep_dialled(spec, Redial::new(redial), policy)), None)
            }
        };
        Ok(LinkHandle { stop, task, local_addr, _dial: dial })
    }
}

struct LinkTask {
    node: NodeHandle,
    stop: CancellationToken,
    pending: PendingSessions,
    /// The dialled peer; `None` for a listener.
    dial: Option<Arc<Dial>>,
}

impl LinkTask {
    async fn accept_all(self, mut listener: Listener, policy: LinkPolicy) {
        let link = Arc::new(self);
        let mut sessions = tokio::task::JoinSet::new();
        let mut log = LinkLog::default();
        loop {
            while sessions.try_join_next().is_some() {}
            let accepted = tokio::select! {
                () = link.stop.cancelled() => break,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok(session) => {
                    log.forget(&session.info.peer);
                    let (link, policy) = (link.clone(), policy.clone());
                    sessions.spawn(async move { link.run(session, policy).await });
                }
                Err(error @ AcceptError::Transient { pause, .. }) => {
                    warn!(%error, "cannot accept connections at the moment, trying again");
                    tokio::time::sleep(pause).await;
                }
                Err(error @ (AcceptError::Tls { .. } | AcceptError::Upgrade { .. })) => log.refused(&error),
                Err(error @ AcceptError::Fatal { .. }) => {
                    error!(%error, "listener lost");
                    break;
                }
            }
        }
        drop(listener);
        while sessions.join_next().await.is_some() {}
    }

    async fn keep_dialled(self, spec: DialSpec, mut redial: Redial, policy: LinkPolicy) {
        loop {
            let dialled = tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                () = self.node.no_dials().cancelled() => return,
                dialled = backend::dial(&spec) => dialled,
            };
            let wait = match dialled {
                Ok(session) => {
                    let start = Instant::now();
                    self.run(session, policy.clone()).await;
                    redial.after_session(start.elapsed())
                }
                Err(failure) => {
                    self.dial.iter().for_each(|dial| cannot_reach(dial, failure.to_string()));
                    redial.after_failed_dial()
                }
            };
            let Some(wait) = wait else { return };
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = self.node.no_dials().cancelled() => return,
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Runs a session to its end. The session ends by itself when this link is stopped.
    async fn run(&self, session: Session, mut policy: LinkPolicy) {
        policy.certified = session.info.certified_nodes.clone();
        let is_inbound = session.info.direction == Direction::Inbound;
        policy.host = is_inbound.then(|| host_of(&session.info.peer).to_owned());
        let (reply, answer) = oneshot::channel();
        let new = NewSession { session, policy, link: self.stop.clone(), dial: self.dial.clone(), reply };
        if self.node.inbox().send(Input::Opened(Box::new(new))).await.is_err() {
            return;
        }
        let Ok(shared) = answer.await else { return };
        if let Some(displaced) = self.pending.admit(&shared) {
            let cause = "made room for newer connections before it introduced itself".to_owned();
            let _stopped = self.node.inbox().send(Input::Ended(displaced.id, cause)).await;
        }
        // Only waits for the end, without keeping the session's state in memory.
        let done = shared.done.clone();
        drop(shared);
        done.cancelled_owned().await;
    }
}
