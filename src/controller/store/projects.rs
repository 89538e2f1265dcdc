//! Syncs of projects: jobs that their owner begins itself, and the commit of a project that each control node synced
//! first.

use std::collections::{BTreeMap, BTreeSet};

use super::error::Error;
use super::jobs::{self, Terms};
use super::sql::values;
use super::submit::{self, Submission};
use super::{Store, leases, pass};
use crate::controller::core::{
    ChildId, ChildType, Fence, GroupName, InstanceName, JobId, JobKind, Placement, Time, Word,
};

/// A sync that a job waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSync {
    /// The unit of the attempt that waits for the sync. The same unit gets the same sync.
    pub unit: String,
    /// Only one sync with this word runs on a control node at a time.
    pub word: Word,
    /// Shown to operators.
    pub name: String,
    /// What is synced, as a header.
    pub header: String,
}

/// What became of a new sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BegunSync {
    /// The sync is this job. Its owner drives it already, and it may have ended.
    Job(JobId),
    /// This sync of the same project has to end first.
    After(JobId),
}

/// The labels of syncs that jobs wait for.
const MARKS: [(&str, &str); 2] = [("launch_type", "sync"), ("job_type", "run")];

/// A project on one control node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Project {
    /// Where it comes from, without credentials.
    pub url: String,
    /// The control node.
    pub node: InstanceName,
    /// The commit.
    pub commit: String,
    /// When it was synced.
    pub synced: Time,
    /// How the sync ended.
    pub status: String,
}

impl Store {
    /// A project on one control node, if it was ever synced there.
    pub async fn project(&self, url: String, node: InstanceName) -> Result<Option<Project>, Error> {
        self.read(move |sql| {
            let query =
                "SELECT url, node, \"commit\", synced, status FROM project WHERE url = $1 AND node = $2";
            let Some(mut row) = sql.query(query, values![url.as_str(), &node])?.pop() else {
                return Ok(None);
            };
            Ok(Some(Project {
                url: row.take()?,
                node: row.take()?,
                commit: row.take()?,
                synced: row.take()?,
                status: row.take()?,
            }))
        })
        .await
    }

    /// The owner of a job begins a sync for it. The sync is not queued, because the job that waits for it has its place
    /// already.
    ///
    /// # Errors
    /// The writer is fenced: it must stand down.
    pub async fn begin_sync(&self, by: Fence, new: NewSync) -> Result<BegunSync, Error> {
        self.fenced_write(by, move |sql, by| {
            leases::check(sql, by)?;
            let submission = submission(&by.owner, &new);
            if let Some((known, _)) = submit::by_key(sql, &key(&by.owner, &new))? {
                return Ok(BegunSync::Job(known));
            }
            let query = "SELECT job.id FROM lock JOIN job ON job.id = lock.job WHERE lock.word = $1 \
                 AND job.kind = $2 AND job.controller_node = $3 \
                 AND job.state IN ('pending', 'waiting', 'running') ORDER BY job.id LIMIT 1";
            let former = sql.query(query, values![&new.word, JobKind::ProjectSync, &by.owner])?.pop();
            if let Some(mut row) = former {
                return Ok(BegunSync::After(row.take()?));
            }
            let id = submit::enter(sql, &submission)?;
            // Nobody submitted the sync, so nobody holds a payload: its input is made when it is sent.
            sql.execute("DELETE FROM holder WHERE job = $1", values![id])?;
            let before = jobs::load_one(sql, id)?;
            let mut job = before.clone();
            let attempt = job.next_attempt();
            let unit = ChildId { install: pass::install(sql)?, job: id, attempt, random: rand::random() };
            let place = Placement {
                job: id,
                owner: by.owner.clone(),
                execution_node: Some(by.owner.clone()),
                group: GroupName::controlplane(),
                child: ChildType::Local,
            };
            let now = sql.now();
            job.place(&place, unit, by.clone(), now)?;
            if jobs::save(sql, &before, &job)? { Ok(BegunSync::Job(id)) } else { Err(Error::Raced) }
        })
        .await
    }

    /// The project of a job has arrived; `sync` is the job that fetched it, if one had to. The first sync of a project
    /// on a control node is recorded in `project`.
    ///
    /// # Errors
    /// The writer is fenced: it must stand down.
    pub async fn end_sync(
        &self,
        by: Fence,
        job: JobId,
        sync: Option<JobId>,
        url: String,
        commit: String,
    ) -> Result<(), Error> {
        self.fenced_write(by, move |sql, by| {
            let now = sql.now();
            for id in [Some(job), sync].into_iter().flatten() {
                let set =
                    "UPDATE job SET revision = $1 WHERE id = $2 AND controller_node = $3 AND epoch = $4";
                let changed = sql.execute(set, values![commit.as_str(), id, &by.owner, by.epoch])?;
                if changed == 0 && id == job {
                    return Err(Error::fenced(by));
                }
            }
            if sync.is_some() {
                sql.execute(
                    "INSERT INTO project (url, node, \"commit\", synced, status) VALUES ($1, $2, $3, $4, $5) \
                     ON CONFLICT (url, node) DO NOTHING",
                    values![url.as_str(), &by.owner, commit.as_str(), now, "successful"],
                )?;
            }
            Ok(())
        })
        .await
    }
}

/// The key by which an attempt on this control node gets the same sync after a restart.
fn key(owner: &InstanceName, new: &NewSync) -> String {
    format!("{} on {owner}", new.unit)
}

fn submission(owner: &InstanceName, new: &NewSync) -> Submission {
    Submission {
        node: owner.clone(),
        unit: new.unit.clone(),
        key: Some(key(owner, new)),
        kind: JobKind::ProjectSync,
        name: new.name.clone(),
        priority: 0,
        header: new.header.clone(),
        terms: Terms::default(),
        labels: MARKS
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect::<BTreeMap<_, _>>(),
        impact: 0,
        hosts: None,
        forks: 0,
        launched_by: format!("node:{owner}"),
        is_admin: true,
        exclusive: vec![new.word.clone()],
        needs: Vec::new(),
        groups: BTreeSet::new(),
        is_cancelled: false,
    }
}
