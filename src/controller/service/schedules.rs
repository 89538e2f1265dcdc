//! Starts the saved jobs of this node's schedules. `saved` decides what is due; the store keeps, for all control nodes, how far each
//! schedule is. A tick is handled by the node that wrote first that it takes it.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::sleep;

use super::Service;
use crate::controller::core::{JobId, JobState, Word};
use crate::controller::operations::LaunchTerms;
use crate::controller::saved::{Due, LoadedSchedule, OpenJob, ScheduleLook, ScheduleState};
use crate::controller::store::{Audit, Error, JobSelection, StoredDocument};
use crate::rpc::operation::{GivenVars, OperationCode, OperationRefusal, SavedStart};
use crate::rpc::report::saved::Overlap;
use crate::work::{Caller, CallerName};

/// The kind of the documents of schedules.
pub(in crate::controller) const KIND: &str = "schedule";
/// The label of the jobs of a schedule: the name of the saved job.
const LABEL: &str = "meshd/schedule";
/// The longest time between two looks: what another control node or an operator has written is read anew.
const LONGEST_PAUSE: Duration = Duration::from_secs(20);
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
/// The pause before a store that is away is asked again.
const STORE_RETRY: Duration = Duration::from_secs(1);
/// Decisions about a schedule in one look; the others come at the next.
const MOST_STEPS: usize = 50;
/// Jobs of a schedule that are looked at: more than a few have not ended only if an operator has started them.
const MOST_OPEN: u32 = 100;

/// What the store keeps of a schedule, with the version of its document; 0 if there is none.
pub(in crate::controller) type KnownSchedule = (i64, Option<ScheduleState>);

impl Service {
    /// Keeps the schedules until the controller stops.
    pub(super) async fn keep_schedules(self) {
        loop {
            let pause = match self.look_at_schedules().await {
                Ok(pause) => pause.clamp(SHORTEST_PAUSE, LONGEST_PAUSE),
                Err(error) => {
                    tracing::warn!(%error, "cannot look after schedules, trying again");
                    STORE_RETRY
                }
            };
            tokio::select! {
                () = sleep(pause) => {}
                () = self.saved.changed() => {}
                () = self.stop.cancelled() => return,
            }
        }
    }

    /// Does what is due, and returns how long nothing will be.
    async fn look_at_schedules(&self) -> Result<Duration, Error> {
        let saved = self.saved.now();
        let schedules: Vec<_> = saved.schedules().filter(|(_, schedule)| schedule.enabled).collect();
        // A node without its lease may have lost sight of what others do.
        if schedules.is_empty() || !self.driver.lease.may_act() {
            return Ok(LONGEST_PAUSE);
        }
        let mut known = self.known_schedules().await?;
        let now = self.moment().await?;
        let mut pause = LONGEST_PAUSE;
        for (name, schedule) in schedules {
            let known = known.remove(name).unwrap_or_default();
            let next = self.look_at_schedule(name, schedule, known, now).await?;
            pause = next.map_or(pause, |next| {
                pause.min(Duration::try_from(next.duration_since(now)).unwrap_or_default())
            });
        }
        Ok(pause)
    }

    /// The store's clock.
    pub(in crate::controller) async fn moment(&self) -> Result<Timestamp, Error> {
        let now = self.driver.store.now().await?;
        Timestamp::from_millisecond(now.0).map_err(|error| Error::Corrupt(error.to_string()))
    }

    /// What the store keeps of all schedules.
    pub(in crate::controller) async fn known_schedules(
        &self,
    ) -> Result<BTreeMap<String, KnownSchedule>, Error> {
        let documents = self.driver.store.documents(KIND.to_owned()).await?;
        Ok(documents.into_iter().map(|one| (one.name.clone(), read(&one))).collect())
    }

    /// Writes the state that follows a version. Returns whether nobody has written since.
    pub(in crate::controller) async fn write_schedule(
        &self,
        name: &str,
        version: i64,
        state: &ScheduleState,
    ) -> Result<bool, Error> {
        let body = serde_json::to_string(state).map_err(|error| Error::Corrupt(error.to_string()))?;
        let document = StoredDocument { kind: KIND.to_owned(), name: name.to_owned(), version, body };
        self.driver.store.write_document(document).await
    }

    pub(in crate::controller) async fn known_schedule(&self, name: &str) -> Result<KnownSchedule, Error> {
        let document = self.driver.store.document(KIND.to_owned(), name.to_owned()).await?;
        Ok(document.as_ref().map(read).unwrap_or_default())
    }

