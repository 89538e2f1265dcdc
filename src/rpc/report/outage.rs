//! What is out of reach in a mesh, and why: outages and broken links as reports, and the words for them. Plain data; the
//! node computes it.

#![expect(missing_docs, reason = "the keys are specified in docs/protocol.md")]

use std::fmt;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Most names in the words for an outage.
const NAMED: usize = 3;

/// Some nodes that are out of reach together.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct OutageReport {
    /// The nearest of them, to which links have broken; empty if the node has never seen how they were linked.
    pub lost: Vec<String>,
    /// The others, which hang on the lost ones.
    pub behind: Vec<String>,
    /// The broken links to the lost ones: the nearer end and the lost one.
    pub links: Vec<[String; 2]>,
    /// When the last of these links broke.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
}

/// A link that has counted and does not any more, with the lesser name first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct BrokenLinkReport {
    pub a: String,
    pub b: String,
    pub since: Timestamp,
    /// Why, if the node that reports is an end of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl OutageReport {
    /// All nodes in it.
    pub fn nodes(&self) -> impl Iterator<Item = &String> {
        self.lost.iter().chain(&self.behind)
    }

    /// The part of it that these nodes are; `None` if it is none of them.
    pub fn part(&self, is_in: impl Fn(&String) -> bool) -> Option<Self> {
        let of = |nodes: &[String]| nodes.iter().filter(|node| is_in(node)).cloned().collect::<Vec<_>>();
        let (lost, behind) = (of(&self.lost), of(&self.behind));
        let is_some = !lost.is_empty() || !behind.is_empty();
        is_some.then(|| Self { lost, behind, links: self.links.clone(), since: self.since })
    }

    /// The nodes: `hop`, `hop and 33 nodes behind it`.
    pub fn names(&self) -> String {
        match (self.lost.is_empty(), self.behind.len()) {
            (true, _) => named(&self.behind),
            (false, 0) => named(&self.lost),
            (false, _) => format!("{} and {}", named(&self.lost), self.hidden()),
        }
    }

    /// The same with when it was, in a form of the reader's.
    pub fn told(&self, time: impl Fn(Timestamp) -> String) -> String {
        let since = self.since.map(|since| format!(" since {}", time(since)));
        self.sentence(&since.unwrap_or_default())
    }

    /// What has happened, without the time: `hop is out of reach; 33 nodes behind it`.
    pub fn what(&self) -> String {
        self.sentence("")
    }

    fn sentence(&self, since: &str) -> String {
        let nearest = if self.lost.is_empty() { &self.behind } else { &self.lost };
        let verb = if nearest.len() == 1 { "is" } else { "are" };
        let more = match (self.lost.is_empty(), self.behind.len()) {
            (true, _) => "; no link to them was ever seen here".to_owned(),
            (false, 0) => String::new(),
            (false, _) => format!("; {}", self.hidden()),
        };
        format!("{} {verb} out of reach{since}{more}", named(nearest))
    }

    fn hidden(&self) -> String {
        let (nodes, them) = (self.behind.len(), if self.lost.len() == 1 { "it" } else { "them" });
        format!("{nodes} node{} behind {them}", if nodes == 1 { "" } else { "s" })
    }
}

impl fmt::Display for OutageReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.told(|since| format!("{since:.0}")))
    }
}

/// A few names, and how many more there are.
fn named(names: &[String]) -> String {
    let (shown, more) = names.split_at(names.len().min(NAMED));
    match (shown, more.len()) {
        ([.., last], 0) if shown.len() > 1 => format!("{} and {last}", shown[..shown.len() - 1].join(", ")),
        (_, 0) => shown.join(", "),
        (_, more) => format!("{} and {more} more", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outage(lost: &[&str], behind: usize) -> OutageReport {
        let since = Some("2026-11-27T13:35:01.5Z".parse().unwrap());
        let lost = lost.iter().map(ToString::to_string).collect();
        OutageReport {
            lost,
            behind: (0..behind).map(|n| format!("e{n}")).collect(),
            links: Vec::new(),
            since,
        }
    }

    #[test]
    fn an_outage_is_one_sentence_however_many_nodes_are_in_it() {
        for (lost, behind, what, names) in [
            (&["hop"][..], 33, "hop is out of reach; 33 nodes behind it", "hop and 33 nodes behind it"),
            (&["hop"], 1, "hop is out of reach; 1 node behind it", "hop and 1 node behind it"),
            (&["hop"], 0, "hop is out of reach", "hop"),
            (
                &["a", "b"],
                2,
                "a and b are out of reach; 2 nodes behind them",
                "a and b and 2 nodes behind them",
            ),
            (&["a", "b", "c", "d", "e"], 0, "a, b, c and 2 more are out of reach", "a, b, c and 2 more"),
            (&[], 2, "e0 and e1 are out of reach; no link to them was ever seen here", "e0 and e1"),
        ] {
            let outage = outage(lost, behind);
            assert_eq!((outage.what().as_str(), outage.names().as_str()), (what, names));
        }
        let text = outage(&["hop"], 33).to_string();
        assert_eq!(text, "hop is out of reach since 2026-11-27T13:35:01Z; 33 nodes behind it");
    }

    #[test]
    fn a_part_has_the_nodes_that_are_asked_for() {
        let part = outage(&["hop"], 3).part(|node| node != "e1").unwrap();
        assert_eq!(part.names(), "hop and 2 nodes behind it");
        assert_eq!(outage(&["hop"], 3).part(|_| false), None);
    }
}
