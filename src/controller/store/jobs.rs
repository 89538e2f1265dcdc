//! A job of the core as rows of `job` and `attempt`: loading, and saving what a transition changed.
//!
//! This module decides nothing. A write applies only if the job still has the state and the epoch that the write was
//! computed from, so no write undoes another one, and a final state stays.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::error::Error;
use super::sql::{Row, Sql, SqlValue, from_json, insert, to_json, values};
use crate::controller::core::{
    Attempt, ChildId, Ending, Fence, GroupName, Job, JobId, Level, OutputEnd, Progress, Retry, Time, Wait,
};
use crate::controller::stream::RunSummary;

/// What a submission says about placement and retries, as the store keeps it beside the header.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// The groups in the order in which the job tries them.
    pub groups: Vec<(GroupName, Level)>,
    /// When it is retried.
    pub retry: Retry,
    /// Overrides the time after which its instance counts as lost.
    pub lost_after: Option<Duration>,
    /// How long it may be pending before it fails.
    pub pending_timeout: Option<Duration>,
    /// The only hosts to run on; all if it is empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limit: Vec<String>,
    /// What it runs.
    #[serde(default)]
    pub run: RunSummary,
    /// The job that it repeats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rerun_of: Option<i64>,
}

/// A job with what only the store knows of it.
#[derive(Debug, Clone)]
pub(super) struct StoredJob {
    /// The words of `exclusive` are empty until [`load_words`].
    pub(super) job: Job,
    pub(super) terms: Terms,
    pub(super) priority: i8,
}

impl StoredJob {
    /// The waits of a pending job that end by time. The `Time` beside each changes when the wait begins anew.
    pub(super) fn waits(&self) -> impl Iterator<Item = ((JobId, Wait), Time)> {
        let Self { job, terms, priority: _ } = self;
        let timeout = terms.pending_timeout.map(|_| ((job.id, Wait::Timeout), job.pending_since));
        let quota = job.quota.as_ref().map(|quota| ((job.id, Wait::Quota), quota.until));
        timeout.into_iter().chain(quota)
    }
}

/// Selects jobs that are not final, or have a unit that is not released.
pub(super) const OPEN: &str = "job.id IN (SELECT id FROM job WHERE state IN ('pending', 'waiting', 'running') \
    UNION SELECT job FROM attempt WHERE swept = 0)";

/// Selects jobs with attempts that may still run. Only these have claims, while thousands of others may be pending.
pub(super) const SENT: &str = "job.id IN (SELECT job FROM attempt WHERE swept = 0)";

/// Loads the jobs that a condition selects, in the order of their numbers. One statement reads them, so that the result
/// shows the database at one moment. `locked` keeps others from changing the jobs until the transaction ends. Another
/// statement takes these locks first, because a PostgreSQL statement that waits for a lock reads the locked row as it
/// is after the wait, but the other rows as they were before.
pub(super) fn load(
    sql: &mut dyn Sql,
    condition: &str,
    values: &[SqlValue],
    locked: bool,
) -> Result<Vec<StoredJob>, Error> {
    let lock = sql.dialect().lock_row();
    if locked && !lock.is_empty() {
        sql.query(&format!("SELECT 1 FROM job WHERE {condition} ORDER BY job.id{lock}"), values)?;
    }
    let query = format!(
        "SELECT job.id, job.kind, job.impact, job.state, job.cancel_requested, job.controller_node, job.epoch, \
         job.explanation, job.pending_since, job.quota, job.finished, job.terms, job.priority, a.n, a.unit, \
         a.sender, a.node, a.grp, a.work_type, a.placed, a.started, a.ended, a.outcome, a.confirmed, a.swept, \
         a.output_end, a.output_hash, a.released_by \
         FROM job LEFT JOIN attempt a ON a.job = job.id WHERE {condition} ORDER BY job.id, a.n"
    );
    let mut found: Vec<StoredJob> = Vec::new();
    for mut row in sql.query(&query, values)? {
        let one = read(&mut row)?;
        let attempt = read_attempt(&mut row)?;
        if found.last().is_none_or(|last| last.job.id != one.job.id) {
            found.push(one);
        }
        let last = found.last_mut().expect("one was just pushed");
        last.job.attempts.extend(attempt);
    }
    Ok(found)
}

