//! Translates the configuration into the rooms' own options, and decides nothing.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{
    DialSpec, ListenSpec, Proxy, QuicDialOptions, QuicListenOptions, TcpDialOptions, TcpListenOptions,
    UdpDialOptions, UdpListenOptions, WsDialOptions, WsListenOptions,
};
use crate::config::directives::http::WebDirective;
use crate::config::directives::links::WebSocketPeer;
use crate::config::directives::services::RemoteNode;
use crate::config::directives::work::{WorkSigning, WorkVerification};
use crate::config::{Config, HostPort, Link};
use crate::confine;
use crate::http::WebOptions;
use crate::mesh::{LinkPolicy, Options};
use crate::node::{LinkSpec, NodeOptions};
use crate::stream::Streams;
use crate::tls::access::AccessTokens;
use crate::tls::{
    ClientOptions, ClientProfile, ProfileError, ProfileSet, Profiles, ServerProfile, UnknownProfile,
};
use crate::wire::{NameHash, NodeId, ServiceName};
use crate::work::limits::{Inherited, Limits};
use crate::work::signing::{KeyError, Signer, Verifier};
use crate::work::{CommandType, Dialed, Dialer, SYNC, StreamDialing, StreamFailure};

pub(super) fn node_options(config: &Config) -> NodeOptions {
    NodeOptions {
        id: config.node.id.clone(),
        epoch: None,
        mesh: Options {
            max_idle: config.node.max_idle,
            forget_time: config.node.forget_after,
            ..Options::default()
        },
        firewall: config.node.firewall_rules.clone(),
        newcomers: None,
    }
}

/// A configured link in the node's terms.
///
/// # Errors
/// If the link names a profile that is missing, or the environment names a proxy that cannot be used.
pub(super) fn link_spec(link: &Link, profiles: &Profiles) -> std::io::Result<LinkSpec> {
    let server = |name: &Option<String>| server_profile(profiles, name).map_err(std::io::Error::other);
    let client = |name: &Option<String>| client_profile(profiles, name).map_err(std::io::Error::other);
    let spec = match link {
        Link::TcpListener(listener) => {
            let HostPort { host, port } = &listener.bind;
            let new = TcpListenOptions::new(host, *port).with_tls(server(&listener.tls)?);
            let options = TcpListenOptions { congestion: listener.congestion, ..new };
            listen(ListenSpec::Tcp(options), &listener.policy)
        }
        Link::TcpPeer(peer) => {
            let (address, tls) = (peer.address.to_string(), client(&peer.tls)?);
            let options = TcpDialOptions { address, tls, congestion: peer.congestion };
            dial(DialSpec::Tcp(options), peer.redial, &peer.policy)
        }
        Link::UdpListener(listener) => {
            let options = UdpListenOptions::new(&listener.bind.host, listener.bind.port);
            listen(ListenSpec::Udp(options), &listener.policy)
        }
        Link::UdpPeer(peer) => {
            let options = UdpDialOptions { address: peer.address.to_string() };
            dial(DialSpec::Udp(options), peer.redial, &peer.policy)
        }
        Link::WebSocketListener(listener) => {
            let HostPort { host, port } = &listener.bind;
            let options = WsListenOptions::new(host, *port, &listener.path, server(&listener.tls)?);
            listen(ListenSpec::WebSocket(options), &listener.policy)
        }
        Link::WebSocketPeer(peer) => {
            dial(DialSpec::WebSocket(ws_peer(peer, profiles)?), peer.redial, &peer.policy)
        }
        Link::QuicListener(listener) => {
            let tls = profiles.server(&listener.tls).map_err(std::io::Error::other)?;
            let new = QuicListenOptions::new(&listener.bind.host, listener.bind.port, tls);
            let options = QuicListenOptions { congestion: listener.congestion, ..new };
            listen(ListenSpec::Quic(options), &listener.policy)
        }
        Link::QuicPeer(peer) => {
            let tls = profiles.client(&peer.tls).map_err(std::io::Error::other)?;
            let options =
                QuicDialOptions { address: peer.address.to_string(), tls, congestion: peer.congestion };
            dial(DialSpec::Quic(options), peer.redial, &peer.policy)
        }
    };
    Ok(spec)
}

fn listen(spec: ListenSpec, policy: &LinkPolicy) -> LinkSpec {
    LinkSpec::Listen { spec, policy: policy.clone() }
}

fn dial(spec: DialSpec, redial: bool, policy: &LinkPolicy) -> LinkSpec {
    LinkSpec::Dial { spec, redial, policy: policy.clone() }
}

fn ws_peer(peer: &WebSocketPeer, profiles: &Profiles) -> std::io::Result<WsDialOptions> {
    let HostPort { host, port } = &peer.address.server;
    let tls = match (peer.address.secure, peer.tls.as_deref()) {
        (_, Some(name)) => Some(profiles.client(name).map_err(std::io::Error::other)?),
        (false, None) => None,
        (true, None) => Some(system_trust()?),
    };
    Ok(WsDialOptions {
        host: host.clone(),
        port: *port,
        path: peer.address.path.clone(),
        extra_header: peer.extra_header.clone(),
        proxy: Proxy::from_environment(tls.is_some(), host, *port)?,
        tls,
    })
}

/// The profile for `wss`, and for notices by `https`, if none is named: it trusts the authorities that the host trusts.
pub(super) fn system_trust() -> std::io::Result<ClientProfile> {
    let options = ClientOptions { name: "(none)".to_owned(), ..ClientOptions::default() };
    ClientProfile::open(options, None).map_err(std::io::Error::other)
}

