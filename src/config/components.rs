//! The components of a node, which run for as long as they are configured: links and services.
//!
//! Owns what a component may occupy, which TLS profiles it may use and the order in which components start, so that
//! a reload knows which of them conflict. A control service is up to three components, one for each place where it
//! listens, so that changing one leaves the others alone. This refuses to know a directive by name, and to start
//! anything.

use std::fmt;
use std::path::PathBuf;

use super::address::HostPort;
use super::schema::HelpSection;
use crate::wire::ServiceName;

/// A TLS profile that a component uses.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum UsedProfile {
    /// The `tls-server` of this name.
    Server(String),
    /// The `tls-client` of this name.
    Client(String),
}

/// Something that only one component can have at a time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum SoleResource {
    /// A service name on this node.
    Service(ServiceName),
    /// A TCP port, whatever the address.
    Tcp(u16),
    /// A UDP port, whatever the address.
    Udp(u16),
    /// A socket file.
    File(PathBuf),
    /// A network interface.
    Interface(String),
    /// The one session that two nodes have. Any two peers claim it, because they may turn out to be the same node.
    Neighbour,
}

/// Facts about a component that its settings decide.
#[derive(Debug, Default)]
pub struct ComponentFacts {
    /// The directive, and the component's name within it, for logs and errors.
    pub(super) label: String,
    /// The resources that it occupies while it runs.
    pub claims: Vec<SoleResource>,
    /// The TLS profiles that it takes when it starts.
    pub profiles: Vec<UsedProfile>,
    /// When it starts relative to others.
    pub(super) order: Order,
}

/// The order in which components start. HTTP comes first, so that probes are always answered. The control service
/// on the mesh comes before any link, so that it can be reached as soon as there is one. Listeners of the control
/// service on this host come last, so that an answer means that the node is up.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Order {
    Http,
    ControlOnTheMesh,
    Listener,
    Peer,
    #[default]
    Service,
    ControlOnTheHost,
}

impl ComponentFacts {
    /// Sets the component's name within its directive, unless it has one.
    pub(super) fn label(&mut self, label: impl fmt::Display) {
        if self.label.is_empty() {
            self.label = label.to_string();
        }
    }

    /// Makes it start before all others.
    pub(super) fn comes_first(&mut self) {
        self.order = Order::Http;
    }

    /// Claims the port that it listens on; port 0 is a different port each time, and claims nothing.
    pub(super) fn listens(&mut self, bind: &HostPort, udp: bool) {
        let claim = if udp { SoleResource::Udp(bind.port) } else { SoleResource::Tcp(bind.port) };
        self.claims.extend(Some(claim).filter(|_| bind.port != 0));
    }

    /// Completes the facts of a component that this directive configures.
    pub(super) fn for_directive(mut self, directive: &str, group: HelpSection) -> Self {
        self.label = format!("{directive} {}", self.label).trim_end().to_owned();
        if group == HelpSection::Backends {
            let peer = self.claims.contains(&SoleResource::Neighbour);
            self.order = if peer { Order::Peer } else { Order::Listener };
        }
        self
    }
}

/// One of the places where a control service listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ControlListener {
    /// A Unix socket and its mode.
    Unix(PathBuf, u32),
    /// A TCP address, and the name of a `tls-server`.
    Tcp(HostPort, Option<String>, ListenerTrust),
    /// A service of the mesh, and the name of a `tls-server`.
    Mesh(ServiceName, Option<String>, ListenerTrust),
}

/// The callers that a listener trusts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListenerTrust {
    /// Callers that have proved who they are, and callers of this host.
    Proof,
    /// Every caller.
    Everyone,
}

impl ControlListener {
    pub(super) fn facts(&self) -> ComponentFacts {
        let mut facts = ComponentFacts { order: Order::ControlOnTheHost, ..ComponentFacts::default() };
        match self {
            Self::Unix(path, _) => {
                facts.label(format_args!("control-service on {}", path.display()));
                facts.claims.push(SoleResource::File(path.clone()));
            }
            Self::Tcp(address, ..) => {
                facts.label(format_args!("control-service on {address}"));
                facts.listens(address, false);
            }
            Self::Mesh(service, ..) => {
                facts.label(format_args!("control-service {service}"));
                facts.claims.push(SoleResource::Service(*service));
                facts.order = Order::ControlOnTheMesh;
            }
        }
        if let Self::Tcp(_, Some(tls), _) | Self::Mesh(_, Some(tls), _) = self {
            facts.profiles.push(UsedProfile::Server(tls.clone()));
        }
        facts
    }
}
