//! The mesh for the page: its nodes and its links. What this node knows is answered at once. Figures of other nodes'
//! links are those of their last answers: each look has these nodes asked for the next look.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, StreamExt as _};
use jiff::Timestamp;
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::layout::layout;
use super::query::ParameterKind;
use super::refusal::ApiRefusal;
use super::{Web, WebRequest};
use crate::control::{Context, broken_links, far_links};
use crate::http::answer::HttpAnswer;
use crate::mesh::{Links, MeshStatus};
use crate::os::answers::{PAGE, fitting};
use crate::rpc::report::node::LinkReport;
use crate::rpc::report::outage::{BrokenLinkReport, OutageReport};
use crate::wire::{ConnType, NodeId};

/// How long after the beginning of a round a look may begin the next. The page waits longer than this between two
/// looks.
const ASK: Duration = Duration::from_secs(25);
/// The most nodes that are asked at a time, and how long each may take.
const AT_ONCE: usize = 8;
const WITHIN: Duration = Duration::from_secs(10);
/// The most links of one node, and of all nodes, whose figures are kept; the most bytes of a word in them.
const MOST_LINKS: usize = 256;
const MOST_FIGURES: usize = 16_384;
const WORD: usize = 64;
/// The most bytes of a list in a node, such as its services.
const PART: usize = 64 << 10;
/// How long an answer is kept. During this time, a node that did not answer is not asked again, because receptor
/// nodes never answer.
const KEPT: Duration = Duration::from_secs(300);

/// Where a page begins: after the node or the link that `next` of the page before has named.
pub(super) const OF_NODES: &[(&str, ParameterKind)] = &[("after", ParameterKind::Text)];
pub(super) const OF_LINKS: &[(&str, ParameterKind)] = &[("after", ParameterKind::many::<String>())];

/// Nodes of the mesh, one page of them.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct MeshNodes {
    nodes: Vec<MeshNode>,
    /// What the next page asks for as `after`, if there is one.
    next: Option<String>,
}

/// Links of the mesh, one page of them.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct MeshLinks {
    links: Vec<MeshLink>,
    /// What the next page asks for as `after`, the one and then the other, if there is one.
    next: Option<[String; 2]>,
}

/// What is broken in the mesh, as far as it fits into an answer.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct MeshOutages {
    /// The largest first.
    outages: Vec<OutageReport>,
    /// By their ends.
    broken_links: Vec<BrokenLinkReport>,
    /// There are more than these.
    has_more: bool,
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
    /// Where it stands in the picture, in points from the middle.
    x: f64,
    y: f64,
    /// The node on which it hangs in the picture.
    parent: Option<String>,
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
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct LinkFigures {
    #[schemars(with = "String")]
    from: NodeId,
    transport: String,
    rtt_seconds: Option<f64>,
    pub(super) loss: f64,
    queued_bytes: u64,
    dropped: u64,
    bytes_in: u64,
    bytes_out: u64,
    asked: Timestamp,
}

/// What nodes have said of their links. Dropping it ends a round of questions.
pub(super) struct FarLinks {
    shared: Arc<SharedLinks>,
    round: Mutex<Option<(Instant, AbortOnDropHandle<()>)>>,
}

struct SharedLinks {
    context: Context,
    // A lock rather than a task, because it is held only for a copy or a change.
    said: Mutex<FarAnswers>,
}

/// A node's answer; without figures if it did not answer.
#[derive(Clone)]
pub(super) struct FarAnswer {
    at: Instant,
    figures: Option<Arc<FiguresByNode>>,
}

/// What one node says of its links, by the nodes at their other ends.
type FiguresByNode = BTreeMap<NodeId, LinkFigures>;

/// What nodes have said, by their names.
pub(super) type FarAnswers = BTreeMap<NodeId, FarAnswer>;

