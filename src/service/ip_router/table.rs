//! The networks that other nodes advertise, which of them this node follows, and which node leads to an address.
//!
//! A pure function of the state of the mesh and the machine. An address belongs to the narrowest network that contains
//! it, and to the nearest node that leads there; of equally near nodes, to the first by name. Knows nothing of devices
//! and kernels.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::IpRouterOptions;
use crate::mesh::MeshStatus;
use crate::wire::{NameHash, NodeId};

/// The tag `type` of a router's service.
pub(super) const TYPE: &str = "IP Router";
/// The prefix of the names of tags that hold a network.
const ROUTE: &str = "route";
/// Most networks that are followed. Each is a route in the kernel, and other nodes choose how many they advertise.
const MOST_NETWORKS: usize = 4096;
/// The networks that are followed if `accept` is empty: the private ones.
const PRIVATE: [IpNet; 4] =
    [v4([10, 0, 0, 0], 8), v4([172, 16, 0, 0], 12), v4([192, 168, 0, 0], 16), v6(0xfc00, 7)];
/// Networks that are never followed, nor any part of them, nor a network that contains one: this host, link-local,
/// multicast and reserved addresses.
const NEVER: [IpNet; 7] = [
    v4([0, 0, 0, 0], 8),
    v4([127, 0, 0, 0], 8),
    v4([169, 254, 0, 0], 16),
    v4([224, 0, 0, 0], 3),
    v6(0, 127),
    v6(0xfe80, 10),
    v6(0xff00, 8),
];

const fn v4([a, b, c, d]: [u8; 4], bits: u8) -> IpNet {
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), bits))
}

const fn v6(first: u16, bits: u8) -> IpNet {
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(first, 0, 0, 0, 0, 0, 0, 0), bits))
}

/// Why a network that another node offers is not followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotFollowed {
    #[error("`fromnodes` does not name the node")]
    Node,
    #[error("it is or contains a default route, or loopback, link-local or multicast addresses")]
    Never,
    #[error("it is in none of the networks of `accept`, by default the private ones")]
    NotAccepted,
    #[error("this node leads to it: name it in `accept` if another node is to lead to a part of it")]
    Own,
    #[error(
        "this machine has it, or a wider network, on an interface or as a route: name it in `accept` to route it as a part of that"
    )]
    Machine,
    #[error("the address of a link of the mesh is in it")]
    Link,
    #[error("more networks are offered than this node follows")]
    TooMany,
}

/// Decides which offered networks are followed.
pub(super) struct Acceptance<'a> {
    pub(super) options: &'a IpRouterOptions,
    /// The networks of this machine's other interfaces and routes, and its addresses.
    pub(super) machine: BTreeSet<IpNet>,
    /// The addresses that links of the mesh lead to.
    pub(super) links: BTreeSet<IpAddr>,
}

impl Acceptance<'_> {
    /// Why an offered network is not followed; `None` if it is.
    fn refusal(&self, node: &NodeId, net: &IpNet) -> Option<NotFollowed> {
        let IpRouterOptions { accept, from_nodes, .. } = self.options;
        let is_within = |nets: &[IpNet]| nets.iter().any(|whole| whole.contains(net));
        let is_for_all = |net: &IpNet| NEVER.iter().any(|part| net.contains(part));
        // `accept` names a part of the network by itself: the user gives that part away on purpose.
        let is_given = |whole: &IpNet| {
            accept.iter().any(|part| part != whole && whole.contains(part) && part.contains(net))
        };
        let is_kept = |whole: &IpNet| whole.contains(net) && !is_for_all(whole) && !is_given(whole);
        // The kernel uses the narrowest route, so a link stays reachable if the machine has a narrower route to it.
        let is_reached =
            |link: &IpAddr| self.machine.iter().any(|held| held.contains(link) && net.contains(held));
        if !from_nodes.is_empty() && !from_nodes.contains(node) {
            Some(NotFollowed::Node)
        } else if is_within(&NEVER) || is_for_all(net) {
            Some(NotFollowed::Never)
        } else if self.options.own().any(|whole| is_kept(&whole)) {
            Some(NotFollowed::Own)
        } else if !is_within(if accept.is_empty() { &PRIVATE[..] } else { accept.as_slice() }) {
            Some(NotFollowed::NotAccepted)
        } else if self.machine.iter().any(is_kept) {
            Some(NotFollowed::Machine)
        } else if self.links.iter().any(|link| net.contains(link) && !is_reached(link)) {
            Some(NotFollowed::Link)
        } else {
            None
        }
    }
}

