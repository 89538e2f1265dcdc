//! The configuration as the rest of the program sees it: every value checked and of its own type.
//!
//! Owns the [`Config`] and how it is put together from checked directives; the structs of the single
//! directives are in the files beside this one. It refuses to know notations, files and what runs later.

pub mod backends;
pub mod certificates;
pub mod node;
pub mod parts;
pub mod services;
pub mod tls;
pub mod work;

use super::Environment;
use super::check::Item;
use super::fields::Fields;
use super::raw::Report;

use backends::{
    Backend, QuicListener, QuicPeer, TcpListener, TcpPeer, UdpListener, UdpPeer, WsListener, WsPeer,
};
use certificates::CertificateCommand;
pub use node::{LogLevel, Node};
use services::{
    CommandService, ControlService, IpRouter, TcpClient, TcpServer, UdpClient, UdpServer, UnixSocketClient,
    UnixSocketServer,
};
use tls::{TlsClient, TlsServer};
use work::{WorkCommand, WorkKubernetes, WorkPython, WorkSigning, WorkVerification};

/// A whole configuration. Lists keep the order in which the directives were written.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// `node`, given or not.
    pub node: Node,
    /// `log-level`; info if it is not given.
    pub log_level: LogLevel,
    /// True if `trace` is given.
    pub trace: bool,
    /// True if `local-only` is given.
    pub local_only: bool,
    /// `tcp-listener`
    pub tcp_listeners: Vec<TcpListener>,
    /// `tcp-peer`
    pub tcp_peers: Vec<TcpPeer>,
    /// `udp-listener`
    pub udp_listeners: Vec<UdpListener>,
    /// `udp-peer`
    pub udp_peers: Vec<UdpPeer>,
    /// `ws-listener`
    pub ws_listeners: Vec<WsListener>,
    /// `ws-peer`
    pub ws_peers: Vec<WsPeer>,
    /// `quic-listener`
    pub quic_listeners: Vec<QuicListener>,
    /// `quic-peer`
    pub quic_peers: Vec<QuicPeer>,
    /// `control-service`
    pub control_services: Vec<ControlService>,
    /// `command-service`
    pub command_services: Vec<CommandService>,
    /// `tcp-server`
    pub tcp_servers: Vec<TcpServer>,
    /// `tcp-client`
    pub tcp_clients: Vec<TcpClient>,
    /// `udp-server`
    pub udp_servers: Vec<UdpServer>,
    /// `udp-client`
    pub udp_clients: Vec<UdpClient>,
    /// `unix-socket-server`
    pub unix_socket_servers: Vec<UnixSocketServer>,
    /// `unix-socket-client`
    pub unix_socket_clients: Vec<UnixSocketClient>,
    /// `ip-router`
    pub ip_routers: Vec<IpRouter>,
    /// `work-command`
    pub work_commands: Vec<WorkCommand>,
    /// `work-kubernetes`
    pub work_kubernetes: Vec<WorkKubernetes>,
    /// `work-python`
    pub work_python: Vec<WorkPython>,
    /// `work-signing`
    pub work_signing: Option<WorkSigning>,
    /// `work-verification`
    pub work_verification: Option<WorkVerification>,
    /// `tls-server`
    pub tls_servers: Vec<TlsServer>,
    /// `tls-client`
    pub tls_clients: Vec<TlsClient>,
    /// `cert-init`, `cert-makereq` or `cert-signreq`: make a certificate and end, instead of running a node.
    pub certificate: Option<CertificateCommand>,
}

impl Config {
    /// True if no other node is in reach and nothing says that this is meant.
    pub fn is_alone(&self) -> bool {
        !self.local_only && self.backends().is_empty()
    }

    /// All links to neighbours, listeners before peers.
    pub fn backends(&self) -> Vec<Backend> {
        let mut all = Vec::new();
        all.extend(self.tcp_listeners.iter().cloned().map(Backend::TcpListener));
        all.extend(self.udp_listeners.iter().cloned().map(Backend::UdpListener));
        all.extend(self.ws_listeners.iter().cloned().map(Backend::WsListener));
        all.extend(self.quic_listeners.iter().cloned().map(Backend::QuicListener));
        all.extend(self.tcp_peers.iter().cloned().map(Backend::TcpPeer));
        all.extend(self.udp_peers.iter().cloned().map(Backend::UdpPeer));
        all.extend(self.ws_peers.iter().cloned().map(Backend::WsPeer));
        all.extend(self.quic_peers.iter().cloned().map(Backend::QuicPeer));
        all
    }
}