/// The settings of the page and its API.
pub(super) fn web_options(web: &WebDirective) -> WebOptions {
    WebOptions {
        client_level: web.client_level,
        client_names: web.client_names.clone(),
        tokens: AccessTokens::of_directive(web.tokens.clone()),
        allow: web.allow,
        hosts: web.hosts.clone(),
        own_host: web.address.host.clone(),
    }
}

/// The `tls-server` of that name, if one is named.
pub(super) fn server_profile(
    profiles: &Profiles,
    name: &Option<String>,
) -> Result<Option<ServerProfile>, UnknownProfile> {
    name.as_deref().map(|name| profiles.server(name)).transpose()
}

/// The `tls-client` of that name, if one is named.
pub(super) fn client_profile(
    profiles: &Profiles,
    name: &Option<String>,
) -> Result<Option<ClientProfile>, UnknownProfile> {
    name.as_deref().map(|name| profiles.client(name)).transpose()
}

/// The configured TLS profiles. Reads the files of those that are not in use with the same settings.
pub(super) fn tls_profiles(config: &Config, in_use: &Profiles) -> Result<Arc<ProfileSet>, ProfileError> {
    let servers = config.tls_servers.iter().cloned();
    in_use.prepare(servers, config.tls_clients.iter().cloned(), &config.node.id).map(Arc::new)
}

/// All work types of the configuration, and those of a controller's own runner.
pub(super) fn work_types(config: &Config) -> Vec<CommandType> {
    let kubernetes = config.work_kubernetes.iter().cloned().map(CommandType::pods);
    let commands = config.work_commands.iter().chain(&config.work_python).cloned();
    let own = config.controller.iter().map(|controller| CommandType::clone(&controller.runner));
    commands.chain(kubernetes).chain(own).chain(syncs(config)).collect()
}

/// The work type that syncs a controller's projects: the command of the controller's runner, confined.
fn syncs(config: &Config) -> Option<CommandType> {
    let kind = &config.controller.as_ref()?.runner;
    let command = shlex::try_quote(&kind.command).ok()?;
    let params = format!("{} {command} {}", confine::ARGUMENT, kind.params);
    let mut limits = Limits { environment: Some(Inherited::Clean), ..kind.limits.clone() };
    // The confining process connects through these proxies; the command inside gets another one.
    let names = confine::PROXIES.iter().chain(&confine::NO_PROXY);
    let proxies = names.filter_map(|name| Some(((*name).to_owned(), std::env::var(name).ok()?)));
    limits.env = proxies.chain(limits.env).collect();
    let sync = CommandType::runner(confine::THIS_PROGRAM, params, limits);
    Some(CommandType { name: SYNC.to_owned(), ..sync })
}

/// How long a signature is valid by default, as with receptor.
const TOKEN_LIFETIME: Duration = Duration::from_secs(5 * 60);

pub(super) fn signer(config: &Config) -> Result<Option<Arc<Signer>>, KeyError> {
    let open = |signing: &WorkSigning| {
        let lifetime = signing.token_expiration.unwrap_or(TOKEN_LIFETIME);
        Signer::open(&signing.private_key, lifetime).map(Arc::new)
    };
    config.work_signing.as_ref().map(open).transpose()
}

pub(super) fn verifier(config: &Config) -> Result<Option<Arc<Verifier>>, KeyError> {
    let node = || config.node.id.clone();
    let open =
        |verification: &WorkVerification| Verifier::open(&verification.public_key, node()).map(Arc::new);
    config.work_verification.as_ref().map(open).transpose()
}

pub(super) fn remote_node(remote: &RemoteNode, own: &NodeId) -> NodeId {
    match remote {
        RemoteNode::Local => own.clone(),
        RemoteNode::Named(node) => node.clone(),
    }
}

/// Dials the control services of other nodes for the work engine.
#[derive(Debug)]
pub(super) struct MeshDialer {
    streams: Streams,
    tls: Profiles,
}

impl MeshDialer {
    pub(super) fn new(streams: Streams, tls: Profiles) -> Self {
        Self { streams, tls }
    }
}

impl Dialer for MeshDialer {
    fn dial(&self, node: NodeId, service: ServiceName, tls: Option<String>) -> StreamDialing {
        let (streams, profiles) = (self.streams.clone(), self.tls.clone());
        Box::pin(async move {
            let tls = client_profile(&profiles, &tls);
            let tls = tls.map_err(|error| StreamFailure::OwnProfile(error.to_string()))?;
            let dialed = streams.dial_shared(&node, service, tls.as_ref()).await;
            let stream = dialed.map_err(|error| match error.is_tls() {
                true => StreamFailure::Handshake(error.to_string()),
                false => StreamFailure::Unreachable(error.to_string()),
            })?;
            Ok(Dialed { peer: stream.peer(), stream: Box::new(stream) })
        })
    }

    fn knows_profile(&self, name: &str) -> bool {
        self.tls.client(name).is_ok()
    }

    fn appears(&self, node: NodeId) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let handle = self.streams.node().clone();
        Box::pin(async move { handle.appears(node.hash()).await })
    }

    fn disappears(&self, node: NodeId) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let handle = self.streams.node().clone();
        Box::pin(async move { handle.disappears(node.hash()).await })
    }

    fn name_of(&self, node: NameHash) -> Pin<Box<dyn Future<Output = Option<NodeId>> + Send>> {
        let handle = self.streams.node().clone();
        Box::pin(async move { handle.name_of(node).await })
    }

    fn node_id(&self) -> &NodeId {
        self.streams.node().id()
    }
}
