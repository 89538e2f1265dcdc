//! A mesh as a file: which nodes there are, what they do and to whom they are linked. Owns both notations that are read,
//! its own YAML and the inventory of AWX's installer, and the one that is written. It refuses to know what a real mesh is
//! like.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::json;

use super::inventory;
use crate::join::record::NodeRole;

/// A mesh. What a file leaves out is not compared.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MeshFile {
    pub nodes: BTreeMap<String, NodeEntry>,
    /// Nodes that may be linked to each other without being told to: the control nodes of an inventory.
    #[serde(skip)]
    pub may_peer: BTreeSet<String>,
}

/// A node of a mesh.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct NodeEntry {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<NodeRole>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The groups of instances that it is in, without those that every controller has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub groups: Option<BTreeSet<String>>,
    /// The nodes to which it is linked, whoever dials, with the cost of the link. Either end may name the other.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "peers")]
    pub peers: BTreeMap<String, Option<f64>>,
}

/// The role of that name.
pub(super) fn role(name: &str) -> Option<NodeRole> {
    serde_json::from_value(json!(name)).ok()
}

/// The name of a role.
pub(super) fn name_of(role: NodeRole) -> String {
    json!(role).as_str().unwrap_or_default().to_owned()
}

impl MeshFile {
    /// Reads a file: an inventory if it begins with a group in brackets, else YAML.
    ///
    /// # Errors
    /// What is wrong, with its line.
    pub(super) fn read(text: &str) -> Result<Self, String> {
        let lines = text.lines().map(str::trim);
        let first = lines.into_iter().find(|line| !line.is_empty() && !line.starts_with(['#', ';']));
        if first.is_some_and(inventory::is_group) {
            return inventory::read(text);
        }
        let options = serde_saphyr::options! { with_snippet: false };
        let file: Self =
            serde_saphyr::from_str_with_options(text, options).map_err(|error| error.to_string())?;
        match file.nodes.is_empty() {
            true => Err("it names no nodes: `meshctl mesh check --print` writes such a file".to_owned()),
            false => Ok(file),
        }
    }

    /// The links, the lesser name first, with the cost that is wanted.
    pub(super) fn links(&self) -> BTreeMap<(&str, &str), Option<f64>> {
        let mut links = BTreeMap::new();
        for (node, entry) in &self.nodes {
            for (peer, cost) in &entry.peers {
                let (node, peer) = (node.as_str(), peer.as_str());
                let wanted = links.entry((node.min(peer), node.max(peer))).or_insert(*cost);
                *wanted = wanted.or(*cost);
            }
        }
        links
    }
}

/// Peers as a list of names, or as a map with costs.
fn peers<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, Option<f64>>, D::Error> {
    struct PeersVisitor;

    impl<'de> Visitor<'de> for PeersVisitor {
        type Value = BTreeMap<String, Option<f64>>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of nodes, or a map from nodes to costs")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
            let mut peers = BTreeMap::new();
            while let Some(peer) = seq.next_element()? {
                peers.insert(peer, None);
            }
            Ok(peers)
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut peers = BTreeMap::new();
            while let Some((peer, cost)) = map.next_entry()? {
                peers.insert(peer, cost);
            }
            Ok(peers)
        }
    }

    from.deserialize_any(PeersVisitor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_named_at_either_end_and_costs_what_one_of_them_says() {
        let file = "nodes:\n  a: {role: control, peers: [b, c]}\n  b: {peers: {a: 2.5, c: }}\n  c: {groups: [east]}\n";
        let file = MeshFile::read(file).unwrap();
        let links = [(("a", "b"), Some(2.5)), (("a", "c"), None), (("b", "c"), None)];
        assert_eq!(file.links(), BTreeMap::from(links));
        assert_eq!(file.nodes["a"].role, Some(NodeRole::Control));
        let written = serde_saphyr::to_string(&file).unwrap();
        assert_eq!(MeshFile::read(&written), Ok(file), "{written}");
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        for (text, told) in [
            ("nodes:\n  a:\n    rôle: hop\n", "line 3"),
            ("nodes:\n  a: {role: hopp}\n", "line 2"),
            ("nodes:\n  a: {peers: b}\n", "a list of nodes, or a map from nodes to costs"),
            ("nodes: {}\n", "it names no nodes"),
            ("# nothing\n", "line 2"),
        ] {
            let error = MeshFile::read(text).unwrap_err();
            assert!(error.contains(told), "{text}: {error}");
        }
    }
}
