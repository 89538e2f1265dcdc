//! Services of a node other than work: the control service, proxies, the command service, the IP router.
//!
//! Owns their declarations. It refuses to know streams and sockets, and whether a name is taken, which is checked
//! across all directives.

use std::path::PathBuf;

use ipnet::{IpNet, Ipv4Net};

use super::super::address::{HostPort, network};
use super::super::components::{ControlListener, ListenerTrust, SoleResource};
use super::super::declare::{DirectiveReader, directive, settings};
use super::super::parameters::{
    Address, ListenAddress, Mode, OwnService, SocketFile, TcpBind, TlsClientName, TlsServerName, UdpBind,
    choice, grammar, parsed,
};
use super::super::value::Located;
use crate::service::IpRouterOptions;
use crate::wire::{NodeId, ServiceName, is_localhost};

directive! {
    /// Answers meshctl and receptorctl
    "control-service" in Services;
    struct ControlService {
        /// service name to listen on
        service: OwnService = "control",
        /// Unix socket to listen on
        filename: Option<SocketFile>,
        /// mode of the socket file
        permissions: Mode = "0600",
        /// tls-server profile of the service
        tls: Option<TlsServerName>,
        /// TCP port or host:port to listen on
        tcp_listen "tcplisten": Option<ListenAddress>,
        /// tls-server profile of the TCP port
        tcp_tls "tcptls": Option<TlsServerName>,
        /// trust any caller of: none, tcp or all
        forward: Forward [empty_is_default] = "none",
    }
    check unused_profile(tcp_tls, tcp_listen);
    warn open_port(tcp_listen, tcp_tls);
}

fn open_port<A, B>(listen: &Option<A>, tcp_tls: &Option<B>) -> Option<&'static str> {
    (listen.is_some() && tcp_tls.is_none()).then_some(
        "the port of tcplisten has no TLS: anybody who reaches it is a client, and on a loopback address every user \
         of this machine may do everything with it; use the socket of `filename`, or set `tcptls`",
    )
}

fn unused_profile<A, B>(tls: &Option<A>, listen: &Option<B>) -> Option<&'static str> {
    (tls.is_some() && listen.is_none())
        .then_some("`tcptls` is given without `tcplisten`, so there is nothing to protect")
}

impl ControlService {
    /// The places where it listens.
    pub(super) fn listeners(&self) -> Vec<ControlListener> {
        let trust = |from| if self.forward >= from { ListenerTrust::Everyone } else { ListenerTrust::Proof };
        let unix = self.filename.iter().map(|path| ControlListener::Unix(path.clone(), self.permissions));
        let tcp = |address: &HostPort| {
            ControlListener::Tcp(address.clone(), self.tcp_tls.clone(), trust(Forward::Tcp))
        };
        let mesh = ControlListener::Mesh(self.service, self.tls.clone(), trust(Forward::All));
        unix.chain(self.tcp_listen.iter().map(tcp)).chain([mesh]).collect()
    }
}

/// Which callers of a control service are trusted without proof of who they are. Requests of trusted callers may go
/// beyond this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Forward {
    /// No callers.
    None,
    /// Callers at its TCP address.
    Tcp,
    /// Callers at its TCP address and on the mesh.
    All,
}

grammar! {
    impl Forward => Forward = Text choice(
        &[("none", Forward::None), ("tcp", Forward::Tcp), ("all", Forward::All)], "it must be none, tcp or all",
    );
}

directive! {
    /// Offers a command on a terminal
    "command-service" in Services;
    struct CommandServiceDirective {
        /// service name to listen on
        service: OwnService [required],
        /// command to run for each connection
        command: String [required],
        /// tls-server profile
        tls: Option<TlsServerName>,
    }
}

/// A service that a proxy forwards to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remote {
    /// The node.
    pub node: RemoteNode,
    /// The service.
    pub service: ServiceName,
}

/// The node that a proxy forwards to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RemoteNode {
    /// This node, written `localhost`.
    Local,
    /// The node of this name.
    Named(NodeId),
}

