//! Units that are jobs of a controller: what the controller does for them, and what it may do with them. Owns the
//! seam between the units of this node and the room that places jobs; decides nothing about jobs.

mod header;
mod held_back;
mod operations;
mod output;
mod slot;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

pub use self::header::{HEADER, LONGEST_HEADER, VERSION_KEY, is_header};
pub use self::held_back::HeldBack;
pub use self::operations::{HookDelivery, Hooked, Operations};
pub use self::output::{JobOutput, OutputLock};
pub(crate) use self::slot::JobsSlot;
use super::WorkError;
pub use super::run_dir::private_dir;
pub use super::status::{CONTROLLER, JobExtra};
use super::status::{Extra, Status};
use super::store::{Durability, UnitStore};
use super::unit::{State, UnitEvent, UnitId};
use super::units::{Entry, OutputWriter};

/// The error of a node without a controller.
pub const NO_CONTROLLER: &str = "this node is not a control node: configure work-controller";

/// Time between attempts to write an output or a status.
const REWRITE: Duration = Duration::from_secs(1);

/// The future of an action that takes time.
pub type Act<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A control node's controller, as its units see it. Errors are texts for `ERROR: controller: `.
pub trait JobController: Send + Sync + 'static {
    /// Whether submissions over the mesh need the token of a work-signing key.
    fn verifies_signatures(&self) -> bool;

    /// Begins a submission. Returns the ExtraData with which its unit is made, and the intake that checks its payload.
    ///
    /// # Errors
    /// Its parameters are wrong, or the controller takes no submissions.
    fn begin(&self, request: JobRequest) -> Result<(JobExtra, Box<dyn JobIntake>), String>;

    /// Takes up a unit that an earlier daemon left with its payload. Returns once the unit follows its job.
    fn resume(&self, unit: JobUnit) -> Act<'_, ()>;

    /// Cancels the job of a unit, or the job that the unit is going to get. The cancel is saved when this returns.
    fn cancel(&self, unit: UnitId) -> Act<'_, Result<(), String>>;

    /// Notes that the unit of a job is being deleted.
    fn forget(&self, unit: UnitId) -> Act<'_, ()>;

    /// Whether the payload of a child may be sent, because the store says that this node drives its job and that the
    /// child is wanted.
    fn may_send(&self, unit: UnitId) -> Act<'_, bool>;

    /// Stores the ID that its node has given to a child. It is durable when this returns, because a node that takes the
    /// job over can find the child only by it.
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

    /// Ends the submission: its payload is complete and durable. Returns whether the job is stored already.
    fn finish(self: Box<Self>, unit: JobUnit) -> Act<'static, Result<bool, String>>;
}

/// What comes with a submission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobRequest {
    /// The parameters of the unit.
    pub params: BTreeMap<String, String>,
    /// The caller may have jobs run on the control node itself.
    pub is_admin: bool,
    /// The controller makes it of its own, for the caller.
    pub is_own: bool,
    /// Who the caller is: `unix:UID`, `cert:CN`, `web:NAME` or `mesh:NODE`; `tcp` for a client of a port of whom
    /// nothing is known, and `mesh` for all nodes without a certificate.
    pub launched_by: String,
}

/// What a job's unit shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShownJob {
    /// The state of the unit.
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
    store: UnitStore,
}

