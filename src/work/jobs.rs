//! Units that are jobs of a controller: what the controller does for them, and what it may do with them. Owns the
//! seam between the units of this node and the room that places jobs; decides nothing about jobs.

mod header;
mod held_back;
mod output;
mod slot;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::header::{HEADER, LONGEST_HEADER, VERSION_KEY, is_header};
pub use self::held_back::HeldBack;
pub use self::output::{JobOutput, OutputLock};
pub(crate) use self::slot::JobsSlot;
use super::WorkError;
use super::status::{Extra, Status};
use super::store::{Durability, Store};
use super::unit::{Event, State, UnitId};
use super::units::{Entry, OutputWriter};

/// The work type whose units are jobs.
pub const CONTROLLER: &str = "controller";
/// What a node without one says.
pub const NO_CONTROLLER: &str = "this node is no control node: configure work-controller";

/// Time between attempts to write an output or a status.
const REWRITE: Duration = Duration::from_secs(1);

/// Something that takes time.
pub type Act<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A control node's controller, as its units see it. Errors are texts for `ERROR: controller: `.
pub trait Jobs: Send + Sync + 'static {
    /// Submissions over the mesh need the token of a work-signing key.
    fn verifies_signatures(&self) -> bool;

    /// A submission begins. Returns what its unit says from its first moment on, and what checks its payload.
    ///
    /// # Errors
    /// Its parameters are wrong, or the controller takes none.
    fn begin(&self, request: JobRequest) -> Result<(JobExtra, Box<dyn JobIntake>), String>;

    /// A unit that an earlier daemon left is here, with its payload. Returns once it follows its job.
    fn resume(&self, unit: JobUnit) -> Act<'_, ()>;

    /// Cancels the job of a unit, also one that it will get. The cancel is saved when this returns.
    fn cancel(&self, unit: UnitId) -> Act<'_, Result<(), String>>;

    /// A unit of a job that has ended is deleted.
    fn forget(&self, unit: UnitId) -> Act<'_, ()>;

    /// Whether the payload of a child may be sent, as the store says: this node drives its job, and it is wanted.
    fn may_send(&self, unit: UnitId) -> Act<'_, bool>;

    /// The node of a child has given it this ID. Durable when this returns: who takes the job over has nothing else to find
    /// it by.
    fn keep_far_id(&self, unit: UnitId, id: String) -> Act<'_, Result<(), String>>;

    /// The number of the job that a child unit belongs to; `None` for every other unit.
    fn parent(&self, unit: &UnitId) -> Option<i64>;
}

/// A submission while its payload comes.
pub trait JobIntake: Debug + Send + Sync {
    /// Checks the next bytes.
    ///
    /// # Errors
    /// The submission is refused, and leaves nothing.
    fn push(&mut self, bytes: &[u8]) -> Result<(), String>;

    /// The payload is complete and durable. Says whether the job is stored already.
    ///
    /// # Errors
    /// As [`Self::push`].
    fn finish(self: Box<Self>, unit: JobUnit) -> Act<'static, Result<bool, String>>;
}

/// What comes with a submission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobRequest {
    /// The parameters of the unit.
    pub params: BTreeMap<String, String>,
    /// The caller may have jobs run on the control node itself.
    pub is_admin: bool,
    /// Who it is: `unix:UID`, `cert:CN`, `web:NAME` or `mesh:NODE`; `tcp` for a client of a port of whom nothing is known,
    /// and `mesh` for all nodes without a certificate.
    pub launched_by: String,
}

/// The name of the private data directory of a job's child on its node, or its beginning.
pub fn private_dir(unit: &str) -> String {
    format!("meshd_{unit}")
}

/// ExtraData of a job's unit.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[expect(missing_docs, reason = "the keys are specified in docs/controller-reference.md")]
pub struct JobExtra {
    #[serde(rename = "JobID", skip_serializing_if = "Option::is_none")]
    pub job_id: Option<i64>,
    pub kind: String,
    pub name: String,
    pub controller_node: String,
    pub execution_node: String,
    pub instance_group: String,
    #[serde(rename = "ChildUnitID")]
    pub child_unit_id: String,
    pub child_work_type: String,
    pub attempt: u32,
    pub impact: u32,
    pub event_count: u64,
    pub last_status: String,
    pub explanation: String,
    pub exit_code: Option<i32>,
    pub created: Option<String>,
    pub started: Option<String>,
    pub finished: Option<String>,
    pub cancel_requested: bool,
    /// The attempt whose output was begun last, and the byte at which it begins.
    pub output_attempt: u32,
    pub output_from: u64,
    /// Where the output of each of the latest attempts begins.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub output_starts: BTreeMap<u32, u64>,
    /// The children that wrote those. A store that lost its last commits gives their numbers to others.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub output_children: BTreeMap<u32, String>,
    /// The nodes that they were sent to: who finds a child that the store has forgotten has to end it there.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub output_nodes: BTreeMap<u32, String>,
    /// Children that the store has forgotten, with the nodes that they were sent to, until they have ended there.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub forgotten: BTreeMap<String, String>,
    /// The IDs that nodes have given those children: a node of receptor's knows them by these alone.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub far_units: BTreeMap<String, String>,
    /// Who submitted it, and whether as an administrator: a unit that lost its row is entered again.
    pub launched_by: String,
    pub is_admin: bool,
    /// The job whose payload it repeats. Nobody knows of it until it has its own number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rerun_of: Option<i64>,
    /// It is to be released once its job has ended.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub release_requested: bool,
    /// The header, if it came as a parameter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
}

