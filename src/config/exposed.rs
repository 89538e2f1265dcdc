//! What strangers can reach: who may join the mesh here without a certificate, which work types let such a node run
//! anything, and which services run or reach something for it.
//!
//! Owns these rules and the advice. It sees only this node's configuration: a neighbour that lets strangers in does
//! not show here.

use super::directives::{Component, Config, Link};
use super::error::{Location, Report, Source};
use super::item::Item;
use crate::mesh::firewall::{Action, PacketNames, decide};
use crate::pods::options::KubernetesType;
use crate::wire::ServiceName;
use crate::work::{CommandType, Reach};

/// A name that no rule mentions, for a node and for a service of that node.
const STRANGER: &str = "\u{1}stranger";

/// Names the document that says how to close a mesh.
pub const ADVICE: &str = "docs/security.md says which lines close a mesh";

/// Warns of work types and services with which any node of the mesh can run or reach anything.
pub(super) fn warn(config: &Config, items: &[Item], report: &mut Report) {
    if !config.is_open_to_strangers() {
        return;
    }
    for (directive, name, what) in config.open_services() {
        let text = format!(
            "{directive} {name}: any node of the mesh can {what}, because no certificate is required and no \
             firewall rule closes the service; {ADVICE}"
        );
        report.warn(location(items, directive, "service", &name), text);
    }
    if !config.has_open_control() {
        return;
    }
    let commands = config.work_commands.iter().filter(|kind| takes_parameters(kind));
    let commands = commands.map(|kind| ("work-command", kind.name.as_str(), "parameters"));
    let plugins = config.work_python.iter().filter(|kind| is_open(kind.reach, kind.verify_signature));
    let plugins = plugins.map(|kind| ("work-python", kind.name.as_str(), "parameters"));
    let pods = config.work_kubernetes.iter().filter_map(|kind| {
        let what = what_a_pod_takes(kind).filter(|_| !kind.is_for_operators() && !kind.verify_signature)?;
        Some(("work-kubernetes", kind.name.as_str(), what))
    });
    for (directive, name, what) in commands.chain(plugins).chain(pods) {
        let text = format!(
            "{directive} {name}: any node of the mesh can have it run with {what} of its own, because no signature \
             is required, and no certificate or firewall rule at the control service; {ADVICE}"
        );
        report.warn(location(items, directive, "worktype", name), text);
    }
}

fn location(items: &[Item], directive: &str, parameter: &str, name: &str) -> Location {
    let is_it = |item: &&Item| {
        let given = item.settings.get(parameter);
        item.directive.name == directive && given.is_some_and(|given| given.name() == name)
    };
    items.iter().find(is_it).map_or_else(|| Source::Implicit.at(0), |item| item.at.clone())
}

fn is_open(reach: Reach, verifies: bool) -> bool {
    reach == Reach::Mesh && !verifies
}

fn takes_parameters(kind: &CommandType) -> bool {
    kind.allow_runtime_params && is_open(kind.reach, kind.verify_signature)
}

fn what_a_pod_takes(kind: &KubernetesType) -> Option<&'static str> {
    match kind {
        KubernetesType { allow_runtime_pod: true, .. } => Some("a pod"),
        KubernetesType { allow_runtime_command: true, .. } => Some("an image and a command"),
        KubernetesType { allow_runtime_auth: true, .. } => Some("a credential"),
        KubernetesType { allow_runtime_params: true, .. } => Some("parameters"),
        KubernetesType { .. } => None,
    }
}

impl Config {
    /// Whether a node on another machine may become a neighbour through this listener without a certificate.
    pub fn is_open_listener(&self, link: &Link) -> bool {
        let bind = match link {
            Link::TcpListener(it) => &it.bind,
            Link::UdpListener(it) => &it.bind,
            Link::WebSocketListener(it) => &it.bind,
            Link::QuicListener(it) => &it.bind,
            Link::TcpPeer(_) | Link::UdpPeer(_) | Link::WebSocketPeer(_) | Link::QuicPeer(_) => return false,
        };
        !bind.is_loopback() && self.admits_strangers(link)
    }

    /// Whether a node without a certificate may become a neighbour through this link.
    fn admits_strangers(&self, link: &Link) -> bool {
        let listener = |tls: Option<&String>| !tls.is_some_and(|name| self.demands_certificate(name));
        match link {
            Link::TcpListener(it) => listener(it.tls.as_ref()),
            Link::WebSocketListener(it) => listener(it.tls.as_ref()),
            Link::QuicListener(it) => listener(Some(&it.tls)),
            Link::TcpPeer(it) => !it.tls.as_ref().is_some_and(|name| self.verifies_servers(name)),
            Link::QuicPeer(it) => !self.verifies_servers(&it.tls),
            Link::WebSocketPeer(it) => match &it.tls {
                Some(name) => !self.verifies_servers(name),
                None => !it.address.secure,
            },
            Link::UdpListener(_) | Link::UdpPeer(_) => true,
        }
    }

    /// Whether a node without a certificate may join the mesh through this node.
    pub fn is_open_to_strangers(&self) -> bool {
        self.unordered().iter().any(|it| matches!(it, Component::Link(link) if self.admits_strangers(link)))
    }

    /// Whether such a node can reach a control service of this node.
    fn has_open_control(&self) -> bool {
        self.control_services
            .iter()
            .any(|control| self.is_open_service(control.service, control.tls.as_ref()))
    }

    /// Services that run or reach something for such a node: the directive, the name, and what the node can do.
    fn open_services(&self) -> Vec<(&'static str, String, String)> {
        let reach = |what: String| format!("reach {what} from this machine");
        let run = || "run its command as this node's user".to_owned();
        let commands = self.command_services.iter();
        let commands = commands.map(|it| ("command-service", it.service, it.tls.as_ref(), run()));
        let tcp = self.tcp_clients.iter();
        let tcp =
            tcp.map(|it| ("tcp-client", it.service, it.tls_server.as_ref(), reach(it.address.to_string())));
        let udp = self.udp_clients.iter();
        let udp = udp.map(|it| ("udp-client", it.service, None, reach(it.address.to_string())));
        let unix = self.unix_socket_clients.iter().map(|it| {
            ("unix-socket-client", it.service, it.tls.as_ref(), reach(it.filename.display().to_string()))
        });
        let all = commands.chain(tcp).chain(udp).chain(unix);
        let open = all.filter(|(_, service, tls, _)| self.is_open_service(*service, *tls));
        open.map(|(directive, service, _, what)| (directive, service.to_string(), what)).collect()
    }

    /// Whether such a node can reach a service of this node.
    fn is_open_service(&self, service: ServiceName, tls: Option<&String>) -> bool {
        let service = service.to_text();
        let names = PacketNames {
            from_node: STRANGER,
            to_node: self.node.id.as_str(),
            from_service: STRANGER,
            to_service: &service,
        };
        let proves = tls.is_some_and(|name| self.demands_certificate(name));
        !proves && decide(&self.node.firewall_rules, names) == Action::Accept
    }

    fn demands_certificate(&self, profile: &str) -> bool {
        self.tls_servers.iter().any(|tls| tls.name == *profile && tls.require_client_cert)
    }

    /// Whether the profile verifies servers. A profile that is not configured is `default`, which does.
    fn verifies_servers(&self, profile: &str) -> bool {
        self.tls_clients.iter().all(|tls| tls.name != *profile || !tls.insecure_skip_verify)
    }
}
