//! The networks that other nodes advertise, and which of them an address is in.
//!
//! A pure function of what the node knows of its mesh. The narrowest network counts, of several nodes that lead
//! to it the nearest, of equally near ones the first by name. It has never heard of devices and kernels.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use crate::mesh::Status;
use crate::wire::{NameHash, NodeId};

/// The tag `type` of a router's service.
pub(super) const TYPE: &str = "IP Router";
/// How the names of the tags begin that hold a network.
const ROUTE: &str = "route";
/// Most networks that are followed: others choose how many they advertise, and each is a route in the kernel.
pub(super) const MOST: usize = 4096;

/// All networks in reach.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// Narrow networks first.
    routes: Vec<(IpNet, NameHash)>,
    /// A network that was left out because there are too many, and the node that offers it.
    pub(super) left_out: Option<(IpNet, NodeId)>,
}

impl Table {
    /// The networks that other nodes in reach offer under that name, without those that this node offers itself.
    pub(super) fn of(status: &Status, own: &NodeId, network: &str, own_nets: &BTreeSet<IpNet>) -> Self {
        let costs = status.path_costs(own);
        let mut left_out = None;
        let mut best: BTreeMap<IpNet, (f64, &NodeId)> = BTreeMap::new();
        for (node, net) in offered(status, network) {
            let Some(&cost) = costs.get(node).filter(|_| status.routing_table.contains_key(node)) else {
                continue;
            };
            if own_nets.contains(&net) {
                continue;
            }
            if best.len() >= MOST && !best.contains_key(&net) {
                left_out = Some((net, node.clone()));
                break;
            }
            let nearest = best.entry(net).or_insert((cost, node));
            if (cost, node) < *nearest {
                *nearest = (cost, node);
            }
        }
        let mut routes: Vec<_> = best.into_iter().map(|(net, (_, node))| (net, node.hash())).collect();
        routes.sort_by_key(|(net, _)| (Reverse(net.prefix_len()), *net));
        Self { routes, left_out }
    }

    pub(super) fn networks(&self) -> BTreeSet<IpNet> {
        self.routes.iter().map(|(net, _)| *net).collect()
    }

    /// The node that leads to an address.
    pub(super) fn node_for(&self, address: IpAddr) -> Option<NameHash> {
        self.routes.iter().find(|(net, _)| net.contains(&address)).map(|(_, node)| *node)
    }
}

fn offered<'a>(status: &'a Status, network: &'a str) -> impl Iterator<Item = (&'a NodeId, IpNet)> {
    let of_network = move |tags: &&BTreeMap<String, String>| {
        let is = |name: &str, value: &str| tags.get(name).is_some_and(|tag| tag == value);
        is("type", TYPE) && is("network", network)
    };
    status.advertisements.iter().flat_map(move |ad| {
        let tags = ad.tags.as_ref().filter(of_network).into_iter().flatten();
        let nets = tags.filter(|(name, _)| name.starts_with(ROUTE)).filter_map(|(_, net)| net.parse().ok());
        nets.map(|net: IpNet| (&ad.node_id, net.trunc()))
    })
}

