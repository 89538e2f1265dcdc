//! The mesh as a tree of text: each node under the one that it hangs on, on the shortest way from the node that was
//! asked. Nodes out of reach stand where they were last linked. Pure; owns the lines, and knows no other notation.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::cli::table::count;
use crate::cli::terminal::one_line;
use crate::cli::times::zoned;
use crate::rpc::report::node::NodeReport;

/// Least characters of a name that is cut.
const LEAST: usize = 12;

/// What leads to a node: over how many broken links, at which cost, over how many links. The least way is shown. Costs
/// are positive numbers, whose bits are in their order.
type Way = (u32, u64, u32);

/// A node in the tree.
struct TreePlace<'a> {
    parent: Option<&'a str>,
    way: Way,
}

/// The tree, in lines of this width, with times in this zone.
pub(super) fn tree(mesh: &NodeReport, width: usize, zone: &TimeZone) -> String {
    let own = mesh.node_id.as_deref().unwrap_or_default();
    let neighbours = neighbours(mesh);
    let mut places = BTreeMap::new();
    grow(own, (0, 0, 0), &neighbours, &mut places);
    let known = neighbours
        .keys()
        .copied()
        .chain(mesh.routing_table.iter().flat_map(|r| r.keys()).map(String::as_str));
    let apart: BTreeSet<&str> = known.filter(|node| !places.contains_key(node)).collect();
    let mut roots = vec![own];
    for node in apart {
        if !places.contains_key(node) {
            grow(node, (1, 0, 0), &neighbours, &mut places);
            roots.push(node);
        }
    }
    let mut below = BTreeMap::<&str, Vec<&str>>::new();
    for (node, place) in &places {
        place.parent.into_iter().for_each(|parent| below.entry(parent).or_default().push(node));
    }
    let outages = mesh.outages.iter().flatten();
    let lost =
        outages.flat_map(|outage| outage.lost.iter().map(|node| (node.as_str(), outage.since))).collect();
    let sessions = mesh.links.iter().flatten();
    let rtts = sessions.filter_map(|link| Some((link.node_id.as_str(), link.rtt?))).collect();
    let words =
        TreeWords { own, width, zone, places: &places, routes: mesh.routing_table.as_ref(), lost, rtts };
    let mut lines = Vec::new();
    // A stack instead of recursion, because others decide how deep the tree is.
    let mut left: Vec<(&str, String, bool, usize)> =
        roots.iter().rev().map(|root| (*root, String::new(), true, 0)).collect();
    while let Some((node, indent, is_last, depth)) = left.pop() {
        let branch = match depth {
            0 => "",
            _ if is_last => "└─ ",
            _ => "├─ ",
        };
        lines.push(words.line(node, &format!("{indent}{branch}")));
        // Deeper than half a line, the depth is a number.
        let indent = match depth {
            0 => indent,
            _ if indent.chars().count() + 3 > width / 2 => format!("({depth}) "),
            _ => indent + if is_last { "   " } else { "│  " },
        };
        let children = below.get(node).map(Vec::as_slice).unwrap_or_default();
        let last = children.len().saturating_sub(1);
        let children = children.iter().enumerate().rev();
        left.extend(children.map(|(at, child)| (*child, indent.clone(), at == last, depth + 1)));
    }
    // Broken links are in the tree only where nothing else leads.
    let is_whole =
        |place: &&TreePlace<'_>| place.parent.is_some_and(|parent| places[parent].way.0 == place.way.0);
    let shown = places.values().filter(is_whole).count();
    let more = links(&neighbours).saturating_sub(shown);
    if more > 0 {
        let are = if more == 1 { "is" } else { "are" };
        lines.push(format!(
            "{} {are} not in this tree: --dot and --mermaid have all",
            count(more as u64, "more link")
        ));
    }
    lines.join("\n")
}

/// The neighbours of each node, with the way of each link alone.
type Neighbours<'a> = BTreeMap<&'a str, BTreeMap<&'a str, Way>>;

fn neighbours(mesh: &NodeReport) -> Neighbours<'_> {
    let mut all = Neighbours::new();
    let mut add = |a, b, way: Way| {
        for (one, other) in [(a, b), (b, a)] {
            let known = all.entry(one).or_default().entry(other).or_insert(way);
            *known = way.min(*known);
        }
    };
    for (from, links) in mesh.known_connection_costs.iter().flatten() {
        links.iter().for_each(|(to, cost)| add(from, to, (0, cost.get().to_bits(), 1)));
    }
    for link in mesh.broken_links.iter().flatten() {
        add(&link.a, &link.b, (1, 0, 1));
    }
    for node in mesh.known_connection_costs.iter().flat_map(|costs| costs.keys()) {
        all.entry(node).or_default();
    }
    all
}

fn links(neighbours: &Neighbours<'_>) -> usize {
    let ends = neighbours.values().flat_map(|others| others.values());
    ends.filter(|(broken, ..)| *broken == 0).count() / 2
}

