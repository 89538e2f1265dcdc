//! The running links and services: starting one, stopping one, and going from one set of them to another.
//!
//! Owns the order of a change: whatever can be started beside the old is started first, so that a failure there
//! has touched nothing; only parts that are in each other's way are stopped before. It does not know where a
//! configuration comes from.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use super::wiring;
use crate::config::typed::parts::{Claim, ControlListener, Part, Trust};
use crate::config::typed::services::Remote;
use crate::control::{self, Limits, Server};
use crate::node::LinkHandle;
use crate::service::{CommandOut, FlowLimits, IpRouter, TcpIn, TcpOut, UdpIn, UdpOut, UnixIn, UnixOut};
use crate::tls::{ClientProfile, ProfileSet, ServerProfile, UnknownProfile};
use crate::wire::{NodeId, ServiceName};

/// Why a part did not start.
#[derive(Debug, thiserror::Error)]
#[error("failed to start {part}: {source}")]
pub(super) struct StartError {
    part: String,
    source: Box<dyn std::error::Error + Send + Sync>,
}

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// A running part.
enum Running {
    Link(LinkHandle),
    Service {
        stop: CancellationToken,
        /// Cancelled once nothing is occupied any more.
        freed: CancellationToken,
    },
}

/// All running parts of a node.
pub(super) struct Parts {
    context: control::Context,
    stop: CancellationToken,
    tasks: TaskTracker,
    running: Vec<(Part, Running)>,
}

impl Parts {
    /// None runs yet. Cancelling `stop` ends all services.
    pub(super) fn new(context: control::Context, stop: CancellationToken) -> Self {
        Self { context, stop, tasks: TaskTracker::new(), running: Vec::new() }
    }

    /// Starts parts in their order. On an error those before stay.
    pub(super) async fn start_all(&mut self, parts: Vec<Part>) -> Result<(), StartError> {
        for part in parts {
            let running = self.start(&part).await?;
            self.running.push((part, running));
        }
        Ok(())
    }

    /// Stops all parts, links last, and waits for their ends.
    pub(super) async fn stop_all(&mut self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        for (_, running) in std::mem::take(&mut self.running) {
            running.stop().await;
        }
    }

    /// Stops what is `removed` and starts what is `added`, by these TLS profiles if others are given. After an
    /// error everything runs as before, as far as the system lets it.
    pub(super) async fn change(
        &mut self,
        removed: &[Part],
        added: &[Part],
        tls: Option<Arc<ProfileSet>>,
    ) -> Result<(), StartError> {
        let former = tls.map(|new| self.context.tls.swap(new));
        let changed = self.change_parts(removed, added, former.as_ref()).await;
        if let (Err(_), Some(former)) = (&changed, former) {
            self.context.tls.swap(former);
        }
        changed
    }

    async fn change_parts(
        &mut self,
        removed: &[Part],
        added: &[Part],
        former: Option<&Arc<ProfileSet>>,
    ) -> Result<(), StartError> {
        let held: BTreeSet<Claim> = removed.iter().flat_map(Part::claims).collect();
        let in_the_way = |part: &&Part| part.claims().iter().any(|claim| held.contains(claim));
        let (late, early): (Vec<&Part>, Vec<&Part>) = added.iter().partition(in_the_way);
        let mut started = Vec::new();
        self.start_or_undo(&early, &mut started).await?;
        self.stop_some(removed).await;
        if let Err(error) = self.start_or_undo(&late, &mut started).await {
            // What was running goes on by the profiles that it had.
            former.map(|former| self.context.tls.swap(former.clone()));
            self.put_back(removed).await;
            return Err(error);
        }
        self.running.extend(started);
        Ok(())
    }

