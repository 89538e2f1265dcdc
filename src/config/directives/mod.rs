//! All directives, each declared in a file of this directory, and the [`Config`] that they make together.
//!
//! Owns the list of directives and the look-up in it, which ignores case. A directive that is not in the list does
//! not exist. It refuses to know notations, files and what runs later.

pub mod certificates;
pub mod controller;
pub mod enrolment;
pub mod http;
pub mod links;
pub mod node;
pub mod notify;
pub mod runner;
pub mod services;
pub mod tls;
pub mod work;

use std::fmt;
use std::sync::LazyLock;

use super::components::{ComponentFacts, ControlListener};
use super::declare::{Declared, DirectiveReader, FromParameters};
use super::environment::Environment;
use super::error::{Location, Report, hint, shown};
use super::item::Item;
use super::schema::Directive;
use crate::controller::options::ControllerOptions;
use crate::pods::options::KubernetesType;
use crate::service::IpRouterOptions;
use crate::telemetry::{LogFormat, LogLevel};
use crate::tls::{ClientOptions, ServerOptions};
use crate::work::CommandType;

/// Makes the table, the configuration and its components from the list of directives. The list names the component
/// of each directive that is one, as a link or otherwise.
macro_rules! configuration {
    ($($directive:ty => $field:ident: $held:ty $(, link $link:ident)? $(, component $component:ident)?;)+) => {
        /// The table of all directives, in the order of the help text.
        pub static DIRECTIVES: LazyLock<Vec<Directive>> =
            LazyLock::new(|| vec![$(<$directive as Declared>::directive()),+]);

        /// A whole configuration. Lists keep the order in which the directives were written.
        #[derive(Debug, Clone, PartialEq)]
        pub struct Config {
            $(#[doc = concat!("Of the directive [`", stringify!($directive), "`].")] pub $field: $held,)+
        }

        /// Reads all directives. All errors are noted.
        pub(super) fn build(items: &[Item], environment: &Environment, report: &mut Report) -> Config {
            Config { $($field: DirectiveField::hold(read_all::<$directive>(items, environment, report)),)+ }
        }

        /// A part of a node that runs for as long as it is configured.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Component {
            /// One of the places where a control service listens.
            Control(ControlListener),
            /// A listener for neighbours, or a peer.
            Link(Link),
            $($(
                #[doc = concat!("See [`", stringify!($directive), "`].")]
                $component(<$directive as FromParameters>::Value),
            )?)+
        }

        /// A listener for neighbours, or a peer.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Link {
            $($(
                #[doc = concat!("See [`", stringify!($directive), "`].")]
                $link(<$directive as FromParameters>::Value),
            )?)+
        }

        impl Component {
            /// The facts that its settings decide.
            pub fn facts(&self) -> ComponentFacts {
                match self {
                    Self::Control(listener) => listener.facts(),
                    $($(Self::Link(Link::$link(settings)) => <$directive>::facts(settings),)?)+
                    $($(Self::$component(settings) => <$directive>::facts(settings),)?)+
                }
            }
        }

        impl Config {
            pub(super) fn unordered(&self) -> Vec<Component> {
                let control = self.control_services.iter().flat_map(services::ControlService::listeners);
                let mut all: Vec<_> = control.map(Component::Control).collect();
                $($(all.extend(self.$field.iter().cloned().map(Link::$link).map(Component::Link));)?)+
                $($(all.extend(self.$field.iter().cloned().map(Component::$component));)?)+
                all
            }
        }
    };
}