/// The first network that is not followed, and the number of all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LeftOut {
    pub(super) net: IpNet,
    pub(super) node: NodeId,
    pub(super) why: NotFollowed,
    pub(super) count: usize,
}

/// All networks that are followed.
#[derive(Debug, Default)]
pub(super) struct NetworkTable {
    /// Each network with the nodes that offer it: the narrowest network first, and its nearest node first.
    routes: Vec<(IpNet, Vec<NameHash>)>,
    pub(super) refused: Option<LeftOut>,
}

impl NetworkTable {
    /// The accepted networks that reachable nodes offer for the network of `acceptance`.
    pub(super) fn of(status: &MeshStatus, own: &NodeId, acceptance: &Acceptance<'_>) -> Self {
        let (costs, network) = (status.path_costs(own), acceptance.options.network.to_string());
        let mut refused: Option<LeftOut> = None;
        let mut offers: BTreeMap<IpNet, Vec<(f64, &NodeId)>> = BTreeMap::new();
        for (node, net) in in_turn(offered(status, &network)) {
            let Some(&cost) = costs.get(node).filter(|_| status.routing_table.contains_key(node)) else {
                continue;
            };
            // Another node that leads to one of this node's networks is nothing unusual, and not reported.
            if acceptance.options.own().any(|own| own == net) {
                continue;
            }
            let full =
                (offers.len() >= MOST_NETWORKS && !offers.contains_key(&net)).then_some(NotFollowed::TooMany);
            match acceptance.refusal(node, &net).or(full) {
                None => offers.entry(net).or_default().push((cost, node)),
                Some(why) => {
                    refused.get_or_insert(LeftOut { net, node: node.clone(), why, count: 0 }).count += 1;
                }
            }
        }
        let mut routes: Vec<_> = offers.into_iter().map(|(net, nodes)| (net, nearest_first(nodes))).collect();
        routes.sort_by_key(|(net, _)| (Reverse(net.prefix_len()), *net));
        Self { routes, refused }
    }

    pub(super) fn networks(&self) -> BTreeSet<IpNet> {
        self.routes.iter().map(|(net, _)| *net).collect()
    }

    /// The node that leads to an address.
    pub(super) fn node_for(&self, address: IpAddr) -> Option<NameHash> {
        self.nodes_for(address)?.first().copied()
    }

    /// Whether a node may send packets from an address: it has to lead there, but need not be the nearest.
    pub(super) fn is_source(&self, node: NameHash, address: IpAddr) -> bool {
        self.nodes_for(address).is_some_and(|nodes| nodes.contains(&node))
    }

    fn nodes_for(&self, address: IpAddr) -> Option<&[NameHash]> {
        self.routes.iter().find(|(net, _)| net.contains(&address)).map(|(_, nodes)| nodes.as_slice())
    }
}

fn nearest_first(mut nodes: Vec<(f64, &NodeId)>) -> Vec<NameHash> {
    nodes.sort_by(|(a, left), (b, right)| a.total_cmp(b).then(left.cmp(right)));
    nodes.dedup();
    nodes.into_iter().map(|(_, node)| node.hash()).collect()
}

/// Orders offers so that the first network of each node comes before the second of any: then a node that offers many
/// takes no place of others.
fn in_turn<'a>(offers: impl Iterator<Item = (&'a NodeId, IpNet)>) -> Vec<(&'a NodeId, IpNet)> {
    let mut offered: BTreeMap<&NodeId, usize> = BTreeMap::new();
    let mut offers: Vec<_> = offers
        .map(|(node, net)| {
            let before = offered.entry(node).or_default();
            *before += 1;
            (*before, node, net)
        })
        .collect();
    offers.sort_by_key(|(before, ..)| *before);
    offers.into_iter().map(|(_, node, net)| (node, net)).collect()
}

