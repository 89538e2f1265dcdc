//! Reads the inventory of AWX's installers, as Red Hat's automation mesh guide describes it: groups of hosts in an INI
//! file of Ansible, with `node_type` and `peers` (or `receptor_type` and `receptor_peers`) as variables of hosts and
//! groups. Owns which groups are nodes of the mesh; every other group may be named as a peer.

use std::collections::{BTreeMap, BTreeSet};

use super::file::{MeshFile, NodeEntry, role};
use crate::join::record::NodeRole;

/// The groups whose hosts are nodes, with the role of a host that names none.
const NODES: [(&str, NodeRole); 2] =
    [("automationcontroller", NodeRole::Hybrid), ("execution_nodes", NodeRole::Execution)];
/// What the name of a group of instances begins with.
const INSTANCE_GROUP: &str = "instance_group_";

type HostVariables = BTreeMap<String, String>;

/// A group: its hosts, and the groups in it.
#[derive(Debug, Default)]
struct HostGroup {
    hosts: BTreeSet<String>,
    children: BTreeSet<String>,
    variables: HostVariables,
}

#[derive(Debug, Default)]
struct Inventory {
    groups: BTreeMap<String, HostGroup>,
    hosts: BTreeMap<String, HostVariables>,
}

/// Whether a line begins a group.
pub(super) fn is_group(line: &str) -> bool {
    line.starts_with('[') && heading(line).is_some()
}

/// Reads the mesh out of an inventory.
///
/// # Errors
/// What is wrong, with its line, or with the host and the variable.
pub(super) fn read(text: &str) -> Result<MeshFile, String> {
    let inventory = parse(text)?;
    let mut file = MeshFile::default();
    for (group, usual) in NODES {
        for host in inventory.hosts_of(group) {
            let entry = inventory.entry(&host, group, usual)?;
            if group == NODES[0].0 {
                file.may_peer.insert(host.clone());
            }
            file.nodes.insert(host, entry);
        }
    }
    match file.nodes.is_empty() {
        true => Err("no host is in [automationcontroller] or [execution_nodes]".to_owned()),
        false => Ok(file),
    }
}

/// The name and the kind of a heading, `[name]` or `[name:kind]`.
fn heading(line: &str) -> Option<(&str, Option<&str>)> {
    let within = line.strip_prefix('[')?.split_once(']')?.0;
    let (name, kind) = within.split_once(':').map_or((within, None), |(name, kind)| (name, Some(kind)));
    let is_name = |text: &str| !text.is_empty() && !text.contains([' ', ',', '"', '\'', '{', '[']);
    is_name(name).then_some((name, kind))
}

fn parse(text: &str) -> Result<Inventory, String> {
    let mut inventory = Inventory::default();
    let (mut name, mut kind) = ("ungrouped", None);
    for (line, number) in text.lines().map(str::trim).zip(1..) {
        let wrong = |what: &str| format!("line {number}: {what}");
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if line.starts_with('[') {
            (name, kind) = heading(line).ok_or_else(|| wrong("this is no heading of a group"))?;
            if !matches!(kind, None | Some("vars" | "children")) {
                return Err(wrong("a heading is [GROUP], [GROUP:vars] or [GROUP:children]"));
            }
            inventory.groups.entry(name.to_owned()).or_default();
            continue;
        }
        let words = shlex::split(line).ok_or_else(|| wrong("a quote has no end"))?;
        let Some((first, rest)) = words.split_first() else { continue };
        let group = inventory.groups.entry(name.to_owned()).or_default();
        match kind {
            Some("vars") => {
                let (key, value) = line.split_once('=').ok_or_else(|| wrong("a variable is NAME=VALUE"))?;
                group.variables.insert(key.trim().to_owned(), unquoted(value));
            }
            Some(_) => {
                group.children.insert(first.clone());
            }
            None if first.contains('[') => {
                return Err(wrong("ranges of hosts are not read: write each host in a line of its own"));
            }
            None => {
                group.hosts.insert(first.clone());
                let variables = inventory.hosts.entry(first.clone()).or_default();
                for word in rest {
                    let (key, value) =
                        word.split_once('=').ok_or_else(|| wrong("behind a host stand NAME=VALUE"))?;
                    variables.insert(key.to_owned(), value.to_owned());
                }
            }
        }
    }
    Ok(inventory)
}

/// The value of a variable without its quotes and what is remarked behind it.
fn unquoted(value: &str) -> String {
    let value = value.trim();
    let quoted = ['\'', '"'].into_iter().find_map(|quote| value.strip_prefix(quote)?.split_once(quote));
    let plain = || value.split(" #").next().unwrap_or_default().trim();
    quoted.map_or_else(plain, |(within, _)| within).to_owned()
}