impl Web {
    pub(super) async fn nodes(&self, asked: WebRequest) -> Result<HttpAnswer, ApiRefusal> {
        let (own, mesh) = (self.context.node.id().clone(), self.context.node.status().await);
        let states = self.context.observer.controller().await.map(|(report, _)| report.nodes);
        let states: BTreeMap<String, String> =
            states.into_iter().flatten().map(|one| (one.node, one.node_state)).collect();
        let after = asked.arguments.get("after").and_then(Value::as_str).map(str::to_owned);
        let make = move || nodes(&own, &mesh, &states, &broken_ends(&mesh), after.as_deref());
        self.large(&asked.visitor, make).await
    }

    pub(super) async fn outages(&self, asked: WebRequest) -> Result<HttpAnswer, ApiRefusal> {
        let node = &self.context.node;
        let (own, mesh, reasons) = (node.id().clone(), node.status().await, node.lost().await);
        self.large(&asked.visitor, move || outages(&own, &mesh, &reasons)).await
    }

    pub(super) async fn links(&self, asked: WebRequest) -> Result<HttpAnswer, ApiRefusal> {
        let after = asked.arguments.get("after").and_then(Value::as_array).into_iter().flatten();
        let after: Vec<String> = after.filter_map(Value::as_str).map(str::to_owned).collect();
        let own = self.context.node.id().clone();
        let (mesh, said) = (self.context.node.status().await, self.said_of_links().await);
        self.large(&asked.visitor, move || links(&own, &mesh, &said, &after)).await
    }

    /// What nodes say of their links, this one at once.
    pub(super) async fn said_of_links(&self) -> FarAnswers {
        let own = self.context.node.id();
        let reports = self.context.node.links().await.into_iter();
        let reports = reports.map(|link| (link.node_id.clone(), LinkReport::from(link)));
        let figures = reports.map(|(to, link)| (to, LinkFigures::new(own.clone(), link))).collect();
        let mut said = self.far_links.look();
        said.insert(own.clone(), FarAnswer { at: Instant::now(), figures: Some(Arc::new(figures)) });
        said
    }
}

/// All nodes that the mesh knows of.
pub(super) fn names<'a>(own: &'a NodeId, mesh: &'a MeshStatus) -> BTreeSet<&'a NodeId> {
    let linked = mesh.known_connection_costs.iter();
    let linked = linked.flat_map(|(node, links)| links.keys().chain([node]));
    let offering = mesh.advertisements.iter().map(|ad| &ad.node_id);
    linked.chain(mesh.routing_table.keys()).chain([own]).chain(offering).collect()
}

/// The two ends of each link that has counted and does not any more.
pub(super) fn broken_ends(mesh: &MeshStatus) -> BTreeSet<LinkEnds<'_>> {
    mesh.each_broken_link().map(|(a, b, _)| [a, b]).collect()
}

/// A page of nodes.
fn nodes(
    own: &NodeId,
    mesh: &MeshStatus,
    states: &BTreeMap<String, String>,
    broken: &BTreeSet<LinkEnds<'_>>,
    after: Option<&str>,
) -> MeshNodes {
    let costs = mesh.path_costs(own);
    let mut offers = BTreeMap::<_, Vec<_>>::new();
    for ad in &mesh.advertisements {
        offers.entry(&ad.node_id).or_default().push(ad);
    }
    let all = names(own, mesh);
    // One that breaks stays, so that nobody moves when it does.
    let kept = broken.iter().filter(|ends| ends.iter().all(|end| all.contains(end))).copied();
    let said = FarAnswers::new();
    let links: BTreeSet<_> = known_links(own, mesh, &said).into_keys().chain(kept).collect();
    let links = links.iter().map(|ends| ends.map(NodeId::as_str));
    let places = layout(all.iter().map(|name| name.as_str()), links);
    let names = all.into_iter().filter(|name| after.is_none_or(|after| name.as_str() > after));
    let part = |texts: &mut dyn Iterator<Item = String>| fitting(texts, PART).0;
    let node = |name: &NodeId| {
        let next_hop = mesh.routing_table.get(name);
        let neighbours = mesh.known_connection_costs.get(name);
        let ads = offers.get(name).map(Vec::as_slice).unwrap_or_default();
        let types = ads.iter().flat_map(|ad| ad.work_commands.iter().flatten());
        MeshNode {
            name: name.to_string(),
            own: name == own,
            reachable: name == own || next_hop.is_some(),
            next_hop: next_hop.map(ToString::to_string),
            cost: costs.get(name).copied().filter(|_| name == own || next_hop.is_some()),
            neighbours: part(&mut neighbours.iter().flat_map(|all| all.keys()).map(ToString::to_string)),
            services: part(&mut ads.iter().map(|ad| ad.service.to_string())),
            work_types: part(&mut types.map(|kind| kind.work_type.clone())),
            last_advertised: ads.iter().map(|ad| ad.time).max(),
            instance: states.get(name.as_str()).cloned(),
            x: places.get(name.as_str()).map_or(0.0, |place| place.x),
            y: places.get(name.as_str()).map_or(0.0, |place| place.y),
            parent: places.get(name.as_str()).and_then(|place| place.parent).map(str::to_owned),
        }
    };
    let (nodes, more): (Vec<MeshNode>, _) = fitting(names.map(node), PAGE);
    let next = nodes.last().filter(|_| more).map(|node| node.name.clone());
    MeshNodes { nodes, next }
}

