//! What is wrong with the mesh and its jobs, and how much there is, as numbers: for the header and the first view of the
//! page. Owns what is counted; who is meant is in the lists.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use schemars::JsonSchema;
use serde::Serialize;

use super::gate::Visitor;
use super::mesh::{FarAnswers, broken_ends, figures_of, known_links, names};
use super::refusal::ApiRefusal;
use super::{Web, WebRequest};
use crate::http::answer::HttpAnswer;
use crate::mesh::MeshStatus;
use crate::rpc::operation::{Answer, JobFilter, Operation};
use crate::rpc::report::JobState;
use crate::rpc::report::controller::{JobCounts, OldestJob};
use crate::wire::NodeId;

/// What is counted as of late.
const LATELY: SignedDuration = SignedDuration::from_hours(24);

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct WebOverview {
    nodes: NodeNumbers,
    links: LinkNumbers,
    /// None without a controller, and while its store is away.
    jobs: Option<JobFigures>,
}

#[derive(Debug, PartialEq, Serialize, JsonSchema)]
struct NodeNumbers {
    /// Those that the mesh knows, and instances that it does not know any more.
    all: usize,
    out_of_reach: usize,
}

#[derive(Debug, Default, PartialEq, Serialize, JsonSchema)]
struct LinkNumbers {
    all: usize,
    lossy: usize,
    /// One end alone knows of them.
    one_sided: usize,
    /// They have counted, and do not any more; not among all.
    broken: usize,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
struct JobFigures {
    /// Pending or waiting.
    waiting: u64,
    /// The one that waits longest.
    oldest: Option<OldestJob>,
    running: u64,
    /// Submitted within 24 hours, and successful.
    successful: u64,
    /// Submitted within 24 hours, and ended otherwise, unless canceled.
    failed: u64,
}

impl Web {
    pub(super) async fn overview(&self, asked: WebRequest) -> Result<HttpAnswer, ApiRefusal> {
        let (own, mesh) = (self.context.node.id().clone(), self.context.node.status().await);
        let said = self.said_of_links().await;
        let instances = self.context.observer.controller().await.map(|(report, _)| report.nodes);
        let instances: Vec<String> = instances.into_iter().flatten().map(|one| one.node).collect();
        let jobs = self.job_numbers(&asked.visitor).await.ok();
        let make = move || WebOverview {
            nodes: node_numbers(&own, &mesh, &instances),
            links: link_numbers(&own, &mesh, &said),
            jobs: jobs.clone(),
        };
        self.large(&asked.visitor, make).await
    }

    async fn job_numbers(&self, visitor: &Visitor) -> Result<JobFigures, ApiRefusal> {
        let since = Some(Timestamp::now() - LATELY);
        let waiting = self.count(visitor, vec![JobState::Pending, JobState::Waiting], None).await?;
        let running = self.count(visitor, vec![JobState::Running], None).await?;
        let ends = vec![JobState::Successful, JobState::Failed, JobState::Error];
        let lately = self.count(visitor, ends, since).await?;
        let sum = |counts: &JobCounts| counts.states.values().sum::<u64>();
        let successful = lately.states.get(JobState::Successful.name()).copied().unwrap_or(0);
        Ok(JobFigures {
            waiting: sum(&waiting),
            running: sum(&running),
            successful,
            failed: sum(&lately) - successful,
            oldest: waiting.oldest,
        })
    }

    async fn count(
        &self,
        visitor: &Visitor,
        state: Vec<JobState>,
        since: Option<Timestamp>,
    ) -> Result<JobCounts, ApiRefusal> {
        let operation = Operation::CountJobs(JobFilter { state, since, brief: true, ..JobFilter::default() });
        match self.controller()?.operate(operation, &visitor.caller()).await? {
            (Answer::CountJobs(counts), _) => Ok(counts),
            _ => Ok(JobCounts::default()),
        }
    }
}

fn node_numbers(own: &NodeId, mesh: &MeshStatus, instances: &[String]) -> NodeNumbers {
    let reached = |name: &str| name == own.as_str() || mesh.routing_table.contains_key(name);
    let mut all: BTreeSet<&str> = names(own, mesh).into_iter().map(NodeId::as_str).collect();
    all.extend(instances.iter().map(String::as_str));
    NodeNumbers { all: all.len(), out_of_reach: all.iter().filter(|name| !reached(name)).count() }
}

fn link_numbers(own: &NodeId, mesh: &MeshStatus, said: &FarAnswers) -> LinkNumbers {
    let mut numbers = LinkNumbers { broken: broken_ends(mesh).len(), ..LinkNumbers::default() };
    for ([a, b], costs) in known_links(own, mesh, said) {
        let figures = [(a, b), (b, a)].into_iter().filter_map(|(from, to)| figures_of(said, from, to));
        // Nothing is known of a link between two nodes that are out of reach.
        if ![a, b].iter().any(|end| *end == own || mesh.routing_table.contains_key(end.as_str())) {
            continue;
        }
        numbers.all += 1;
        numbers.lossy += usize::from(figures.into_iter().any(|one| one.loss > 0.0));
        numbers.one_sided += usize::from(costs.iter().any(Option::is_none));
    }
    numbers
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::mesh::Links;
    use crate::wire::Cost;

    #[test]
    fn what_is_out_of_reach_or_known_at_one_end_is_counted_once() {
        let node = |name: &str| NodeId::new(name).unwrap();
        let cost = Cost::new(1.0).unwrap();
        let links = |to: &[&str]| Arc::new(to.iter().map(|to| (node(to), cost)).collect::<Links>());
        let costs = [("a", links(&["b", "c"])), ("b", links(&["a"])), ("d", links(&["e"]))];
        let mesh = MeshStatus {
            known_connection_costs: Arc::new(costs.into_iter().map(|(from, to)| (node(from), to)).collect()),
            routing_table: Arc::new([(node("b"), node("b")), (node("c"), node("c"))].into_iter().collect()),
            ..MeshStatus::default()
        };
        let numbers = node_numbers(&node("a"), &mesh, &["b".to_owned(), "gone".to_owned()]);
        assert_eq!(numbers, NodeNumbers { all: 6, out_of_reach: 3 });
        let numbers = link_numbers(&node("a"), &mesh, &FarAnswers::new());
        assert_eq!(numbers, LinkNumbers { all: 2, one_sided: 1, ..LinkNumbers::default() });
    }
}