settings! {
    Remote => Remote {
        /// node to forward to
        node "remotenode": RemoteNode [required],
        /// service to forward to
        service "remoteservice": ServiceName [required],
    }
}

directive! {
    /// Forwards a local TCP port into the mesh
    "tcp-server" in Services;
    struct TcpServerDirective {
        /// TCP port to listen on
        bind "port": TcpBind [required],
        /// where to forward to
        remote: Remote,
        /// tls-server profile of the port
        tls_server "tlsserver": Option<TlsServerName>,
        /// tls-client profile towards the service
        tls_client "tlsclient": Option<TlsClientName>,
    }
}

directive! {
    /// Forwards a service to a TCP address
    "tcp-client" in Services;
    struct TcpClientDirective {
        /// service name to listen on
        service: OwnService [required],
        /// host:port to connect to
        address: Address [required],
        /// tls-server profile of the service
        tls_server "tlsserver": Option<TlsServerName>,
        /// tls-client profile towards the address
        tls_client "tlsclient": Option<TlsClientName>,
    }
}

directive! {
    /// Forwards a local UDP port into the mesh
    "udp-server" in Services;
    struct UdpServerDirective {
        /// UDP port to listen on
        bind "port": UdpBind [required],
        /// where to forward to
        remote: Remote,
    }
}

directive! {
    /// Forwards a service to a UDP address
    "udp-client" in Services;
    struct UdpClientDirective {
        /// service name to listen on
        service: OwnService [required],
        /// host:port to send to
        address: Address [required],
    }
}

directive! {
    /// Forwards a Unix socket into the mesh
    "unix-socket-server" in Services;
    struct UnixSocketServerDirective {
        /// Unix socket to listen on; replaced if it exists
        filename: SocketFile [required],
        /// mode of the socket file
        permissions: Mode = "0600",
        /// where to forward to
        remote: Remote,
        /// tls-client profile towards the service
        tls: Option<TlsClientName>,
    }
}

directive! {
    /// Forwards a service to a Unix socket
    "unix-socket-client" in Services;
    struct UnixSocketClientDirective {
        /// service name to listen on
        service: OwnService [required],
        /// Unix socket to connect to
        filename: PathBuf [required],
        /// tls-server profile
        tls: Option<TlsServerName>,
    }
}

directive! {
    /// Carries IP packets over the mesh
    "ip-router" in Services;
    IpRouter => IpRouterOptions {
        /// name of the network and of its service
        network "networkname": OwnService [required],
        /// name of the tun interface
        interface: Option<InterfaceName>,
        /// local /30 network, as in 10.0.0.0/30
        local_net "localnet": LocalNet [required],
        /// networks to advertise, separated by commas
        routes: NetworkList,
        /// networks of others to follow; private ones if not given
        accept: Vec<IpNet>,
        /// nodes whose networks to follow; all if not given
        from_nodes "fromnodes": Vec<NodeId>,
    }
}

grammar! {
    impl RemoteNode => RemoteNode = Text parsed(|text| if is_localhost(text) {
        Ok(RemoteNode::Local)
    } else {
        NodeId::new(text).map(RemoteNode::Named)
    });
}

grammar! {
    impl IpNet => IpNet = Text parsed(network);
}

grammar! {
    /// The name of a network interface; the kernel takes 15 bytes.
    struct InterfaceName => String = Text parsed(interface_name),
        describe |name, facts| facts.claims.push(SoleResource::Interface(name.clone()));
    /// A local network of 4 addresses.
    struct LocalNet => Ipv4Net = Text parsed(local_net);
    /// Networks, separated by commas.
    struct NetworkList => Vec<IpNet> = Text routes, empty_is_absent true;
}

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

fn routes(given: Option<&Located>, reader: &mut DirectiveReader<'_>) -> Option<Vec<IpNet>> {
    reader.parse(given.map_or("", Located::name), |text| {
        let networks = text.split(',').map(str::trim).filter(|network| !network.is_empty());
        networks.map(network).collect::<Result<Vec<_>, _>>()
    })
}
