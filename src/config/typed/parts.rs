//! What a node runs for as long as it is configured, one by one: links and services.
//!
//! Owns the list of these parts and what each occupies, so that a reload can tell which of them get in each other's
//! way. A control service is up to three parts, one for each place where it listens: a change of one leaves the
//! others alone. This refuses to start anything.

use std::fmt;
use std::path::PathBuf;

use super::super::address::HostPort;
use super::Config;
use super::backends::Backend;
use super::services::{
    CommandService, ControlService, Forward, IpRouter, TcpClient, TcpServer, UdpClient, UdpServer,
    UnixSocketClient, UnixSocketServer,
};
use crate::wire::ServiceName;

/// Whom a place to listen trusts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// Those who have proved who they are, and those of this host.
    Proof,
    /// Everybody.
    Everyone,
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

/// A part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Part of a `control-service`.
    Control(ControlListener),
    /// A link to neighbours.
    Link(Backend),
    /// `command-service`
    Command(CommandService),
    /// `tcp-server`
    TcpServer(TcpServer),
    /// `tcp-client`
    TcpClient(TcpClient),
    /// `udp-server`
    UdpServer(UdpServer),
    /// `udp-client`
    UdpClient(UdpClient),
    /// `unix-socket-server`
    UnixSocketServer(UnixSocketServer),
    /// `unix-socket-client`
    UnixSocketClient(UnixSocketClient),
    /// `ip-router`
    IpRouter(IpRouter),
}

/// A TLS profile that a part goes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Profile<'a> {
    /// The `tls-server` of that name.
    Server(&'a str),
    /// The `tls-client` of that name.
    Client(&'a str),
}

/// Something that only one part can have at a time.
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

impl Config {
    /// All parts, in the order in which they are started: the mesh can reach the control service as soon as there
    /// is a link, and the doors on this host open last, so that whoever gets an answer finds a node that is up.
    pub fn parts(&self) -> Vec<Part> {
        let mut all: Vec<Part> = Vec::new();
        let on_the_mesh = |door: &ControlListener| matches!(door, ControlListener::Mesh(..));
        let (mesh, host): (Vec<_>, Vec<_>) =
            self.control_services.iter().flat_map(doors).partition(on_the_mesh);
        all.extend(mesh.into_iter().map(Part::Control));
        all.extend(self.backends().into_iter().map(Part::Link));
        all.extend(self.command_services.iter().cloned().map(Part::Command));
        all.extend(self.tcp_servers.iter().cloned().map(Part::TcpServer));
        all.extend(self.tcp_clients.iter().cloned().map(Part::TcpClient));
        all.extend(self.udp_servers.iter().cloned().map(Part::UdpServer));
        all.extend(self.udp_clients.iter().cloned().map(Part::UdpClient));
        all.extend(self.unix_socket_servers.iter().cloned().map(Part::UnixSocketServer));
        all.extend(self.unix_socket_clients.iter().cloned().map(Part::UnixSocketClient));
        all.extend(self.ip_routers.iter().cloned().map(Part::IpRouter));
        all.extend(host.into_iter().map(Part::Control));
        all
    }
}

fn doors(control: &ControlService) -> Vec<ControlListener> {
    let mut doors = Vec::new();
    let trust = |from| if control.forward >= from { Trust::Everyone } else { Trust::Proof };
    if let Some(path) = &control.filename {
        doors.push(ControlListener::Unix(path.clone(), control.permissions));
    }
    if let Some(address) = &control.tcp_listen {
        doors.push(ControlListener::Tcp(address.clone(), control.tcp_tls.clone(), trust(Forward::Tcp)));
    }
    doors.push(ControlListener::Mesh(control.service, control.tls.clone(), trust(Forward::All)));
    doors
}

impl Part {
    /// What the part occupies while it runs.
    pub fn claims(&self) -> Vec<Claim> {
        match self {
            Self::Control(ControlListener::Unix(path, _)) => vec![Claim::File(path.clone())],
            Self::Control(ControlListener::Tcp(address, ..)) => tcp(address),
            Self::Control(ControlListener::Mesh(service, ..)) => vec![Claim::Service(*service)],
            Self::Link(backend) => link_claims(backend),
            Self::Command(command) => vec![Claim::Service(command.service)],
            Self::TcpServer(server) => tcp(&server.bind),
            Self::TcpClient(client) => vec![Claim::Service(client.service)],
            Self::UdpServer(server) => udp(&server.bind),
            Self::UdpClient(client) => vec![Claim::Service(client.service)],
            Self::UnixSocketServer(server) => vec![Claim::File(server.filename.clone())],
            Self::UnixSocketClient(client) => vec![Claim::Service(client.service)],
            Self::IpRouter(router) => {
                let interface = router.interface.clone().map(Claim::Interface);
                std::iter::once(Claim::Service(router.network)).chain(interface).collect()
            }
        }
    }
}

impl Part {
    /// The TLS profiles that the part takes when it starts.
    pub fn profiles(&self) -> Vec<Profile<'_>> {
        match self {
            Self::Control(ControlListener::Unix(..))
            | Self::UdpServer(_)
            | Self::UdpClient(_)
            | Self::IpRouter(_) => Vec::new(),
            Self::Control(ControlListener::Tcp(_, tls, _) | ControlListener::Mesh(_, tls, _)) => {
                server(tls).into_iter().collect()
            }
            Self::Link(backend) => link_profile(backend).into_iter().collect(),
            Self::Command(command) => server(&command.tls).into_iter().collect(),
            Self::TcpServer(TcpServer { tls_server, tls_client, .. })
            | Self::TcpClient(TcpClient { tls_server, tls_client, .. }) => {
                server(tls_server).into_iter().chain(client(tls_client)).collect()
            }
            Self::UnixSocketServer(proxy) => client(&proxy.tls).into_iter().collect(),
            Self::UnixSocketClient(proxy) => server(&proxy.tls).into_iter().collect(),
        }
    }
}

