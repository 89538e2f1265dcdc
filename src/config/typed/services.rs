//! What a node offers beside work: the control service, proxies, the command service, the IP router.
//!
//! Owns their settings and the rules that hold within one directive. It refuses to know streams and sockets,
//! and whether a name is taken: that is decided over all directives.

use std::path::PathBuf;

use ipnet::{IpNet, Ipv4Net};

use super::super::address::{HostPort, network};
use super::super::fields::Fields;
use super::backends::bind;
use crate::wire::{NodeId, ServiceName};

/// Which callers of a control service are trusted without having proved anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Forward {
    /// None.
    #[default]
    None,
    /// Those of its TCP address.
    Tcp,
    /// Those of the mesh as well.
    All,
}

impl std::str::FromStr for Forward {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.to_ascii_lowercase().as_str() {
            "none" => Ok(Self::None),
            "tcp" => Ok(Self::Tcp),
            "all" => Ok(Self::All),
            _ => Err("it is none, tcp or all"),
        }
    }
}

/// The directive `control-service`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlService {
    /// The service's name in the mesh.
    pub service: ServiceName,
    /// A Unix socket to listen on.
    pub filename: Option<PathBuf>,
    /// Mode of that socket, as in `0o600`.
    pub permissions: u32,
    /// Name of a `tls-server`, for the mesh.
    pub tls: Option<String>,
    /// A TCP address to listen on.
    pub tcp_listen: Option<HostPort>,
    /// Name of a `tls-server`, for that address.
    pub tcp_tls: Option<String>,
    /// Whose requests may go beyond this node although nothing says who they are.
    pub forward: Forward,
}

/// The directive `command-service`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandService {
    /// The service's name.
    pub service: ServiceName,
    /// What to run, as one line.
    pub command: String,
    /// Name of a `tls-server`.
    pub tls: Option<String>,
}

/// The node that a proxy forwards to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RemoteNode {
    /// This node, written `localhost`.
    Local,
    /// The node of this name.
    Named(NodeId),
}

/// A service that a proxy forwards to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remote {
    /// The node.
    pub node: RemoteNode,
    /// The service.
    pub service: ServiceName,
}

/// The directive `tcp-server`: from a local port into the mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TcpServer {
    /// Where to listen.
    pub bind: HostPort,
    /// Where to forward to.
    pub remote: Remote,
    /// Name of a `tls-server`, for the port.
    pub tls_server: Option<String>,
    /// Name of a `tls-client`, for the mesh.
    pub tls_client: Option<String>,
}

/// The directive `tcp-client`: from a service to a TCP address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TcpClient {
    /// The service's name.
    pub service: ServiceName,
    /// Where to forward to.
    pub address: HostPort,
    /// Name of a `tls-server`, for the mesh.
    pub tls_server: Option<String>,
    /// Name of a `tls-client`, for the address.
    pub tls_client: Option<String>,
}

/// The directive `udp-server`: from a local port into the mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UdpServer {
    /// Where to listen.
    pub bind: HostPort,
    /// Where to forward to.
    pub remote: Remote,
}

/// The directive `udp-client`: from a service to a UDP address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UdpClient {
    /// The service's name.
    pub service: ServiceName,
    /// Where to forward to.
    pub address: HostPort,
}

/// The directive `unix-socket-server`: from a Unix socket into the mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnixSocketServer {
    /// The socket to listen on; replaced if it exists.
    pub filename: PathBuf,
    /// Its mode, as in `0o600`.
    pub permissions: u32,
    /// Where to forward to.
    pub remote: Remote,
    /// Name of a `tls-client`.
    pub tls: Option<String>,
}

/// The directive `unix-socket-client`: from a service to a Unix socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnixSocketClient {
    /// The service's name.
    pub service: ServiceName,
    /// The socket to connect to.
    pub filename: PathBuf,
    /// Name of a `tls-server`.
    pub tls: Option<String>,
}

/// The directive `ip-router`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IpRouter {
    /// The network's name, and its service's.
    pub network: ServiceName,
    /// Name of the tun interface.
    pub interface: Option<String>,
    /// The local network, of 4 addresses.
    pub local_net: Ipv4Net,
    /// Networks to advertise.
    pub routes: Vec<IpNet>,
}

