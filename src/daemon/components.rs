//! The running links and services: starts and stops single ones, and changes from one set of them to another.
//!
//! Owns the order of a change: components that can run next to the old ones start first, so that their failure changes
//! nothing. Only those that need the port or file of an old one wait until that has stopped. Knows nothing of the
//! configuration's files.

use std::collections::BTreeSet;
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use super::enrolment::{desk, open_desk, start_renewal};
use super::nodes::DeskSlot;
use super::wiring;
use crate::config::components::{ListenerTrust, SoleResource};
use crate::config::directives::services::Remote;
use crate::config::{Component, ControlListener};
use crate::control::{self, Server, ServerLimits};
use crate::enrol::EnrolDoor;
use crate::http::{EventSink, HttpServer, Monitoring, SinkOptions, TokenFile, Web};
use crate::join::shared::SharedStore;
use crate::node::LinkHandle;
use crate::service::{
    CommandService, FlowLimits, IpRouter, TcpClient, TcpServer, UdpClient, UdpServer, UnixSocketClient,
    UnixSocketServer,
};
use crate::tls::{ClientProfile, ProfileSet, ServerProfile, UnknownProfile};
use crate::wire::{NodeId, ServiceName};

/// The directory with what waits for the receiver of events, below the node's own.
const SINK: &str = ".events-sink";

/// Why a component did not start.
#[derive(Debug, thiserror::Error)]
#[error("failed to start {component}: {source}")]
pub struct StartError {
    component: String,
    source: Box<dyn std::error::Error + Send + Sync>,
}

type ComponentEnd<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// A running component.
enum RunningComponent {
    Link(LinkHandle),
    Service {
        stop: CancellationToken,
        /// Cancelled when its ports, files and service are free.
        freed: CancellationToken,
    },
}

/// All running components of a node.
pub(super) struct Components {
    pub(super) context: control::Context,
    door: EnrolDoor,
    /// The store that this node shares with other control nodes.
    shared: Option<SharedStore>,
    desk: DeskSlot,
    /// The node's own.
    directory: PathBuf,
    stop: CancellationToken,
    tasks: TaskTracker,
    running: Vec<(Component, RunningComponent)>,
}

impl Components {
    /// No component runs yet. Cancelling `stop` ends all services.
    pub(super) fn new(
        context: control::Context,
        door: EnrolDoor,
        shared: Option<SharedStore>,
        desk: DeskSlot,
        directory: PathBuf,
        stop: CancellationToken,
    ) -> Self {
        Self { context, door, shared, desk, directory, stop, tasks: TaskTracker::new(), running: Vec::new() }
    }

    /// Starts components in their order. After an error, those that have started keep running.
    pub(super) async fn start_all(&mut self, components: Vec<Component>) -> Result<(), StartError> {
        for component in components {
            let running = self.start(&component).await?;
            self.running.push((component, running));
        }
        Ok(())
    }

    /// Stops all components, links last, and waits for their ends.
    pub(super) async fn stop_all(&mut self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        for (_, running) in std::mem::take(&mut self.running) {
            running.stop().await;
        }
    }

    /// Stops the `removed` and starts the `added`, with new TLS profiles if given. After an error everything runs as
    /// before, as far as the system permits.
    pub(super) async fn change(
        &mut self,
        removed: &[Component],
        added: &[Component],
        tls: Option<Arc<ProfileSet>>,
    ) -> Result<(), StartError> {
        let former = tls.map(|new| self.context.tls.swap(new));
        let changed = self.change_components(removed, added, former.as_ref()).await;
        if let (Err(_), Some(former)) = (&changed, former) {
            self.context.tls.swap(former);
        }
        changed
    }

