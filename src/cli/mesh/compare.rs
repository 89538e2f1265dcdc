//! What stands in a mesh beside what should stand there. Pure: a file and a real mesh in, differences out. It refuses to
//! know how a real mesh is asked.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Zoned;
use serde::Serialize;

use super::file::{MeshFile, NodeEntry, name_of};
use crate::cli::times::zoned;
use crate::join::record::NodeRole;
use crate::rpc::report::node::EndingCertificate;
use crate::rpc::report::outage::BrokenLinkReport;

/// A mesh as its nodes tell it.
#[derive(Debug, Default)]
pub(super) struct RealMesh {
    pub nodes: BTreeMap<String, RealNode>,
    /// The links by their ends, the lesser name first, with the cost at each end.
    pub links: BTreeMap<(String, String), [Option<f64>; 2]>,
    pub broken: Vec<BrokenLinkReport>,
}

/// What is known of a node; `None` is what nobody could tell.
#[derive(Debug, Default)]
pub(super) struct RealNode {
    pub is_reachable: bool,
    pub role: Option<NodeRole>,
    pub groups: Option<BTreeSet<String>>,
    pub version: Option<String>,
    pub certificates: Vec<EndingCertificate>,
    /// Why the node itself told nothing.
    pub refused: Option<String>,
}

/// How something differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum DifferenceKind {
    Missing,
    Unexpected,
    Different,
    Ending,
}

impl DifferenceKind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Unexpected => "unexpected",
            Self::Different => "different",
            Self::Ending => "ending",
        }
    }
}

/// One thing that is not as the file says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Difference {
    pub kind: DifferenceKind,
    /// `node e1`, `link a - b`, `role of e1`.
    pub what: String,
    pub wanted: String,
    pub found: String,
}

/// All differences, and what could not be compared.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct MeshDrift {
    pub differences: Vec<Difference>,
    pub not_compared: Vec<String>,
}

impl RealMesh {
    /// The mesh as a file that it agrees with.
    pub(super) fn file(&self) -> MeshFile {
        let entry = |node: &RealNode| NodeEntry {
            role: node.role,
            version: node.version.clone(),
            groups: node.groups.clone().filter(|groups| !groups.is_empty()),
            peers: BTreeMap::new(),
        };
        let mut file = MeshFile::default();
        file.nodes.extend(self.nodes.iter().map(|(name, node)| (name.clone(), entry(node))));
        for ((a, b), [from_a, from_b]) in &self.links {
            let peers = &mut file.nodes.entry(a.clone()).or_default().peers;
            peers.insert(b.clone(), from_a.or(*from_b));
        }
        file
    }

    /// What is not as the file says, what is missing first. Times are shown in the zone of `now`.
    pub(super) fn compare(&self, file: &MeshFile, now: &Zoned) -> MeshDrift {
        let mut all = MeshDrift::default();
        for (name, wanted) in &file.nodes {
            match self.nodes.get(name) {
                None => all.note(DifferenceKind::Missing, format!("node {name}"), "", ""),
                Some(node) => all.node(name, wanted, node, now),
            }
        }
        for name in self.nodes.keys().filter(|name| !file.nodes.contains_key(*name)) {
            all.note(DifferenceKind::Unexpected, format!("node {name}"), "", "");
        }
        let links = file.links();
        for ((a, b), wanted) in &links {
            self.link(&mut all, [a, b], *wanted, now);
        }
        for (a, b) in self.links.keys() {
            let may_be = file.may_peer.contains(a) && file.may_peer.contains(b);
            if !may_be && !links.contains_key(&(a.as_str(), b.as_str())) {
                all.note(DifferenceKind::Unexpected, format!("link {a} - {b}"), "", "");
            }
        }
        all.differences.sort_by_key(|difference| difference.kind);
        all
    }