pub(super) fn control_service(fields: &mut Fields<'_>) -> Option<ControlService> {
    let service = fields.own_service("service");
    let permissions = permissions(fields);
    let tcp_listen = fields.parse("tcplisten", HostPort::to_listen);
    if fields.text("tcptls").is_some() && fields.text("tcplisten").is_none() {
        fields.conflict("`tcptls` is given without `tcplisten`, so there is nothing to protect");
    }
    let forward = fields.parse("forward", str::parse::<Forward>);
    Some(ControlService {
        service: service?,
        filename: fields.path("filename"),
        permissions: permissions?,
        tls: fields.string("tls"),
        tcp_listen: tcp_listen?,
        tcp_tls: fields.string("tcptls"),
        forward: forward?.unwrap_or_default(),
    })
}

pub(super) fn command_service(fields: &mut Fields<'_>) -> Option<CommandService> {
    let service = fields.own_service("service");
    let command = fields.must("command");
    Some(CommandService { service: service?, command: command?, tls: fields.string("tls") })
}

pub(super) fn tcp_server(fields: &mut Fields<'_>) -> Option<TcpServer> {
    let bind = bind(fields);
    let remote = remote(fields);
    let (tls_server, tls_client) = (fields.string("tlsserver"), fields.string("tlsclient"));
    Some(TcpServer { bind: bind?, remote: remote?, tls_server, tls_client })
}

pub(super) fn tcp_client(fields: &mut Fields<'_>) -> Option<TcpClient> {
    let service = fields.own_service("service");
    let address = fields.must_parse("address", HostPort::to_dial);
    let (tls_server, tls_client) = (fields.string("tlsserver"), fields.string("tlsclient"));
    Some(TcpClient { service: service?, address: address?, tls_server, tls_client })
}

pub(super) fn udp_server(fields: &mut Fields<'_>) -> Option<UdpServer> {
    let bind = bind(fields);
    let remote = remote(fields);
    Some(UdpServer { bind: bind?, remote: remote? })
}

pub(super) fn udp_client(fields: &mut Fields<'_>) -> Option<UdpClient> {
    let service = fields.own_service("service");
    let address = fields.must_parse("address", HostPort::to_dial);
    Some(UdpClient { service: service?, address: address? })
}

pub(super) fn unix_socket_server(fields: &mut Fields<'_>) -> Option<UnixSocketServer> {
    let filename = fields.must_path("filename");
    let permissions = permissions(fields);
    let remote = remote(fields);
    let tls = fields.string("tls");
    Some(UnixSocketServer { filename: filename?, permissions: permissions?, remote: remote?, tls })
}

pub(super) fn unix_socket_client(fields: &mut Fields<'_>) -> Option<UnixSocketClient> {
    let service = fields.own_service("service");
    let filename = fields.must_path("filename");
    Some(UnixSocketClient { service: service?, filename: filename?, tls: fields.string("tls") })
}

pub(super) fn ip_router(fields: &mut Fields<'_>) -> Option<IpRouter> {
    let name = fields.own_service("networkname");
    let interface = fields.parse("interface", interface_name);
    let local_net = fields.must_parse("localnet", local_net);
    let routes = fields.parse("routes", |text| {
        let networks = text.split(',').map(str::trim).filter(|network| !network.is_empty());
        networks.map(network).collect::<Result<Vec<_>, _>>()
    });
    Some(IpRouter {
        network: name?,
        interface: interface?,
        local_net: local_net?,
        routes: routes?.unwrap_or_default(),
    })
}

fn remote(fields: &mut Fields<'_>) -> Option<Remote> {
    let node = fields.must_parse("remotenode", |text| match text {
        local if local.eq_ignore_ascii_case("localhost") => Ok(RemoteNode::Local),
        name => NodeId::new(name).map(RemoteNode::Named),
    });
    let service = fields.remote_service("remoteservice");
    Some(Remote { node: node?, service: service? })
}

fn permissions(fields: &mut Fields<'_>) -> Option<u32> {
    fields.number("permissions", 0, 0o777, "a file mode is 0 to 0777, such as 0600")?
}

/// The kernel takes 15 bytes.
fn interface_name(text: &str) -> Result<String, &'static str> {
    let fits = text.len() <= 15 && !text.contains(|c: char| c == '/' || c.is_whitespace() || c.is_control());
    if fits {
        Ok(text.to_owned())
    } else {
        Err("an interface name has at most 15 letters, no slash and no blank")
    }
}

fn local_net(text: &str) -> Result<Ipv4Net, &'static str> {
    match network(text)? {
        IpNet::V4(network) if network.prefix_len() == 30 => Ok(network),
        IpNet::V4(_) | IpNet::V6(_) => Err("an IPv4 network with /30 is needed"),
    }
}
