//! The kernel's routes through one interface: those of the mesh, and no others.
//!
//! Owns the difference between the routes that were installed and those that are wanted. It adds and removes its own
//! routes only; one that somebody else has for the same network stands and is reported once. What networks are, it does
//! not know.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

use ipnet::IpNet;
use rtnetlink::packet_route::route::{RouteMessage, RouteScope};
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
    /// Networks that the kernel did not take a route for, each reported once.
    refused: BTreeSet<IpNet>,
}

impl Kernel {
    /// Routes through the interface of that index; none yet.
    ///
    /// # Errors
    /// Without a netlink socket.
    pub(super) fn new(index: u32) -> Result<Self, KernelError> {
        let (connection, handle, _) = new_connection()?;
        let connection = tokio::spawn(connection);
        Ok(Self { index, handle, connection, installed: BTreeSet::new(), refused: BTreeSet::new() })
    }

    /// Makes the kernel have a route for each of `wanted` and for nothing else. Routes that got lost come back.
    pub(super) async fn follow(&mut self, wanted: &BTreeSet<IpNet>) {
        let gone: Vec<IpNet> = self.installed.difference(wanted).copied().collect();
        for net in gone {
            self.remove(net).await;
        }
        self.refused.retain(|net| wanted.contains(net));
        for &net in wanted {
            self.add(net).await;
        }
    }

    /// Removes all routes.
    pub(super) async fn clear(&mut self) {
        self.follow(&BTreeSet::new()).await;
    }

    /// Adding a route that is there is how it is found out whether it is.
    async fn add(&mut self, net: IpNet) {
        let added = self.handle.route().add(self.message(net)).execute().await.map_err(system_error);
        match added {
            Ok(()) => {
                self.refused.remove(&net);
                let lost = !self.installed.insert(net);
                info!(%net, lost, "route added");
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && self.installed.contains(&net) => {}
            Err(error) => {
                self.installed.remove(&net);
                if self.refused.insert(net) {
                    warn!(%net, %error, "no route: the kernel does not take it, packets go where they went before");
                }
            }
        }
    }

    async fn remove(&mut self, net: IpNet) {
        self.installed.remove(&net);
        match self.handle.route().del(self.message(net)).execute().await.map_err(system_error) {
            Ok(()) => info!(%net, "route removed"),
            // It went with its interface.
            Err(error) => debug!(%net, %error, "route not removed"),
        }
    }

    fn message(&self, net: IpNet) -> RouteMessage {
        let route = RouteMessageBuilder::<IpAddr>::new().output_interface(self.index);
        let route = match net {
            // A route without gateway.
            IpNet::V4(_) => route.scope(RouteScope::Link),
            IpNet::V6(_) => route,
        };
        match route.destination_prefix(net.addr(), net.prefix_len()) {
            Ok(route) => route.build(),
            Err(error) => unreachable!("a network's prefix fits its address: {error}"),
        }
    }
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