/// Builds the configuration. All errors are noted; `None` only if there was one.
pub(super) fn build(items: &[Item], environment: &Environment, report: &mut Report) -> Option<Config> {
    let mut builder = Builder { items, report };
    let certificate = builder.certificate();
    // A certificate command needs no node: neither its name nor its directory.
    let node = match &certificate {
        Some(_) => Some(Node::unused()),
        None => builder.node(environment),
    };
    Some(Config {
        node: node?,
        log_level: builder.one("log-level", node::log_level).unwrap_or(LogLevel::Info),
        trace: builder.has("trace"),
        local_only: builder.has("local-only"),
        tcp_listeners: builder.all("tcp-listener", backends::tcp_listener),
        tcp_peers: builder.all("tcp-peer", backends::tcp_peer),
        udp_listeners: builder.all("udp-listener", backends::udp_listener),
        udp_peers: builder.all("udp-peer", backends::udp_peer),
        ws_listeners: builder.all("ws-listener", backends::ws_listener),
        ws_peers: builder.all("ws-peer", backends::ws_peer),
        quic_listeners: builder.all("quic-listener", backends::quic_listener),
        quic_peers: builder.all("quic-peer", backends::quic_peer),
        control_services: builder.all("control-service", services::control_service),
        command_services: builder.all("command-service", services::command_service),
        tcp_servers: builder.all("tcp-server", services::tcp_server),
        tcp_clients: builder.all("tcp-client", services::tcp_client),
        udp_servers: builder.all("udp-server", services::udp_server),
        udp_clients: builder.all("udp-client", services::udp_client),
        unix_socket_servers: builder.all("unix-socket-server", services::unix_socket_server),
        unix_socket_clients: builder.all("unix-socket-client", services::unix_socket_client),
        ip_routers: builder.all("ip-router", services::ip_router),
        work_commands: builder.all("work-command", work::command),
        work_kubernetes: builder.all("work-kubernetes", work::kubernetes),
        work_python: builder.all("work-python", work::python),
        work_signing: builder.one("work-signing", work::signing),
        work_verification: builder.one("work-verification", work::verification),
        tls_servers: builder.all("tls-server", tls::server),
        tls_clients: builder.all("tls-client", tls::client),
        certificate,
    })
}

/// Reads one directive; `None` after an error, which has been noted.
type Read<T> = fn(&mut Fields<'_>) -> Option<T>;

struct Builder<'a> {
    items: &'a [Item],
    report: &'a mut Report,
}

impl Builder<'_> {
    fn has(&self, directive: &str) -> bool {
        self.items.iter().any(|item| item.directive.name == directive)
    }

    fn all<T>(&mut self, directive: &str, read: Read<T>) -> Vec<T> {
        debug_assert!(
            super::schema::Directive::find(directive).is_some(),
            "{directive} is not in the schema"
        );
        let items = self.items.iter().filter(|item| item.directive.name == directive);
        items.filter_map(|item| read(&mut Fields::new(item, self.report))).collect()
    }

    fn one<T>(&mut self, directive: &str, read: Read<T>) -> Option<T> {
        self.all(directive, read).pop()
    }

    fn certificate(&mut self) -> Option<CertificateCommand> {
        self.one("cert-init", certificates::init)
            .or_else(|| self.one("cert-makereq", certificates::make_request))
            .or_else(|| self.one("cert-signreq", certificates::sign_request))
    }

    /// The `node` directive, or what an empty one would give.
    fn node(&mut self, environment: &Environment) -> Option<Node> {
        match self.items.iter().find(|item| item.directive.name == "node") {
            Some(item) => node::node(&mut Fields::new(item, self.report), environment),
            None => {
                let item = Item::implicit("node")?;
                node::node(&mut Fields::new(&item, self.report), environment)
            }
        }
    }
}