/// The destination of an IP packet; `None` for anything else.
pub(super) fn destination(packet: &[u8]) -> Option<IpAddr> {
    match packet.first()? >> 4 {
        4 => {
            let bytes: [u8; 4] = packet.get(16..20)?.try_into().ok()?;
            Some(Ipv4Addr::from(bytes).into())
        }
        6 => {
            let bytes: [u8; 16] = packet.get(24..40)?.try_into().ok()?;
            Some(Ipv6Addr::from(bytes).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::wire::{Advertisement, ConnType, Cost, ServiceName};

    fn node(name: &str) -> NodeId {
        NodeId::new(name).unwrap()
    }

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn ad(from: &str, tags: &[(&str, &str)]) -> Advertisement {
        Advertisement {
            node_id: node(from),
            service: ServiceName::new("net").unwrap(),
            time: jiff::Timestamp::UNIX_EPOCH,
            conn_type: ConnType::DATAGRAM,
            tags: Some(tags.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()),
            work_commands: None,
        }
    }

    /// A mesh around `me` with neighbours at these costs; `gone` is known and out of reach.
    fn status(neighbours: &[(&str, f64)], advertisements: Vec<Advertisement>) -> Status {
        let mut links: BTreeMap<NodeId, BTreeMap<NodeId, Cost>> = BTreeMap::new();
        for (name, cost) in neighbours {
            let cost = Cost::new(*cost).unwrap();
            links.entry(node("me")).or_default().insert(node(name), cost);
            links.entry(node(name)).or_default().insert(node("me"), cost);
        }
        let hops = neighbours.iter().map(|(name, _)| (node(name), node(name)));
        let links = links.into_iter().map(|(from, to)| (from, Arc::new(to)));
        Status {
            routing_table: Arc::new(hops.collect()),
            advertisements: advertisements.into_iter().map(Arc::new).collect(),
            known_connection_costs: Arc::new(links.collect()),
            ..Status::default()
        }
    }

    const ROUTER: (&str, &str) = ("type", "IP Router");

    fn table(status: &Status) -> Table {
        Table::of(status, &node("me"), "net", &BTreeSet::from([net("10.0.0.0/30")]))
    }

    #[test]
    fn the_narrowest_network_and_the_nearest_node_count() {
        let status = status(
            &[("a", 2.0), ("b", 1.0), ("c", 1.0)],
            vec![
                ad(
                    "a",
                    &[ROUTER, ("network", "net"), ("route_local", "10.1.0.1/16"), ("route_0", "fd00:1::/64")],
                ),
                ad(
                    "b",
                    &[ROUTER, ("network", "net"), ("route_0", "10.1.2.0/24"), ("route_1", "fd00:1::/64")],
                ),
                ad("c", &[ROUTER, ("network", "net"), ("route_x", "10.1.2.0/24"), ("route_y", "nonsense")]),
            ],
        );
        let table = table(&status);
        let at = |address: &str| table.node_for(address.parse().unwrap());
        assert_eq!(at("10.1.9.9"), Some(node("a").hash()));
        assert_eq!(at("10.1.2.9"), Some(node("b").hash()), "of two at the same cost the first by name");
        assert_eq!(at("fd00:1::7"), Some(node("b").hash()), "the nearer");
        assert_eq!(at("10.2.0.1"), None);
        assert_eq!(table.networks(), BTreeSet::from(["10.1.0.0/16", "10.1.2.0/24", "fd00:1::/64"].map(net)));
    }

    #[test]
    fn other_services_networks_and_lost_nodes_do_not_count_nor_do_own_networks() {
        let other = [("type", "UDP Proxy"), ("network", "net"), ("route_0", "10.1.0.0/16")];
        let elsewhere = [ROUTER, ("network", "other"), ("route_0", "10.2.0.0/16")];
        let lost = [ROUTER, ("network", "net"), ("route_0", "10.3.0.0/16")];
        let ours = [ROUTER, ("network", "net"), ("route_0", "10.0.0.0/30"), ("via", "10.4.0.0/16")];
        let ads =
            vec![ad("a", &other), ad("a", &elsewhere), ad("gone", &lost), ad("a", &ours), ad("me", &lost)];
        assert!(!ads.is_empty() && table(&status(&[("a", 1.0)], ads)).networks().is_empty());
    }

    #[test]
    fn there_is_a_bound() {
        let tags: Vec<(String, String)> = (0..MOST + 9)
            .map(|i| (format!("route_{i}"), format!("10.{}.{}.0/24", i / 256, i % 256)))
            .collect();
        let mut tags: Vec<_> = tags.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        tags.extend([ROUTER, ("network", "net")]);
        let table = table(&status(&[("a", 1.0)], vec![ad("a", &tags)]));
        assert_eq!(table.networks().len(), MOST);
        assert_eq!(table.left_out.unwrap().1, node("a"));
    }

    #[test]
    fn what_is_no_packet_goes_nowhere() {
        let mut four = [0; 20];
        (four[0], four[16]) = (0x45, 10);
        assert_eq!(destination(&four), Some("10.0.0.0".parse().unwrap()));
        let mut six = [0; 40];
        (six[0], six[24]) = (0x60, 0xfd);
        assert_eq!(destination(&six), Some("fd00::".parse().unwrap()));
        for bad in [&[][..], &four[..19], &six[..39], &[0x50; 60]] {
            assert_eq!(destination(bad), None);
        }
    }
}
