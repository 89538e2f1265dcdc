//! From configuration to the rooms' own settings. Only translates.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{
    DialSpec, ListenSpec, Proxy, QuicDialOptions, QuicListenOptions, TcpDialOptions, TcpListenOptions,
    UdpDialOptions, UdpListenOptions, WsDialOptions, WsListenOptions,
};
use crate::config::typed::backends::{Backend, DialTerms, ListenTerms, WsPeer};
use crate::config::typed::services::{IpRouter, RemoteNode};
use crate::config::typed::tls::{TlsClient, TlsServer};
use crate::config::typed::work::{
    MaxStdoutAction, WorkCommand, WorkLimits, WorkPython, WorkSigning, WorkVerification,
};
use crate::config::{Config, HostPort};
use crate::mesh::{LinkPolicy, Options};
use crate::node::{LinkSpec, NodeOptions};
use crate::service::IpRouterOptions;
use crate::stream::Streams;
use crate::tls::{
    ClientOptions, ClientProfile, Files, ProfileError, ProfileSet, Profiles, ServerOptions, ServerProfile,
    UnknownProfile,
};
use crate::wire::{NameHash, NodeId, ServiceName};
use crate::work::limits::{Limits, MaxStdout, WhenFull};
use crate::work::signing::{KeyError, Signer, Verifier};
use crate::work::{CommandType, Dialed, Dialer, Dialing, PythonPlugin};

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
    }
}

/// What a configured link is to the node.
///
/// # Errors
/// If it names a profile that is not there, or the environment a proxy that cannot be used.
pub(super) fn link_spec(backend: &Backend, profiles: &Profiles) -> std::io::Result<LinkSpec> {
    let listen = |spec, terms| Ok(LinkSpec::Listen { spec, policy: listen_policy(terms) });
    let dial = |spec, terms: &DialTerms| {
        Ok(LinkSpec::Dial { spec, redial: terms.redial, policy: dial_policy(terms) })
    };
    match backend {
        Backend::TcpListener(listener) => {
            let tls = server_profile(profiles, listener.tls.as_deref()).map_err(std::io::Error::other)?;
            let options = TcpListenOptions::new(&listener.bind.host, listener.bind.port).with_tls(tls);
            listen(ListenSpec::Tcp(options), &listener.terms)
        }
        Backend::TcpPeer(peer) => {
            let tls = client_profile(profiles, peer.tls.as_deref()).map_err(std::io::Error::other)?;
            dial(DialSpec::Tcp(TcpDialOptions { address: peer.address.to_string(), tls }), &peer.terms)
        }
        Backend::UdpListener(listener) => {
            let options = UdpListenOptions::new(&listener.bind.host, listener.bind.port);
            listen(ListenSpec::Udp(options), &listener.terms)
        }
        Backend::UdpPeer(peer) => {
            dial(DialSpec::Udp(UdpDialOptions { address: peer.address.to_string() }), &peer.terms)
        }
        Backend::WsListener(listener) => {
            let tls = server_profile(profiles, listener.tls.as_deref()).map_err(std::io::Error::other)?;
            let HostPort { host, port } = &listener.bind;
            let options = WsListenOptions::new(host, *port, &listener.path, tls);
            listen(ListenSpec::WebSocket(options), &listener.terms)
        }
        Backend::WsPeer(peer) => dial(DialSpec::WebSocket(ws_peer(peer, profiles)?), &peer.terms),
        Backend::QuicListener(listener) => {
            let tls = profiles.server(&listener.tls).map_err(std::io::Error::other)?;
            let options = QuicListenOptions::new(&listener.bind.host, listener.bind.port, tls);
            listen(ListenSpec::Quic(options), &listener.terms)
        }
        Backend::QuicPeer(peer) => {
            let tls = profiles.client(&peer.tls).map_err(std::io::Error::other)?;
            dial(DialSpec::Quic(QuicDialOptions { address: peer.address.to_string(), tls }), &peer.terms)
        }
    }
}