/// What is broken. Names that do not fit are left out of an outage, and their number with them.
fn outages(own: &NodeId, mesh: &MeshStatus, reasons: &BTreeMap<NodeId, String>) -> MeshOutages {
    let mut all = mesh.outages(own);
    all.sort_by_key(|outage| Reverse(outage.nodes().count()));
    let mut has_cut = false;
    let mut cut = |mut outage: OutageReport| {
        let parts = [&mut outage.lost, &mut outage.behind].map(|names| cut_to(names, PART));
        has_cut |= parts.contains(&true) | cut_to(&mut outage.links, PART);
        outage
    };
    let (outages, more): (Vec<_>, _) = fitting(all.into_iter().map(|one| cut(one.into())), PAGE / 2);
    let (broken_links, more_links) = fitting(broken_links(own, mesh, reasons), PAGE / 2);
    MeshOutages { outages, broken_links, has_more: more || more_links || has_cut }
}

/// Leaves out what does not fit; true if something does not.
fn cut_to<T: Serialize>(list: &mut Vec<T>, bytes: usize) -> bool {
    let (kept, more) = fitting(std::mem::take(list), bytes);
    *list = kept;
    more
}

/// The two ends of a link, the lesser name first.
pub(super) type LinkEnds<'a> = [&'a NodeId; 2];

/// What one end has said of a link to another.
pub(super) fn figures_of<'a>(said: &'a FarAnswers, from: &NodeId, to: &NodeId) -> Option<&'a LinkFigures> {
    said.get(from)?.figures.as_ref()?.get(to)
}

/// All links that the mesh knows of, with the cost that each end reports.
pub(super) fn known_links<'a>(
    own: &'a NodeId,
    mesh: &'a MeshStatus,
    said: &'a FarAnswers,
) -> BTreeMap<LinkEnds<'a>, [Option<f64>; 2]> {
    let mut links = BTreeMap::<_, [Option<f64>; 2]>::new();
    for (from, costs) in mesh.known_connection_costs.iter() {
        for (to, cost) in costs.iter() {
            links.entry([from.min(to), from.max(to)]).or_default()[usize::from(from > to)] = Some(cost.get());
        }
    }
    // The costs that the mesh knows may not have a new link of this node yet.
    let here = said.get(own).and_then(|answer| answer.figures.as_ref());
    let neighbours = here.into_iter().flat_map(|figures| figures.keys());
    neighbours.for_each(|to| _ = links.entry([own.min(to), own.max(to)]).or_default());
    links
}