    async fn change_components(
        &mut self,
        removed: &[Component],
        added: &[Component],
        former: Option<&Arc<ProfileSet>>,
    ) -> Result<(), StartError> {
        let held: BTreeSet<SoleResource> =
            removed.iter().flat_map(|component| component.facts().claims).collect();
        let in_the_way =
            |component: &&Component| component.facts().claims.iter().any(|claim| held.contains(claim));
        let (late, early): (Vec<&Component>, Vec<&Component>) = added.iter().partition(in_the_way);
        let mut started = Vec::new();
        self.start_or_undo(&early, &mut started).await?;
        self.stop_some(removed).await;
        if let Err(error) = self.start_or_undo(&late, &mut started).await {
            // The old components start again with their old profiles.
            former.map(|former| self.context.tls.swap(former.clone()));
            self.put_back(removed).await;
            return Err(error);
        }
        self.running.extend(started);
        Ok(())
    }

    /// Starts components; on an error stops all of `started`.
    async fn start_or_undo(
        &self,
        components: &[&Component],
        started: &mut Vec<(Component, RunningComponent)>,
    ) -> Result<(), StartError> {
        for &component in components {
            match self.start(component).await {
                Ok(running) => started.push((component.clone(), running)),
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

    async fn stop_some(&mut self, components: &[Component]) {
        for component in components {
            if let Some(at) = self.running.iter().position(|(known, _)| known == component) {
                info!(%component, "stopping");
                self.running.remove(at).1.stop().await;
            }
        }
    }

    async fn put_back(&mut self, components: &[Component]) {
        for component in components {
            match self.start(component).await {
                Ok(running) => self.running.push((component.clone(), running)),
                Err(error) => warn!(%error, "failed to restore after a failed reload"),
            }
        }
    }

    async fn start(&self, component: &Component) -> Result<RunningComponent, StartError> {
        let started = self.try_start(component).await;
        started.map_err(|source| StartError { component: component.to_string(), source })
    }

    async fn try_start(&self, component: &Component) -> ComponentEnd<RunningComponent> {
        let streams = || self.context.streams.clone();
        let node = &self.context.node;
        match component {
            Component::Control(listener) => self.open(listener).await,
            Component::Link(link) => {
                let spec = wiring::link_spec(link, &self.context.tls)?;
                Ok(RunningComponent::Link(node.add_link(spec).await?))
            }
            Component::CommandService(command) => {
                let tls = self.server_profile(&command.tls)?;
                let service =
                    CommandService::listen(&streams(), command.service, &command.command, tls).await?;
                Ok(self.run(|stop| service.run(stop)))
            }
            Component::IpRouter(router) => {
                let router = IpRouter::open(node, router.clone()).await?;
                Ok(self.run(|stop| router.run(stop)))
            }
            Component::TcpServer(server) => {
                let (to, service) = self.target(&server.remote);
                let tls =
                    (self.server_profile(&server.tls_server)?, self.client_profile(&server.tls_client)?);
                let proxy = TcpServer::bind(&server.bind.to_string(), streams(), to, service).await?;
                Ok(self.run(|stop| proxy.with_tls(tls.0, tls.1).run(stop)))
            }
            Component::TcpClient(client) => {
                let tls =
                    (self.server_profile(&client.tls_server)?, self.client_profile(&client.tls_client)?);
                let address = client.address.to_string();
                let proxy = TcpClient::listen(&streams(), client.service, address, tls.0, tls.1).await?;
                Ok(self.run(|stop| proxy.run(stop)))
            }
            Component::UdpServer(server) => {
                let (address, target) = (server.bind.to_string(), self.target(&server.remote));
                let proxy = UdpServer::bind(&address, node.clone(), target, FlowLimits::default()).await?;
                Ok(self.run(|stop| proxy.run(stop)))
            }
            Component::UdpClient(client) => {
                let (address, limits) = (client.address.to_string(), FlowLimits::default());
                let proxy = UdpClient::listen(node, client.service, address, limits).await?;
                Ok(self.run(|stop| proxy.run(stop)))
            }
            Component::UnixSocketServer(server) => {
                let (to, service) = self.target(&server.remote);
                let tls = self.client_profile(&server.tls)?;
                let proxy =
                    UnixSocketServer::bind(&server.filename, server.permissions, streams(), to, service)?;
                Ok(self.run(|stop| proxy.with_tls(tls).run(stop)))
            }
            Component::Renewal(renewal) => Ok(self.run(start_renewal(renewal, &self.context, &self.door)?)),
            Component::Enrolment(enrolment) => {
                let desk = desk(enrolment, self.shared.clone());
                Ok(self.run(open_desk(desk, &self.context, &self.door, &self.desk).await?))
            }
            Component::Metrics(metrics) => {
                let (tls, token) = (self.server_profile(&metrics.tls)?, metrics.token_file.clone());
                let token = token.map(TokenFile::open).transpose()?;
                let site = Monitoring::new(
                    self.context.clone(),
                    token,
                    metrics.hosts.clone(),
                    &metrics.address.host,
                );
                let server = HttpServer::bind(&metrics.address.to_string(), tls, site).await?;
                Ok(self.run(|stop| server.run(stop)))
            }
            Component::EventsSink(sink) => {
                let options = SinkOptions {
                    address: sink.address.clone(),
                    tls: self.client_profile(&sink.tls)?,
                    token: sink.token_file.clone().map(TokenFile::open).transpose()?,
                    directory: self.directory.join(SINK),
                    most: sink.buffer,
                    events: sink.what.is_empty() || sink.what.iter().any(|word| word == "events"),
                    audit: sink.what.is_empty() || sink.what.iter().any(|word| word == "audit"),
                };
                let context = self.context.clone();
                let sink = tokio::task::spawn_blocking(|| EventSink::open(context, options)).await??;
                Ok(self.run(|stop| sink.run(stop)))
            }
            Component::Web(web) => {
                let tls = self.server_profile(&web.tls)?;
                let options = wiring::web_options(web);
                match options.tokens.list() {
                    Err(error) if web.tokens.is_none() => {
                        tracing::warn!(%error, "cannot read the page's tokens: nobody can sign in");
                    }
                    listed => drop(listed?),
                }
                let site = Web::new(self.context.clone(), options);
                let server = HttpServer::bind(&web.address.to_string(), tls, site).await?;
                Ok(self.run(|stop| server.run(stop)))
            }
            Component::UnixSocketClient(client) => {
                let (tls, path) = (self.server_profile(&client.tls)?, client.filename.clone());
                let proxy = UnixSocketClient::listen(&streams(), client.service, path, tls).await?;
                Ok(self.run(|stop| proxy.run(stop)))
            }
        }
    }

    fn server_profile(&self, name: &Option<String>) -> Result<Option<ServerProfile>, UnknownProfile> {
        wiring::server_profile(&self.context.tls, name)
    }

    fn client_profile(&self, name: &Option<String>) -> Result<Option<ClientProfile>, UnknownProfile> {
        wiring::client_profile(&self.context.tls, name)
    }

    fn target(&self, remote: &Remote) -> (NodeId, ServiceName) {
        (wiring::remote_node(&remote.node, self.context.node.id()), remote.service)
    }

    async fn open(&self, listener: &ControlListener) -> ComponentEnd<RunningComponent> {
        let mut server = Server::new(self.context.clone(), ServerLimits::default());
        if let ControlListener::Tcp(_, _, ListenerTrust::Everyone)
        | ControlListener::Mesh(_, _, ListenerTrust::Everyone) = listener
        {
            server.trust_everyone();
        }
        match listener {
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
        Ok(RunningComponent::Service { stop, freed })
    }

    fn run<F>(&self, service: impl FnOnce(CancellationToken) -> F) -> RunningComponent
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (stop, freed) = (self.stop.child_token(), CancellationToken::new());
        let (service, guard) = (service(stop.clone()), freed.clone().drop_guard());
        self.tasks.spawn(async move {
            service.await;
            drop(guard);
        });
        RunningComponent::Service { stop, freed }
    }
}

impl RunningComponent {
    /// Returns when everything that the component occupied is free.
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