fn ws_peer(peer: &WsPeer, profiles: &Profiles) -> std::io::Result<WsDialOptions> {
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

/// What `wss` means without a profile: the authorities that the host trusts.
fn system_trust() -> std::io::Result<ClientProfile> {
    let options = ClientOptions { name: "(none)".to_owned(), ..ClientOptions::default() };
    ClientProfile::open(options, None).map_err(std::io::Error::other)
}

/// The `tls-server` of that name, if one is named.
pub(super) fn server_profile(
    profiles: &Profiles,
    name: Option<&str>,
) -> Result<Option<ServerProfile>, UnknownProfile> {
    name.map(|name| profiles.server(name)).transpose()
}

/// The `tls-client` of that name, if one is named.
pub(super) fn client_profile(
    profiles: &Profiles,
    name: Option<&str>,
) -> Result<Option<ClientProfile>, UnknownProfile> {
    name.map(|name| profiles.client(name)).transpose()
}

/// Reads the files of all TLS profiles that are not in use as they are configured.
pub(super) fn tls_profiles(config: &Config, in_use: &Profiles) -> Result<Arc<ProfileSet>, ProfileError> {
    let servers = config.tls_servers.iter().map(tls_server);
    let clients = config.tls_clients.iter().map(tls_client);
    in_use.prepare(servers, clients, &config.node.id).map(Arc::new)
}

pub(super) fn tls_server(configured: &TlsServer) -> ServerOptions {
    ServerOptions {
        name: configured.name.clone(),
        files: Files {
            identity: Some((configured.identity.cert.clone(), configured.identity.key.clone())),
            authorities: configured.client_cas.clone(),
            crl: configured.crl.clone(),
            blocklist: configured.blocklist.clone(),
        },
        require_client_cert: configured.require_client_cert,
        pinned: configured.pinned_client_certs.clone(),
        admit_nameless: !configured.require_node_id,
        skip_names_check: configured.skip_receptor_names_check,
        min_tls13: configured.min_tls13,
    }
}

pub(super) fn tls_client(configured: &TlsClient) -> ClientOptions {
    let identity = configured.identity.as_ref();
    ClientOptions {
        name: configured.name.clone(),
        files: Files {
            identity: identity.map(|identity| (identity.cert.clone(), identity.key.clone())),
            authorities: configured.root_cas.clone(),
            crl: configured.crl.clone(),
            blocklist: configured.blocklist.clone(),
        },
        insecure_skip_verify: configured.insecure_skip_verify,
        pinned: configured.pinned_server_certs.clone(),
        skip_names_check: configured.skip_receptor_names_check,
        min_tls13: configured.min_tls13,
    }
}

fn listen_policy(terms: &ListenTerms) -> LinkPolicy {
    let allowed_peers = (!terms.allowed_peers.is_empty()).then(|| terms.allowed_peers.clone());
    LinkPolicy {
        cost: terms.cost,
        node_cost: terms.node_costs.clone(),
        allowed_peers,
        ..LinkPolicy::default()
    }
}

fn dial_policy(terms: &DialTerms) -> LinkPolicy {
    let allowed_peers = (!terms.allowed_peers.is_empty()).then(|| terms.allowed_peers.clone());
    LinkPolicy { cost: terms.cost, allowed_peers, ..LinkPolicy::default() }
}

/// What a submission to such a type is told.
const NO_KUBERNETES: &str = "this version of meshd does not run Kubernetes work";

/// All work types of the configuration.
pub(super) fn work_types(config: &Config) -> Vec<CommandType> {
    let kubernetes = config.work_kubernetes.iter().map(|configured| CommandType {
        verify_signature: configured.verify_signature,
        ..CommandType::unavailable(&configured.work_type, NO_KUBERNETES)
    });
    let python = config.work_python.iter().map(|configured| {
        let WorkPython { work_type, plugin, function, config, limits: bounds } = configured.clone();
        let kind = CommandType::python(work_type, PythonPlugin { plugin, function, config });
        CommandType { limits: limits(&bounds), ..kind }
    });
    config.work_commands.iter().map(command_type).chain(python).chain(kubernetes).collect()
}

fn command_type(configured: &WorkCommand) -> CommandType {
    CommandType {
        params: configured.params.clone(),
        allow_runtime_params: configured.allow_runtime_params,
        verify_signature: configured.verify_signature,
        limits: limits(&configured.limits),
        ..CommandType::new(&configured.work_type, &configured.command)
    }
}

fn limits(configured: &WorkLimits) -> Limits {
    let when_full = match configured.max_stdout_action {
        MaxStdoutAction::Fail => WhenFull::Fail,
        MaxStdoutAction::Stop => WhenFull::Stop,
        MaxStdoutAction::TruncateHead => WhenFull::TruncateHead,
    };
    Limits {
        max_stdout: configured.max_stdout.map(|bytes| MaxStdout { bytes, when_full }),
        timeout: configured.timeout,
        max_units: configured.max_units,
        release_after: configured.release_after,
        cancel_grace: configured.cancel_grace,
        env: configured.env.clone(),
        cwd: configured.cwd.clone(),
        user: configured.user.clone(),
        cpu_millis: configured.cpu_millis,
        memory: configured.memory,
        pids: configured.pids,
    }
}

/// How long a signature is good unless configured, as with receptor.
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

pub(super) fn ip_router(configured: &IpRouter) -> IpRouterOptions {
    let IpRouter { network, interface, local_net, routes } = configured.clone();
    IpRouterOptions { network, interface, local_net, routes }
}

/// Lets the work engine reach other nodes.
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
    fn dial(&self, node: NodeId, service: ServiceName, tls: Option<String>) -> Dialing {
        let (streams, profiles) = (self.streams.clone(), self.tls.clone());
        Box::pin(async move {
            let tls = client_profile(&profiles, tls.as_deref()).map_err(std::io::Error::other)?;
            let stream = streams.dial_shared(&node, service, tls.as_ref()).await?;
            Ok(Dialed { peer: stream.peer(), stream: Box::new(stream) })
        })
    }

    fn knows_profile(&self, name: &str) -> bool {
        client_profile(&self.tls, Some(name)).is_ok()
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