/// Finds the least way from a root to each node that is linked to it.
fn grow<'a>(
    root: &'a str,
    way: Way,
    neighbours: &Neighbours<'a>,
    places: &mut BTreeMap<&'a str, TreePlace<'a>>,
) {
    let mut open = BTreeSet::from([(way, root, None)]);
    while let Some((way, node, parent)) = open.pop_first() {
        if places.contains_key(node) {
            continue;
        }
        places.insert(node, TreePlace { parent, way });
        for (next, link) in neighbours.get(node).into_iter().flatten() {
            if !places.contains_key(next) {
                let cost = f64::from_bits(way.1) + f64::from_bits(link.1);
                open.insert(((way.0 + link.0, cost.to_bits(), way.2 + link.2), *next, Some(node)));
            }
        }
    }
}

/// What lines are made of.
struct TreeWords<'a> {
    own: &'a str,
    width: usize,
    places: &'a BTreeMap<&'a str, TreePlace<'a>>,
    routes: Option<&'a BTreeMap<String, String>>,
    zone: &'a TimeZone,
    /// The lost nodes that others are behind, since when.
    lost: BTreeMap<&'a str, Option<Timestamp>>,
    /// In nanoseconds, of the links of `own`.
    rtts: BTreeMap<&'a str, u64>,
}

impl TreeWords<'_> {
    fn line(&self, node: &str, indent: &str) -> String {
        let details = self.details(node);
        let taken = indent.chars().count() + details.chars().count();
        let room = self.width.saturating_sub(taken).max(LEAST);
        let name = one_line(node);
        let name = match name.chars().count() > room {
            true => name.chars().take(room - 1).chain(['…']).collect(),
            false => name,
        };
        format!("{indent}{name}{details}")
    }

    /// What there is to say of a node and its link, after two spaces.
    fn details(&self, node: &str) -> String {
        if node == self.own {
            return "  this node".to_owned();
        }
        let place = &self.places[node];
        if !self.routes.is_some_and(|routes| routes.contains_key(node)) {
            return match self.lost.get(node) {
                Some(since) => {
                    let since =
                        since.map(|since| format!(" since {}", zoned(since, self.zone))).unwrap_or_default();
                    format!("  OUT OF REACH{since}")
                }
                None => "  out of reach".to_owned(),
            };
        }
        let rtt = self.rtts.get(node).filter(|_| place.parent == Some(self.own));
        let rtt = rtt.map_or_else(String::new, |nanos| format!("  {:.1?}", Duration::from_nanos(*nanos)));
        let before = place.parent.and_then(|parent| self.places.get(parent));
        let cost = f64::from_bits(place.way.1) - before.map_or(0.0, |before| f64::from_bits(before.way.1));
        let cost = if (cost - 1.0).abs() < 1e-9 { String::new() } else { format!("  cost {cost}") };
        rtt + &cost
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::rpc::report;

    fn shown(mesh: Value, width: usize) -> String {
        tree(&report::read(&mesh).unwrap(), width, &TimeZone::UTC)
    }

    #[test]
    fn nodes_stand_under_the_hop_they_hang_on_also_those_out_of_reach() {
        let mesh = json!({
            "NodeID": "control",
            "RoutingTable": {"hop-eu": "hop-eu", "e1": "hop-eu", "e2": "hop-eu", "c2": "c2"},
            "KnownConnectionCosts": {
                "control": {"hop-eu": 1.0, "c2": 2.5}, "c2": {"control": 2.5, "hop-eu": 1.0},
                "hop-eu": {"control": 1.0, "e1": 1.0, "e2": 1.0, "c2": 1.0},
                "e1": {"hop-eu": 1.0}, "e2": {"hop-eu": 1.0},
                "hop-lab": {"e3": 1.0}, "e3": {"hop-lab": 1.0}, "stray": {}},
            "Links": [{"NodeID": "hop-eu", "RTT": 12_340_000}],
            "Outages": [{"lost": ["hop-lab"], "behind": ["e3"], "since": "2026-11-27T13:35:00Z"}],
            "BrokenLinks": [{"a": "control", "b": "hop-lab", "since": "2026-11-27T13:35:00Z"}]});
        let expected = "\
control  this node
├─ hop-eu  12.3ms
│  ├─ c2
│  ├─ e1
│  └─ e2
└─ hop-lab  OUT OF REACH since 2026-11-27T13:35:00Z
   └─ e3  out of reach
stray  out of reach
1 more link is not in this tree: --dot and --mermaid have all";
        assert_eq!(shown(mesh, 80), expected);
    }

    #[test]
    fn a_node_alone_and_one_at_a_cost() {
        assert_eq!(shown(json!({"NodeID": "a"}), 80), "a  this node");
        let two = json!({"NodeID": "a", "RoutingTable": {"b": "b"}, "KnownConnectionCosts": {"a": {"b": 2.5}, "b": {"a": 2.5}}});
        assert_eq!(shown(two, 80), "a  this node\n└─ b  cost 2.5");
    }

    #[test]
    fn a_long_line_of_nodes_with_long_names_keeps_the_width() {
        let name = |number: usize| format!("{number}-{}", "ö".repeat(60));
        let costs: BTreeMap<_, _> =
            (0..3_000).map(|n| (name(n), BTreeMap::from([(name(n + 1), 1.0)]))).collect();
        let routes: BTreeMap<_, _> = (1..=3_000).map(|n| (name(n), name(1))).collect();
        let text =
            shown(json!({"NodeID": name(0), "RoutingTable": routes, "KnownConnectionCosts": costs}), 80);
        assert_eq!(text.lines().count(), 3_001);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }
}
