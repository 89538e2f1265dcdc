//! Which control node holds the payload or the output of a job, and what may be deleted.
//!
//! The files are the control nodes' own; this module only records who has them.

use std::collections::BTreeSet;

use super::Store;
use super::error::Error;
use super::sql::{FromColumn, Row, Sql, SqlValue, insert, stored, values};
use crate::controller::core::{AttemptNo, InstanceName, JobId, JobState, Time};
use crate::rpc::report::names::names;

names! {
    /// What a control node holds of a job.
    enum Kept {
        /// The runner stream that was submitted.
        Payload = "payload",
        /// What the job printed.
        Output = "output",
    }
}

stored! {
    Kept: Text String, |value| value.name().to_owned(), |name| name.parse().ok();
}

/// A copy on a control node's disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holding {
    /// The job.
    pub job: JobId,
    /// The unit whose directory has it.
    pub unit: String,
    /// When the job ended; `None` while it has not.
    pub finished: Option<Time>,
    /// The size of the job's output.
    pub output_bytes: u64,
}

fn holding(row: &mut Row) -> Result<Holding, Error> {
    Ok(Holding { job: row.take()?, unit: row.take()?, finished: row.take()?, output_bytes: row.take()? })
}

/// The units that hold a copy, with their control nodes.
pub(super) fn of(sql: &mut dyn Sql, job: JobId, kept: Kept) -> Result<Vec<(InstanceName, String)>, Error> {
    let query = "SELECT node, unit FROM holder WHERE job = $1 AND has = $2 ORDER BY node, unit";
    let read = |mut row: Row| Ok((row.take()?, row.take()?));
    sql.query(query, values![job, kept.name()])?.into_iter().map(read).collect()
}

/// Records that units of a control node have all of a job's output, as an attempt left it: its length and hash were
/// compared.
pub(super) fn complete(
    sql: &mut dyn Sql,
    (job, n): (JobId, AttemptNo),
    node: &InstanceName,
    units: &[String],
) -> Result<(), Error> {
    let output = Kept::Output.name();
    let row = |unit: &String| values![job, node, unit.as_str(), output, n, true].to_vec();
    insert(
        sql,
        "holder (job, node, unit, has, attempt, complete)",
        units.iter().map(row).collect(),
        "ON CONFLICT (job, node, unit, has) DO UPDATE SET attempt = excluded.attempt, \
         complete = excluded.complete",
    )?;
    sql.announce();
    Ok(())
}

/// Records that units of a control node have no copy of a job's payload or output any more. Nothing counts as lost.
pub(super) fn note_gone(
    sql: &mut dyn Sql,
    job: JobId,
    node: &InstanceName,
    kept: Kept,
    units: &[String],
) -> Result<(), Error> {
    let delete = "DELETE FROM holder WHERE job = $1 AND node = $2 AND unit = $3 AND has = $4";
    for unit in units {
        sql.execute(delete, values![job, node, unit.as_str(), kept.name()])?;
    }
    Ok(())
}

/// Records that a copy of a job's output is gone with its control node. If it was the last complete copy, the output is
/// lost. Without a hash any copy may have been complete.
pub(super) fn lose_output(
    sql: &mut dyn Sql,
    job: JobId,
    node: &InstanceName,
    was_complete: bool,
) -> Result<(), Error> {
    let lost = sql.execute(
        "UPDATE job SET output_lost = $1 WHERE id = $2 AND output_lost IS NULL AND output_bytes > 0 \
         AND state NOT IN ('pending', 'waiting', 'running') AND NOT EXISTS (SELECT 1 FROM holder \
         WHERE holder.job = job.id AND has = $3 \
         AND complete = 1 AND holder.attempt = job.attempt) \
         AND ($4 = 1 OR EXISTS (SELECT 1 FROM attempt WHERE attempt.job = job.id AND n = job.attempt \
         AND output_hash IS NULL))",
        values![node, job, Kept::Output.name(), was_complete],
    )?;
    if lost > 0 {
        sql.announce();
    }
    Ok(())
}

fn must_exist(sql: &mut dyn Sql, job: JobId) -> Result<(), Error> {
    let found = sql.query("SELECT 1 FROM job WHERE id = $1", values![job])?;
    if found.is_empty() { Err(Error::NoJob(job)) } else { Ok(()) }
}