/// Loads one job.
///
/// # Errors
/// There is no such job.
pub(super) fn load_one(sql: &mut dyn Sql, id: JobId) -> Result<Job, Error> {
    let found = load(sql, "job.id = $1", values![id], true)?;
    found.into_iter().next().map(|loaded| loaded.job).ok_or(Error::NoJob(id))
}

fn read(row: &mut Row) -> Result<StoredJob, Error> {
    let (id, kind, impact) = (row.take()?, row.take()?, row.take()?);
    let (state, cancel_requested) = (row.take()?, row.take()?);
    let owner: Option<_> = row.take()?;
    let epoch = row.take()?;
    let (explanation, pending_since) = (row.take()?, row.take()?);
    let quota: Option<String> = row.take()?;
    let finished = row.take()?;
    let terms: Terms = from_json(&row.take::<String>()?)?;
    let job = Job {
        id,
        kind,
        impact,
        exclusive: Vec::new(),
        retry: terms.retry,
        lost_after: terms.lost_after,
        state,
        cancel_requested,
        fence: owner.map(|owner| Fence { owner, epoch }),
        attempts: Vec::new(),
        explanation,
        pending_since,
        quota: quota.map(|text| from_json(&text)).transpose()?,
        finished,
    };
    Ok(StoredJob { job, terms, priority: row.take()? })
}

fn read_attempt(row: &mut Row) -> Result<Option<Attempt>, Error> {
    let Some(n) = row.take()? else { return Ok(None) };
    let unit: String = row.take()?;
    let unit =
        ChildId::parse(&unit).ok_or_else(|| Error::Corrupt(format!("{unit} is not a unit of an attempt")))?;
    let (sender, node, group, child) = (row.take()?, row.take()?, row.take()?, row.take()?);
    let (placed, started, ended): (Time, Option<Time>, Option<Time>) =
        (row.take()?, row.take()?, row.take()?);
    let (outcome, confirmed): (Option<Ending>, bool) = (row.take()?, row.take()?);
    let progress = match (outcome, confirmed) {
        (Some(Ending::Lost), false) => Progress::Lost,
        (Some(ending), _) => Progress::Over(ending),
        (None, _) if started.is_some() => Progress::Running,
        (None, _) => Progress::Placed,
    };
    let swept = row.take()?;
    let (bytes, hash): (Option<u64>, Option<String>) = (row.take()?, row.take()?);
    let hash = hash.map(|hex| {
        u64::from_str_radix(&hex, 16).map_err(|_| Error::Corrupt(format!("{hex} is not a hash of an output")))
    });
    let hash = hash.transpose()?;
    let output = bytes.map(|bytes| OutputEnd { bytes, hash });
    let released_by = row.take()?;
    Ok(Some(Attempt {
        n,
        unit,
        child,
        sender,
        node,
        group,
        progress,
        swept,
        placed,
        started,
        ended,
        output,
        released_by,
    }))
}

/// Adds the words of `exclusive`, which only the sums of claims need.
pub(super) fn load_words(sql: &mut dyn Sql, jobs: &mut [StoredJob]) -> Result<(), Error> {
    let rows = sql.query(
        "SELECT lock.job, lock.word FROM lock JOIN job ON job.id = lock.job \
         WHERE job.state IN ('pending', 'waiting', 'running') ORDER BY lock.job, lock.word",
        &[],
    )?;
    let mut words: BTreeMap<JobId, Vec<_>> = BTreeMap::new();
    for mut row in rows {
        words.entry(row.take()?).or_default().push(row.take()?);
    }
    for loaded in jobs {
        loaded.job.exclusive = words.remove(&loaded.job.id).unwrap_or_default();
    }
    Ok(())
}