fn server(name: &Option<String>) -> Option<Profile<'_>> {
    name.as_deref().map(Profile::Server)
}

fn client(name: &Option<String>) -> Option<Profile<'_>> {
    name.as_deref().map(Profile::Client)
}

fn link_profile(backend: &Backend) -> Option<Profile<'_>> {
    match backend {
        Backend::TcpListener(listener) => server(&listener.tls),
        Backend::WsListener(listener) => server(&listener.tls),
        Backend::QuicListener(listener) => Some(Profile::Server(&listener.tls)),
        Backend::TcpPeer(peer) => client(&peer.tls),
        Backend::WsPeer(peer) => client(&peer.tls),
        Backend::QuicPeer(peer) => Some(Profile::Client(&peer.tls)),
        Backend::UdpListener(_) | Backend::UdpPeer(_) => None,
    }
}

fn link_claims(backend: &Backend) -> Vec<Claim> {
    match backend {
        Backend::TcpListener(listener) => tcp(&listener.bind),
        Backend::UdpListener(listener) => udp(&listener.bind),
        Backend::WsListener(listener) => tcp(&listener.bind),
        Backend::QuicListener(listener) => udp(&listener.bind),
        Backend::TcpPeer(_) | Backend::UdpPeer(_) | Backend::WsPeer(_) | Backend::QuicPeer(_) => {
            vec![Claim::Neighbour]
        }
    }
}

/// Port 0 is another one each time.
fn tcp(bind: &HostPort) -> Vec<Claim> {
    Some(bind.port).filter(|port| *port != 0).map(Claim::Tcp).into_iter().collect()
}

fn udp(bind: &HostPort) -> Vec<Claim> {
    Some(bind.port).filter(|port| *port != 0).map(Claim::Udp).into_iter().collect()
}

impl fmt::Display for Part {
    /// The directive and what tells it from others of its kind, for logs and errors.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Control(ControlListener::Unix(path, _)) => {
                write!(f, "control-service on {}", path.display())
            }
            Self::Control(ControlListener::Tcp(address, ..)) => write!(f, "control-service on {address}"),
            Self::Control(ControlListener::Mesh(service, ..)) => write!(f, "control-service {service}"),
            Self::Link(Backend::TcpListener(listener)) => write!(f, "tcp-listener on {}", listener.bind),
            Self::Link(Backend::TcpPeer(peer)) => write!(f, "tcp-peer {}", peer.address),
            Self::Link(Backend::UdpListener(listener)) => write!(f, "udp-listener on {}", listener.bind),
            Self::Link(Backend::UdpPeer(peer)) => write!(f, "udp-peer {}", peer.address),
            Self::Link(Backend::WsListener(listener)) => write!(f, "ws-listener on {}", listener.bind),
            Self::Link(Backend::WsPeer(peer)) => write!(f, "ws-peer {}", peer.address),
            Self::Link(Backend::QuicListener(listener)) => write!(f, "quic-listener on {}", listener.bind),
            Self::Link(Backend::QuicPeer(peer)) => write!(f, "quic-peer {}", peer.address),
            Self::Command(command) => write!(f, "command-service {}", command.service),
            Self::TcpServer(server) => write!(f, "tcp-server on {}", server.bind),
            Self::TcpClient(client) => write!(f, "tcp-client {}", client.service),
            Self::UdpServer(server) => write!(f, "udp-server on {}", server.bind),
            Self::UdpClient(client) => write!(f, "udp-client {}", client.service),
            Self::UnixSocketServer(server) => write!(f, "unix-socket-server {}", server.filename.display()),
            Self::UnixSocketClient(client) => write!(f, "unix-socket-client {}", client.service),
            Self::IpRouter(router) => write!(f, "ip-router {}", router.network),
        }
    }
}