/// A page of links.
fn links(own: &NodeId, mesh: &MeshStatus, said: &FarAnswers, after: &[String]) -> MeshLinks {
    let link = |([a, b], [cost_ab, cost_ba]): (LinkEnds<'_>, [Option<f64>; 2])| {
        let ends = [(a, b), (b, a)].into_iter();
        let said = ends.filter_map(|(from, to)| figures_of(said, from, to).cloned());
        MeshLink { a: a.to_string(), b: b.to_string(), cost_ab, cost_ba, figures: said.collect() }
    };
    let is_behind =
        |ends: &LinkEnds<'_>| ends.map(NodeId::as_str).into_iter().gt(after.iter().map(String::as_str));
    let rest = known_links(own, mesh, said).into_iter().filter(|(ends, _)| is_behind(ends));
    let (links, more): (Vec<MeshLink>, _) = fitting(rest.map(link), PAGE);
    let next = links.last().filter(|_| more).map(|link| [link.a.clone(), link.b.clone()]);
    MeshLinks { links, next }
}

impl LinkFigures {
    fn new(from: NodeId, link: LinkReport) -> Self {
        let LinkReport { mut transport, probe_loss, queued_bytes, dropped, bytes_in, bytes_out, .. } = link;
        let (rtt_seconds, loss) = (link.rtt.map(|nanos| nanos as f64 / 1e9), probe_loss);
        transport.truncate(transport.floor_char_boundary(WORD));
        transport.shrink_to_fit();
        let asked = Timestamp::now();
        Self { from, transport, rtt_seconds, loss, queued_bytes, dropped, bytes_in, bytes_out, asked }
    }
}

impl FarLinks {
    pub(super) fn new(context: &Context) -> Self {
        let shared = Arc::new(SharedLinks { context: context.clone(), said: Mutex::default() });
        Self { shared, round: Mutex::default() }
    }

    /// What the others have said. Begins a round of questions, if one is due, for the next look.
    fn look(&self) -> FarAnswers {
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
        let due: Vec<NodeId> = {
            let mut said = self.said.lock();
            said.retain(|name, _| mesh.routing_table.contains_key(name));
            let is_silent = |name: &NodeId| said.get(name).is_some_and(|answer| answer.figures.is_none());
            mesh.routing_table.keys().filter(|name| !is_silent(name)).cloned().collect()
        };
        let with_tls = mesh.advertisements.iter().filter(|ad| ad.conn_type == ConnType::STREAM_TLS);
        let with_tls: BTreeSet<&NodeId> = with_tls.map(|ad| &ad.node_id).collect();
        let ask = |node: NodeId| self.ask(with_tls.contains(&node), node);
        let mut answers = stream::iter(due).map(ask).buffer_unordered(AT_ONCE);
        while let Some((node, links)) = answers.next().await {
            let known = mesh.known_connection_costs.get(&node);
            let mut said = self.said.lock();
            said.remove(&node);
            let room = MOST_FIGURES.saturating_sub(kept(&said)).min(MOST_LINKS);
            let figures = links.map(|links| Arc::new(bounded(&node, links, known.map(AsRef::as_ref), room)));
            said.insert(node, FarAnswer { at: Instant::now(), figures });
        }
    }

    async fn ask(&self, asks_for_tls: bool, node: NodeId) -> (NodeId, Option<Vec<LinkReport>>) {
        let said = timeout(WITHIN, far_links(&self.context, &node, asks_for_tls)).await;
        (node, said.ok().flatten())
    }
}

fn kept(said: &FarAnswers) -> usize {
    said.values().filter_map(|answer| answer.figures.as_ref()).map(|figures| figures.len()).sum()
}