impl JobUnit {
    pub(super) fn new(entry: Arc<Entry>, store: UnitStore) -> Self {
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
    pub async fn drop_payload(&self) -> Result<(), WorkError> {
        self.store.drop_payload(&self.entry.dir).await
    }

    /// Deletes the output. Units that share it keep it; readers of this unit are told that it is gone.
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

    /// A new writer of the output of an attempt; former writers write nothing more. `None` if a later attempt writes.
    pub async fn write_output(&self, attempt: u32) -> Option<JobOutput> {
        let mut latest = self.entry.output_writer().await;
        if attempt < self.extra().output_attempt.max(latest.attempt) {
            return None;
        }
        *latest = OutputWriter { attempt, number: latest.number + 1 };
        Some(JobOutput { unit: self.clone(), writer: *latest })
    }

    /// A new writer of this attempt's part in a copy of the output; former writers write nothing more. For a node that
    /// drives no attempt of the job.
    pub async fn write_copy(&self, attempt: u32) -> JobOutput {
        let mut latest = self.entry.output_writer().await;
        *latest = OutputWriter { attempt, number: latest.number + 1 };
        JobOutput { unit: self.clone(), writer: *latest }
    }

    /// Keeps the output as it is: until the lock is dropped, nobody writes and no attempt begins.
    pub async fn lock_output(&self) -> OutputLock {
        OutputLock { unit: self.clone(), latest: self.entry.output_writer().await }
    }

    /// Shares the output of another unit of the same job, so that it is on disk once, and takes over what that unit
    /// knows of its attempts.
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
            tracing::warn!(unit = %self.id(), %error, "cannot make the output of a unit's job readable through the unit");
        }
        let known = of.extra();
        self.note(Durability::Durable, |extra| extra.take_output_of(&known)).await;
    }

    /// Notes the last status in the runner's stream.
    pub async fn note_status(&self, last_status: &str) {
        self.note(Durability::Deferred, |extra| last_status.clone_into(&mut extra.last_status)).await;
    }

    /// Notes that a child that the store has forgotten has ended.
    pub async fn note_ended(&self, child: &str) {
        self.note(Durability::Deferred, |extra| drop(extra.forgotten.remove(child))).await;
    }

    /// Forgets children of attempts that the store has forgotten: they have ended, and none of the attempts counts.
    /// That is durable when this returns.
    pub async fn forget_children(&self, ended: &[String]) {
        let forget = |extra: &mut JobExtra| {
            extra.output_children.retain(|_, child| !ended.contains(child));
            extra.output_nodes.retain(|n, _| extra.output_children.contains_key(n));
            extra.forgotten.retain(|child, _| !ended.contains(child));
        };
        self.note(Durability::Durable, forget).await;
    }

    /// Notes the ID that its node has given to a child of the job. It is durable when this returns.
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

    /// Notes a cancel that came before the unit had a job. It is durable when this returns.
    pub async fn note_cancel(&self) {
        self.note(Durability::Durable, |extra| extra.cancel_requested = true).await;
    }

    /// Notes that the unit is to be released once its job has ended. That is durable when this returns.
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

    /// Shows a report. A final state stays, and so does what the unit itself knows: its output, and who submitted it. A
    /// final report is durable when this returns.
    pub async fn report(&self, report: ShownJob) {
        let how = if report.state.is_final() { Durability::Durable } else { Durability::Deferred };
        self.show(report, how).await;
    }

    /// Like [`Self::report`], but any report is durable when this returns.
    pub async fn report_durably(&self, report: ShownJob) {
        self.show(report, Durability::Durable).await;
    }

    /// Fails the unit for this reason, because there is no job whose end it could show.
    pub async fn fail(&self, why: &str) {
        let (detail, extra) = (why.to_owned(), self.extra());
        self.report(ShownJob { state: State::Failed, detail, extra }).await;
    }

    async fn show(&self, report: ShownJob, how: Durability) {
        let size = self.output_size();
        let change = |status: &mut Status| {
            let ShownJob { state, detail, mut extra } = report.clone();
            status.exit_code = extra.exit_code.filter(|_| state.is_final());
            // Output that was copied from elsewhere, or cut off, does not count.
            status.life.stdout_size = status.life.stdout_size.min(size);
            status.life.apply(&UnitEvent::Reported(state, detail, size));
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
                Err(error) => {
                    tracing::warn!(unit = %self.id(), %error, "cannot write a unit's status, trying again")
                }
            }
            drop(writer);
            tokio::time::sleep(REWRITE).await;
        }
    }
}

fn extra_of(status: &Status) -> Option<&JobExtra> {
    if let Extra::Job(extra) = &status.extra { Some(extra) } else { None }
}
