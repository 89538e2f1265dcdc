//! A submission becomes a job, once.
//!
//! The same unit, or the same key and kind, gives the same job, however often it is submitted. The store gets the
//! header and never the payload.

use std::collections::{BTreeMap, BTreeSet};

use super::audit::Audit;
use super::error::Error;
use super::holders::Kept;
use super::jobs::{self, Terms};
use super::sql::{Sql, SqlValue, insert, to_json, values};
use super::{Store, list};
use crate::controller::core::{Class, GroupName, InstanceName, JobId, JobKind, JobState, Word};
use crate::controller::header::Dependency;

/// A job that is submitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Submission {
    /// The control node that holds its payload.
    pub node: InstanceName,
    /// The unit there that submits it.
    pub unit: String,
    /// Chosen by the client; the same key and kind give the same job.
    pub key: Option<String>,
    /// What it does.
    pub kind: JobKind,
    /// Shown to operators.
    pub name: String,
    /// −100 to 100; higher goes first.
    pub priority: i8,
    /// The header as JSON.
    pub header: String,
    /// How it is placed and retried.
    pub terms: Terms,
    /// Labels to find it by.
    pub labels: BTreeMap<String, String>,
    /// Its impact.
    pub impact: u32,
    /// Hosts in its inventory, if the header says so.
    pub hosts: Option<u32>,
    /// Forks that the header requests.
    pub forks: u32,
    /// Who submitted it, as the door determined.
    pub launched_by: String,
    /// The caller may follow the jobs of all others.
    pub is_admin: bool,
    /// Words that only one running job may hold at a time.
    pub exclusive: Vec<Word>,
    /// Jobs that must succeed first.
    pub needs: Vec<Dependency>,
    /// It was cancelled while it waited for the store, so the job ends at once.
    pub is_cancelled: bool,
    /// Every group that the header names.
    pub groups: BTreeSet<GroupName>,
}

/// The job of a submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Submitted {
    /// The job is new, and its unit gets its output.
    New(JobId),
    /// Its unit or its key is known. The unit follows this job.
    Known(JobId),
}

impl Submitted {
    /// The job's number.
    pub fn id(self) -> JobId {
        match self {
            Self::New(id) | Self::Known(id) => id,
        }
    }
}

impl Store {
    /// The job with a key.
    ///
    /// # Errors
    /// The database is away.
    pub async fn job_of_key(&self, key: String) -> Result<Option<JobId>, Error> {
        self.read(move |sql| Ok(by_key(sql, &key)?.map(|(job, _)| job))).await
    }

    /// Stores a job, unless its unit or its key is known. Refuses it while `max_pending` jobs are pending.
    ///
    /// # Errors
    /// The key belongs to a job of another kind or caller, a group or a dependency does not exist, or too many are pending.
    pub async fn submit(&self, submission: Submission, max_pending: u64) -> Result<Submitted, Error> {
        self.write(move |sql| submit(sql, &submission, max_pending)).await
    }

    /// As [`Self::submit`], on an operator's request.
    pub async fn submit_for(
        &self,
        audit: Audit,
        submission: Submission,
        max_pending: u64,
    ) -> Result<Submitted, Error> {
        self.write(move |sql| {
            let submitted = submit(sql, &submission, max_pending)?;
            if matches!(submitted, Submitted::New(_)) {
                audit.clone().insert(sql)?;
            }
            Ok(submitted)
        })
        .await
    }
}

fn submit(sql: &mut dyn Sql, new: &Submission, max_pending: u64) -> Result<Submitted, Error> {
    // One statement, because the database may be far away.
    let look = "SELECT (SELECT min(job) FROM holder WHERE node = $1 AND unit = $2), \
        (SELECT count(*) FROM (SELECT 1 FROM job WHERE state = $3 LIMIT $4) few)";
    let mut seen =
        sql.query(look, values![&new.node, new.unit.as_str(), JobState::Pending, max_pending])?.remove(0);
    if let Some(id) = seen.take()? {
        return Ok(Submitted::Known(id));
    }
    if let Some(key) = &new.key
        && let Some((job, kind)) = by_key(sql, key)?
    {
        if !new.is_admin && launched_by(sql, job)? != new.launched_by {
            return Err(Error::Conflict(format!(
                "the key {key:?} belongs to the job of another caller: choose another one"
            )));
        }
        return match kind == new.kind {
            true => Ok(Submitted::Known(job)),
            false => Err(Error::KeyTaken { key: key.clone(), job, kind }),
        };
    }
    check_room(sql, new, seen.take()?, max_pending)?;
    let id = enter(sql, new)?;
    let output = values![id, &new.node, new.unit.as_str(), Kept::Output.name(), false].to_vec();
    insert(sql, "holder (job, node, unit, has, complete)", vec![output], "")?;
    Ok(Submitted::New(id))
}