configuration! {
    node::Node => node: node::Node;
    node::LocalOnly => local_only: bool;
    node::Level => log_level: LogLevel;
    node::Format => log_format: LogFormat;
    node::Trace => trace: bool;
    node::PyroscopeClient => pyroscope_client: bool;
    links::TcpListener => tcp_listeners: Vec<links::TcpListener>, link TcpListener;
    links::TcpPeer => tcp_peers: Vec<links::TcpPeer>, link TcpPeer;
    links::UdpListener => udp_listeners: Vec<links::UdpListener>, link UdpListener;
    links::UdpPeer => udp_peers: Vec<links::UdpPeer>, link UdpPeer;
    links::WebSocketListener => ws_listeners: Vec<links::WebSocketListener>, link WebSocketListener;
    links::WebSocketPeer => ws_peers: Vec<links::WebSocketPeer>, link WebSocketPeer;
    links::QuicListener => quic_listeners: Vec<links::QuicListener>, link QuicListener;
    links::QuicPeer => quic_peers: Vec<links::QuicPeer>, link QuicPeer;
    services::ControlService => control_services: Vec<services::ControlService>;
    services::CommandServiceDirective => command_services: Vec<services::CommandServiceDirective>, component CommandService;
    services::TcpServerDirective => tcp_servers: Vec<services::TcpServerDirective>, component TcpServer;
    services::TcpClientDirective => tcp_clients: Vec<services::TcpClientDirective>, component TcpClient;
    services::UdpServerDirective => udp_servers: Vec<services::UdpServerDirective>, component UdpServer;
    services::UdpClientDirective => udp_clients: Vec<services::UdpClientDirective>, component UdpClient;
    services::UnixSocketServerDirective => unix_socket_servers: Vec<services::UnixSocketServerDirective>, component UnixSocketServer;
    services::UnixSocketClientDirective => unix_socket_clients: Vec<services::UnixSocketClientDirective>, component UnixSocketClient;
    services::IpRouter => ip_routers: Vec<IpRouterOptions>, component IpRouter;
    enrolment::Renewal => renewal: Option<enrolment::Renewal>, component Renewal;
    enrolment::Enrolment => enrolment: Option<enrolment::Enrolment>, component Enrolment;
    http::Metrics => metrics: Option<http::Metrics>, component Metrics;
    http::WebDirective => web: Option<http::WebDirective>, component Web;
    http::EventsSink => events_sink: Option<http::EventsSink>, component EventsSink;
    work::WorkCommand => work_commands: Vec<CommandType>;
    work::WorkKubernetes => work_kubernetes: Vec<KubernetesType>;
    work::WorkPython => work_python: Vec<CommandType>;
    work::WorkSigning => work_signing: Option<work::WorkSigning>;
    work::WorkVerification => work_verification: Option<work::WorkVerification>;
    controller::WorkController => controller: Option<ControllerOptions>;
    tls::TlsServer => tls_servers: Vec<ServerOptions>;
    tls::TlsClient => tls_clients: Vec<ClientOptions>;
    certificates::CertInit => cert_init: Option<certificates::CertInit>;
    certificates::CertMakeRequest => cert_make_request: Option<certificates::NewRequest>;
    certificates::CertSignRequest => cert_sign_request: Option<certificates::CertSignRequest>;
}

impl Config {
    /// All components, in the order in which they are started.
    pub fn components(&self) -> Vec<Component> {
        let mut all = self.unordered();
        all.sort_by_key(|component| component.facts().order);
        all
    }

    /// True if no other node can be reached, and `local-only` does not say that this is intended.
    pub fn is_alone(&self) -> bool {
        !self.local_only && !self.unordered().iter().any(|component| matches!(component, Component::Link(_)))
    }

    /// True if the command makes a certificate, instead of running a node.
    pub fn is_for_certificates(&self) -> bool {
        self.cert_init.is_some() || self.cert_make_request.is_some() || self.cert_sign_request.is_some()
    }

    /// Bytes of the disk that stay free; `None` for the default share.
    pub fn disk_reserve(&self) -> Option<u64> {
        let of_controller = self.controller.as_ref().and_then(|controller| controller.disk_reserve);
        of_controller.or(self.node.disk_reserve)
    }
}

impl fmt::Display for Component {
    /// The directive and its label, for logs and errors.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.facts().label)
    }
}

/// The directive of this name, in any case.
pub(super) fn find(name: &str) -> Option<&'static Directive> {
    DIRECTIVES.iter().find(|directive| directive.name.eq_ignore_ascii_case(name))
}

/// A directive of this name, without parameters so far.
pub(super) fn begin(name: &str, at: Location, report: &mut Report) -> Option<Item> {
    let Some(directive) = find(name) else {
        let known: Vec<_> = DIRECTIVES.iter().map(|directive| directive.name).collect();
        report.error(at, format!("unknown directive `{}`: {}", shown(name), hint(name, &known)));
        return None;
    };
    Some(Item::of(directive, at))
}

/// Reads all directives of one kind. All errors are noted.
pub(super) fn read_all<D: Declared>(
    items: &[Item],
    environment: &Environment,
    report: &mut Report,
) -> Vec<D::Value> {
    let items = items.iter().filter(|item| item.directive.name == D::NAME);
    items.filter_map(|item| D::read(&mut DirectiveReader::new(item, environment, report))).collect()
}

/// The field of a [`Config`] for a directive.
trait DirectiveField<T> {
    /// Holds all values given. A directive that may occur only once was checked before.
    fn hold(all: Vec<T>) -> Self;
}

impl<T> DirectiveField<T> for Vec<T> {
    fn hold(all: Vec<T>) -> Self {
        all
    }
}

impl<T> DirectiveField<T> for Option<T> {
    fn hold(mut all: Vec<T>) -> Self {
        all.pop()
    }
}

impl DirectiveField<()> for bool {
    fn hold(all: Vec<()>) -> Self {
        !all.is_empty()
    }
}

impl DirectiveField<Self> for LogLevel {
    fn hold(mut all: Vec<Self>) -> Self {
        all.pop().unwrap_or(Self::Info)
    }
}

impl DirectiveField<Self> for LogFormat {
    fn hold(mut all: Vec<Self>) -> Self {
        all.pop().unwrap_or(Self::Text)
    }
}

impl DirectiveField<Self> for node::Node {
    fn hold(mut all: Vec<Self>) -> Self {
        all.pop().unwrap_or_else(Self::none)
    }
}