impl JobExtra {
    /// Says of the output what this one says.
    fn take_output_of(&mut self, other: &Self) {
        (self.output_attempt, self.output_from) = (other.output_attempt, other.output_from);
        self.output_starts.clone_from(&other.output_starts);
        self.output_children.clone_from(&other.output_children);
        self.output_nodes.clone_from(&other.output_nodes);
        self.forgotten.clone_from(&other.forgotten);
        self.far_units.clone_from(&other.far_units);
    }
}

/// What a job's unit shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobReport {
    /// As clients of units know it.
    pub state: State,
    /// For people.
    pub detail: String,
    /// The rest.
    pub extra: JobExtra,
}

/// The unit of a job.
#[derive(Debug, Clone)]
pub struct JobUnit {
    entry: Arc<Entry>,
    store: Store,
}

impl JobUnit {
    pub(super) fn new(entry: Arc<Entry>, store: Store) -> Self {
        Self { entry, store }
    }

    /// The unit's ID.
    pub fn id(&self) -> &UnitId {
        &self.entry.id
    }

    /// What it shows besides state and Detail.
    pub fn extra(&self) -> JobExtra {
        extra_of(&self.entry.status()).cloned().unwrap_or_default()
    }

    /// Whether its state is final, or it is deleted.
    pub fn is_final(&self) -> bool {
        self.entry.is_gone() || self.entry.status().life.state.is_final()
    }

    /// The file with the payload.
    pub fn payload(&self) -> PathBuf {
        self.entry.dir.file("stdin")
    }

    /// Whether the payload is there.
    pub fn has_payload(&self) -> bool {
        self.entry.dir.payload_size() > 0
    }

    /// Deletes the payload. Units that share it keep it.
    ///
    /// # Errors
    /// The disk's.
    pub async fn drop_payload(&self) -> Result<(), WorkError> {
        self.store.drop_payload(&self.entry.dir).await
    }

