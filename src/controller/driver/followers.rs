//! Units on this node whose job's output is on another control node. They show the job's row and copy the output. A
//! copy is complete only when its length and hash match those in the row; until then the unit counts as running,
//! however long that takes. Only the control node that drives the job, and nodes with a complete copy, are sources.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};

use super::base::Base;
use super::measure::measure;
use super::publisher::Publisher;
use crate::controller::core::{InstanceName, JobId, OutputEnd};
use crate::controller::peer::{PeerError, PeerStream, PeerVerb, WantedOutput};
use crate::controller::store::{Error, JobRecord, Kept};
use crate::os::back_off::BackOff;
use crate::work::jobs::{JobOutput, JobUnit};

/// The pause between two looks at a job.
const JOB_EVERY: Duration = Duration::from_millis(500);
/// The pauses between tries to get more of its output.
const FETCH_RETRY: BackOff = BackOff::new(JOB_EVERY, Duration::from_secs(10));

/// Copies the output of a job to its units here, attempt by attempt.
pub(super) struct Copier {
    publisher: Arc<Publisher>,
    job: JobId,
    stream: Option<PeerStream>,
    to: Option<JobOutput>,
    from: Option<InstanceName>,
    /// A piece has arrived from the stream.
    is_fruitful: bool,
    /// The stream has ended; there may be more output after it.
    has_ended: bool,
    /// How often in a row a source failed, had nothing, or had other bytes. After a failure another source is asked.
    failures: u32,
    /// When to ask again after a failure.
    retry: Option<Instant>,
    /// The length and hash of the output here, once measured.
    measured: Option<OutputEnd>,
    /// The copy here is not the output, as measured.
    is_wrong: bool,
    /// What the unit shows while the output is copied.
    told: String,
}

impl Copier {
    pub(super) fn new(publisher: Arc<Publisher>, job: JobId) -> Self {
        Self {
            publisher,
            job,
            stream: None,
            to: None,
            from: None,
            is_fruitful: false,
            has_ended: false,
            failures: 0,
            retry: None,
            measured: None,
            is_wrong: false,
            told: String::new(),
        }
    }

    fn base(&self) -> &Base {
        &self.publisher.base
    }

    fn fail(&mut self) {
        self.failures += 1;
        self.retry = Some(Instant::now() + FETCH_RETRY.after(self.failures));
    }

