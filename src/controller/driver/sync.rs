//! Syncs the project of a job with a second job on this node, before the child that needs the project is sent.
//!
//! The second job is not queued, because the job that waits for it already holds its place: two queues that wait for
//! each other could fill all capacity with waiting jobs. `projects` knows what the second job does.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::timeout;

use super::base::Base;
use super::lease::LeaseKeeper;
use crate::controller::core::{Attempt, Duty, JobId, JobState, Word};
use crate::controller::credentials::{Credential, Credentials, Url};
use crate::controller::header::{Header, ProjectSync};
use crate::controller::projects::{Held, ProjectPlace, SyncOrder, is_commit};
use crate::controller::store::{BegunSync, Error, NewSync};

/// Where a packaged node has its settings and keys.
const SETTINGS: &str = "/etc/meshd";

/// Whether the project of a job is here.
pub(super) enum Project {
    There(Held),
    /// It is not available, for this reason.
    Missing(String),
    /// The attempt is not to be sent any more.
    Unwanted,
}

/// Syncs projects.
pub(super) struct Syncs {
    base: Arc<Base>,
    lease: Arc<LeaseKeeper>,
    awaited: Awaited,
}

/// The sync that each attempt waits for, by the unit of the attempt.
#[derive(Default)]
struct Awaited(Mutex<BTreeMap<String, JobId>>);

/// An attempt waits for a sync until this is dropped.
struct SyncAwaited<'a> {
    awaited: &'a Awaited,
    unit: String,
}

impl<'a> SyncAwaited<'a> {
    fn begin(awaited: &'a Awaited, attempt: &Attempt, sync: JobId) -> Self {
        let unit = attempt.unit.to_string();
        awaited.0.lock().insert(unit.clone(), sync);
        Self { awaited, unit }
    }
}

impl Drop for SyncAwaited<'_> {
    fn drop(&mut self) {
        self.awaited.0.lock().remove(&self.unit);
    }
}

impl Syncs {
    pub(super) fn new(base: Arc<Base>, lease: Arc<LeaseKeeper>) -> Self {
        Self { base, lease, awaited: Awaited::default() }
    }

    /// What an attempt waits for, if that is a sync.
    pub(super) fn awaited_by(&self, attempt: &Attempt) -> Option<String> {
        let sync = *self.awaited.0.lock().get(&attempt.unit.to_string())?;
        Some(format!("Syncing its project (job {sync})"))
    }

    /// The project of a job, synced if it has to be.
    pub(super) async fn project(
        &self,
        id: JobId,
        attempt: &Attempt,
        sync: &ProjectSync,
        duty: &mut watch::Receiver<Duty>,
    ) -> Result<Project, Error> {
        if let Err(why) = self.repository_login(sync).await {
            return Ok(Project::Missing(why));
        }
        let place = self.base.projects.place(sync);
        let url = sync.url.to_string();
        // Only the repository knows which commit a branch or tag names.
        let wanted = sync.revision.clone().filter(|revision| is_commit(revision));
        let known = wanted.and_then(|commit| Some((self.base.projects.tree(&place, &commit)?, commit)));
        if let Some((tree, commit)) = known {
            self.base.store.end_sync(self.lease.fence(), id, None, url, commit).await?;
            return Ok(Project::There(tree));
        }
        let mirror = self.base.projects.mirror(&place);
        let Some(job) = self.begin_sync(attempt, sync, &place, duty).await? else {
            return Ok(Project::Unwanted);
        };
        let awaited = SyncAwaited::begin(&self.awaited, attempt, job);
        let Some(state) = self.ended(job, duty).await? else {
            self.base.store.cancel(None, job).await?;
            return Ok(Project::Unwanted);
        };
        drop(awaited);
        // If an earlier process has read and deleted the answer, the store knows the commit.
        let known = self.base.store.detail(job).await?.revision.map(Ok);
        let answer = place.answer(job.0).or(known);
        let commit = match (state, answer) {
            (JobState::Successful, Some(Ok(commit))) => commit,
            (_, answer) => {
                place.forget_answer(job.0);
                let why = match answer {
                    Some(Err(why)) => why,
                    Some(Ok(_)) | None => self.base.store.job(job).await?.explanation,
                };
                return Ok(Project::Missing(format!("its project could not be synced (job {job}): {why}")));
            }
        };
        if let Err(error) = harvest(&place, job, &sync.url, &commit).await {
            place.forget_answer(job.0);
            return Ok(Project::Missing(format!(
                "its project could not be taken over from job {job}: {error}"
            )));
        }
        self.base.store.end_sync(self.lease.fence(), id, Some(job), url, commit.clone()).await?;
        place.forget_answer(job.0);
        drop(mirror);
        let tree = self.base.projects.tree(&place, &commit);
        self.shrink_projects();
        let missing = || Project::Missing(format!("the tree that job {job} made of its project is gone"));
        Ok(tree.map_or_else(missing, Project::There))
    }

