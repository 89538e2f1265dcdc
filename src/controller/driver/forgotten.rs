//! Children of which this node knows and the store nothing: it has lost its last commits, or the job. They are ended, on the
//! nodes that have them, before anything else runs for their jobs.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::attempt::UNIT_RETRY;
use super::base::Base;
use super::world::ChildRequest;
use crate::controller::core::{Attempt, AttemptNo, ChildId, InstanceName, Job, Known};
use crate::controller::health::output_bound;
use crate::controller::options::RUNNER_TYPE;
use crate::controller::store::Error;
use crate::rpc::UnitState;
use crate::work::jobs::{JobExtra, JobReport, JobUnit};
use crate::work::{FarUnit, Leftovers};

/// How long a node that is no instance has to be away before it counts as taken away: what a restart learns of a mesh comes
/// within minutes.
const TAKEN_AWAY: Duration = Duration::from_secs(1800);

/// What ends them.
pub(in crate::controller) struct Forgotten {
    base: Arc<Base>,
}

impl Forgotten {
    pub(super) fn new(base: Arc<Base>) -> Self {
        Self { base }
    }

    /// Ends the children of a job of which this node knows, and the store nothing, and that have the number of this attempt, or
    /// a later one.
    ///
    /// # Errors
    /// Those of the store, or one has not ended yet.
    pub(super) async fn end_all(
        &self,
        job: &Job,
        attempt: &Attempt,
        unit: Option<&JobUnit>,
    ) -> Result<(), Error> {
        let extra = unit.map(JobUnit::extra).unwrap_or_default();
        let here = self.base.children.of_job(&attempt.unit).into_iter();
        let here = here.map(|child| SentChild { child, node: None, far: None });
        let forgotten = forgotten_of(here.chain(sent(&extra)), &extra, job, attempt.n);
        if forgotten.is_empty() {
            return Ok(());
        }
        // That row may be older than an attempt that has begun since.
        let job = self.base.store.job(job.id).await?;
        for sent in forgotten.into_iter().filter(|sent| !job.has_child(&sent.child)) {
            if !self.end(&sent).await? {
                let child = sent.child;
                return Err(Error::Unready(format!(
                    "the store has lost all it knew of {child}, which may run"
                )));
            }
            if let Some(unit) = unit {
                unit.note_ended(&sent.child.to_string()).await;
            }
        }
        Ok(())
    }

    /// Ends a child of which the store has lost all it knew, on the node to which it was sent. Returns whether it has ended.
    ///
    /// # Errors
    /// Those of the store, and why it cannot be asked about.
    pub(in crate::controller) async fn end(&self, sent: &SentChild) -> Result<bool, Error> {
        let unit = sent.child.to_string();
        let is_elsewhere = |node: &&InstanceName| {
            **node != self.base.node && self.base.children.known(&unit) == Known::Unknown
        };
        if let Some(node) = sent.node.as_ref().filter(is_elsewhere) {
            let offer = self.base.store.offer_of(node.clone()).await?.unwrap_or_default();
            let request = ChildRequest {
                unit: unit.clone(),
                node: node.clone(),
                work_type: RUNNER_TYPE.to_owned(),
                params: String::new(),
                run_dir: None,
                signed: offer.secure,
                tls: self.base.options().tls_client.clone().filter(|_| offer.tls),
                ttl: None,
                max_stdout: output_bound("forgotten attempt"),
                far: sent.far.clone().map(|id| FarUnit { id, may_be_released: true }),
                pod: None,
            };
            self.base.children.adopt(request).await.map_err(Error::Unready)?;
        }
        Ok(self.base.children.release(unit, Leftovers::End).await)
    }

    /// Whether a node is no instance, and there is no way to it.
    async fn is_away(&self, name: &InstanceName) -> bool {
        let is_routed = self.base.mesh.nodes().await.iter().any(|node| node.name == *name && node.routed);
        !is_routed && matches!(self.base.store.offer_of(name.clone()).await, Ok(None))
    }