    /// Follows a job until its output is complete here or lost, or this node drives the job.
    pub(super) async fn copy(mut self) {
        let job = self.job;
        let mut changes = self.base().store.changes();
        changes.mark_changed();
        let mut ticks = interval(JOB_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut known: Option<JobRecord> = None;
        let mut looked = Instant::now();
        loop {
            let Some(unit) = self.publisher.first_unit(job) else { return };
            let is_due = looked.elapsed() > self.base().options().timers.poll || self.has_ended;
            if is_due || changes.has_changed().unwrap_or(false) {
                changes.mark_unchanged();
                looked = Instant::now();
                match self.base().store.detail(job).await {
                    Ok(detail) => {
                        let is_final = detail.row.state.is_final();
                        let is_own = detail.row.controller_node.as_ref() == Some(&self.base().node);
                        // The node that drives the job, or has to determine how its output ends, copies nothing.
                        if is_own && (!is_final || detail.output_end().is_none()) {
                            return;
                        }
                        if !is_final {
                            let _shown_later = self.publisher.show(job).await;
                        }
                        if known.as_ref() != Some(&detail) {
                            self.retry = None;
                        }
                        known = Some(detail);
                    }
                    Err(Error::NoJob(_)) => return,
                    Err(_) => changes.mark_changed(),
                }
            }
            if let Some(detail) = known.as_ref().filter(|detail| detail.row.state.is_final()) {
                match self.has_all(detail, &unit).await {
                    Ok(true) => return,
                    Ok(false) => match self.where_it_is(detail) {
                        Ok(told) => self.show_copying(detail, told).await,
                        Err(why) => return self.publisher.lose_output(detail, &why).await,
                    },
                    Err(error) => tracing::debug!(%job, %error, "cannot compare an output yet, trying again"),
                }
            }
            self.copy_some(&unit, known.as_ref(), &mut ticks).await;
        }
    }

    /// Whether a unit has the whole output of a job that has ended. If a comparison has shown this, stores that the
    /// unit has it.
    async fn has_all(&mut self, detail: &JobRecord, unit: &JobUnit) -> Result<bool, Error> {
        let (id, size) = (unit.id().as_str(), unit.output_size());
        if detail.is_whole(&self.base().node, id, size) {
            return Ok(true);
        }
        let (Some(end), Some(last)) = (detail.output_end(), detail.job.attempts.last()) else {
            return Ok(false);
        };
        if size < end.bytes || self.is_wrong {
            return Ok(false);
        }
        let measured = match self.measured {
            Some(measured) => measured,
            None => *self.measured.insert(measure(unit).await?),
        };
        if measured != end {
            self.is_wrong = true;
            self.fail();
            return Ok(false);
        }
        let job = detail.row.id;
        self.base().store.hold_complete((job, last.n), self.base().node.clone(), vec![id.to_owned()]).await?;
        Ok(true)
    }

    /// Where the output of a job that has ended is fetched from, as a text for people.
    ///
    /// # Errors
    /// Why it is lost.
    fn where_it_is(&self, detail: &JobRecord) -> Result<String, String> {
        let sources = self.sources(detail);
        let why = match (&detail.output_lost, sources.first(), detail.output_end()) {
            (Some(node), _, _) => format!("its output was on {node}"),
            (None, None, Some(_)) => "no control node has its output any more".to_owned(),
            (None, Some(node), _) => return Ok(format!("its output is fetched from {node}")),
            (None, None, None) => return Ok("its output has not come to its end".to_owned()),
        };
        Err(format!("output lost: job {} is {}, and {why}", detail.row.id, detail.row.state.name()))
    }

    async fn show_copying(&mut self, detail: &JobRecord, told: String) {
        if told != self.told && self.publisher.show_running(detail, &told).await.is_ok() {
            self.told = told;
        }
    }

    /// The control nodes from which the output of a job may be copied.
    fn sources(&self, detail: &JobRecord) -> Vec<InstanceName> {
        let owner = detail.row.controller_node.iter();
        let mut sources: Vec<&InstanceName> = match detail.output_end() {
            None => owner.collect(),
            Some(end) if end.hash.is_some() => detail.complete.iter().map(|(node, _)| node).collect(),
            Some(_) => {
                let holders = detail.holders.iter().filter(|(_, _, kept)| *kept == Kept::Output);
                holders.map(|(node, _, _)| node).collect()
            }
        };
        sources.retain(|node| **node != self.base().node);
        sources.sort_by_key(|node| Some(*node) != detail.row.controller_node.as_ref());
        sources.dedup();
        sources.into_iter().cloned().collect()
    }

    /// Takes the next piece of output, or returns at the next tick.
    async fn copy_some(
        &mut self,
        unit: &JobUnit,
        detail: Option<&JobRecord>,
        ticks: &mut tokio::time::Interval,
    ) {
        let sources = detail.map(|detail| self.sources(detail)).unwrap_or_default();
        let is_over = detail.is_some_and(|detail| detail.row.state.is_final());
        if self.from.as_ref().is_some_and(|from| !sources.contains(from)) {
            (self.from, self.stream) = (None, None);
        }
        if self.stream.is_none() {
            if !(std::mem::take(&mut self.has_ended) && self.is_fruitful) {
                ticks.tick().await;
                if self.retry.is_some_and(|retry| Instant::now() < retry) {
                    return;
                }
            }
            let next = sources.get(self.failures as usize % sources.len().max(1));
            if let (Some(detail), Some(from)) = (detail, next) {
                self.from = Some(from.clone());
                match self.open_next(detail, unit, from).await {
                    Ok(Some(stream)) => (self.stream, self.is_fruitful) = (Some(stream), false),
                    // The source may have more soon.
                    Ok(None) if !is_over => {}
                    Ok(None) => self.fail(),
                    Err(error) => {
                        self.fail();
                        let job = detail.row.id;
                        tracing::debug!(%job, %from, %error, "cannot fetch the output of a job yet");
                    }
                }
            }
        }
        let Some(stream) = &mut self.stream else { return };
        tokio::select! {
            piece = stream.next() => match piece {
                Ok(Some(bytes)) => {
                    if let Some(output) = &self.to {
                        output.append(bytes).await;
                        (self.is_fruitful, self.measured) = (true, None);
                        if !is_over {
                            self.failures = 0;
                        }
                    }
                }
                // The attempt or the job has ended, or the stream broke off.
                Ok(None) => {
                    (self.stream, self.has_ended) = (None, true);
                    if is_over && !self.is_fruitful {
                        self.fail();
                    }
                }
                Err(error) => {
                    tracing::debug!(unit = %unit.id(), %error, "an output broke off, fetching the rest of it");
                    self.stream = None;
                    if is_over {
                        self.fail();
                    }
                }
            },
            _tick = ticks.tick() => {}
        }
    }

    /// Opens the part of a job's output that follows the copy here, up to the end of an attempt; `None` if the source
    /// has no more yet. Deletes the copy if it is not the beginning of the source's output.
    async fn open_next(
        &mut self,
        detail: &JobRecord,
        unit: &JobUnit,
        from: &InstanceName,
    ) -> Result<Option<PeerStream>, PeerError> {
        let publisher = self.publisher.clone();
        let Some(peers) = publisher.base.peers.get() else { return Err(PeerError::NoHolder) };
        let refused = |why: &str| PeerError::Refused { node: from.clone(), why: why.to_owned() };
        let ask = |part| peers.ask(from, PeerVerb::Output(part), detail.row.id);
        let there = ask(WantedOutput { from: u64::MAX, follow: false, attempt: None }).await?.0;
        // From here on nobody else writes, and a former follower has finished its last write.
        unit.write_copy(unit.extra().output_attempt).await;
        let (size, known) = (unit.output_size(), unit.extra());
        let end = detail.output_end();
        let is_over = end.is_some();
        let children: BTreeMap<u32, String> = there.children.into_iter().collect();
        let is_same = |(n, child): (&u32, &String)| children.get(n).is_none_or(|other| other == child);
        let are_same = known.output_children.iter().all(is_same);
        if !is_over && (there.size == 0 || (are_same && there.attempt < known.output_attempt)) {
            return Ok(None);
        }
        let starts: BTreeMap<u32, u64> = there.starts.iter().copied().collect();
        let is_beginning =
            are_same && (starts.is_empty() || begin_alike(&starts, &known.output_starts, size));
        if !is_beginning || self.is_wrong || (is_over && size > there.size) {
            if end.is_some_and(|end| there.size < end.bytes) {
                return Err(refused("it has lost a part of it"));
            }
            unit.lock_output().await.clear(0).await.map_err(|error| refused(&error.to_string()))?;
            (self.is_wrong, self.measured) = (false, None);
        } else if size > there.size || (is_over && size == there.size) {
            return Ok(None);
        }
        let size = unit.output_size();
        let (attempt, start) =
            starts.iter().rfind(|(_, start)| **start <= size).map(|(n, start)| (*n, *start)).unzip();
        let to = unit.write_copy(attempt.unwrap_or(there.attempt)).await;
        if start.is_none_or(|start| start == size) {
            to.begin(attempt.and_then(|n| children.get(&n).cloned()), None).await;
        }
        self.to = Some(to);
        let from = size.saturating_sub(start.unwrap_or(0));
        Ok(Some(ask(WantedOutput { from, follow: true, attempt }).await?.1))
    }
}

/// Whether the same attempts begin at the same bytes of two outputs, within the first `size` bytes. Only the starts of
/// the latest attempts are known and compared. An attempt that printed nothing begins where the next one does, and is
/// not compared.
fn begin_alike(one: &BTreeMap<u32, u64>, other: &BTreeMap<u32, u64>, size: u64) -> bool {
    let by_start = |starts: &BTreeMap<u32, u64>| -> BTreeMap<u64, u32> {
        starts.iter().map(|(attempt, start)| (*start, *attempt)).collect()
    };
    let (one, other) = (by_start(one), by_start(other));
    let oldest = |starts: &BTreeMap<u64, u32>| starts.keys().next().copied().unwrap_or(size);
    let known = oldest(&one).max(oldest(&other)).min(size)..size;
    one.range(known.clone()).eq(other.range(known))
}
