//! The IP router: a tun device whose packets travel over the mesh, to the node that offers their network.
//!
//! Each node advertises its networks in the tags of its service, as receptor nodes do, and gives the kernel a route for
//! each accepted network of another node. Owns both directions of packets and the life of the device: `table` decides
//! which networks are accepted and which node gets a packet, `kernel` owns the kernel's routes, `underlay` knows the
//! addresses of the mesh's links. A packet is dropped if the link is full, nobody offers its network, the node that
//! sent it does not lead to its source, or this node does not lead to its destination. Refuses to know what packets
//! carry.

mod kernel;
mod table;
mod underlay;

use std::collections::BTreeMap;
use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

use arc_swap::ArcSwap;
use ipnet::{IpNet, Ipv4Net};
use tokio::task::coop::consume_budget;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};
use tun_rs::{AsyncDevice, DeviceBuilder};

use crate::mesh::LocalService;
use crate::node::{BindError, NodeHandle, OverlaySocket};
use crate::wire::{ConnType, MAX_PAYLOAD, NodeId, ServiceName};

use kernel::{Kernel, KernelError};
use table::{Acceptance, NetworkTable, ends};
use underlay::Underlay;

/// The pause between news and the update of routes, so that a burst of news is one update.
const SETTLE: Duration = Duration::from_millis(100);
/// The shortest time between two updates of routes, because other nodes decide how often there is news.
const PACE: Duration = Duration::from_secs(1);
/// The longest time between two updates, because taking the interface down removes the kernel's routes without any
/// news.
const PATROL: Duration = Duration::from_secs(10);
/// The pause between attempts to make a device again that was taken away.
const AGAIN: Duration = Duration::from_secs(2);

/// How a router is set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IpRouterOptions {
    /// The name of the network and of its service.
    pub network: ServiceName,
    /// Name of the interface; the kernel chooses if there is none.
    pub interface: Option<String>,
    /// A /30: its first host is this node, its second the rest of the mesh.
    pub local_net: Ipv4Net,
    /// Networks that this node leads to.
    pub routes: Vec<IpNet>,
    /// Networks that other nodes may lead to; if empty, the private ones.
    pub accept: Vec<IpNet>,
    /// Nodes that may offer networks; if empty, all.
    pub from_nodes: Vec<NodeId>,
}

impl IpRouterOptions {
    /// The networks that this node leads to.
    fn own(&self) -> impl Iterator<Item = IpNet> {
        self.routes.iter().copied().chain([IpNet::V4(self.local_net)])
    }
}

/// Why a router cannot be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IpRouterError {
    /// The service is not free.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The local network has no two hosts.
    #[error("the local network {0} is not a /30")]
    LocalNet(Ipv4Net),
    /// The device cannot be made: usually rights are missing, or an interface has that name.
    #[error("failed to make the tun device {name} (that needs /dev/net/tun and CAP_NET_ADMIN): {source}")]
    Device {
        /// The name that was asked for.
        name: String,
        /// The system's error.
        source: io::Error,
    },
    /// Routes cannot be changed.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

/// A running router.
#[derive(Debug)]
pub(crate) struct IpRouter {
    options: IpRouterOptions,
    node: NodeHandle,
    overlay: OverlaySocket,
    tunnel: TunDevice,
}

/// A device and its routes in the kernel. The kernel removes both with the device's last handle.
struct TunDevice {
    device: AsyncDevice,
    kernel: Kernel,
}

impl std::fmt::Debug for TunDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tunnel").field("kernel", &self.kernel).finish_non_exhaustive()
    }
}

impl IpRouter {
    /// Makes the device, opens the service and advertises it.
    ///
    /// # Errors
    /// [`IpRouterError`]; then no device, service or route is left.
    pub(crate) async fn open(node: &NodeHandle, options: IpRouterOptions) -> Result<Self, IpRouterError> {
        let overlay = node.bind(options.network).await?;
        let tunnel = TunDevice::open(&options)?;
        node.advertise(options.network, LocalService { conn_type: ConnType::DATAGRAM, tags: tags(&options) });
        Ok(Self { options, node: node.clone(), overlay, tunnel })
    }

    /// Carries packets until `stop`. The service, the interface and the routes are gone once this returns.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        while let Some(error) = stop.run_until_cancelled(self.carry()).await {
            warn!(network = %self.options.network, %error, "lost the tun device, making it again");
            if stop.run_until_cancelled(self.reopen()).await.is_none() {
                break;
            }
        }
        self.tunnel.kernel.clear().await;
    }

    /// Carries packets both ways until the device fails.
    async fn carry(&mut self) -> io::Error {
        let table = ArcSwap::from_pointee(NetworkTable::default());
        let TunDevice { device, kernel } = &mut self.tunnel;
        tokio::select! {
            error = into_mesh(device, &self.overlay, &table) => error,
            error = out_of_mesh(device, &self.overlay, &self.options, &table) => error,
            () = follow(&self.node, &self.options, kernel, &table) => io::ErrorKind::BrokenPipe.into(),
        }
    }

    async fn reopen(&mut self) {
        let mut complained = false;
        loop {
            sleep(AGAIN).await;
            match TunDevice::open(&self.options) {
                Ok(tunnel) => {
                    self.tunnel = tunnel;
                    return;
                }
                Err(error) if !complained => {
                    warn!(network = %self.options.network, %error, "cannot make the tun device again, trying again");
                    complained = true;
                }
                Err(_) => {}
            }
        }
    }
}