/// Fails a pending job if no control node holds its payload any more.
fn lose_payload(sql: &mut dyn Sql, node: &InstanceName, id: JobId) -> Result<(), Error> {
    let pending = "SELECT 1 FROM job WHERE id = $1 AND state = $2";
    if sql.query(pending, values![id, JobState::Pending])?.is_empty()
        || !of(sql, id, Kept::Payload)?.is_empty()
    {
        return Ok(());
    }
    let now = sql.now();
    let before = super::jobs::load_one(sql, id)?;
    let mut job = before.clone();
    job.on_payload_lost(node, now);
    if super::jobs::save(sql, &before, &job)? { Ok(()) } else { Err(Error::Raced) }
}

impl Store {
    /// A control node has a copy now, or is about to fetch it.
    pub async fn hold(&self, job: JobId, node: InstanceName, unit: String, kept: Kept) -> Result<(), Error> {
        self.write(move |sql| {
            must_exist(sql, job)?;
            sql.execute(
                "INSERT INTO holder (job, node, unit, has, complete) VALUES ($1, $2, $3, $4, $5) \
                 ON CONFLICT DO NOTHING",
                values![job, &node, unit.as_str(), kept.name(), false],
            )?;
            sql.announce();
            Ok(())
        })
        .await
    }

    /// Units of a control node have all of a job's output, as this attempt left it.
    ///
    /// # Errors
    /// There is no such job.
    pub async fn hold_complete(
        &self,
        (job, n): (JobId, AttemptNo),
        node: InstanceName,
        units: Vec<String>,
    ) -> Result<(), Error> {
        self.write(move |sql| {
            must_exist(sql, job)?;
            let found = "UPDATE job SET output_lost = NULL WHERE id = $1 AND output_lost IS NOT NULL";
            sql.execute(found, values![job])?;
            complete(sql, (job, n), &node, &units)
        })
        .await
    }

    /// Records that the output of a job that has ended is lost: it is not kept any longer, and a unit of this control
    /// node did not get all of it.
    pub async fn give_up_output(&self, job: JobId, node: InstanceName) -> Result<(), Error> {
        self.write(move |sql| {
            sql.execute(
                "UPDATE job SET output_lost = $1 WHERE id = $2 AND output_lost IS NULL",
                values![&node, job],
            )?;
            sql.announce();
            Ok(())
        })
        .await
    }

    /// Records that a unit of a control node has deleted these copies. A pending job fails if no control node holds its
    /// payload any more. Returns whether anything was known of the unit.
    pub async fn let_go_unit(
        &self,
        node: InstanceName,
        unit: String,
        kept: &'static [Kept],
    ) -> Result<bool, Error> {
        self.write(move |sql| {
            let mut is_known = false;
            for kept in kept {
                let delete = "DELETE FROM holder WHERE node = $1 AND unit = $2 AND has = $3 RETURNING job";
                for mut row in sql.query(delete, values![&node, unit.as_str(), kept.name()])? {
                    is_known = true;
                    if *kept == Kept::Payload {
                        lose_payload(sql, &node, row.take()?)?;
                    }
                }
            }
            Ok(is_known)
        })
        .await
    }

    /// Units of a control node that hold something, with the jobs they belong to: the first `limit` after `after`, in
    /// the database's order of texts.
    pub async fn holding_units(
        &self,
        node: InstanceName,
        after: String,
        limit: u32,
    ) -> Result<Vec<(String, JobId)>, Error> {
        self.read(move |sql| {
            let query =
                "SELECT DISTINCT unit, job FROM holder WHERE node = $1 AND unit > $2 ORDER BY unit LIMIT $3";
            let read = |mut row: Row| Ok((row.take()?, row.take()?));
            sql.query(query, values![&node, after.as_str(), limit])?.into_iter().map(read).collect()
        })
        .await
    }

    /// The units of attempts that are not released yet.
    pub async fn unswept_units(&self) -> Result<BTreeSet<String>, Error> {
        self.read(|sql| {
            let rows = sql.query("SELECT unit FROM attempt WHERE swept = 0", &[])?;
            rows.into_iter().map(|mut row| row.take()).collect()
        })
        .await
    }

    /// The units of attempts that are not released yet, with the instances that they are on.
    pub async fn unswept_nodes(&self) -> Result<Vec<(String, InstanceName)>, Error> {
        self.read(|sql| {
            let query = "SELECT unit, node FROM attempt WHERE swept = 0 AND node IS NOT NULL ORDER BY unit";
            let read = |mut row: Row| Ok((row.take()?, row.take()?));
            sql.query(query, &[])?.into_iter().map(read).collect()
        })
        .await
    }

    /// The units that hold a copy, with their control nodes.
    pub async fn holders(&self, job: JobId, kept: Kept) -> Result<Vec<(InstanceName, String)>, Error> {
        self.read(move |sql| of(sql, job, kept)).await
    }

