//! The mesh for the page: its nodes and its links. What this node knows is told at once; a look at figures of other nodes' links
//! has these nodes asked, for the next look.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, StreamExt as _};
use http::StatusCode;
use jiff::Timestamp;
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::Serialize;
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::Web;
use crate::control::{Context, far_links};
use crate::http::answer::{self, HttpAnswer};
use crate::rpc::report::node::{LinkReport, Section, ends};

/// How long after the last round a look begins another one: less than a page waits between two looks.
const ASK: Duration = Duration::from_secs(25);
/// Nodes that are asked at a time, and how long each may take.
const AT_ONCE: usize = 8;
const WITHIN: Duration = Duration::from_secs(10);
/// Links of one node that are shown with figures.
const MOST_LINKS: usize = 256;
/// How long an answer is kept. A node that has said nothing is not asked again before: those of receptor never do.
const KEPT: Duration = Duration::from_secs(300);

/// All nodes of the mesh.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct MeshNodes {
    nodes: Vec<MeshNode>,
}

/// All links of the mesh.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct MeshLinks {
    links: Vec<MeshLink>,
}

/// A node of the mesh.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(crate) struct MeshNode {
    name: String,
    /// It is the one that answers.
    own: bool,
    reachable: bool,
    next_hop: Option<String>,
    /// Along the route.
    cost: Option<f64>,
    neighbours: Vec<String>,
    work_types: Vec<String>,
    services: Vec<String>,
    last_advertised: Option<Timestamp>,
    /// The state of the instance of that name.
    instance: Option<String>,
}

/// A link, with the lesser name first.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct MeshLink {
    a: String,
    b: String,
    cost_ab: Option<f64>,
    cost_ba: Option<f64>,
    figures: Vec<LinkFigures>,
}

/// What one end says of a link.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct LinkFigures {
    from: String,
    transport: String,
    rtt_seconds: Option<f64>,
    loss: f64,
    queued_bytes: u64,
    dropped: u64,
    bytes_in: u64,
    bytes_out: u64,
    asked: Timestamp,
}

/// What nodes have said of their links. A round of questions ends with it.
pub(super) struct FarLinks {
    shared: Arc<SharedLinks>,
    round: Mutex<Option<(Instant, AbortOnDropHandle<()>)>>,
}

struct SharedLinks {
    context: Context,
    // A lock and no task: held for a copy or an entry alone.
    said: Mutex<BTreeMap<String, FarAnswer>>,
}

/// A node's answer, or that there was none.
#[derive(Clone)]
struct FarAnswer {
    at: Instant,
    asked: Timestamp,
    links: Option<Vec<LinkReport>>,
}

impl Web {
    pub(super) async fn nodes(&self) -> HttpAnswer {
        let (own, mesh) = (self.context.node.id(), self.context.node.status().await);
        let states = self.context.observer.controller().await.map(|(report, _)| report.nodes);
        let states: BTreeMap<String, String> =
            states.into_iter().flatten().map(|one| (one.node, one.node_state)).collect();
        let costs = mesh.path_costs(own);
        let linked = mesh.known_connection_costs.iter();
        let mut names: BTreeSet<_> = linked.flat_map(|(node, links)| links.keys().chain([node])).collect();
        names.extend(mesh.routing_table.keys().chain([own]));
        names.extend(mesh.advertisements.iter().map(|ad| &ad.node_id));
        let mut nodes = Vec::new();
        for name in names {
            let next_hop = mesh.routing_table.get(name);
            let neighbours = mesh.known_connection_costs.get(name);
            let mut node = MeshNode {
                name: name.to_string(),
                own: name == own,
                reachable: name == own || next_hop.is_some(),
                next_hop: next_hop.map(ToString::to_string),
                cost: costs.get(name).copied().filter(|_| name == own || next_hop.is_some()),
                neighbours: neighbours
                    .iter()
                    .flat_map(|links| links.keys())
                    .map(ToString::to_string)
                    .collect(),
                instance: states.get(name.as_str()).cloned(),
                ..MeshNode::default()
            };
            for ad in mesh.advertisements.iter().filter(|ad| ad.node_id == *name) {
                node.services.push(ad.service.to_string());
                let types = ad.work_commands.iter().flatten().map(|kind| kind.work_type.clone());
                node.work_types.extend(types);
                node.last_advertised = node.last_advertised.max(Some(ad.time));
            }
            nodes.push(node);
        }
        answer::json(StatusCode::OK, &MeshNodes { nodes })
    }