    /// Begins the sync that an attempt waits for, after other syncs of the same project. Returns `None` if the attempt
    /// is not to be sent any more.
    async fn begin_sync(
        &self,
        attempt: &Attempt,
        sync: &ProjectSync,
        place: &ProjectPlace,
        duty: &mut watch::Receiver<Duty>,
    ) -> Result<Option<JobId>, Error> {
        let header = Header { sync: Some(sync.clone()), ..Header::default() };
        let new = NewSync {
            unit: attempt.unit.to_string(),
            word: Word::from(format!("project {}", place.hash).as_str()),
            name: sync.url.to_string(),
            header: header.to_string(),
        };
        loop {
            match self.base.store.begin_sync(self.lease.fence(), new.clone()).await? {
                BegunSync::Job(job) => return Ok(Some(job)),
                BegunSync::After(former) => {
                    let _awaited = SyncAwaited::begin(&self.awaited, attempt, former);
                    if self.ended(former, duty).await?.is_none() {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// Waits for the end of a job. Returns `None` as soon as the attempt that waits for it is not to be sent any more.
    async fn ended(&self, job: JobId, duty: &mut watch::Receiver<Duty>) -> Result<Option<JobState>, Error> {
        let mut changes = self.base.store.changes();
        loop {
            if *duty.borrow_and_update() != Duty::Send {
                return Ok(None);
            }
            let state = self.base.store.job(job).await?.state;
            if state.is_final() {
                return Ok(Some(state));
            }
            let poll = self.base.options().timers.poll;
            tokio::select! {
                _ = timeout(poll, changes.changed()) => {}
                changed = duty.changed() => if changed.is_err() {
                    return Ok(None);
                },
            }
        }
    }

    /// What the unit of a sync reads.
    pub(super) async fn input(&self, job: JobId, header: &Header) -> Result<Vec<u8>, String> {
        let sync = header.sync.as_ref().ok_or("its header names no project")?;
        let login = self.repository_login(sync).await?;
        let place = self.base.projects.place(sync);
        place.make(job.0).map_err(|error| format!("{}: {error}", place.directory.display()))?;
        SyncOrder { sync, place: &place, job: job.0, login: login.as_ref() }.stream()
    }

    /// Where a sync unpacks what it reads, as a word of a command line.
    pub(super) fn directory(&self, job: JobId, sync: &ProjectSync) -> String {
        let directory = self.base.projects.place(sync).private_data_dir(job.0);
        quoted(&directory.display().to_string())
    }

    /// What a sync may do on this machine, as a word of a command line.
    pub(super) fn confinement(&self, job: JobId, sync: &ProjectSync) -> String {
        let options = self.base.options();
        let hidden =
            [self.base.projects.node_directory(), Some(SETTINGS.into()), options.credentials.clone()];
        let hidden = hidden.into_iter().flatten().collect();
        let confinement = self.base.projects.place(sync).confinement(job.0, sync, &options, hidden);
        quoted(&json!(confinement).to_string())
    }

    /// Deletes what a sync no longer needs after its end.
    pub(super) async fn sweep(&self, job: JobId, header: Header) -> Result<(), Error> {
        if let Some(sync) = header.sync {
            let place = self.base.projects.place(&sync);
            let swept = tokio::task::spawn_blocking(move || place.sweep(job.0)).await;
            swept.map_err(|error| Error::Away(error.to_string()))?;
        }
        Ok(())
    }

    /// The login for a repository, if the header names one.
    async fn repository_login(&self, sync: &ProjectSync) -> Result<Option<Credential>, String> {
        let Some(name) = sync.credential.clone() else { return Ok(None) };
        let (url, credentials) =
            (sync.url.clone(), Credentials::new(self.base.options().credentials.clone()));
        let read = tokio::task::spawn_blocking(move || credentials.repository(&name, &url)).await;
        read.map_err(|error| error.to_string())?.map(Some).map_err(|error| error.to_string())
    }

    fn shrink_projects(&self) {
        let (projects, most) = (self.base.projects.clone(), self.base.options().bounds.project_cache);
        tokio::task::spawn_blocking(move || {
            if let Err(error) = projects.shrink(most) {
                tracing::warn!(%error, "cannot delete project trees to keep within projectcache");
            }
        });
    }
}

/// Quoting fails only on a NUL, which no path contains.
fn quoted(word: &str) -> String {
    shlex::try_quote(word).map_or_else(|_| String::new(), |word| word.into_owned())
}

async fn harvest(place: &ProjectPlace, job: JobId, url: &Url, commit: &str) -> std::io::Result<()> {
    let (place, url, commit) = (place.clone(), url.clone(), commit.to_owned());
    tokio::task::spawn_blocking(move || place.harvest(job.0, &url, &commit)).await?
}
