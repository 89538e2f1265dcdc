//! `meshctl graph`: prints the mesh that a node's status describes, as a `tree` for people, or for programs that draw.
//! Owns the notations of these, in which any name, however odd, stays a name. Those programs decide where nodes stand.

mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use clap::Args;
use serde_json::{Value, json};

use super::CliContext;
use super::exit::{Exit, Failure};
use super::status;
use crate::rpc::report::events::nodes;
use crate::rpc::report::node::{NodeReport, Section};
use crate::rpc::request::Request;

/// The most characters of a label.
const LABEL: usize = 20;

#[derive(Debug, Args)]
#[group(multiple = false)]
pub(super) struct GraphCommand {
    /// In the language of Graphviz: meshctl graph --dot | dot -Tpng >mesh.png
    #[arg(long)]
    dot: bool,
    /// As a Mermaid diagram, for Markdown
    #[arg(long)]
    mermaid: bool,
}

/// A mesh to be drawn.
#[derive(Debug, Default, PartialEq)]
struct Picture {
    /// The node that was asked.
    own: String,
    nodes: BTreeSet<String>,
    /// Both ends, the lesser name first, with the cost that each end reports.
    links: BTreeMap<(String, String), [Option<f64>; 2]>,
}

impl GraphCommand {
    pub(super) async fn run(self, context: &CliContext) -> Result<Exit, Failure> {
        let sections = [
            Section::NodeId,
            Section::Routes,
            Section::Costs,
            Section::Links,
            Section::Outages,
            Section::BrokenLinks,
        ];
        let fields = sections.map(|section| section.to_string()).to_vec();
        let answer = context.client.command(&Request::Status { fields: Some(fields) }).await?;
        let mesh = status::read(&answer)?;
        let picture = Picture::of(&mesh);
        if context.output.json {
            context.output.value(&picture.json())?;
            return Ok(Exit::Success);
        }
        context.output.line(&match () {
            () if self.mermaid => picture.mermaid(),
            () if self.dot => picture.dot(),
            () => tree::tree(&mesh, context.output.width(), context.output.now().time_zone()),
        })?;
        Ok(Exit::Success)
    }
}

impl Picture {
    fn of(report: &NodeReport) -> Self {
        let (own, links) = (report.node_id.clone().unwrap_or_default(), status::links(report));
        let mut nodes = nodes(report);
        nodes.extend(links.keys().flat_map(|(a, b)| [a.clone(), b.clone()]));
        Self { own, nodes, links }
    }

    /// Each link with its cost, unless it is 1, and whether only one end knows the link.
    fn links(&self) -> impl Iterator<Item = (&str, &str, Option<f64>, bool)> {
        self.links.iter().map(|((a, b), [cost_ab, cost_ba])| {
            let cost = cost_ab.or(*cost_ba).filter(|cost| (cost - 1.0).abs() > f64::EPSILON);
            (a.as_str(), b.as_str(), cost, cost_ab.is_none() || cost_ba.is_none())
        })
    }

    fn json(&self) -> Value {
        let link = |((a, b), [cost_ab, cost_ba]): (&(String, String), &[Option<f64>; 2])| json!({"a": a, "b": b, "cost_ab": cost_ab, "cost_ba": cost_ba});
        let links: Vec<Value> = self.links.iter().map(link).collect();
        json!({"node": self.own, "nodes": self.nodes, "links": links})
    }

    fn dot(&self) -> String {
        let quoted = |name: &str| format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\""));
        let mut text = "graph mesh {\n  node [shape=box];\n".to_owned();
        for node in &self.nodes {
            let own = if *node == self.own { ", style=bold" } else { "" };
            let _ = writeln!(text, "  {} [label={}{own}];", quoted(node), quoted(&label(node)));
        }
        for (a, b, cost, is_half) in self.links() {
            let cost = cost.map(|cost| format!("label={cost}"));
            let half = is_half.then(|| "style=dashed".to_owned());
            let attributes: Vec<String> = cost.into_iter().chain(half).collect();
            let attributes =
                if attributes.is_empty() { String::new() } else { format!(" [{}]", attributes.join(", ")) };
            let _ = writeln!(text, "  {} -- {}{attributes};", quoted(a), quoted(b));
        }
        text + "}"
    }

    fn mermaid(&self) -> String {
        let number: BTreeMap<&str, usize> = self.nodes.iter().map(String::as_str).zip(0..).collect();
        let escaped = |name: &str| name.replace('#', "#35;").replace('"', "#quot;").replace('<', "#lt;");
        let mut text = "graph LR".to_owned();
        for (name, number) in &number {
            let _ = write!(text, "\n  n{number}[\"{}\"]", escaped(&label(name)));
        }
        for (a, b, cost, is_half) in self.links() {
            let line = if is_half { "-.-" } else { "---" };
            let cost = cost.map(|cost| format!("|{cost}|")).unwrap_or_default();
            let _ = write!(text, "\n  n{} {line}{cost} n{}", number[a], number[b]);
        }
        text
    }
}

/// A name as a label, which is cut if it is long.
fn label(name: &str) -> String {
    match name.char_indices().nth(LABEL) {
        None => name.to_owned(),
        Some(_) => name.chars().take(LABEL - 1).chain(['…']).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::report;

    fn picture() -> Picture {
        Picture::of(
            &report::read(&json!({
                "NodeID": "a",
                "RoutingTable": {"hop": "hop", "x\"<&\\": "hop"},
                "KnownConnectionCosts": {"a": {"hop": 1.0}, "hop": {"a": 1.0, "x\"<&\\": 2.5}}}))
            .unwrap(),
        )
    }

    #[test]
    fn the_notations_say_the_same_and_a_name_stays_a_name() {
        assert_eq!(
            picture().dot(),
            "graph mesh {\n  node [shape=box];\n  \"a\" [label=\"a\", style=bold];\n  \"hop\" [label=\"hop\"];\n  \
             \"x\\\"<&\\\\\" [label=\"x\\\"<&\\\\\"];\n  \"a\" -- \"hop\";\n  \"hop\" -- \"x\\\"<&\\\\\" [label=2.5, style=dashed];\n}"
        );
        assert_eq!(
            picture().mermaid(),
            "graph LR\n  n0[\"a\"]\n  n1[\"hop\"]\n  n2[\"x#quot;#lt;&\\\"]\n  n0 --- n1\n  n1 -.-|2.5| n2"
        );
    }

    #[test]
    fn a_node_alone_is_a_picture() {
        let alone = Picture::of(&NodeReport { node_id: Some("a".to_owned()), ..NodeReport::default() });
        assert_eq!(alone.mermaid(), "graph LR\n  n0[\"a\"]");
    }

    #[test]
    fn long_names_are_cut() {
        assert_eq!(label("hop"), "hop");
        assert_eq!(label("12345678901234567890"), "12345678901234567890");
        assert_eq!(label("123456789012345678901"), "1234567890123456789…");
        assert_eq!(label(&"ö".repeat(30)).chars().count(), LABEL);
    }
}
