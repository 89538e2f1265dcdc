//! The kernel's routes through one interface, all of which are this program's.
//!
//! Owns the installed routes and makes them match the wanted ones, and reads the networks of the other interfaces. It
//! adds and removes only its own routes; a route that somebody else has for the same network stays and is reported
//! once. It does not know why a route is wanted.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

use futures_util::TryStreamExt;
use ipnet::IpNet;
use rtnetlink::packet_route::address::AddressAttribute;
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteScope, RouteType};
use rtnetlink::{Handle, RouteMessageBuilder, new_connection};
use tokio::task::JoinHandle;
use tracing::{debug, info, warn};

/// The routes cannot be changed.
#[derive(Debug, thiserror::Error)]
#[error("failed to open a netlink socket for routes: {0}")]
pub(crate) struct KernelError(#[from] io::Error);

/// The routes of one interface.
#[derive(Debug)]
pub(super) struct Kernel {
    index: u32,
    handle: Handle,
    connection: JoinHandle<()>,
    installed: BTreeSet<IpNet>,
    /// Networks for which the kernel refused a route, each reported once.
    refused: BTreeSet<IpNet>,
}

impl Kernel {
    /// Manages routes through the interface with that index; there are none yet.
    ///
    /// # Errors
    /// If no netlink socket can be opened.
    pub(super) fn new(index: u32) -> Result<Self, KernelError> {
        let (connection, handle, _) = new_connection()?;
        let connection = tokio::spawn(connection);
        Ok(Self { index, handle, connection, installed: BTreeSet::new(), refused: BTreeSet::new() })
    }

    /// The networks of the addresses and routes of all other interfaces, and the addresses themselves.
    pub(super) async fn networks(&self) -> io::Result<BTreeSet<IpNet>> {
        let mut messages = self.handle.address().get().execute();
        let mut networks = BTreeSet::new();
        while let Some(message) = messages.try_next().await.map_err(system_error)? {
            for attribute in message.attributes.iter().filter(|_| message.header.index != self.index) {
                match attribute {
                    // On a point-to-point interface this is the other end's address.
                    AddressAttribute::Address(address) => {
                        networks
                            .extend(IpNet::new(*address, message.header.prefix_len).map(|net| net.trunc()));
                    }
                    AddressAttribute::Local(address) => {
                        networks.insert(IpNet::from(*address));
                    }
                    // No other attribute is an address of this machine or its peers.
                    _ => {}
                }
            }
        }
        let mut messages = self.handle.route().get(RouteMessage::default()).execute();
        while let Some(message) = messages.try_next().await.map_err(system_error)? {
            networks.extend(
                network(&message).filter(|_| !message.attributes.contains(&RouteAttribute::Oif(self.index))),
            );
        }
        Ok(networks)
    }

    /// Installs a route for each of `wanted` and removes all others. Routes that were lost are installed again.
    pub(super) async fn follow(&mut self, wanted: &BTreeSet<IpNet>) {
        let gone: Vec<IpNet> = self.installed.difference(wanted).copied().collect();
        for &net in &gone {
            self.remove(net).await;
        }
        self.refused.retain(|net| wanted.contains(net));
        let (mut added, mut refused) = (0, None);
        for &net in wanted {
            match self.add(net).await {
                Ok(is_new) => added += usize::from(is_new),
                Err(error) => refused = refused.or(Some((net, error))),
            }
        }
        if added + gone.len() > 0 {
            info!(
                added,
                removed = gone.len(),
                routes = self.installed.len(),
                "updated the routes to follow the mesh"
            );
        }
        if let Some((net, error)) = refused {
            warn!(%net, %error, routes = self.refused.len(), "the kernel refused a route: packets go where they went before");
        }
    }

    /// Removes all routes.
    pub(super) async fn clear(&mut self) {
        self.follow(&BTreeSet::new()).await;
    }

    /// Adds a route, also to find out whether it is still there; true if it was not. Returns an error only once for
    /// each network.
    async fn add(&mut self, net: IpNet) -> io::Result<bool> {
        match self.handle.route().add(self.message(net)).execute().await.map_err(system_error) {
            Ok(()) => {
                self.refused.remove(&net);
                self.installed.insert(net);
                debug!(%net, "route added");
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && self.installed.contains(&net) => {
                Ok(false)
            }
            Err(error) => {
                self.installed.remove(&net);
                if self.refused.insert(net) { Err(error) } else { Ok(false) }
            }
        }
    }

    async fn remove(&mut self, net: IpNet) {
        self.installed.remove(&net);
        let removed = self.handle.route().del(self.message(net)).execute().await.map_err(system_error);
        // A route that cannot be removed has gone with its interface.
        debug!(%net, ?removed, "route removed");
    }

    fn message(&self, net: IpNet) -> RouteMessage {
        let route = RouteMessageBuilder::<IpAddr>::new().output_interface(self.index);
        let route = match net {
            // IPv4 needs this scope for a route without a gateway.
            IpNet::V4(_) => route.scope(RouteScope::Link),
            IpNet::V6(_) => route,
        };
        match route.destination_prefix(net.addr(), net.prefix_len()) {
            Ok(route) => route.build(),
            Err(error) => unreachable!("a network's prefix fits its address: {error}"),
        }
    }
}

/// The network that a unicast route leads to; `None` for other kinds and for a default route.
fn network(route: &RouteMessage) -> Option<IpNet> {
    let destination = route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Destination(RouteAddress::Inet(address)) => Some(IpAddr::from(*address)),
        RouteAttribute::Destination(RouteAddress::Inet6(address)) => Some(IpAddr::from(*address)),
        // No other attribute is the destination.
        _ => None,
    });
    let length = route.header.destination_prefix_length;
    IpNet::new(destination.filter(|_| route.header.kind == RouteType::Unicast)?, length).ok()
}

impl Drop for Kernel {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

fn system_error(error: rtnetlink::Error) -> io::Error {
    match error {
        rtnetlink::Error::NetlinkError(message) => message.to_io(),
        other => io::Error::other(other.to_string()),
    }
}
