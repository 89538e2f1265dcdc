//! All directives, each declared in one of the files of this directory, and the [`Config`] that they make together.
//!
//! Owns the list: a directive that is not in it does not exist. It refuses to know notations, files and what runs
//! later.

pub mod certificates;
pub mod controller;
pub mod http;
pub mod links;
pub mod node;
pub mod runner;
pub mod services;
pub mod tls;
pub mod work;

use std::sync::LazyLock;

use super::Environment;

use super::components::{ControlListener, Facts};
use super::declare::{Declared, Reader, Settings};
use super::error::Report;
use super::item::Item;
use super::schema::Directive;
use crate::controller::options::ControllerOptions;
use crate::pods::options::KubernetesType;
use crate::service::IpRouterOptions;
use crate::telemetry::{LogFormat, LogLevel};
use crate::tls::{ClientOptions, ServerOptions};
use crate::work::CommandType;

/// Makes the table, the configuration and its components from the list of directives. What is a component of its own
/// has its name there, as a link or otherwise.
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
            Config { $($field: Held::hold(read_all::<$directive>(items, environment, report)),)+ }
        }

        /// Something that a node runs for as long as it is configured.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Component {
            /// One of the places where a control service listens.
            Control(ControlListener),
            /// A listener for neighbours, or a peer.
            Link(Link),
            $($(
                #[doc = concat!("See [`", stringify!($directive), "`].")]
                $component(<$directive as Settings>::Value),
            )?)+
        }

        /// A listener for neighbours, or a peer.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Link {
            $($(
                #[doc = concat!("See [`", stringify!($directive), "`].")]
                $link(<$directive as Settings>::Value),
            )?)+
        }

        impl Component {
            pub(super) fn facts(&self) -> Facts {
                match self {
                    Self::Control(listener) => listener.facts(),
                    $($(Self::Link(Link::$link(settings)) => Facts::of::<$directive>(settings),)?)+
                    $($(Self::$component(settings) => Facts::of::<$directive>(settings),)?)+
                }
            }
        }

        impl Config {
            pub(super) fn unordered(&self) -> Vec<Component> {
                let control = self.control_services.iter().flat_map(ControlListener::all_of);
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
    services::CommandService => command_services: Vec<services::CommandService>, component CommandService;
    services::TcpServer => tcp_servers: Vec<services::TcpServer>, component TcpServer;
    services::TcpClient => tcp_clients: Vec<services::TcpClient>, component TcpClient;
    services::UdpServer => udp_servers: Vec<services::UdpServer>, component UdpServer;
    services::UdpClient => udp_clients: Vec<services::UdpClient>, component UdpClient;
    services::UnixSocketServer => unix_socket_servers: Vec<services::UnixSocketServer>, component UnixSocketServer;
    services::UnixSocketClient => unix_socket_clients: Vec<services::UnixSocketClient>, component UnixSocketClient;
    services::IpRouter => ip_routers: Vec<IpRouterOptions>, component IpRouter;
    http::Metrics => metrics: Option<http::Metrics>, component Metrics;
    http::Web => web: Option<http::Web>, component Web;
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
    /// True if a certificate is to be made, instead of running a node.
    pub fn is_for_certificates(&self) -> bool {
        self.cert_init.is_some() || self.cert_make_request.is_some() || self.cert_sign_request.is_some()
    }

    /// Bytes of the disk that stay free; `None` for a part of it.
    pub fn disk_reserve(&self) -> Option<u64> {
        let of_controller = self.controller.as_ref().and_then(|controller| controller.disk_reserve);
        of_controller.or(self.node.disk_reserve)
    }
}

/// Reads all directives of one kind. All errors are noted.
pub(super) fn read_all<D: Declared>(
    items: &[Item],
    environment: &Environment,
    report: &mut Report,
) -> Vec<D::Value> {
    let items = items.iter().filter(|item| item.directive.name == D::NAME);
    items.filter_map(|item| D::read(&mut Reader::new(item, environment, report))).collect()
}

/// The field of a [`Config`] for a directive.
trait Held<T> {
    /// From all that are given; that some may be given only once has been checked.
    fn hold(all: Vec<T>) -> Self;
}

impl<T> Held<T> for Vec<T> {
    fn hold(all: Vec<T>) -> Self {
        all
    }
}

impl<T> Held<T> for Option<T> {
    fn hold(mut all: Vec<T>) -> Self {
        all.pop()
    }
}

impl Held<()> for bool {
    fn hold(all: Vec<()>) -> Self {
        !all.is_empty()
    }
}

impl Held<Self> for LogLevel {
    fn hold(mut all: Vec<Self>) -> Self {
        all.pop().unwrap_or(Self::Info)
    }
}

impl Held<Self> for LogFormat {
    fn hold(mut all: Vec<Self>) -> Self {
        all.pop().unwrap_or(Self::Text)
    }
}

impl Held<Self> for node::Node {
    fn hold(mut all: Vec<Self>) -> Self {
        all.pop().unwrap_or_else(Self::none)
    }
}
