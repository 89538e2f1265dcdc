//! Listeners kept open and peers kept dialled, for as long as the configuration wants them.

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

/// A listener or a peer.
#[derive(Debug, Clone)]
pub enum LinkSpec {
    /// Takes sessions in.
    Listen {
        /// Where.
        spec: ListenSpec,
        /// What holds for its sessions.
        policy: LinkPolicy,
    },
    /// Dials, and dials again when the session is lost.
    Dial {
        /// Whom.
        spec: DialSpec,
        /// False: one attempt only.
        redial: bool,
        /// What holds for its sessions.
        policy: LinkPolicy,
    },
}

/// A listener or peer at work.
#[derive(Debug)]
pub struct LinkHandle {
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
    local_addr: Option<String>,
    /// A peer is listed for as long as it is configured, also if it is not dialled again.
    _dial: Option<Arc<Dial>>,
}

impl LinkHandle {
    /// Where a listener listens.
    pub fn local_addr(&self) -> Option<&str> {
        self.local_addr.as_deref()
    }

    /// Closes the listener or gives the peer up, and ends its sessions.
    pub async fn stop(self) {
        self.stop.cancel();
        let _late = tokio::time::timeout(super::handle::LINK_STOP_LIMIT, self.task).await;
    }
}

impl NodeHandle {
    /// Opens a listener, or starts to dial a peer.
    ///
    /// # Errors
    /// If the listener's address cannot be had. A peer that cannot be reached is no error: it is dialled
    /// again.
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
                let listener = Listener::bind(&spec).await?;
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
    /// The peer, if it is one.
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
                    warn!(%error, "will go on accepting");
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

    /// Runs one session to its end; it ends by itself when this link is stopped.
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
        // This task keeps nothing of the session but its end.
        let done = shared.done.clone();
        drop(shared);
        done.cancelled_owned().await;
    }
}
