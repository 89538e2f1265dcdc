//! Starts units through the spawner, notices their end, cancels them, and resumes them after a restart. While a runner
//! lives, only the runner writes the unit's status; the daemon watches it.

use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tokio::io::Interest;
use tokio::time::Instant;

use super::Local;
use crate::os::readiness;
use crate::work::cgroup::Cgroups;
use crate::work::runner::identity::Identity;
use crate::work::runner::{RunnerJob, Started};
use crate::work::status::{Extra, Status};
use crate::work::store::Durability;
use crate::work::unit::{RUNNING, State, UnitEvent};
use crate::work::units::{Entry, UnitWriter};
use crate::work::{CommandType, RUNNER, Reach, Submitter, WorkError};

/// The time beyond the grace that a runner gets for the signals after SIGINT, and for its last status.
const RUNNER_MARGIN: Duration = Duration::from_secs(8);
/// The time after a runner was killed for ending its processes from here.
const LAST_MARGIN: Duration = Duration::from_secs(7);
/// Time between checks of a runner for which no descriptor is left.
const RUNNER_EVERY: Duration = Duration::from_secs(1);

impl Local {
    /// Starts a unit whose payload is complete, or puts it into the queue.
    pub(crate) async fn start(self: &Arc<Self>, entry: &Arc<Entry>) -> Result<(), WorkError> {
        let mut writer = entry.writer(self.units.store()).await;
        let status = writer.status();
        if status.life.state != State::Pending {
            return Err(WorkError::EndedEarly(entry.id.to_string()));
        }
        let slots = self.slots(&status.work_type);
        // Once queued, the unit may get a slot at any moment. Its start then waits for the write lock, which is held
        // here.
        if !self.queues.enter(&status.work_type, slots, entry) {
            if let Err(error) = self.units.store().mark_queued(&entry.dir).await {
                writer.apply(UnitEvent::StartFailed(error.to_string()), Durability::Durable).await;
                return Err(error);
            }
            writer.apply(UnitEvent::PayloadComplete, Durability::Volatile).await;
            writer.apply(UnitEvent::Queued(slots), Durability::Durable).await;
            return Ok(());
        }
        let dir = entry.dir.clone();
        if self.units.store().blocking(move || dir.is_marked_queued()).await
            && let Err(error) = self.units.store().mark_slot(&entry.dir).await
        {
            writer.apply(UnitEvent::StartFailed(error.to_string()), Durability::Durable).await;
            drop(writer);
            self.free_slot(entry);
            return Err(error);
        }
        let started = self.start_with(entry, writer).await;
        if started.is_err() {
            self.free_slot(entry);
        }
        started
    }

    /// How many units of a type may run at once.
    fn slots(&self, work_type: &str) -> u32 {
        self.types.load().get(work_type).and_then(|kind| kind.limits.max_units).unwrap_or(u32::MAX)
    }

    /// Gives up the slot of a unit that does not run, or no longer, and starts the units that get a slot by that.
    fn free_slot(self: &Arc<Self>, entry: &Arc<Entry>) {
        let status = entry.status();
        let slots = self.slots(&status.work_type);
        self.start_these(self.queues.leave(&status.work_type, slots, entry));
    }

    /// After a change of the work types: starts the units that get a slot by that. Those whose type is gone fail when
    /// they start.
    pub(super) fn review_queues(self: &Arc<Self>) {
        self.start_these(self.queues.review(|work_type| self.slots(work_type)));
    }

    fn start_these(self: &Arc<Self>, entries: Vec<Arc<Entry>>) {
        for next in entries {
            let this = self.clone();
            tokio::spawn(async move { this.start_queued(next).await });
        }
    }