    pub(super) async fn links(&self) -> HttpAnswer {
        let own = self.context.node.id().to_string();
        let mesh = self.context.observer.report(&[Section::Costs, Section::Links]).await;
        let new = |(a, b): &(String, String), [cost_ab, cost_ba]: [Option<f64>; 2]| {
            let (a, b) = (a.clone(), b.clone());
            MeshLink { a, b, cost_ab, cost_ba, figures: Vec::new() }
        };
        let costs = mesh.link_costs().into_iter();
        let mut links: BTreeMap<_, _> =
            costs.map(|(ends, costs)| (ends.clone(), new(&ends, costs))).collect();
        let mut said = self.far_links.look();
        let (at, asked) = (Instant::now(), Timestamp::now());
        said.insert(own.clone(), FarAnswer { at, asked, links: mesh.links });
        for (from, FarAnswer { asked, links: reports, .. }) in said {
            for report in reports.into_iter().flatten() {
                let ends = ends(&from, &report.node_id);
                // What another node says may be older than what is known of the mesh.
                if from == own || links.contains_key(&ends) {
                    let link = links.entry(ends).or_insert_with_key(|ends| new(ends, [None; 2]));
                    link.figures.push(LinkFigures::new(from.clone(), asked, report));
                }
            }
        }
        answer::json(StatusCode::OK, &MeshLinks { links: links.into_values().collect() })
    }
}

impl LinkFigures {
    fn new(from: String, asked: Timestamp, link: LinkReport) -> Self {
        let LinkReport { transport, probe_loss, queued_bytes, dropped, bytes_in, bytes_out, .. } = link;
        let (rtt_seconds, loss) = (link.rtt.map(|nanos| nanos as f64 / 1e9), probe_loss);
        Self { from, transport, rtt_seconds, loss, queued_bytes, dropped, bytes_in, bytes_out, asked }
    }
}

impl FarLinks {
    pub(super) fn new(context: &Context) -> Self {
        let shared = Arc::new(SharedLinks { context: context.clone(), said: Mutex::default() });
        Self { shared, round: Mutex::default() }
    }

    /// What the others have said. Who looks has them asked for the next look.
    fn look(&self) -> BTreeMap<String, FarAnswer> {
        let mut round = self.round.lock();
        if round.as_ref().is_none_or(|(begun, task)| task.is_finished() && begun.elapsed() >= ASK) {
            let asking = tokio::spawn(self.shared.clone().ask_all());
            *round = Some((Instant::now(), AbortOnDropHandle::new(asking)));
        }
        let mut said = self.shared.said.lock();
        said.retain(|_, answer| answer.at.elapsed() < KEPT);
        said.clone()
    }
}

impl SharedLinks {
    async fn ask_all(self: Arc<Self>) {
        let mesh = self.context.node.status().await;
        let due: Vec<String> = {
            let mut said = self.said.lock();
            said.retain(|name, _| mesh.routing_table.keys().any(|node| node.as_str() == name));
            let is_silent = |name: &String| said.get(name).is_some_and(|answer| answer.links.is_none());
            let nodes = mesh.routing_table.keys().map(ToString::to_string);
            nodes.filter(|name| !is_silent(name)).collect()
        };
        let mut answers = stream::iter(due).map(|node| self.ask(node)).buffer_unordered(AT_ONCE);
        while let Some((node, links)) = answers.next().await {
            let answer = FarAnswer { at: Instant::now(), asked: Timestamp::now(), links };
            self.said.lock().insert(node, answer);
        }
    }

    async fn ask(&self, node: String) -> (String, Option<Vec<LinkReport>>) {
        let said = timeout(WITHIN, far_links(&self.context, &node)).await;
        // What a node says of itself is bounded.
        let said = said.ok().flatten().map(|mut links| {
            links.truncate(MOST_LINKS);
            links
        });
        (node, said)
    }
}
