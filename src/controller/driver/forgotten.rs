//! Children that this node knows and the store does not, because the store lost its last commits or the job. They have
//! to end, on the nodes that have them, before anything else runs for their jobs.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::base::{Base, UNIT_RETRY};
use super::world::ChildRequest;
use crate::controller::core::{Attempt, AttemptNo, ChildId, InstanceName, Job, JobId, Known};
use crate::controller::health::output_bound;
use crate::controller::options::RUNNER_TYPE;
use crate::controller::store::Error;
use crate::rpc::UnitState;
use crate::work::jobs::{JobExtra, JobUnit, ShownJob};
use crate::work::{FarUnit, Leftovers};

/// How long a node that is not an instance has to be unreachable before it counts as removed. After a restart this node
/// learns the mesh within minutes.
const TAKEN_AWAY: Duration = Duration::from_secs(1800);

/// How long whoever clears away waits for the end of a child, before it looks after others and comes back.
const ENDED_WITHIN: Duration = Duration::from_secs(10);

/// What ends them.
pub(in crate::controller) struct Forgotten {
    base: Arc<Base>,
}

impl Forgotten {
    pub(super) fn new(base: Arc<Base>) -> Self {
        Self { base }
    }

    /// Ends the children of a job that this node knows and the store does not, from this attempt's number on.
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
        // The row may be older than an attempt that has begun since.
        let job = self.base.store.job(job.id).await?;
        for sent in forgotten.into_iter().filter(|sent| !job.has_child(&sent.child)) {
            if !self.end(&sent).await? {
                let child = sent.child;
                return Err(Error::Unready(format!(
                    "the store has lost all that it knew of {child}, which may still run"
                )));
            }
            if let Some(unit) = unit {
                unit.note_ended(&sent.child.to_string()).await;
            }
        }
        Ok(())
    }

    /// Ends a child that the store has lost, on the node to which it was sent. Returns whether it has ended.
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

    /// Ends the children that the unit of an ended job knows and the store does not: it has lost the job, and perhaps given
    /// its number to another one. Returns whether all of them have ended; one whose node was taken away counts as ended
    /// some time after `since`, when the loss was noticed.
    ///
    /// # Errors
    /// Those of the store.
    pub(in crate::controller) async fn end_lost(
        &self,
        unit: &JobUnit,
        since: Instant,
    ) -> Result<bool, Error> {
        let extra = unit.extra();
        let Some(job) = extra.job_id.map(JobId).filter(|_| !sent(&extra).is_empty()) else { return Ok(true) };
        let known = match self.base.store.job(job).await {
            Ok(known) => Some(known),
            // A job is deleted only once nothing of it is left on any node.
            Err(Error::NoJob(_)) if self.base.store.lost(vec![job]).await?.is_empty() => return Ok(true),
            Err(Error::NoJob(_)) => None,
            Err(error) => return Err(error),
        };
        let unknown = unknown_of(&extra, known.as_ref());
        for sent in &unknown {
            let mut pauses = UNIT_RETRY;
            let ended = timeout(ENDED_WITHIN, async {
                while !self.end(sent).await? {
                    sleep(pauses.next()).await;
                }
                Ok::<_, Error>(())
            });
            if let Ok(ended) = ended.await {
                ended?;
                continue;
            }
            match &sent.node {
                Some(node) if since.elapsed() > TAKEN_AWAY && self.is_away(node).await => {
                    self.give_up(&sent.child, node).await;
                }
                Some(_) | None => return Ok(false),
            }
        }
        // Each write is a flush, and housekeeping asks again every minute.
        if !unknown.is_empty() {
            let ended: Vec<String> = unknown.iter().map(|sent| sent.child.to_string()).collect();
            unit.forget_children(&ended).await;
        }
        Ok(true)
    }

    async fn give_up(&self, child: &ChildId, node: &InstanceName) {
        tracing::warn!(%child, %node, "giving up on a forgotten child: its node has been away for too long");
        self.base.children.forget(child.to_string()).await;
    }

    /// Whether a node is not an instance and there is no route to it.
    async fn is_away(&self, name: &InstanceName) -> bool {
        let is_routed = self.base.mesh.nodes().await.iter().any(|node| node.name == *name && node.routed);
        !is_routed && matches!(self.base.store.offer_of(name.clone()).await, Ok(None))
    }

    /// Fails the unit of a job that the store has lost, once the job's children have ended; the children's nodes are
    /// asked until they have. Only the unit knows these children, so it does not end before that, and a later process
    /// continues, unless the unit is released by force. A node that is unreachable for long and is not an instance any
    /// more counts as removed, together with what ran there: nothing else runs for this job.
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

    /// Ends the children that a job's unit knows, one after the other. Meanwhile the unit says what it waits for.
    /// Returns false if the unit ends before that, or this node is stopping.
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
                                this.give_up(&sent.child, node).await;
                                break;
                            }
                        }
                        Some(_) | None => away_since = None,
                    }
                    let (child, place) = (&sent.child, sent.node.as_ref().unwrap_or(&this.base.node));
                    let detail = format!("{detail}; waiting for {child} to end on {place}");
                    let extra = unit.extra();
                    unit.report(ShownJob { state: UnitState::Running, detail, extra }).await;
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
    /// The node that it was sent to; `None` if that is this node or a cluster, or is not known.
    pub node: Option<InstanceName>,
    /// The ID that the node has given it.
    pub far: Option<String>,
}

/// The forgotten children of a job that has ended. It has no further attempt that would have ended them before it was
/// sent.
pub(super) fn left_behind(extra: &JobExtra, job: &Job) -> Vec<SentChild> {
    let next = AttemptNo(job.current().map_or(0, |latest| latest.n.0) + 1);
    forgotten_of(sent(extra).into_iter(), extra, job, next)
}

/// Selects the children that the store does not know: those from an attempt's number on, and those that the unit has
/// noted as forgotten. Others may be missing only because the store forgets earlier attempts in which nothing ran.
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

/// The children that a unit knows, without those of the job that the store has under the number of the unit's job.
pub(in crate::controller) fn unknown_of(extra: &JobExtra, known: Option<&Job>) -> Vec<SentChild> {
    let mut children = sent(extra);
    children.retain(|sent| !known.is_some_and(|job| job.has_child(&sent.child)));
    children
}

/// The children that a job's unit knows.
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
