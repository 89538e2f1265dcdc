//! Units that run here: starting them through the spawner, noticing their end, cancelling them, and picking them
//! up after a restart. While a runner lives the unit's files are its own; the daemon only watches it.

use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tokio::io::Interest;
use tokio::time::Instant;

use crate::os::readiness;
use crate::work::cgroup::Cgroups;
use crate::work::registry::{Inner, Outcome};
use crate::work::runner::identity::Identity;
use crate::work::runner::{Job, Started};
use crate::work::status::{Extra, Status};
use crate::work::store::Durability;
use crate::work::unit::{Event, RUNNING, State};
use crate::work::units::entry::Entry;
use crate::work::units::writer::Writer;
use crate::work::{CommandType, WorkError};

/// What a runner gets on top of the grace for harder signals and its last status.
const RUNNER_MARGIN: Duration = Duration::from_secs(8);
/// What is left after a runner was killed, for ending its processes from here.
const LAST_MARGIN: Duration = Duration::from_secs(7);
/// Between looks at a runner for which there is no descriptor left.
const LOOK: Duration = Duration::from_secs(1);

impl Inner {
    /// Starts a unit whose payload is complete, or has it wait for its turn.
    pub(crate) async fn start_local(self: &Arc<Self>, entry: &Arc<Entry>) -> Result<(), WorkError> {
        let mut writer = entry.writer(&self.store).await;
        let status = writer.status();
        if status.life.state != State::Pending {
            return Err(WorkError::EndedEarly(entry.id.to_string()));
        }
        let places = self.places(&status.work_type);
        // In the queue its turn may come at any moment after this one, and waits for the writer.
        if !self.queues.enter(&status.work_type, places, entry) {
            if let Err(error) = self.store.mark_queued(&entry.dir).await {
                writer.apply(Event::StartFailed(error.to_string()), Durability::Durable).await;
                return Err(error);
            }
            writer.apply(Event::PayloadComplete, Durability::Volatile).await;
            writer.apply(Event::Queued(places), Durability::Durable).await;
            return Ok(());
        }
        let dir = entry.dir.clone();
        if self.store.blocking(move || dir.is_marked_queued()).await
            && let Err(error) = self.store.mark_slot(&entry.dir).await
        {
            writer.apply(Event::StartFailed(error.to_string()), Durability::Durable).await;
            drop(writer);
            self.give_place_on(entry);
            return Err(error);
        }
        let started = self.start_with(entry, writer).await;
        if started.is_err() {
            self.give_place_on(entry);
        }
        started
    }

    /// How many units of a type may run at once.
    fn places(&self, work_type: &str) -> u32 {
        self.types.load().get(work_type).and_then(|kind| kind.limits.max_units).unwrap_or(u32::MAX)
    }

    /// A unit runs no more, or not yet: starts those whose turn has come.
    fn give_place_on(self: &Arc<Self>, entry: &Arc<Entry>) {
        let status = entry.status();
        let places = self.places(&status.work_type);
        self.start_these(self.queues.leave(&status.work_type, places, entry));
    }

    /// The work types have changed: starts those whose turn has come by it, and ends those that can never start.
    pub(crate) fn review_queues(self: &Arc<Self>) {
        self.start_these(self.queues.review(|work_type| self.places(work_type)));
    }

    fn start_these(self: &Arc<Self>, entries: Vec<Arc<Entry>>) {
        for next in entries {
            let this = self.clone();
            tokio::spawn(async move { this.start_in_turn(next).await });
        }
    }

