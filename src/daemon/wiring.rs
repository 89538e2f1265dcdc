//! From configuration to the rooms' own settings. Only translates.

use std::pin::Pin;
use std::sync::Arc;

use crate::backend::{DialSpec, ListenSpec, TcpDialOptions, TcpListenOptions};
use crate::config::typed::backends::{Backend, DialTerms, ListenTerms};
use crate::config::typed::services::RemoteNode;
use crate::config::typed::work::WorkCommand;
use crate::config::{Config, FirewallAction, FirewallRule, NameMatch};
use crate::mesh::firewall::{Action, Pattern, Rule};
use crate::mesh::{LinkPolicy, Options};
use crate::node::{LinkSpec, NodeOptions};
use crate::stream::Streams;
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
pub(super) fn link_spec(backend: &Backend) -> Option<LinkSpec> {
    match backend {
        Backend::TcpListener(listener) => Some(LinkSpec::Listen {
            spec: ListenSpec::Tcp(TcpListenOptions::new(&listener.bind.host, listener.bind.port)),
            policy: listen_policy(&listener.terms),
        }),
        Backend::TcpPeer(peer) => Some(LinkSpec::Dial {
            spec: DialSpec::Tcp(TcpDialOptions { address: peer.address.to_string() }),
            redial: peer.terms.redial,
            policy: dial_policy(&peer.terms),
        }),
        Backend::UdpListener(_) | Backend::UdpPeer(_) | Backend::WsListener(_) | Backend::WsPeer(_) => None,
    }
}

fn listen_policy(terms: &ListenTerms) -> LinkPolicy {
    let allowed_peers = (!terms.allowed_peers.is_empty()).then(|| terms.allowed_peers.clone());
    LinkPolicy { cost: terms.cost, node_cost: terms.node_costs.clone(), allowed_peers }
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
    streams: Arc<Streams>,
}

impl MeshDialer {
    pub(super) fn new(streams: Streams) -> Self {
        Self { streams: Arc::new(streams) }
    }
}

impl Dialer for MeshDialer {
    fn dial(&self, node: NodeId, service: ServiceName, tls: Option<String>) -> Dialing {
        let streams = self.streams.clone();
        Box::pin(async move {
            if let Some(profile) = tls {
                // Profiles cannot be configured yet, so there is none of that name.
                return Err(std::io::Error::other(format!("unknown TLS config {profile}")));
            }
            Ok(Box::new(streams.dial(&node, service).await?) as Box<dyn Duplex>)
        })
    }

    fn knows_profile(&self, _name: &str) -> bool {
        // As in `dial`: none can be configured yet.
        false
    }

    fn appears(&self, node: NodeId) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let handle = self.streams.node().clone();
        Box::pin(async move { handle.appears(node.hash()).await })
    }

    fn node_id(&self) -> &NodeId {
        self.streams.node().id()
    }
}