    /// At most `limit` copies that a control node holds of jobs that ended before `before`, longest ago first.
    pub async fn held(
        &self,
        node: InstanceName,
        kept: Kept,
        before: Time,
        limit: u32,
    ) -> Result<Vec<Holding>, Error> {
        self.read(move |sql| {
            let query = "SELECT job.id, holder.unit, job.finished, job.output_bytes FROM holder \
                 JOIN job ON job.id = holder.job \
                 WHERE holder.node = $1 AND holder.has = $2 AND job.finished < $3 \
                 ORDER BY job.finished, job.id LIMIT $4";
            let values = values![&node, kept.name(), before, limit];
            sql.query(query, values)?.iter_mut().map(holding).collect()
        })
        .await
    }

    /// The payloads that a control node holds of jobs that have ended, with the jobs' headers: the first `limit` after
    /// this job and unit.
    pub async fn payloads_of_ended(
        &self,
        node: InstanceName,
        (job, unit): (JobId, String),
        limit: u32,
    ) -> Result<Vec<(Holding, String)>, Error> {
        self.read(move |sql| {
            let query = "SELECT job.id, holder.unit, job.finished, job.output_bytes, job.header FROM holder \
                 JOIN job ON job.id = holder.job \
                 WHERE holder.node = $1 AND holder.has = $2 AND job.finished IS NOT NULL \
                 AND (job.id, holder.unit) > ($3, $4) ORDER BY job.id, holder.unit LIMIT $5";
            let values = values![&node, Kept::Payload.name(), job, unit.as_str(), limit];
            let read = |mut row: Row| Ok((holding(&mut row)?, row.take()?));
            sql.query(query, values)?.into_iter().map(read).collect()
        })
        .await
    }

    /// The bytes of output that a control node holds.
    pub async fn output_bytes(&self, node: InstanceName) -> Result<u64, Error> {
        self.read(move |sql| {
            // Units of the same job share its output, so it is counted once.
            let query = "SELECT CAST(coalesce(sum(job.output_bytes), 0) AS BIGINT) FROM job WHERE id IN \
                 (SELECT job FROM holder WHERE node = $1 AND has = $2)";
            sql.query(query, values![&node, Kept::Output.name()])?.remove(0).take()
        })
        .await
    }

    /// Deletes at most `limit` jobs that ended before `before`, with all rows that belong to them. A job stays while
    /// one of its units is not released or a control node holds a copy.
    pub async fn purge(&self, before: Time, limit: u32) -> Result<u64, Error> {
        self.write(move |sql| {
            let delete = format!(
                "DELETE FROM job WHERE id IN (SELECT id FROM job WHERE finished < $1 \
                 AND state NOT IN ('pending', 'waiting', 'running') \
                 AND NOT EXISTS (SELECT 1 FROM attempt WHERE attempt.job = job.id AND swept = 0) \
                 AND NOT EXISTS (SELECT 1 FROM holder WHERE holder.job = job.id) \
                 ORDER BY finished LIMIT $2{})",
                sql.dialect().skip_locked()
            );
            sql.execute(&delete, values![before, limit])
        })
        .await
    }

    /// Deletes one job that has ended, with all rows that belong to it, even if control nodes hold copies.
    ///
    /// # Errors
    /// There is no such job, it has not ended, one of its units is not released, or a control node still fetches its
    /// output.
    pub async fn delete_job(&self, audit: super::Audit, id: JobId) -> Result<(), Error> {
        self.write(move |sql| {
            audit.clone().insert(sql)?;
            let job = super::jobs::load_one(sql, id)?;
            if !job.state.is_final() || job.attempts.iter().any(|attempt| !attempt.swept) {
                return Err(Error::Conflict(format!(
                    "job {id} is {}, or a unit of it is not released yet: cancel it and wait",
                    job.state.name()
                )));
            }
            let fetching = "SELECT node FROM holder WHERE job = $1 AND has = $2 AND complete = 0 \
                 AND EXISTS (SELECT 1 FROM holder whole WHERE whole.job = $1 AND whole.has = $2 \
                 AND whole.complete = 1 AND whole.attempt = $3 AND whole.node <> holder.node) \
                 ORDER BY node LIMIT 1";
            let latest = job.current().map_or(0, |current| current.n.0);
            if let Some(mut row) = sql.query(fetching, values![id, Kept::Output.name(), latest])?.pop() {
                let node: InstanceName = row.take()?;
                return Err(Error::Conflict(format!(
                    "a unit of job {id} on {node} has not got all of its output yet: wait, or release the unit"
                )));
            }
            sql.execute("DELETE FROM job WHERE id = $1", values![id])?;
            Ok(())
        })
        .await
    }
}