    /// Starts a unit that has waited; boxed, as a failed start gives its place to the next.
    pub(crate) fn start_in_turn(
        self: Arc<Self>,
        entry: Arc<Entry>,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            match self.start_local(&entry).await {
                Ok(()) => {}
                // Cancelled while it waited.
                Err(WorkError::EndedEarly(_)) => self.give_place_on(&entry),
                Err(error) => tracing::warn!(unit = %entry.id, %error, "a queued unit does not start"),
            }
        })
    }

    async fn start_with(self: &Arc<Self>, entry: &Arc<Entry>, mut writer: Writer) -> Result<(), WorkError> {
        let status = writer.status();
        let kind = match self.kind(&status.work_type) {
            Ok(kind) => kind,
            // It was there when the unit was submitted.
            Err(error) => {
                let cause = format!("{error}: it is no more in this node's configuration");
                fail_start(&mut writer, cause).await;
                return Err(error);
            }
        };
        writer.apply(Event::PayloadComplete, Durability::Volatile).await;
        entry.forget_unsaved();
        let job = self.job(entry, &kind);
        match self.spawner.spawn(job).await {
            Started::Running(pid) => {
                let mut status = status.as_ref().clone();
                status.life.apply(&Event::Started(pid));
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
                self.resume_local(entry).await;
                Ok(())
            }
            Started::Failed(cause) => {
                fail_start(&mut writer, cause.clone()).await;
                Err(WorkError::NotStarted(cause))
            }
        }
    }

    fn kind(&self, work_type: &str) -> Result<CommandType, WorkError> {
        let types = self.types.load();
        let kind = types.get(work_type).ok_or_else(|| WorkError::UnknownType(work_type.to_owned()))?;
        match kind.cannot_run {
            Some(why) => Err(WorkError::CannotRun { work_type: kind.name.clone(), why }),
            None => Ok(kind.clone()),
        }
    }

    fn job(&self, entry: &Entry, kind: &CommandType) -> Job {
        Job {
            dir: entry.dir.path().to_owned(),
            command: kind.command.clone(),
            plugin: kind.plugin.clone(),
            grace_ms: u64::try_from(self.grace_of(&kind.name).as_millis()).unwrap_or(u64::MAX),
            limits: kind.limits.clone(),
            cgroup: self.cgroup_for(entry, kind),
        }
    }

    /// The control group for a unit, if its type has limits that need one and this system has groups.
    fn cgroup_for(&self, entry: &Entry, kind: &CommandType) -> Option<PathBuf> {
        let limits = kind.limits.of_group();
        if limits.is_empty() {
            return None;
        }
        let found = self.cgroups.get_or_init(|| {
            let found = Cgroups::find();
            match &found {
                Ok(groups) if groups.missing.is_empty() => {}
                Ok(groups) => tracing::warn!(
                    missing = groups.missing.join(" "),
                    "limits of work types are not kept: the daemon's own cgroup does not offer these controllers; \
                     with systemd, set Delegate=yes"
                ),
                Err(error) => tracing::warn!(
                    %error,
                    "limits of work types (cpu, memory, pids) are not kept: no control groups (cgroup v2) can be used"
                ),
            }
            found.ok()
        });
        found.as_ref().map(|groups| groups.unit(&self.node_id, &entry.id))
    }

    /// Time between SIGINT and SIGTERM for units of a type.
    fn grace_of(&self, work_type: &str) -> Duration {
        self.types.load().get(work_type).and_then(|kind| kind.limits.cancel_grace).unwrap_or(self.grace)
    }

    /// Picks a unit up that an earlier daemon left unfinished.
    pub(crate) async fn resume_local(self: &Arc<Self>, entry: &Arc<Entry>) {
        let runner = loop {
            let runner = self.runner_of(entry).await;
            if runner.as_ref().is_some_and(Identity::is_alive) {
                break runner;
            }
            if self.settle(entry, runner).await {
                return self.give_place_on(entry);
            }
        };
        self.queues.occupy(&entry.status().work_type, entry);
        if entry.status().life.state == State::Pending {
            entry.writer(&self.store).await.apply(Event::Claimed, Durability::Volatile).await;
        }
        if entry.status().life.detail == RUNNING {
            tokio::spawn(self.clone().learn_more(entry.clone()));
        }
        tokio::spawn(self.clone().supervise(entry.clone(), runner));
    }

    /// Shows what a runner writes about its command once that has run for a moment.
    async fn learn_more(self: Arc<Self>, entry: Arc<Entry>) {
        let mut changes = self.watcher.subscribe(&entry.dir.path()).await;
        loop {
            let dir = entry.dir.clone();
            let found = self.store.blocking(move || dir.read_status()).await;
            if let Ok(found) = found.map_err(drop)
                && found.life.state != State::Pending
            {
                let writer = entry.writer(&self.store).await;
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

    /// Waits for the runner's end and shows what it left.
    async fn supervise(self: Arc<Self>, entry: Arc<Entry>, runner: Option<Identity>) {
        if let Some(runner) = &runner {
            self.wait_for_end(runner).await;
        }
        self.settle(&entry, runner).await;
        self.give_place_on(&entry);
    }

    /// Returns when the process is gone.
    async fn wait_for_end(&self, runner: &Identity) {
        // Some descriptors are for those who ask about units, however many run.
        let slot = self.watched.try_acquire().map_err(io::Error::other);
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
                    tracing::warn!(%error, "no descriptor to wait for the end of a unit with, looking every {LOOK:?} \
                        instead; let the node have more open files");
                });
                while runner.is_alive() {
                    tokio::time::sleep(LOOK).await;
                }
            }
        }
    }

    /// Ends a unit's processes; returns when the unit is final.
    pub(crate) async fn cancel_local(&self, entry: &Arc<Entry>) -> Result<Outcome, WorkError> {
        let deadline = Instant::now() + self.grace_of(&entry.status().work_type) + RUNNER_MARGIN;
        let marked = {
            // Having the turn means that no start is under way, and no removal of the directory.
            let turn = tokio::time::timeout_at(deadline, entry.writer(&self.store)).await;
            let mut writer = turn.map_err(|_| WorkError::StillRunning(entry.id.to_string()))?;
            match writer.status().life.state {
                State::Pending => {
                    writer.apply(Event::CancelledEarly, Durability::Durable).await;
                    self.queues.forget(&writer.status().work_type, entry);
                    return Ok(Outcome::Done);
                }
                State::Succeeded | State::Failed | State::Canceled => return Ok(Outcome::Done),
                State::Running => {}
            }
            let dir = entry.dir.clone();
            self.store.blocking(move || dir.mark_cancelled()).await
        };
        let ends = async {
            let runner = self.signal_runner(entry, Signal::INT).await;
            if !runner.as_ref().is_some_and(Identity::is_alive) {
                // Nobody else may be waiting for an end.
                self.settle(entry, runner).await;
            }
            entry.finished().await;
        };
        if tokio::time::timeout_at(deadline, ends).await.is_ok() {
            return marked.map(|()| Outcome::Done);
        }
        tracing::warn!(unit = %entry.id, "the runner does not end its command, killing it");
        let ends = async {
            self.signal_runner(entry, Signal::KILL).await;
            entry.finished().await;
        };
        let ended = tokio::time::timeout(LAST_MARGIN, ends).await;
        ended.map(|()| Outcome::Done).map_err(|_| WorkError::StillRunning(entry.id.to_string()))
    }

    /// Sends a signal to the runner, if there is or was one, and gives it. Tries until the system lets it.
    async fn signal_runner(&self, entry: &Arc<Entry>, signal: Signal) -> Option<Identity> {
        loop {
            let runner = self.runner_of(entry).await;
            match runner.as_ref().map_or(Ok(()), |runner| runner.signal(signal)) {
                Ok(()) => return runner,
                Err(error) => tracing::warn!(unit = %entry.id, %error, "cannot signal the unit's runner"),
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// The runner that has or had a unit, if one did, once the system tells: what cannot be known for a moment must not
    /// end what is healthy.
    async fn runner_of(&self, entry: &Arc<Entry>) -> Option<Identity> {
        loop {
            let unit = entry.clone();
            match self.store.blocking(move || find_runner(&unit)).await {
                Ok(runner) => return runner,
                Err(error) => {
                    tracing::warn!(unit = %entry.id, %error, "cannot tell who runs the unit, looking again")
                }
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

fn find_runner(entry: &Entry) -> io::Result<Option<Identity>> {
    if let Some(runner) = Identity::load(&entry.dir)? {
        return Ok(Some(runner));
    }
    match &entry.status().extra {
        Extra::Command(extra) if extra.pid > 0 => Identity::of_go_runner(extra.pid, &entry.dir),
        Extra::None | Extra::Command(_) | Extra::Remote(_) | Extra::Other(_) => Ok(None),
    }
}

/// Ends a unit whose command does not start.
async fn fail_start(writer: &mut Writer, cause: String) {
    let mut failed = writer.status().as_ref().clone();
    failed.extra = Extra::None;
    failed.life.apply(&Event::StartFailed(cause));
    let _ = writer.put(failed, Durability::Durable).await;
}