    /// Deletes the output. Units that share it keep it; who reads it here is told that it is gone.
    ///
    /// # Errors
    /// The disk's.
    pub async fn drop_output(&self) -> std::io::Result<()> {
        let output = self.output();
        let remove = move || match std::fs::remove_file(output) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        };
        self.store.blocking(remove).await
    }

    /// The file with the output.
    pub fn output(&self) -> PathBuf {
        self.entry.dir.file("stdout")
    }

    /// Where its files are.
    fn directory(&self) -> PathBuf {
        self.entry.dir.path()
    }

    /// Makes the output durable, so that it is not shorter after a power loss than what is noted of it.
    ///
    /// # Errors
    /// The disk's.
    pub async fn sync_output(&self) -> std::io::Result<()> {
        let live = self.entry.live();
        let (cuts, size) = (live.kept_output.cuts(), self.output_size());
        if size > 0 {
            self.store.sync_output(&self.entry.dir).await?;
            live.kept_output.note(size, cuts);
        }
        Ok(())
    }

    /// Bytes of output.
    pub fn output_size(&self) -> u64 {
        self.entry.dir.stdout_size()
    }

    /// A new writer of the output of an attempt: all former ones write nothing any more. `None` if a later attempt writes.
    pub async fn write_output(&self, attempt: u32) -> Option<JobOutput> {
        let mut latest = self.entry.output_writer().await;
        if attempt < self.extra().output_attempt.max(latest.attempt) {
            return None;
        }
        *latest = OutputWriter { attempt, number: latest.number + 1 };
        Some(JobOutput { unit: self.clone(), writer: *latest })
    }

    /// A new writer of a copy of the output, of this attempt in it: all former ones write nothing any more. For a node that
    /// drives no attempt of the job.
    pub async fn write_copy(&self, attempt: u32) -> JobOutput {
        let mut latest = self.entry.output_writer().await;
        *latest = OutputWriter { attempt, number: latest.number + 1 };
        JobOutput { unit: self.clone(), writer: *latest }
    }

    /// Keeps the output as it is: until this is dropped nobody writes, and no attempt begins.
    pub async fn lock_output(&self) -> OutputLock {
        OutputLock { unit: self.clone(), latest: self.entry.output_writer().await }
    }

    /// Shares the output of another unit of the same job, so that it is on disk once, and knows of its attempts what that
    /// one knows now.
    pub async fn share_output(&self, of: &Self) {
        let (source, to) = (of.entry.dir.clone(), self.output());
        let linked = self.store.blocking(move || {
            drop(source.append_stdout()?);
            match std::fs::hard_link(source.file("stdout"), to) {
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error),
                Ok(()) | Err(_) => Ok(()),
            }
        });
        if let Err(error) = linked.await {
            tracing::warn!(unit = %self.id(), %error, "the output of the unit's job is not readable through it");
        }
        let known = of.extra();
        self.note(Durability::Durable, |extra| extra.take_output_of(&known)).await;
    }

    /// The last status in the runner's stream.
    pub async fn note_status(&self, last_status: &str) {
        self.note(Durability::Deferred, |extra| last_status.clone_into(&mut extra.last_status)).await;
    }

    /// A child that the store has forgotten has ended.
    pub async fn note_ended(&self, child: &str) {
        self.note(Durability::Deferred, |extra| drop(extra.forgotten.remove(child))).await;
    }

    /// These children, of attempts that the store has forgotten, have ended, and none of their attempts counts. That is durable
    /// when this returns.
    pub async fn forget_children(&self, ended: &[String]) {
        let forget = |extra: &mut JobExtra| {
            extra.output_children.retain(|_, child| !ended.contains(child));
            extra.output_nodes.retain(|n, _| extra.output_children.contains_key(n));
            extra.forgotten.retain(|child, _| !ended.contains(child));
        };
        self.note(Durability::Durable, forget).await;
    }

    /// The node of a child of the job has given it this ID. It is durable when this returns.
    pub async fn note_far_unit(&self, child: &str, id: &str) {
        let note = |extra: &mut JobExtra| {
            extra.far_units.insert(child.to_owned(), id.to_owned());
            let (latest, forgotten) = (&extra.output_children, &extra.forgotten);
            extra
                .far_units
                .retain(|known, _| latest.values().any(|one| one == known) || forgotten.contains_key(known));
        };
        self.note(Durability::Durable, note).await;
    }

    /// A cancel came before the unit had a job. It is durable when this returns.
    pub async fn note_cancel(&self) {
        self.note(Durability::Durable, |extra| extra.cancel_requested = true).await;
    }

    /// It is to be released once its job has ended. That is durable when this returns.
    async fn note_release(&self) {
        self.note(Durability::Durable, |extra| extra.release_requested = true).await;
    }

    /// Changes what the unit itself knows.
    async fn note(&self, durability: Durability, change: impl Fn(&mut JobExtra)) {
        let change = |status: &mut Status| {
            if let Extra::Job(extra) = &mut status.extra {
                change(extra);
            }
        };
        self.put(durability, change).await;
    }

    /// Shows a report. What is final stays, and so does what the unit itself knows: its output, and who submitted it. A
    /// final report is durable when this returns.
    pub async fn report(&self, report: JobReport) {
        let how = if report.state.is_final() { Durability::Durable } else { Durability::Deferred };
        self.show(report, how).await;
    }

    /// The same, and any report is durable when this returns.
    pub async fn report_durably(&self, report: JobReport) {
        self.show(report, Durability::Durable).await;
    }

    /// Ends it, as there is no job whose end it could show: it fails for this reason.
    pub async fn fail(&self, why: &str) {
        let (detail, extra) = (why.to_owned(), self.extra());
        self.report(JobReport { state: State::Failed, detail, extra }).await;
    }

    async fn show(&self, report: JobReport, how: Durability) {
        let size = self.output_size();
        let change = |status: &mut Status| {
            let JobReport { state, detail, mut extra } = report.clone();
            status.exit_code = extra.exit_code.filter(|_| state.is_final());
            // What was copied of something else, or cut off, was no part of it.
            status.life.stdout_size = status.life.stdout_size.min(size);
            status.life.apply(&Event::Reported(state, detail, size));
            if let Some(kept) = extra_of(status) {
                extra.take_output_of(kept);
                extra.last_status = kept.last_status.clone();
                extra.cancel_requested |= kept.cancel_requested;
                extra.release_requested |= kept.release_requested;
            }
            status.extra = Extra::Job(Box::new(extra));
        };
        self.put(how, change).await;
    }

    async fn put(&self, how: Durability, change: impl Fn(&mut Status)) {
        loop {
            let mut writer = self.entry.writer(&self.store).await;
            let former = writer.status();
            if former.life.state.is_final() || self.entry.is_gone() {
                return;
            }
            let mut status = Status::clone(&former);
            change(&mut status);
            if status == *former {
                return;
            }
            match writer.put(status, how).await {
                Ok(()) => return,
                Err(error) => tracing::warn!(unit = %self.id(), %error, "a status is not on disk yet"),
            }
            drop(writer);
            tokio::time::sleep(REWRITE).await;
        }
    }
}

fn extra_of(status: &Status) -> Option<&JobExtra> {
    if let Extra::Job(extra) = &status.extra { Some(extra) } else { None }
}
