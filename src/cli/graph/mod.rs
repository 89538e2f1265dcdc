//! `meshctl graph`: the mesh as a picture, of the status that a node answers. Owns the notations, in which a name,
//! however odd, stays a name. Where nodes stand is `layout`'s to say.

pub(crate) mod layout;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use clap::Args;
use serde_json::{Value, json};

use super::Context;
use super::exit::{Exit, Failure};
use super::status;
use crate::rpc::report::events::nodes;
use crate::rpc::report::node::{NodeReport, Section};
use crate::rpc::request::Request;
use layout::{Places, label};

#[derive(Debug, Args)]
#[group(multiple = false)]
pub(super) struct Graph {
    /// In the language of Graphviz, which is the default: meshctl graph | dot -Tpng >mesh.png
    #[arg(long)]
    dot: bool,
    /// As a Mermaid diagram, for Markdown
    #[arg(long)]
    mermaid: bool,
    /// As an SVG picture, for a browser
    #[arg(long)]
    svg: bool,
}

/// A mesh to be drawn.
#[derive(Debug, Default, PartialEq)]
struct Picture {
    /// The node that was asked.
    own: String,
    nodes: BTreeSet<String>,
    /// Both ends, the lesser name first, with the cost that each of them says.
    links: BTreeMap<(String, String), [Option<f64>; 2]>,
}

impl Graph {
    pub(super) async fn run(self, context: &Context) -> Result<Exit, Failure> {
        let fields =
            [Section::NodeId, Section::Routes, Section::Costs].map(|section| section.to_string()).to_vec();
        let answer = context.client.command(&Request::Status { fields: Some(fields) }).await?;
        let picture = Picture::of(&status::read(&answer)?);
        if context.output.json {
            context.output.value(&picture.json())?;
            return Ok(Exit::Success);
        }
        context.output.line(&match () {
            () if self.svg => picture.svg(),
            () if self.mermaid => picture.mermaid(),
            () => picture.dot(),
        })?;
        Ok(Exit::Success)
    }
}

impl Picture {
    fn of(report: &NodeReport) -> Self {
        let (own, links) = (report.node_id.clone().unwrap_or_default(), report.link_costs().into_iter());
        let links: BTreeMap<_, _> =
            links.map(|((a, b), costs)| ((a.to_owned(), b.to_owned()), costs)).collect();
        let mut nodes = nodes(report);
        nodes.extend(links.keys().flat_map(|(a, b)| [a.clone(), b.clone()]));
        Self { own, nodes, links }
    }

    /// Each link with its cost, if it is not the usual one, and whether one end alone knows it.
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

    fn svg(&self) -> String {
        let ends = self.links.keys().cloned().collect();
        let places = layout::layout(&self.nodes, &ends, &Places::new());
        let at = |name: &str| places.get(name).map(|cell| cell.middle()).unwrap_or_default();
        let escaped = |text: &str| {
            text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
        };
        let bottom = places.values().map(|cell| cell.middle().1 + 40).max().unwrap_or_default();
        let (width, height) = (layout::WIDTH, layout::HEIGHT.max(bottom));
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"monospace\" \
             font-size=\"10\" text-anchor=\"middle\" stroke=\"none\">"
        );
        for (a, b, cost, is_half) in self.links() {
            let ((x1, y1), (x2, y2)) = (at(a), at(b));
            let dashes = if is_half { " stroke-dasharray=\"4\"" } else { "" };
            let _ = write!(
                text,
                "\n<line x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\" stroke=\"#888\"{dashes}/>"
            );
            if let Some(cost) = cost {
                let _ = write!(
                    text,
                    "\n<text x=\"{}\" y=\"{}\" fill=\"#888\">{cost}</text>",
                    (x1 + x2) / 2,
                    (y1 + y2) / 2
                );
            }
        }
        for node in &self.nodes {
            let ((x, y), fill) = (at(node), if *node == self.own { "#06c" } else { "#333" });
            let _ = write!(
                text,
                "\n<g><title>{}</title><circle cx=\"{x}\" cy=\"{y}\" r=\"5\" fill=\"{fill}\"/><text x=\"{x}\" y=\"{}\">{}</text></g>",
                escaped(node),
                y + 16,
                escaped(&label(node))
            );
        }
        text + "\n</svg>"
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
        let svg = picture().svg();
        assert!(svg.contains("<title>x&quot;&lt;&amp;\\</title>") && svg.ends_with("</svg>"), "{svg}");
        assert_eq!((svg.matches("<line ").count(), svg.matches("<circle ").count()), (2, 3), "{svg}");
        assert_eq!(svg.matches("stroke-dasharray").count(), 1, "{svg}");
    }

    #[test]
    fn a_node_alone_is_a_picture() {
        let alone = Picture::of(&NodeReport { node_id: Some("a".to_owned()), ..NodeReport::default() });
        assert_eq!(alone.mermaid(), "graph LR\n  n0[\"a\"]");
        assert_eq!(alone.svg().matches("<circle ").count(), 1);
    }
}