/// Saves what a transition changed, and wakes the control nodes if it changed anything. Returns false if the job is
/// no longer what the transition began with.
pub(super) fn save(sql: &mut dyn Sql, before: &Job, after: &Job) -> Result<bool, Error> {
    if before == after {
        return Ok(true);
    }
    let current = after.current();
    let fence = after.fence.as_ref();
    let changed = sql.execute(
        "UPDATE job SET state = $1, cancel_requested = $2, controller_node = $3, epoch = $4, explanation = $5, \
         quota = $6, pending_since = $7, finished = $8, attempt = $9, execution_node = $10, \
         instance_group = $11, placed = $12, started = $13, rc = CASE WHEN attempt = $9 THEN rc END, \
         recap = CASE WHEN attempt = $9 THEN recap END \
         WHERE id = $14 AND state = $15 AND cancel_requested = $16 AND epoch = $17",
        values![
            after.state,
            after.cancel_requested,
            fence.map(|fence| fence.owner.clone()),
            epoch(after),
            after.explanation.as_str(),
            after.quota.as_ref().map(to_json),
            after.pending_since,
            after.finished,
            current.map_or(0, |attempt| attempt.n.0),
            current.and_then(|attempt| attempt.node.clone()),
            current.map(|attempt| attempt.group.clone()),
            current.map(|attempt| attempt.placed),
            current.and_then(|attempt| attempt.started),
            before.id,
            before.state,
            before.cancel_requested,
            epoch(before),
        ],
    )?;
    if changed == 0 {
        return Ok(false);
    }
    if before.current().map(|attempt| attempt.n) != current.map(|attempt| attempt.n) {
        sql.execute("DELETE FROM stat WHERE job = $1", values![before.id])?;
    }
    let gone: Vec<String> = before
        .attempts
        .iter()
        .filter(|attempt| after.attempt(attempt.n).is_none())
        .map(|attempt| attempt.n.0.to_string())
        .collect();
    if !gone.is_empty() {
        let delete = format!("DELETE FROM attempt WHERE job = $1 AND n IN ({})", gone.join(","));
        sql.execute(&delete, values![before.id])?;
    }
    let news = after.attempts.iter().filter(|attempt| before.attempt(attempt.n) != Some(*attempt));
    let rows = news.map(|attempt| attempt_row(after.id, attempt)).collect();
    insert(
        sql,
        "attempt (job, n, unit, sender, node, grp, work_type, placed, started, ended, outcome, confirmed, swept, \
         output_end, output_hash, released_by, sent)",
        rows,
        "ON CONFLICT (job, n) DO UPDATE SET started = excluded.started, ended = excluded.ended, \
         outcome = excluded.outcome, confirmed = excluded.confirmed, swept = excluded.swept, \
         output_end = excluded.output_end, output_hash = excluded.output_hash, \
         released_by = excluded.released_by",
    )?;
    sql.announce();
    Ok(true)
}

/// The epoch in the row; 0 until the job has an owner.
fn epoch(job: &Job) -> i64 {
    job.fence.as_ref().map_or(0, |fence| fence.epoch.0)
}

fn attempt_row(job: JobId, attempt: &Attempt) -> Vec<SqlValue> {
    let confirmed = match attempt.progress {
        Progress::Placed | Progress::Running | Progress::Lost => false,
        Progress::Over(_) => true,
    };
    values![
        job,
        attempt.n,
        attempt.unit.to_string(),
        &attempt.sender,
        attempt.node.clone(),
        &attempt.group,
        attempt.child,
        attempt.placed,
        attempt.started,
        attempt.ended,
        attempt.ending(),
        confirmed,
        attempt.swept,
        attempt.output.map(|output| output.bytes),
        attempt.output.and_then(|output| output.hash).map(|hash| format!("{hash:016x}")),
        attempt.released_by.clone(),
        false,
    ]
    .to_vec()
}