/// The part of another node's answer that is kept: a word and numbers for each link that the mesh knows.
fn bounded(from: &NodeId, links: Vec<LinkReport>, known: Option<&Links>, most: usize) -> FiguresByNode {
    let known = |link: &LinkReport| Some(known?.get_key_value(link.node_id.as_str())?.0.clone());
    let named = links.into_iter().filter_map(|link| Some((known(&link)?, link)));
    named.take(most).map(|(to, link)| (to, LinkFigures::new(from.clone(), link))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Cost;

    fn node(name: &str) -> NodeId {
        NodeId::new(name).unwrap()
    }

    /// `hub` with links to so many nodes.
    fn star(leaves: usize) -> MeshStatus {
        let leaf = |n| node(&format!("{n:0>200}"));
        let cost = Cost::new(1.0).unwrap();
        let hub: Links = (0..leaves).map(|n| (leaf(n), cost)).collect();
        let back = |n| (leaf(n), Arc::new(Links::from([(node("hub"), cost)])));
        let costs = (0..leaves).map(back).chain([(node("hub"), Arc::new(hub))]).collect();
        MeshStatus { known_connection_costs: Arc::new(costs), ..MeshStatus::default() }
    }

    #[test]
    fn a_link_that_breaks_moves_nobody() {
        let (own, mesh) = (node("hub"), star(30));
        let places = |mesh: &MeshStatus, broken: &BTreeSet<LinkEnds<'_>>| {
            let page = nodes(&own, mesh, &BTreeMap::new(), broken, None);
            page.nodes.into_iter().map(|one| (one.name, one.x, one.y, one.parent)).collect::<Vec<_>>()
        };
        let before = places(&mesh, &BTreeSet::new());
        assert!(before.iter().any(|(_, x, y, _)| x.hypot(*y) > 100.0));
        let mut costs = (*mesh.known_connection_costs).clone();
        for links in costs.values_mut() {
            *links = Arc::default();
        }
        let ends = mesh.known_connection_costs.keys().filter(|name| **name != own);
        let broken: BTreeSet<_> = ends.map(|name| [name.min(&own), name.max(&own)]).collect();
        let now = MeshStatus { known_connection_costs: Arc::new(costs), ..MeshStatus::default() };
        assert_eq!(places(&now, &broken), before);
        // It is gone with its node.
        assert_eq!(places(&MeshStatus::default(), &broken), [("hub".to_owned(), 0.0, 0.0, None)]);
    }

    #[test]
    fn pages_end_by_their_bytes_and_lead_through_everything() {
        let (mesh, own) = (star(5_000), node("hub"));
        let (mut names, mut pages, mut after) = (BTreeSet::new(), 0, None::<String>);
        loop {
            let page = nodes(&own, &mesh, &BTreeMap::new(), &BTreeSet::new(), after.as_deref());
            assert!(serde_json::to_vec(&page).unwrap().len() < PAGE + 4 * PART);
            (names, pages) = (&names | &page.nodes.iter().map(|node| node.name.clone()).collect(), pages + 1);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert!(names.len() == 5_001 && pages > 1, "{} in {pages}", names.len());
        let (mut seen, mut pages, mut after) = (0, 0, Vec::new());
        loop {
            let page = links(&own, &mesh, &BTreeMap::new(), &after);
            assert!(serde_json::to_vec(&page).unwrap().len() < PAGE + 4096);
            assert!(page.links.iter().all(|link| link.cost_ab == Some(1.0) && link.cost_ba == Some(1.0)));
            (seen, pages) = (seen + page.links.len(), pages + 1);
            after = page.next.map(Vec::from).unwrap_or_default();
            if after.is_empty() {
                break;
            }
        }
        assert!(seen == 5_000 && pages > 1, "{seen} in {pages}");
    }

    #[test]
    fn of_a_far_node_only_known_links_are_kept_each_with_one_short_word() {
        let mesh = star(300);
        let said = |to: &str| LinkReport {
            node_id: to.to_owned(),
            transport: "é".repeat(3000),
            address: "x".repeat(900),
            ..LinkReport::default()
        };
        let all: Vec<_> = mesh.known_connection_costs.keys().map(|to| said(to.as_str())).collect();
        let lies =
            (0..300).map(|n| said(&format!("invented-{n}"))).chain(all.iter().cloned()).chain(all.clone());
        let known = mesh.known_connection_costs.get("hub").map(AsRef::as_ref);
        let kept = bounded(&node("hub"), lies.collect(), known, MOST_LINKS);
        assert_eq!(kept.len(), MOST_LINKS);
        assert!(kept.values().all(|figures| figures.transport.len() == WORD));
        assert!(bounded(&node("hub"), all.clone(), None, MOST_LINKS).is_empty());
        assert!(bounded(&node("hub"), all, known, 0).is_empty(), "there is one sum for all");
    }
}