    /// Has the unit of a job that the store has lost fail once its children have ended, however often that has to be asked. Only
    /// the unit knows of them, so until then it has no end, and a later process asks on, unless it is released by force. A node
    /// that is away for long, and no instance any more, was taken away with what ran there: nothing else runs for this job.
    pub(in crate::controller) async fn fail_after(
        &self,
        unit: JobUnit,
        detail: String,
        children: Vec<SentChild>,
    ) {
        if children.is_empty() {
            return unit.fail(&detail).await;
        }
        let ended = self.end_each(unit.clone(), detail.clone(), children);
        tokio::spawn(async move {
            if ended.await {
                unit.fail(&detail).await;
            }
        });
    }

    /// Ends the children that a job's unit knows of, one after the other; the unit says meanwhile that it waits. Returns false if
    /// it has ended before, or this node stops.
    pub(super) fn end_each(
        &self,
        unit: JobUnit,
        detail: String,
        children: Vec<SentChild>,
    ) -> impl Future<Output = bool> + Send + use<> {
        let base = Arc::downgrade(&self.base);
        async move {
            for sent in children {
                let (mut pauses, mut away_since) = (UNIT_RETRY, None);
                loop {
                    let base = base.upgrade().filter(|_| !unit.is_final());
                    let Some(this) = base.map(Self::new) else { return false };
                    if matches!(this.end(&sent).await, Ok(true)) {
                        break;
                    }
                    match &sent.node {
                        Some(node) if this.is_away(node).await => {
                            let since = *away_since.get_or_insert_with(Instant::now);
                            if since.elapsed() > TAKEN_AWAY {
                                tracing::warn!(child = %sent.child, %node, "a forgotten child is gone with its node");
                                this.base.children.forget(sent.child.to_string()).await;
                                break;
                            }
                        }
                        Some(_) | None => away_since = None,
                    }
                    let (child, place) = (&sent.child, sent.node.as_ref().unwrap_or(&this.base.node));
                    let detail = format!("{detail}; waiting for {child} to end on {place}");
                    let extra = unit.extra();
                    unit.report(JobReport { state: UnitState::Running, detail, extra }).await;
                    drop(this);
                    sleep(pauses.next()).await;
                }
            }
            true
        }
    }
}

/// A child of a job, as the job's unit knows it.
#[derive(Debug)]
pub(in crate::controller) struct SentChild {
    pub child: ChildId,
    /// The node that it was sent to; `None` if that is this one, a cluster, or not known.
    pub node: Option<InstanceName>,
    /// The ID that the node has given it.
    pub far: Option<String>,
}

/// The forgotten children of a job that has ended: it has no further attempt, which would have ended them before it was sent.
pub(super) fn left_behind(extra: &JobExtra, job: &Job) -> Vec<SentChild> {
    let next = AttemptNo(job.current().map_or(0, |latest| latest.n.0) + 1);
    forgotten_of(sent(extra).into_iter(), extra, job, next)
}

/// Those of these children of which the store knows nothing: from an attempt on, and what the unit has noted before. The store
/// also forgets earlier attempts in which nothing ran.
fn forgotten_of(
    children: impl Iterator<Item = SentChild>,
    extra: &JobExtra,
    job: &Job,
    from: AttemptNo,
) -> Vec<SentChild> {
    let is_forgotten = |SentChild { child, .. }: &SentChild| {
        let may_be = child.attempt >= from || extra.forgotten.contains_key(&child.to_string());
        may_be && !job.has_child(child)
    };
    children.filter(is_forgotten).collect()
}

/// The children that a job's unit knows of.
pub(in crate::controller) fn sent(extra: &JobExtra) -> Vec<SentChild> {
    let node = |n: &u32| extra.output_nodes.get(n);
    let latest = extra.output_children.iter().map(|(n, child)| (child, node(n)));
    let forgotten = extra.forgotten.iter().map(|(child, node)| (child, Some(node)));
    let sent = |(text, node): (&String, Option<&String>)| {
        let (child, node) = (ChildId::parse(text)?, node.map(|node| node.as_str().into()));
        Some(SentChild { child, node, far: extra.far_units.get(text).cloned() })
    };
    latest.chain(forgotten).filter_map(sent).collect()
}