impl TunDevice {
    fn open(options: &IpRouterOptions) -> Result<Self, IpRouterError> {
        let failed = |source| {
            let name = options.interface.clone().unwrap_or_else(|| "(of any name)".to_owned());
            IpRouterError::Device { name, source }
        };
        let (own, others) = hosts(options.local_net)?;
        let builder = DeviceBuilder::new().ipv4(own, 32, Some(others));
        let builder = match &options.interface {
            Some(name) => builder.name(name),
            None => builder,
        };
        let device = builder.build_async().map_err(failed)?;
        let index = device.if_index().map_err(failed)?;
        let kernel = Kernel::new(index)?;
        let interface = device.name().map_err(failed)?;
        info!(network = %options.network, interface, address = %own, "IP router open");
        Ok(Self { device, kernel })
    }
}

/// This node's address on the interface, and the address that stands for the rest of the mesh.
fn hosts(net: Ipv4Net) -> Result<(Ipv4Addr, Ipv4Addr), IpRouterError> {
    let mut hosts = net.hosts();
    match (net.prefix_len(), hosts.next(), hosts.next()) {
        (30, Some(own), Some(others)) => Ok((own, others)),
        _ => Err(IpRouterError::LocalNet(net)),
    }
}

/// The tags of the service, as receptor nodes write them.
fn tags(options: &IpRouterOptions) -> BTreeMap<String, String> {
    let mut tags = BTreeMap::from([
        ("type".to_owned(), table::TYPE.to_owned()),
        ("network".to_owned(), options.network.to_string()),
        ("route_local".to_owned(), options.local_net.to_string()),
    ]);
    tags.extend(options.routes.iter().enumerate().map(|(i, net)| (format!("route_{i}"), net.to_string())));
    tags
}

/// Carries packets from the kernel into the mesh. Returns when the device fails.
async fn into_mesh(
    device: &AsyncDevice,
    overlay: &OverlaySocket,
    table: &ArcSwap<NetworkTable>,
) -> io::Error {
    let mut buffer = vec![0; MAX_PAYLOAD + 1];
    loop {
        let packet = match device.recv(&mut buffer).await {
            Ok(size) if size <= MAX_PAYLOAD => &buffer[..size],
            Ok(size) => {
                debug!(size, "dropped a packet too large for the mesh: the interface's MTU was raised");
                continue;
            }
            Err(error) => return error,
        };
        let Some(to) = ends(packet).and_then(|(_, to)| table.load().node_for(to)) else { continue };
        let _dropped = overlay.try_send_to(to, overlay.service(), packet);
        consume_budget().await;
    }
}

/// Carries packets from the mesh to the kernel, until the future is dropped.
async fn out_of_mesh(
    device: &AsyncDevice,
    overlay: &OverlaySocket,
    options: &IpRouterOptions,
    table: &ArcSwap<NetworkTable>,
) -> io::Error {
    loop {
        let Some(received) = overlay.receive().await else {
            // The node has stopped, and will stop this service, too.
            return std::future::pending().await;
        };
        let from = received.header.from_node;
        match ends(&received.payload) {
            None => debug!("dropped a packet that is not an IP packet"),
            Some((source, _)) if !table.load().is_source(from, source) => {
                warn!(%source, %from, "dropped a packet: the node that sent it does not lead to its source");
            }
            Some((_, to)) if !options.own().any(|net| net.contains(&to)) => {
                warn!(%to, %from, "dropped a packet: this node does not lead to its destination");
            }
            Some(_) => {
                if let Err(error) = device.send(&received.payload).await {
                    // The interface may be down. If it is gone, `into_mesh` notices.
                    debug!(%error, "dropped a packet from the mesh");
                }
            }
        }
        consume_budget().await;
    }
}

/// Keeps the table and the kernel's routes equal to the networks that the mesh advertises and this node accepts.
async fn follow(
    node: &NodeHandle,
    options: &IpRouterOptions,
    kernel: &mut Kernel,
    table: &ArcSwap<NetworkTable>,
) {
    let (mut changes, mut underlay) = (node.changes(), Underlay::default());
    let (mut told, mut is_silent) = (None, false);
    loop {
        let since = Instant::now();
        match kernel.networks().await {
            Ok(machine) => {
                let acceptance = Acceptance { options, machine, links: underlay.addresses(node).await };
                let new = NetworkTable::of(&node.status().await, node.id(), &acceptance);
                is_silent = false;
                if let Some(refused) = new.refused.as_ref().filter(|_| new.refused != told) {
                    let (net, node, count) = (refused.net, &refused.node, refused.count);
                    warn!(%net, %node, why = %refused.why, count, "not following networks that other nodes offer");
                    told = new.refused.clone();
                }
                kernel.follow(&new.networks()).await;
                table.store(new.into());
            }
            // Without the machine's networks no offer can be judged, so the routes stay as they are.
            Err(error) if !is_silent => {
                is_silent = true;
                warn!(%error, "cannot read this machine's networks from the kernel: routes do not follow the mesh");
            }
            Err(_) => {}
        }
        rest(changes.next(), since).await;
    }
}

/// Waits for news, at most [`PATROL`], and until the next update is due.
async fn rest(news: impl Future<Output = ()>, since: Instant) {
    // Without news the routes are checked, too.
    let _quiet = timeout(PATROL, news).await;
    sleep(SETTLE).await;
    sleep_until(since + PACE).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn routes_follow_at_most_once_a_second_however_often_there_are_news() {
        let begun = Instant::now();
        for _ in 0..60 {
            rest(std::future::ready(()), Instant::now()).await;
        }
        assert_eq!(begun.elapsed(), 60 * PACE);
        let alone = Instant::now();
        rest(sleep(3 * PACE), alone).await;
        assert_eq!(
            alone.elapsed(),
            3 * PACE + SETTLE,
            "a single piece of news waits for what comes with it alone"
        );
        rest(std::future::pending(), Instant::now()).await;
        assert_eq!(alone.elapsed(), 3 * PACE + PATROL + 2 * SETTLE, "without any it is looked, too");
    }
}