    /// Starts a unit from the queue. Boxed, because this is recursive: a failed start gives its slot to the next unit.
    pub(crate) fn start_queued(
        self: Arc<Self>,
        entry: Arc<Entry>,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            match self.start(&entry).await {
                Ok(()) => {}
                // The unit was cancelled while it waited.
                Err(WorkError::EndedEarly(_)) => self.free_slot(&entry),
                Err(error) => tracing::warn!(unit = %entry.id, %error, "cannot start a queued unit"),
            }
        })
    }

    async fn start_with(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        mut writer: UnitWriter,
    ) -> Result<(), WorkError> {
        let status = writer.status();
        let known = self.known(&status.work_type);
        let kind = match known.or_else(|error| self.runner_for(entry, &status).ok_or(error)) {
            Ok(kind) => kind,
            // The type was configured when the unit was submitted.
            Err(error) => {
                let cause = format!("{error}: it is no longer in this node's configuration");
                fail_start(&mut writer, cause).await;
                return Err(error);
            }
        };
        writer.apply(UnitEvent::PayloadComplete, Durability::Volatile).await;
        entry.forget_unsaved();
        let job = self.job(entry, &kind, &status);
        match self.spawner.spawn(job).await {
            Started::Running(pid) => {
                let mut status = status.as_ref().clone();
                status.life.apply(&UnitEvent::Started(pid));
                let runner = self.runner_of(entry).await;
                if let (Extra::Command(extra), Some(runner)) = (&mut status.extra, &runner) {
                    extra.pid = runner.pid;
                }
                writer.show(status);
                drop(writer);
                tokio::spawn(self.clone().supervise(entry.clone(), runner));
                Ok(())
            }
            Started::AlreadyTaken => {
                drop(writer);
                self.resume(entry).await;
                Ok(())
            }
            Started::Failed(cause) => {
                fail_start(&mut writer, cause.clone()).await;
                Err(WorkError::NotStarted(cause))
            }
        }
    }

    /// The controller's own runner, for the child of a job whose work type is no longer configured: earlier releases,
    /// which had no such runner, ran children on this node with a configured type.
    fn runner_for(&self, entry: &Entry, status: &Status) -> Option<CommandType> {
        let is_child = self.is_child.is_some_and(|is_child| is_child(&entry.id));
        let is_own = is_child && status.submitter == Some(Submitter::Operator);
        self.types.load().get(RUNNER).filter(|_| is_own).cloned()
    }

    fn job(&self, entry: &Entry, kind: &CommandType, status: &Status) -> RunnerJob {
        let params = if let Extra::Command(extra) = &status.extra { extra.params.as_str() } else { "" };
        RunnerJob {
            dir: entry.dir.path().to_owned(),
            command: kind.command.clone(),
            plugin: kind.plugin.clone(),
            grace_ms: u64::try_from(self.grace_of(&kind.name).as_millis()).unwrap_or(u64::MAX),
            limits: kind.limits.clone(),
            run_dir: Some(self.run_dirs.of(entry.id.as_str(), params)),
            cgroup: self.cgroup_for(entry, kind),
            gives_way: kind.reach == Reach::Controller,
        }
    }

    /// The control group for a unit, if its type has limits that need a group and this system has groups.
    fn cgroup_for(&self, entry: &Entry, kind: &CommandType) -> Option<PathBuf> {
        let limits = kind.limits.of_group();
        if limits.is_empty() {
            return None;
        }
        let found = self.cgroups.get_or_init(|| {
            let found = Cgroups::find(self.spawner.pid());
            match &found {
                Ok(groups) if groups.missing.is_empty() => {}
                Ok(groups) => tracing::warn!(
                    missing = groups.missing.join(" "),
                    "limits of work types are not enforced: the node's cgroup does not offer these controllers; under \
                     systemd, start NAME-jobs.service for a node of NAME.service, as meshd-jobs.service does, and restart it"
                ),
                Err(error) => tracing::warn!(
                    %error,
                    "limits of work types (cpu, memory, pids) are not enforced: no control groups (cgroup v2) can be used"
                ),
            }
            found.ok()
        });
        found.as_ref().map(|groups| groups.unit(self.units.node_id(), &entry.id))
    }

    /// Time between SIGINT and SIGTERM for units of a type.
    fn grace_of(&self, work_type: &str) -> Duration {
        self.types
            .load()
            .get(work_type)
            .and_then(|kind| kind.limits.cancel_grace)
            .unwrap_or(self.cancel_grace)
    }

    /// Resumes a unit that an earlier daemon left unfinished: watches its runner, or settles its end if the runner is
    /// gone.
    pub(crate) async fn resume(self: &Arc<Self>, entry: &Arc<Entry>) {
        let status = entry.status();
        if !self.has_type(&status.work_type) && !matches!(status.extra, Extra::Command(_)) {
            return;
        }
        let runner = loop {
            let runner = self.runner_of(entry).await;
            if runner.as_ref().is_some_and(Identity::is_alive) {
                break runner;
            }
            if self.reconcile(entry, runner).await {
                return self.free_slot(entry);
            }
        };
        self.queues.occupy(&entry.status().work_type, entry);
        if entry.status().life.state == State::Pending {
            entry.writer(self.units.store()).await.apply(UnitEvent::Claimed, Durability::Volatile).await;
        }
        if entry.status().life.detail == RUNNING {
            tokio::spawn(self.clone().learn_more(entry.clone()));
        }
        tokio::spawn(self.clone().supervise(entry.clone(), runner));
    }

    /// Shows the first status that the runner writes about its command.
    async fn learn_more(self: Arc<Self>, entry: Arc<Entry>) {
        let mut changes = self.watcher.subscribe(&entry.dir.path()).await;
        loop {
            let dir = entry.dir.clone();
            let found = self.units.store().blocking(move || dir.read_status()).await;
            if let Ok(found) = found.map_err(drop)
                && found.life.state != State::Pending
            {
                let writer = entry.writer(self.units.store()).await;
                if !writer.status().life.state.is_final() {
                    let verify_signature = writer.status().verify_signature;
                    writer.show(Status { verify_signature, ..found });
                }
                return;
            }
            tokio::select! {
                () = changes.changed() => {}
                () = entry.finished() => return,
            }
        }
    }

    /// Waits for the runner to end, and shows how the unit ended.
    async fn supervise(self: Arc<Self>, entry: Arc<Entry>, runner: Option<Identity>) {
        if let Some(runner) = &runner {
            self.wait_for_end(runner).await;
        }
        self.reconcile(&entry, runner).await;
        self.free_slot(&entry);
    }

    /// Returns when the process is gone.
    async fn wait_for_end(&self, runner: &Identity) {
        // Only a part of all descriptors is used for this, so that some are left for requests, however many units run.
        let slot = self.pidfds.try_acquire().map_err(io::Error::other);
        let descriptor = match slot.and_then(|slot| Ok((slot, runner.open()?))) {
            Ok((_, None)) => return,
            Ok((slot, Some(descriptor))) => {
                readiness::register(descriptor, Interest::READABLE).map(|descriptor| (slot, descriptor))
            }
            Err(error) => Err(error),
        };
        match descriptor {
            Ok((_slot, descriptor)) => drop(descriptor.readable().await),
            Err(error) => {
                static WARNED: std::sync::Once = std::sync::Once::new();
                WARNED.call_once(|| {
                    tracing::warn!(%error, "no file descriptor is left to wait for a unit's end, looking every \
                                            {RUNNER_EVERY:?} instead; raise the node's limit of open files");
                });
                while runner.is_alive() {
                    tokio::time::sleep(RUNNER_EVERY).await;
                }
            }
        }
    }

    /// Cancels a unit: ends its processes, and returns when its state is final.
    ///
    /// # Errors
    /// Processes that do not end.
    pub(crate) async fn cancel(&self, entry: &Arc<Entry>) -> Result<(), WorkError> {
        let deadline = Instant::now() + self.grace_of(&entry.status().work_type) + RUNNER_MARGIN;
        let marked = {
            // While this holds the write lock, the unit is neither being started nor removed.
            let lock = tokio::time::timeout_at(deadline, entry.writer(self.units.store())).await;
            let mut writer = lock.map_err(|_| WorkError::StillRunning(entry.id.to_string()))?;
            match writer.status().life.state {
                State::Pending => {
                    writer.apply(UnitEvent::CancelledEarly, Durability::Durable).await;
                    self.queues.forget(&writer.status().work_type, entry);
                    return Ok(());
                }
                State::Succeeded | State::Failed | State::Canceled => return Ok(()),
                State::Running => {}
            }
            let dir = entry.dir.clone();
            self.units.store().blocking(move || dir.mark_cancelled()).await
        };
        self.end_running(entry, deadline).await?;
        marked
    }

    /// Ends a unit's processes for a reason of this node's own. The unit fails, and its Detail gives the reason.
    ///
    /// # Errors
    /// Processes that do not end.
    pub(crate) async fn stop(&self, entry: &Arc<Entry>, why: String) -> Result<(), WorkError> {
        let deadline = Instant::now() + self.grace_of(&entry.status().work_type) + RUNNER_MARGIN;
        let writer = entry.writer(self.units.store()).await;
        if writer.status().life.state != State::Running {
            return Ok(());
        }
        let dir = entry.dir.clone();
        let noted = self.units.store().blocking(move || dir.note_stopped(&why)).await;
        drop(writer);
        if let Err(error) = noted {
            tracing::warn!(unit = %entry.id, %error, "cannot note why a unit is stopped, its Detail will not say it");
        }
        self.end_running(entry, deadline).await
    }

    /// Asks the runner to end a unit's processes, and kills the runner at the deadline. Returns when the unit's state
    /// is final.
    async fn end_running(&self, entry: &Arc<Entry>, deadline: Instant) -> Result<(), WorkError> {
        let ends = async {
            let runner = self.signal_runner(entry, Signal::INT).await;
            if !runner.as_ref().is_some_and(Identity::is_alive) {
                // Perhaps no other task waits for the runner's end.
                self.reconcile(entry, runner).await;
            }
            entry.finished().await;
        };
        if tokio::time::timeout_at(deadline, ends).await.is_ok() {
            return Ok(());
        }
        tracing::warn!(unit = %entry.id, "the runner has not ended its command, killing it");
        let ends = async {
            self.signal_runner(entry, Signal::KILL).await;
            entry.finished().await;
        };
        tokio::time::timeout(LAST_MARGIN, ends)
            .await
            .map_err(|_| WorkError::StillRunning(entry.id.to_string()))
    }

    /// Sends a signal to the unit's runner, if it has or had one, and returns the runner. Retries until the system
    /// allows it.
    async fn signal_runner(&self, entry: &Arc<Entry>, signal: Signal) -> Option<Identity> {
        loop {
            let runner = self.runner_of(entry).await;
            match runner.as_ref().map_or(Ok(()), |runner| runner.signal(signal)) {
                Ok(()) => return runner,
                Err(error) => tracing::warn!(unit = %entry.id, %error, "cannot signal the unit's runner"),
            }
            tokio::time::sleep(RUNNER_EVERY).await;
        }
    }

    /// The runner that has or had the unit, if any. Retries until that is known, because a healthy unit must not be
    /// ended for lack of descriptors.
    async fn runner_of(&self, entry: &Arc<Entry>) -> Option<Identity> {
        loop {
            let unit = entry.clone();
            match self.units.store().blocking(move || find_runner(&unit)).await {
                Ok(runner) => return runner,
                Err(error) => {
                    tracing::warn!(unit = %entry.id, %error, "cannot tell who runs the unit, looking again")
                }
            }
            tokio::time::sleep(RUNNER_EVERY).await;
        }
    }
}

fn find_runner(entry: &Entry) -> io::Result<Option<Identity>> {
    if let Some(runner) = Identity::load(&entry.dir)? {
        return Ok(Some(runner));
    }
    if let Extra::Command(extra) = &entry.status().extra
        && extra.pid > 0
    {
        return Identity::of_go_runner(extra.pid, &entry.dir);
    }
    Ok(None)
}

/// Fails a unit whose command could not be started.
async fn fail_start(writer: &mut UnitWriter, cause: String) {
    let mut failed = writer.status().as_ref().clone();
    failed.extra = Extra::None;
    failed.life.apply(&UnitEvent::StartFailed(cause));
    let _ = writer.put(failed, Durability::Durable).await;
}