/// Stores a new job.
pub(super) fn enter(sql: &mut dyn Sql, new: &Submission) -> Result<JobId, Error> {
    check_groups(sql, new)?;
    let needs = find_needs(sql, &new.needs)?;
    let id = insert_job(sql, new)?;
    insert_parts(sql, id, new, needs)?;
    if new.is_cancelled {
        let (now, before) = (sql.now(), jobs::load_one(sql, id)?);
        let mut job = before.clone();
        job.request_cancel(now);
        jobs::save(sql, &before, &job)?;
    }
    sql.announce();
    Ok(id)
}

pub(super) fn by_key(sql: &mut dyn Sql, key: &str) -> Result<Option<(JobId, JobKind)>, Error> {
    let found = sql.query("SELECT id, kind FROM job WHERE key = $1", values![key])?.pop();
    found.map(|mut row| Ok((row.take()?, row.take()?))).transpose()
}

fn launched_by(sql: &mut dyn Sql, job: JobId) -> Result<String, Error> {
    sql.query("SELECT launched_by FROM job WHERE id = $1", values![job])?.remove(0).take()
}

/// A caller without all rights may submit only while it has fewer pending jobs than there is room left.
fn check_room(sql: &mut dyn Sql, new: &Submission, pending: u64, max_pending: u64) -> Result<(), Error> {
    let left = max_pending.saturating_sub(pending);
    if left == 0 {
        return Err(Error::Full(max_pending));
    }
    // Without the query below, which reads many rows: no caller has more pending jobs than there are.
    if new.is_admin || pending < left {
        return Ok(());
    }
    let query = "SELECT count(*) FROM (SELECT 1 FROM job WHERE state = $1 AND launched_by = $2 LIMIT $3) few";
    let own: u64 =
        sql.query(query, values![JobState::Pending, new.launched_by.as_str(), left])?.remove(0).take()?;
    if own < left { Ok(()) } else { Err(Error::FullForOne(left)) }
}

fn check_groups(sql: &mut dyn Sql, new: &Submission) -> Result<(), Error> {
    let mut known: BTreeSet<GroupName> = BTreeSet::new();
    for mut row in sql.query("SELECT name FROM grp", &[])? {
        known.insert(row.take()?);
    }
    let mut wanted = new.terms.groups.iter().map(|(group, _)| group).chain(&new.groups);
    wanted.find(|group| !known.contains(*group)).map_or(Ok(()), |group| Err(Error::NoGroup(group.clone())))
}

fn find_needs(sql: &mut dyn Sql, needs: &[Dependency]) -> Result<BTreeSet<JobId>, Error> {
    let mut found = BTreeSet::new();
    for need in needs {
        let (row, shown) = match need {
            Dependency::Job(id) => {
                (sql.query("SELECT id FROM job WHERE id = $1", values![*id])?.pop(), format!("job {id}"))
            }
            Dependency::Key { key } => (
                sql.query("SELECT id FROM job WHERE key = $1", values![key.as_str()])?.pop(),
                format!("{key:?}"),
            ),
        };
        found.insert(row.ok_or(Error::NoDependency(shown))?.take()?);
    }
    Ok(found)
}

fn insert_job(sql: &mut dyn Sql, new: &Submission) -> Result<JobId, Error> {
    let class = match new.kind.class() {
        Class::Execution => "execution",
        Class::Control => "control",
    };
    // `created` never falls from one job to the next, even if the clock was set back, because lists by time rely on
    // that.
    let rows = sql.query(
        "INSERT INTO job (key, kind, class, name, state, priority, header, terms, labels, impact, hosts, forks, \
         launched_by, attempt, epoch, cancel_requested, explanation, events, output_bytes, created, \
         pending_since) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, 0, 0, 0, '', 0, 0, \
         coalesce((SELECT CASE WHEN created > $14 THEN created END FROM job ORDER BY id DESC LIMIT 1), $14), $14) \
         RETURNING id",
        values![
            new.key.clone(),
            new.kind,
            class,
            new.name.as_str(),
            JobState::Pending,
            new.priority,
            new.header.as_str(),
            to_json(&new.terms),
            to_json(&new.labels),
            new.impact,
            new.hosts,
            new.forks,
            new.launched_by.as_str(),
            sql.now(),
        ],
    )?;
    rows.into_iter().next().ok_or_else(|| Error::Corrupt("a new job has no number".into()))?.take()
}

fn insert_parts(sql: &mut dyn Sql, id: JobId, new: &Submission, needs: BTreeSet<JobId>) -> Result<(), Error> {
    let one = |value: SqlValue| vec![SqlValue::from(id), value];
    let words: BTreeSet<&Word> = new.exclusive.iter().collect();
    let words = words.into_iter().map(|word| one(word.into())).collect();
    let labels: BTreeSet<String> =
        new.labels.iter().map(|(name, value)| list::label_word(name, value)).collect();
    insert(sql, "lock (job, word)", words, "")?;
    insert(sql, "label (job, word)", labels.into_iter().map(|word| one(word.into())).collect(), "")?;
    insert(sql, "dep (job, needs)", needs.into_iter().map(|need| one(need.into())).collect(), "")?;
    let payload = values![id, &new.node, new.unit.as_str(), Kept::Payload.name(), false].to_vec();
    insert(sql, "holder (job, node, unit, has, complete)", vec![payload], "")
}