    /// Does what is due for a schedule now, and returns when something will be.
    async fn look_at_schedule(
        &self,
        name: &str,
        schedule: &LoadedSchedule,
        known: KnownSchedule,
        mut now: Timestamp,
    ) -> Result<Option<Timestamp>, Error> {
        let (mut version, mut state) = known;
        let mut open = Vec::new();
        let mut is_asked = false;
        for _ in 0..MOST_STEPS {
            let look = ScheduleLook { name, schedule, node: self.driver.node.as_str(), now };
            match look.due(state.as_ref(), &open) {
                Due::Nothing(next) => return Ok(next),
                // Which jobs are open is asked once something is due.
                Due::Write(_) | Due::Start { .. } if state.is_some() && !is_asked => {
                    open = self.open_jobs_of(name).await?;
                    is_asked = true;
                    continue;
                }
                Due::Write(next) => {
                    let before = state.as_ref().and_then(|state| state.skipped.as_ref());
                    if let Some(skipped) = next.skipped.as_ref().filter(|skipped| before != Some(*skipped)) {
                        tracing::info!(
                            saved = name,
                            tick = skipped.tick,
                            why = skipped.why,
                            "a scheduled job is not started"
                        );
                    }
                    self.write_schedule(name, version, &next).await?;
                }
                Due::Start { tick, taken, done, end } => {
                    if !self.write_schedule(name, version, &taken).await? {
                        return Ok(None);
                    }
                    let done = self.start_scheduled(name, schedule, tick, *done).await?;
                    self.end_replaced(name, &end).await;
                    // What others have written since stays, such as a pause. Who goes on gets the same job by its key.
                    self.write_schedule(name, version + 1, &done).await?;
                }
            }
            (version, state) = self.known_schedule(name).await?;
            now = self.moment().await?;
            is_asked = false;
        }
        Ok(None)
    }

    /// Starts the job of a tick. Returns the state to write.
    async fn start_scheduled(
        &self,
        name: &str,
        schedule: &LoadedSchedule,
        tick: Timestamp,
        done: ScheduleState,
    ) -> Result<ScheduleState, Error> {
        let vars = schedule.vars.as_deref().cloned().unwrap_or_default();
        let asked = SavedStart { name: name.to_owned(), vars: GivenVars(vars) };
        let terms = LaunchTerms {
            key: Some(format!("{LABEL}/{name}/{}", tick.as_millisecond())),
            label: Some((LABEL.to_owned(), name.to_owned())),
            exclusive: (schedule.overlap != Overlap::Skip).then(|| Word::from(&*format!("{LABEL}/{name}"))),
        };
        let who = Caller::of_file(CallerName::Schedule(name.to_owned()));
        let started = self.start_saved_once(asked, &who, terms).await;
        Ok(match started {
            Ok(started) => {
                let job = started.map_or_else(|known| Some(known.0), |started| started.id);
                done.started(tick, job)
            }
            Err(OperationRefusal { code, message }) => match code.known() {
                Some(OperationCode::StoreAway | OperationCode::OwnerAway) => {
                    return Err(Error::Away(message));
                }
                _ => {
                    tracing::warn!(saved = name, %tick, why = message, "a scheduled job cannot be started");
                    done.failed(tick, message)
                }
            },
        })
    }

    async fn end_replaced(&self, name: &str, end: &[i64]) {
        for id in end {
            let who = CallerName::Schedule(name.to_owned()).to_string();
            let audit = Audit { who, op: "job.cancel".to_owned(), target: id.to_string() };
            // One that has ended meanwhile needs no end.
            if let Err(error) = self.cancel_job(JobId(*id), audit).await {
                tracing::info!(saved = name, job = id, %error, "cannot end the job that a scheduled one replaces");
            }
        }
    }

    /// The jobs of a schedule that have not ended.
    async fn open_jobs_of(&self, name: &str) -> Result<Vec<OpenJob>, Error> {
        let selection = JobSelection {
            states: vec![JobState::Pending, JobState::Waiting, JobState::Running],
            labels: [(LABEL.to_owned(), name.to_owned())].into(),
            brief: true,
            ..JobSelection::default()
        };
        let rows = self.driver.store.list(selection, MOST_OPEN).await?.jobs;
        Ok(rows
            .iter()
            .map(|row| OpenJob { id: row.id.0, is_pending: row.state == JobState::Pending })
            .collect())
    }
}

/// The state in a document. What cannot be read counts as unknown, and is written anew.
fn read(document: &StoredDocument) -> KnownSchedule {
    (document.version, serde_json::from_str(&document.body).ok())
}