    fn link(&self, all: &mut MeshDrift, [a, b]: [&str; 2], wanted: Option<f64>, now: &Zoned) {
        let costs = self.links.get(&(a.to_owned(), b.to_owned()));
        let broken = self.broken.iter().find(|link| (link.a.as_str(), link.b.as_str()) == (a, b));
        let what = format!("link {a} - {b}");
        let Some(costs) = costs else {
            let since = broken.map(|link| {
                let why = link.why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
                format!("broken since {}{why}", zoned(link.since, now.time_zone()))
            });
            return all.note(DifferenceKind::Missing, what, "", &since.unwrap_or_default());
        };
        for (from, cost) in [a, b].into_iter().zip(costs) {
            match (cost, wanted) {
                (None, _) => {
                    all.note(DifferenceKind::Different, what.clone(), "", &format!("{from} does not know it"))
                }
                (Some(cost), Some(wanted)) if (cost - wanted).abs() > f64::EPSILON => {
                    let (what, found) = (format!("cost of {a} - {b}"), format!("{cost} at {from}"));
                    all.note(DifferenceKind::Different, what, &wanted.to_string(), &found);
                }
                (Some(_), _) => {}
            }
        }
    }
}

impl MeshDrift {
    fn note(&mut self, kind: DifferenceKind, what: String, wanted: &str, found: &str) {
        let (wanted, found) = (wanted.to_owned(), found.to_owned());
        self.differences.push(Difference { kind, what, wanted, found });
    }

    fn node(&mut self, name: &str, wanted: &NodeEntry, node: &RealNode, now: &Zoned) {
        if !node.is_reachable {
            self.note(DifferenceKind::Missing, format!("node {name}"), "", "out of reach");
        }
        let listed = |groups: &BTreeSet<String>| groups.iter().cloned().collect::<Vec<_>>().join(", ");
        let groups = node.groups.as_ref().map(listed);
        let of_controller = "no controller knows it";
        let refused = node.refused.as_deref().unwrap_or("it does not say");
        self.property(name, "role", wanted.role.map(name_of), node.role.map(name_of), of_controller);
        self.property(name, "groups", wanted.groups.as_ref().map(listed), groups, of_controller);
        if node.is_reachable {
            self.property(name, "version", wanted.version.clone(), node.version.clone(), refused);
        }
        for one in &node.certificates {
            let (what, ends) = (format!("certificate of {name}"), zoned(one.not_after, now.time_zone()));
            let why = one.not_renewed.as_ref().map(|why| format!(", not renewed: {why}")).unwrap_or_default();
            self.note(DifferenceKind::Ending, what, "", &format!("{ends} in {}{why}", one.file.display()));
        }
    }

