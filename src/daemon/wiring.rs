//! From configuration to the rooms' own settings. Only translates.

use std::pin::Pin;

use crate::backend::{DialSpec, ListenSpec, TcpDialOptions, TcpListenOptions};
use crate::config::typed::backends::{Backend, DialTerms, ListenTerms};
use crate::config::typed::services::RemoteNode;
use crate::config::typed::tls::{TlsClient, TlsServer};
use crate::config::typed::work::WorkCommand;
use crate::config::{Config, FirewallAction, FirewallRule, NameMatch};
use crate::mesh::firewall::{Action, Pattern, Rule};
use crate::mesh::{LinkPolicy, Options};
use crate::node::{LinkSpec, NodeOptions};
use crate::stream::Streams;
use crate::tls::{
    ClientOptions, ClientProfile, Files, ProfileError, Profiles, ServerOptions, ServerProfile, UnknownProfile,
};
use crate::wire::{NodeId, ServiceName};
use crate::work::{CommandType, Dialer, Dialing, Duplex};

pub(super) fn node_options(config: &Config) -> NodeOptions {
    NodeOptions {
        id: config.node.id.clone(),
        mesh: Options { max_idle: config.node.max_idle, ..Options::default() },
        firewall: config.node.firewall_rules.iter().map(firewall_rule).collect(),
    }
}

fn firewall_rule(rule: &FirewallRule) -> Rule {
    let pattern = |test: &Option<NameMatch>| {
        test.as_ref().map(|test| match test {
            NameMatch::Exact(name) => Pattern::Exact(name.clone()),
            NameMatch::Regex(regex) => Pattern::Regex(regex.clone()),
        })
    };
    Rule {
        action: match rule.action {
            FirewallAction::Accept => Action::Accept,
            FirewallAction::Reject => Action::Reject,
            FirewallAction::Drop => Action::Drop,
        },
        from_node: pattern(&rule.from_node),
        to_node: pattern(&rule.to_node),
        from_service: pattern(&rule.from_service),
        to_service: pattern(&rule.to_service),
    }
}

/// What a configured link is to the node; `None` for a kind that the configuration refuses so far.
pub(super) fn link_spec(backend: &Backend, profiles: &Profiles) -> Result<Option<LinkSpec>, UnknownProfile> {
    let spec = match backend {
        Backend::TcpListener(listener) => {
            let options = TcpListenOptions::new(&listener.bind.host, listener.bind.port);
            let tls = server_profile(profiles, listener.tls.as_deref())?;
            let policy = listen_policy(&listener.terms);
            LinkSpec::Listen { spec: ListenSpec::Tcp(options.with_tls(tls)), policy }
        }
        Backend::TcpPeer(peer) => {
            let tls = client_profile(profiles, peer.tls.as_deref())?;
            let spec = DialSpec::Tcp(TcpDialOptions { address: peer.address.to_string(), tls });
            LinkSpec::Dial { spec, redial: peer.terms.redial, policy: dial_policy(&peer.terms) }
        }
        Backend::UdpListener(_) | Backend::UdpPeer(_) | Backend::WsListener(_) | Backend::WsPeer(_) => {
            return Ok(None);
        }
    };
    Ok(Some(spec))
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

/// Reads the files of all TLS profiles.
pub(super) fn tls_profiles(config: &Config) -> Result<Profiles, ProfileError> {
    let servers = config.tls_servers.iter().map(tls_server);
    Profiles::open(servers, config.tls_clients.iter().map(tls_client), &config.node.id)
}

fn tls_server(configured: &TlsServer) -> ServerOptions {
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
        skip_names_check: configured.skip_receptor_names_check,
        min_tls13: configured.min_tls13,
    }
}

fn tls_client(configured: &TlsClient) -> ClientOptions {
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

pub(super) fn command_type(configured: &WorkCommand) -> CommandType {
    CommandType {
        name: configured.work_type.clone(),
        command: configured.command.clone(),
        params: configured.params.clone(),
        allow_runtime_params: configured.allow_runtime_params,
        verify_signature: configured.verify_signature,
    }
}

pub(super) fn remote_node(remote: &RemoteNode, own: &NodeId) -> NodeId {
    match remote {
        RemoteNode::Local => own.clone(),
        RemoteNode::Named(node) => node.clone(),
    }
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
            Ok(Box::new(streams.dial_with(&node, service, tls.as_ref()).await?) as Box<dyn Duplex>)
        })
    }

    fn knows_profile(&self, name: &str) -> bool {
        client_profile(&self.tls, Some(name)).is_ok()
    }

    fn appears(&self, node: NodeId) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let handle = self.streams.node().clone();
        Box::pin(async move { handle.appears(node.hash()).await })
    }

    fn node_id(&self) -> &NodeId {
        self.streams.node().id()
    }
}
