//! The components of a node, which run for as long as they are configured: links and services.
//!
//! Owns what each component occupies and which TLS profiles it uses, so that a reload knows which of them conflict.
//! A control service is up to three components, one for each place where it listens: a change of one leaves the
//! others alone. This refuses to start anything.

use std::fmt;
use std::path::PathBuf;

use super::address::HostPort;
use super::declare::Declared;
use super::directives::{
    Component, Config,
    services::{ControlService, Forward},
};
use super::schema::Group;
use crate::wire::ServiceName;

/// A TLS profile that a component uses.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Profile {
    /// The `tls-server` of that name.
    Server(String),
    /// The `tls-client` of that name.
    Client(String),
}

/// Something that only one component can have at a time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Claim {
    /// A service name on this node.
    Service(ServiceName),
    /// A TCP port, on whatever address.
    Tcp(u16),
    /// A UDP port, on whatever address.
    Udp(u16),
    /// A socket file.
    File(PathBuf),
    /// A network interface.
    Interface(String),
    /// The one session that two nodes have: any two peers may turn out to be the same node.
    Neighbour,
}

/// Facts about a component that its settings decide.
#[derive(Debug, Default)]
pub struct Facts {
    label: String,
    /// The resources that it occupies while it runs.
    pub claims: Vec<Claim>,
    /// The TLS profiles that it takes when it starts.
    pub profiles: Vec<Profile>,
    /// When it starts, and before which others.
    order: Order,
}

/// The order in which components are started: probes are answered from the first on, the mesh can reach the control
/// service as soon as there is a link, and listeners of the control service on this host come last, so that an answer
/// means that the node is up.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Order {
    Http,
    ControlOnTheMesh,
    Listener,
    Peer,
    #[default]
    Service,
    ControlOnTheHost,
}

impl Facts {
    /// The name of the component among those of its directive: the first that is given.
    pub(super) fn label(&mut self, label: impl fmt::Display) {
        if self.label.is_empty() {
            self.label = label.to_string();
        }
    }

    /// It starts before all others.
    pub(super) fn comes_first(&mut self) {
        self.order = Order::Http;
    }

    /// It listens on a port; port 0 is another one each time.
    pub(super) fn listens(&mut self, bind: &HostPort, udp: bool) {
        let claim = if udp { Claim::Udp(bind.port) } else { Claim::Tcp(bind.port) };
        self.claims.extend(Some(claim).filter(|_| bind.port != 0));
    }

    /// The facts of a directive's component.
    pub(super) fn of<D: Declared>(settings: &D::Value) -> Self {
        let mut facts = Self::default();
        D::describe(settings, &mut facts);
        facts.label = format!("{} {}", D::NAME, facts.label);
        if D::GROUP == Group::Backends {
            let peer = facts.claims.contains(&Claim::Neighbour);
            facts.order = if peer { Order::Peer } else { Order::Listener };
        }
        facts
    }
}

/// One of the places where a control service listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ControlListener {
    /// A Unix socket and its mode.
    Unix(PathBuf, u32),
    /// A TCP address, and the name of a `tls-server`.
    Tcp(HostPort, Option<String>, Trust),
    /// A service of the mesh, and the name of a `tls-server`.
    Mesh(ServiceName, Option<String>, Trust),
}

/// The callers that a listener trusts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// Those who have proved who they are, and those of this host.
    Proof,
    /// Everybody.
    Everyone,
}

impl ControlListener {
    pub(super) fn all_of(control: &ControlService) -> Vec<Self> {
        let trust = |from| if control.forward >= from { Trust::Everyone } else { Trust::Proof };
        let unix = control.filename.iter().map(|path| Self::Unix(path.clone(), control.permissions));
        let tcp =
            |address: &HostPort| Self::Tcp(address.clone(), control.tcp_tls.clone(), trust(Forward::Tcp));
        let mesh = Self::Mesh(control.service, control.tls.clone(), trust(Forward::All));
        unix.chain(control.tcp_listen.iter().map(tcp)).chain([mesh]).collect()
    }

    pub(super) fn facts(&self) -> Facts {
        let mut facts = Facts { order: Order::ControlOnTheHost, ..Facts::default() };
        match self {
            Self::Unix(path, _) => {
                facts.label(format_args!("control-service on {}", path.display()));
                facts.claims.push(Claim::File(path.clone()));
            }
            Self::Tcp(address, ..) => {
                facts.label(format_args!("control-service on {address}"));
                facts.listens(address, false);
            }
            Self::Mesh(service, ..) => {
                facts.label(format_args!("control-service {service}"));
                facts.claims.push(Claim::Service(*service));
                facts.order = Order::ControlOnTheMesh;
            }
        }
        if let Self::Tcp(_, Some(tls), _) | Self::Mesh(_, Some(tls), _) = self {
            facts.profiles.push(Profile::Server(tls.clone()));
        }
        facts
    }
}

impl Component {
    /// The resources that it occupies while it runs.
    pub fn claims(&self) -> Vec<Claim> {
        self.facts().claims
    }

    /// The TLS profiles that it takes when it starts.
    pub fn profiles(&self) -> Vec<Profile> {
        self.facts().profiles
    }
}

impl fmt::Display for Component {
    /// The directive and its label, for logs and errors.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.facts().label)
    }
}

impl Config {
    /// All components, in the order in which they are started.
    pub fn components(&self) -> Vec<Component> {
        let mut all = self.unordered();
        all.sort_by_key(|component| component.facts().order);
        all
    }

    /// True if no other node is in reach and nothing says that this is meant.
    pub fn is_alone(&self) -> bool {
        !self.local_only && !self.unordered().iter().any(|component| matches!(component, Component::Link(_)))
    }
}