    fn property(
        &mut self,
        node: &str,
        what: &str,
        wanted: Option<String>,
        found: Option<String>,
        unknown: &str,
    ) {
        match (wanted, found) {
            (Some(wanted), Some(found)) if wanted != found => {
                self.note(DifferenceKind::Different, format!("{what} of {node}"), &wanted, &found);
            }
            (Some(_), None) => self.not_compared.push(format!("{what} of {node}: {unknown}")),
            (None, _) | (Some(_), Some(_)) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Zoned {
        "2026-01-10T00:00:00+00:00[UTC]".parse().unwrap()
    }

    /// `a - hop - e1`, all of one version.
    fn mesh() -> RealMesh {
        let node = |role| RealNode {
            is_reachable: true,
            role: Some(role),
            groups: Some(BTreeSet::new()),
            version: Some("0.1.0".to_owned()),
            ..RealNode::default()
        };
        let nodes = [("a", NodeRole::Control), ("hop", NodeRole::Hop), ("e1", NodeRole::Execution)];
        let nodes = nodes.into_iter().map(|(name, role)| (name.to_owned(), node(role))).collect();
        let link = |a: &str, b: &str| ((a.to_owned(), b.to_owned()), [Some(1.0), Some(1.0)]);
        RealMesh { nodes, links: BTreeMap::from([link("a", "hop"), link("e1", "hop")]), broken: Vec::new() }
    }

    fn told(comparison: &MeshDrift) -> Vec<String> {
        let line = |one: &Difference| {
            let line = format!("{} {} {} | {}", one.kind.name(), one.what, one.wanted, one.found);
            line.trim_end_matches([' ', '|']).replace("  |", " |")
        };
        comparison.differences.iter().map(line).collect()
    }

    #[test]
    fn a_mesh_agrees_with_the_file_that_is_made_of_it() {
        let text = serde_saphyr::to_string(&mesh().file()).unwrap();
        let file = MeshFile::read(&text).unwrap();
        assert_eq!(mesh().compare(&file, &now()), MeshDrift::default(), "{text}");
    }

    #[test]
    fn everything_that_differs_is_told_once_and_what_is_missing_first() {
        let mut real = mesh();
        let file = MeshFile::read(
            "nodes:\n  a: {role: control, version: 0.1.0, peers: {hop: 2}}\n  hop: {role: hop, peers: [e1, e2]}\n  \
             e1: {role: hop, groups: [east]}\n  e2: {}\n  e3: {peers: [a]}\n",
        )
        .unwrap();
        real.nodes.insert("stranger".to_owned(), RealNode::default());
        real.links.insert(("a".to_owned(), "stranger".to_owned()), [Some(1.0), None]);
        real.links.insert(("a".to_owned(), "e3".to_owned()), [Some(1.0), None]);
        real.nodes.insert("e2".to_owned(), RealNode::default());
        let (a, b) = ("e2".to_owned(), "hop".to_owned());
        let why = Some("it closed".to_owned());
        real.broken.push(BrokenLinkReport { a, b, since: "2026-01-09T23:00:00Z".parse().unwrap(), why });
        let not_after = "2026-01-20T00:00:00Z".parse().unwrap();
        let ending = EndingCertificate { file: "/etc/a.crt".into(), not_after, not_renewed: None };
        real.nodes.get_mut("a").unwrap().certificates.push(ending);
        let comparison = real.compare(&file, &now());
        assert_eq!(
            told(&comparison),
            [
                "missing node e2 | out of reach",
                "missing node e3",
                "missing link e2 - hop | broken since 2026-01-09T23:00:00Z: it closed",
                "unexpected node stranger",
                "unexpected link a - stranger",
                "different role of e1 hop | execution",
                "different groups of e1 east",
                "different link a - e3 | e3 does not know it",
                "different cost of a - hop 2 | 1 at a",
                "different cost of a - hop 2 | 1 at hop",
                "ending certificate of a | 2026-01-20T00:00:00Z in /etc/a.crt",
            ]
        );
        assert_eq!(comparison.not_compared, [""; 0]);
    }

    #[test]
    fn what_nobody_could_tell_is_no_difference_and_is_said() {
        let mut real = mesh();
        let hop = real.nodes.get_mut("hop").unwrap();
        (hop.version, hop.role, hop.refused) = (None, None, Some("it is a node of receptor".to_owned()));
        let comparison = real.compare(&mesh().file(), &now());
        assert_eq!(told(&comparison), [""; 0]);
        let unknown = ["role of hop: no controller knows it", "version of hop: it is a node of receptor"];
        assert_eq!(comparison.not_compared, unknown);
    }

    #[test]
    fn control_nodes_of_an_inventory_may_be_linked_to_each_other() {
        let mut real = RealMesh::default();
        let reachable =
            || RealNode { is_reachable: true, role: Some(NodeRole::Hybrid), ..RealNode::default() };
        real.nodes.extend(["c1", "c2"].map(|name| (name.to_owned(), reachable())));
        real.links.insert(("c1".to_owned(), "c2".to_owned()), [Some(1.0); 2]);
        let file = MeshFile::read("[automationcontroller]\nc1\nc2\n").unwrap();
        assert_eq!(told(&real.compare(&file, &now())), [""; 0]);
    }
}