    /// Starts parts; on an error stops all of `started`.
    async fn start_or_undo(
        &self,
        parts: &[&Part],
        started: &mut Vec<(Part, Running)>,
    ) -> Result<(), StartError> {
        for &part in parts {
            match self.start(part).await {
                Ok(running) => started.push((part.clone(), running)),
                Err(error) => {
                    for (_, running) in started.drain(..) {
                        running.stop().await;
                    }
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    async fn stop_some(&mut self, parts: &[Part]) {
        for part in parts {
            if let Some(at) = self.running.iter().position(|(known, _)| known == part) {
                info!(%part, "stops");
                self.running.remove(at).1.stop().await;
            }
        }
    }

    async fn put_back(&mut self, parts: &[Part]) {
        for part in parts {
            match self.start(part).await {
                Ok(running) => self.running.push((part.clone(), running)),
                Err(error) => warn!(%error, "not put back after a failed change"),
            }
        }
    }

    async fn start(&self, part: &Part) -> Result<Running, StartError> {
        let started = self.try_start(part).await;
        started.map_err(|source| StartError { part: part.to_string(), source })
    }

    async fn try_start(&self, part: &Part) -> Outcome<Running> {
        let streams = || self.context.streams.clone();
        let node = &self.context.node;
        match part {
            Part::Control(door) => self.open(door).await,
            Part::Link(backend) => {
                let spec = wiring::link_spec(backend, &self.context.tls)?;
                Ok(Running::Link(node.add_link(spec).await?))
            }
            Part::Command(command) => {
                let tls = self.server_profile(&command.tls)?;
                let service = CommandOut::listen(&streams(), command.service, &command.command, tls).await?;
                Ok(self.run(|stop| service.run(stop)))
            }
            Part::IpRouter(router) => {
                let router = IpRouter::open(node, wiring::ip_router(router)).await?;
                Ok(self.run(|stop| router.run(stop)))
            }
            Part::TcpServer(server) => {
                let (to, service) = self.target(&server.remote);
                let tls =
                    (self.server_profile(&server.tls_server)?, self.client_profile(&server.tls_client)?);
                let proxy = TcpIn::bind(&server.bind.to_string(), streams(), to, service).await?;
                Ok(self.run(|stop| proxy.with_tls(tls.0, tls.1).run(stop)))
            }
            Part::TcpClient(client) => {
                let tls =
                    (self.server_profile(&client.tls_server)?, self.client_profile(&client.tls_client)?);
                let address = client.address.to_string();
                let proxy = TcpOut::listen_with(&streams(), client.service, address, tls.0, tls.1).await?;
                Ok(self.run(|stop| proxy.run(stop)))
            }
            Part::UdpServer(server) => {
                let (address, target) = (server.bind.to_string(), self.target(&server.remote));
                let proxy = UdpIn::bind(&address, node.clone(), target, FlowLimits::default()).await?;
                Ok(self.run(|stop| proxy.run(stop)))
            }
            Part::UdpClient(client) => {
                let (address, limits) = (client.address.to_string(), FlowLimits::default());
                let proxy = UdpOut::listen(node, client.service, address, limits).await?;
                Ok(self.run(|stop| proxy.run(stop)))
            }
            Part::UnixSocketServer(server) => {
                let (to, service) = self.target(&server.remote);
                let tls = self.client_profile(&server.tls)?;
                let proxy = UnixIn::bind(&server.filename, server.permissions, streams(), to, service)?;
                Ok(self.run(|stop| proxy.with_tls(tls).run(stop)))
            }
            Part::UnixSocketClient(client) => {
                let (tls, path) = (self.server_profile(&client.tls)?, client.filename.clone());
                let proxy = UnixOut::listen_with(&streams(), client.service, path, tls).await?;
                Ok(self.run(|stop| proxy.run(stop)))
            }
        }
    }

    fn server_profile(&self, name: &Option<String>) -> Result<Option<ServerProfile>, UnknownProfile> {
        wiring::server_profile(&self.context.tls, name.as_deref())
    }

    fn client_profile(&self, name: &Option<String>) -> Result<Option<ClientProfile>, UnknownProfile> {
        wiring::client_profile(&self.context.tls, name.as_deref())
    }

    fn target(&self, remote: &Remote) -> (NodeId, ServiceName) {
        (wiring::remote_node(&remote.node, self.context.node.id()), remote.service)
    }

    async fn open(&self, door: &ControlListener) -> Outcome<Running> {
        let mut server = Server::new(self.context.clone(), Limits::default());
        if let ControlListener::Tcp(_, _, Trust::Everyone) | ControlListener::Mesh(_, _, Trust::Everyone) =
            door
        {
            server.trust_everyone();
        }
        match door {
            ControlListener::Unix(path, mode) => server.listen_unix(path, *mode)?,
            ControlListener::Tcp(address, tls, _) => {
                server.listen_tcp(&address.to_string(), self.server_profile(tls)?).await?;
            }
            ControlListener::Mesh(service, tls, _) => {
                server.listen_mesh(*service, self.server_profile(tls)?).await?;
            }
        }
        let (stop, freed) = (self.stop.child_token(), server.closed());
        self.tasks.spawn(server.run(stop.clone(), self.stop.clone()));
        Ok(Running::Service { stop, freed })
    }

    fn run<F>(&self, service: impl FnOnce(CancellationToken) -> F) -> Running
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (stop, freed) = (self.stop.child_token(), CancellationToken::new());
        let (service, guard) = (service(stop.clone()), freed.clone().drop_guard());
        self.tasks.spawn(async move {
            service.await;
            drop(guard);
        });
        Running::Service { stop, freed }
    }
}

impl Running {
    /// Returns once whatever the part occupied is free.
    async fn stop(self) {
        match self {
            Self::Link(link) => link.stop().await,
            Self::Service { stop, freed } => {
                stop.cancel();
                freed.cancelled().await;
            }
        }
    }
}