impl Inventory {
    /// All hosts of a group and of the groups in it.
    fn hosts_of(&self, group: &str) -> BTreeSet<String> {
        let (mut hosts, mut seen, mut left) = (BTreeSet::new(), BTreeSet::new(), vec![group]);
        while let Some(name) = left.pop() {
            if let Some(group) = self.groups.get(name).filter(|_| seen.insert(name)) {
                hosts.extend(group.hosts.iter().cloned());
                left.extend(group.children.iter().map(String::as_str));
            }
        }
        hosts
    }

    /// A variable of a host, under one of two names: its own, that of its group, or that of a group in which it is.
    fn variable(&self, host: &str, group: &str, names: [&str; 2]) -> Option<&str> {
        let own = self.hosts.get(host).into_iter();
        let within =
            self.groups.iter().filter(|(name, _)| *name != group && self.hosts_of(name).contains(host));
        let groups = within.map(|(_, group)| group).chain(self.groups.get(group));
        let mut all = own.chain(groups.map(|group| &group.variables));
        all.find_map(|variables| names.iter().find_map(|name| variables.get(*name))).map(String::as_str)
    }

    fn entry(&self, host: &str, group: &str, usual: NodeRole) -> Result<NodeEntry, String> {
        let found = match self.variable(host, group, ["node_type", "receptor_type"]) {
            None => usual,
            Some(name) => role(name).ok_or_else(|| {
                format!("{host}: node_type is {name:?}, and not control, hybrid, hop or execution")
            })?,
        };
        let mut peers = BTreeMap::new();
        let named = self.variable(host, group, ["peers", "receptor_peers"]).unwrap_or_default();
        let is_between = |letter: char| letter == ',' || letter.is_whitespace() || "[]'\"".contains(letter);
        for name in named.split(is_between).filter(|name| !name.is_empty()) {
            let all = match self.groups.contains_key(name) {
                true => self.hosts_of(name),
                false if self.hosts.contains_key(name) => BTreeSet::from([name.to_owned()]),
                false => return Err(format!("{host}: its peer {name:?} is no host and no group")),
            };
            peers.extend(all.into_iter().filter(|peer| peer != host).map(|peer| (peer, None)));
        }
        let of_instances =
            self.groups.keys().filter_map(|name| Some((name, name.strip_prefix(INSTANCE_GROUP)?)));
        let groups: BTreeSet<_> = of_instances
            .filter(|(name, _)| self.hosts_of(name).contains(host))
            .map(|(_, group)| group.to_owned())
            .collect();
        let groups = Some(groups).filter(|groups| !groups.is_empty());
        Ok(NodeEntry { role: Some(found), version: None, groups, peers })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INVENTORY: &str = "\
# A mesh of two control nodes, a hop and two nodes behind it
[automationcontroller]
c1.example ansible_connection=local
c2.example

[automationcontroller:vars]
node_type=control  # not hybrid
peers=hops

[hops]
hop.example node_type='hop' peers=e2.example

[execution_nodes]
hop.example
e1.example receptor_peers='[\"hop.example\"]'
e2.example

[instance_group_east]
e1.example

[database]
db.example

[all:vars]
pg_password='no # remark'
";

    #[test]
    fn an_inventory_says_roles_peers_and_groups() {
        let file = MeshFile::read(INVENTORY).unwrap();
        let told: Vec<_> = file.nodes.iter().map(|(name, one)| (name.as_str(), one.role.unwrap())).collect();
        let roles = [
            ("c1.example", NodeRole::Control),
            ("c2.example", NodeRole::Control),
            ("e1.example", NodeRole::Execution),
            ("e2.example", NodeRole::Execution),
            ("hop.example", NodeRole::Hop),
        ];
        assert_eq!(told, roles);
        let links: Vec<_> = file.links().into_keys().collect();
        let hop = "hop.example";
        assert_eq!(
            links,
            [("c1.example", hop), ("c2.example", hop), ("e1.example", hop), ("e2.example", hop)]
        );
        assert_eq!(file.nodes["e1.example"].groups, Some(BTreeSet::from(["east".to_owned()])));
        assert_eq!(file.may_peer.len(), 2);
    }

    #[test]
    fn what_is_wrong_in_an_inventory_is_told_with_its_place() {
        for (text, told) in [
            (
                "[automationcontroller]\nc1 peers=nowhere\n",
                "c1: its peer \"nowhere\" is no host and no group",
            ),
            ("[execution_nodes]\ne1 node_type=worker\n", "node_type is \"worker\""),
            ("[execution_nodes]\ne[1:5]\n", "line 2: ranges"),
            ("[execution_nodes:hosts]\n", "line 1: a heading is"),
            ("[execution_nodes]\ne1 \"x\n", "line 2: a quote has no end"),
            ("[database]\ndb\n", "no host is in"),
        ] {
            let error = MeshFile::read(text).unwrap_err();
            assert!(error.contains(told), "{text}: {error}");
        }
    }

    #[test]
    fn groups_in_a_circle_end() {
        let text = "[execution_nodes:children]\na\n[a:children]\nexecution_nodes\n[a]\ne1\n";
        assert_eq!(MeshFile::read(text).unwrap().nodes.len(), 1);
    }
}