fn offered<'a>(status: &'a MeshStatus, network: &'a str) -> impl Iterator<Item = (&'a NodeId, IpNet)> {
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

/// Source and destination of an IP packet; `None` for anything else.
pub(super) fn ends(packet: &[u8]) -> Option<(IpAddr, IpAddr)> {
    match packet.first()? >> 4 {
        4 => {
            let at =
                |from: usize| packet.get(from..from + 4)?.try_into().ok().map(|bytes: [u8; 4]| bytes.into());
            Some((at(12)?, at(16)?))
        }
        6 => {
            let at = |from: usize| {
                packet.get(from..from + 16)?.try_into().ok().map(|bytes: [u8; 16]| bytes.into())
            };
            Some((at(8)?, at(24)?))
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
    fn status(neighbours: &[(&str, f64)], advertisements: Vec<Advertisement>) -> MeshStatus {
        let mut links: BTreeMap<NodeId, BTreeMap<NodeId, Cost>> = BTreeMap::new();
        for (name, cost) in neighbours {
            let cost = Cost::new(*cost).unwrap();
            links.entry(node("me")).or_default().insert(node(name), cost);
            links.entry(node(name)).or_default().insert(node("me"), cost);
        }
        let hops = neighbours.iter().map(|(name, _)| (node(name), node(name)));
        let links = links.into_iter().map(|(from, to)| (from, Arc::new(to)));
        MeshStatus {
            routing_table: Arc::new(hops.collect()),
            advertisements: advertisements.into_iter().map(Arc::new).collect(),
            known_connection_costs: Arc::new(links.collect()),
            ..MeshStatus::default()
        }
    }

    const ROUTER: (&str, &str) = ("type", "IP Router");

    fn options() -> IpRouterOptions {
        IpRouterOptions {
            network: ServiceName::new("net").unwrap(),
            interface: None,
            local_net: "10.0.0.0/30".parse().unwrap(),
            routes: vec![net("10.50.0.0/16")],
            accept: Vec::new(),
            from_nodes: Vec::new(),
        }
    }

    /// The machine's networks: of its addresses, of its routes, and of a VPN that is the default route.
    const MACHINE: [&str; 7] = [
        "192.168.7.0/24",
        "192.168.7.9/32",
        "203.0.113.0/24",
        "10.20.0.0/16",
        "0.0.0.0/0",
        "0.0.0.0/1",
        "128.0.0.0/1",
    ];

    fn table_with(status: &MeshStatus, options: &IpRouterOptions) -> NetworkTable {
        let acceptance = Acceptance {
            options,
            machine: BTreeSet::from(MACHINE.map(net)),
            links: BTreeSet::from(["10.9.9.9", "10.20.6.1", "203.0.113.5"].map(|link| link.parse().unwrap())),
        };
        NetworkTable::of(status, &node("me"), &acceptance)
    }

    fn table(status: &MeshStatus) -> NetworkTable {
        table_with(status, &options())
    }

    /// Offers each network alone and checks why it is not followed.
    #[test]
    fn others_offer_and_this_node_decides() {
        use NotFollowed::{Link, Machine, Never, Node, NotAccepted, Own};
        let verdicts = |options: &IpRouterOptions, expected: &[(&str, Option<NotFollowed>)]| {
            for (offered, why) in expected {
                let ads = vec![ad("a", &[ROUTER, ("network", "net"), ("route_0", offered)])];
                let table = table_with(&status(&[("a", 1.0)], ads), options);
                let told = table.refused.as_ref().map(|refused| refused.why);
                assert_eq!(told, *why, "{offered}");
                assert_eq!(table.networks().len(), usize::from(why.is_none()), "{offered}");
            }
        };
        let never = [
            ("0.0.0.0/0", Some(Never)),
            ("0.0.0.0/1", Some(Never)),
            ("128.0.0.0/1", Some(Never)),
            ("127.0.0.0/8", Some(Never)),
            ("127.0.0.53/32", Some(Never)),
            ("169.254.169.254/32", Some(Never)),
            ("224.0.0.0/4", Some(Never)),
            ("255.255.255.255/32", Some(Never)),
            ("::/0", Some(Never)),
            ("::1/128", Some(Never)),
            ("fe80::/64", Some(Never)),
            ("ff02::/16", Some(Never)),
            ("10.50.7.0/24", Some(Own)),
            ("10.0.0.1/32", Some(Own)),
            ("192.168.7.9/32", Some(Machine)),
            ("192.168.7.128/25", Some(Machine)),
            ("192.168.7.0/24", Some(Machine)),
            ("10.20.5.0/24", Some(Machine)),
            ("10.20.0.0/16", Some(Machine)),
            ("10.9.9.9/32", Some(Link)),
            ("10.9.0.0/16", Some(Link)),
        ];
        verdicts(&options(), &never);
        verdicts(
            &options(),
            &[
                ("10.1.0.0/16", None),
                ("10.20.0.0/15", None),
                ("172.16.0.0/12", None),
                ("192.168.0.0/16", None),
                ("fd00:1::/64", None),
                ("172.0.0.0/8", Some(NotAccepted)),
                ("8.8.8.8/32", Some(NotAccepted)),
                ("192.0.2.1/32", Some(NotAccepted)),
                ("100.64.0.0/10", Some(NotAccepted)),
                ("2001:db8::/32", Some(NotAccepted)),
            ],
        );
        // Accepting everything still gives away no network that the mesh or the machine needs.
        let all = IpRouterOptions { accept: ["0.0.0.0/0", "::/0"].map(net).to_vec(), ..options() };
        verdicts(&all, &never);
        verdicts(&all, &[("8.8.8.0/24", None), ("203.0.0.0/16", None), ("203.0.113.5/32", Some(Machine))]);
        let some = IpRouterOptions {
            accept: vec![net("10.1.0.0/16"), net("198.51.100.0/24")],
            from_nodes: vec![node("a")],
            ..options()
        };
        verdicts(
            &some,
            &[
                ("10.1.2.0/24", None),
                ("198.51.100.0/24", None),
                ("10.0.0.0/8", Some(NotAccepted)),
                ("10.2.0.0/16", Some(NotAccepted)),
            ],
        );
        let given = ["10.0.0.0/8", "10.50.7.0/24", "10.20.5.0/24", "10.20.6.0/24"].map(net).to_vec();
        let given = IpRouterOptions { accept: given, ..options() };
        verdicts(&given, &[("10.50.7.0/25", None), ("10.50.8.0/24", Some(Own))]);
        verdicts(
            &given,
            &[("10.20.5.0/24", None), ("10.20.6.0/24", Some(Link)), ("10.20.7.0/24", Some(Machine))],
        );
        let exit = IpRouterOptions { routes: vec![net("0.0.0.0/0")], ..options() };
        verdicts(&exit, &[("10.50.8.0/24", None), ("10.0.0.1/32", Some(Own))]);
        let others = IpRouterOptions { from_nodes: vec![node("b")], ..options() };
        verdicts(&others, &[("10.1.0.0/16", Some(Node))]);
    }

    #[test]
    fn a_packet_comes_from_a_node_that_leads_to_its_source() {
        let nets = |net| [ROUTER, ("network", "net"), ("route_0", net)];
        let ads =
            vec![ad("a", &nets("10.1.0.0/16")), ad("b", &nets("10.1.2.0/24")), ad("c", &nets("10.1.2.0/24"))];
        let table = table(&status(&[("a", 1.0), ("b", 1.0), ("c", 2.0), ("d", 1.0)], ads));
        let may = |from: &str, source: &str| table.is_source(node(from).hash(), source.parse().unwrap());
        assert!(may("a", "10.1.9.9") && may("b", "10.1.2.9"));
        assert!(may("c", "10.1.2.9"), "also by the way that this node does not take");
        assert!(!may("a", "10.1.2.9"), "a wider network gives no right to a narrower one");
        for stolen in ["8.8.8.8", "10.50.1.1", "10.0.0.1", "127.0.0.1", "192.168.7.9"] {
            assert!(!["a", "b", "c", "d"].iter().any(|from| may(from, stolen)), "{stolen}");
        }
        assert!(!may("d", "10.1.9.9"));
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
        let tags: Vec<(String, String)> = (0..MOST_NETWORKS + 9)
            .map(|i| (format!("route_{i}"), format!("10.{}.{}.0/24", 100 + i / 256, i % 256)))
            .collect();
        let mut tags: Vec<_> = tags.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        tags.extend([ROUTER, ("network", "net")]);
        let few = [ROUTER, ("network", "net"), ("route_0", "10.1.0.0/24")];
        let table = table(&status(&[("a", 1.0), ("b", 1.0)], vec![ad("a", &tags), ad("b", &few)]));
        assert_eq!(table.networks().len(), MOST_NETWORKS);
        assert!(
            table.networks().contains(&net("10.1.0.0/24")),
            "whoever offers many takes no place of others"
        );
        let refused = table.refused.unwrap();
        assert_eq!((refused.why, refused.count, refused.node), (NotFollowed::TooMany, 10, node("a")));
    }

    #[test]
    fn what_is_no_packet_goes_nowhere() {
        let mut four = [0; 20];
        (four[0], four[12], four[16]) = (0x45, 9, 10);
        assert_eq!(ends(&four), Some(("9.0.0.0".parse().unwrap(), "10.0.0.0".parse().unwrap())));
        let mut six = [0; 40];
        (six[0], six[8], six[24]) = (0x60, 0xfc, 0xfd);
        assert_eq!(ends(&six), Some(("fc00::".parse().unwrap(), "fd00::".parse().unwrap())));
        for bad in [&[][..], &four[..19], &six[..39], &[0x50; 60]] {
            assert_eq!(ends(bad), None);
        }
    }
}
