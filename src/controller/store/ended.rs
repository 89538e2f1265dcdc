//! Jobs that have ended, in an order that never changes: for whoever reads all of them, once each.
//!
//! Nothing is added where jobs end. Whoever reads first gives numbers to the jobs that have ended and have none, so the
//! numbers follow the order in which ends could be seen: no job appears below a number that somebody has read already.
//! Numbers come from the clock, so that after a failover that lost the last commits new ones are above those that were read.

use super::Store;
use super::error::Error;
use super::list::{self, JobRow};
use super::schema;
use super::sql::{Sql, values};
use crate::controller::core::{Ending, JobState};
use crate::controller::header::SAVED;

/// A job that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedJob {
    /// Its place in the order.
    pub number: i64,
    /// Its latest attempt was lost, or has no end because its control node was lost.
    pub is_lost: bool,
    /// As in lists.
    pub row: JobRow,
}

/// The columns and indexes, which schema 5 has brought. Jobs that had ended before are in the order of their own numbers.
pub(super) const TABLE: &str = "
    ALTER TABLE job ADD COLUMN ended_no BIGINT;
    UPDATE job SET ended_no = id WHERE finished IS NOT NULL;
    CREATE UNIQUE INDEX job_ended ON job (ended_no);
    CREATE INDEX job_unnumbered ON job (finished) WHERE finished IS NOT NULL AND ended_no IS NULL;
    INSERT INTO meta (key, value) VALUES ('ended', '0')";
/// The key of `meta` with the last number. Its row is locked while numbers are given.
pub(super) const LAST: &str = "ended";
const UNNUMBERED: &str = "finished IS NOT NULL AND ended_no IS NULL";
/// Most jobs that get a number in one transaction.
const AT_ONCE: u64 = 1000;

impl Store {
    /// The first `limit` jobs that have ended with a number above `after`, in their order.
    ///
    /// # Errors
    /// The database is away.
    pub async fn ended(&self, after: i64, limit: u32) -> Result<Vec<EndedJob>, Error> {
        self.number_all().await?;
        self.read(move |sql| page(sql, after, limit)).await
    }

    async fn number_all(&self) -> Result<(), Error> {
        let look = format!("SELECT 1 FROM job WHERE {UNNUMBERED} LIMIT 1");
        if self.read(move |sql| Ok(!sql.query(&look, &[])?.is_empty())).await? {
            while self.write(number_some).await? == AT_ONCE {}
        }
        Ok(())
    }

    /// The number of the job that has ended last.
    ///
    /// # Errors
    /// The database is away.
    pub async fn last_ended(&self) -> Result<i64, Error> {
        self.number_all().await?;
        self.read(last).await
    }

    /// How many jobs have ended with a number above `after`, at most `most`; and if there are more than that, the
    /// number up to which and the count of those that are too many.
    ///
    /// # Errors
    /// The database is away.
    pub async fn ended_behind(&self, after: i64, most: u32) -> Result<(u64, Option<(i64, u64)>), Error> {
        self.read(move |sql| {
            let last =
                "SELECT ended_no FROM job WHERE ended_no > $1 ORDER BY ended_no DESC LIMIT 1 OFFSET $2";
            let last: Option<i64> =
                sql.query(last, values![after, most])?.pop().map(|mut row| row.take()).transpose()?;
            let count = "SELECT count(*) FROM job WHERE ended_no > $1 AND ended_no <= $2";
            let upto = last.unwrap_or(i64::MAX);
            let count: u64 = sql.query(count, values![after, upto])?.remove(0).take()?;
            Ok(last.map_or((count, None), |last| (u64::from(most), Some((last, count)))))
        })
        .await
    }

    /// How the job before this one ended that belongs to the same saved job, or else has the same name. One that was
    /// cancelled says nothing.
    ///
    /// # Errors
    /// The database is away.
    pub async fn ended_before(&self, ended: &EndedJob) -> Result<Option<JobState>, Error> {
        let (id, number, name) = (ended.row.id, ended.number, ended.row.name.clone());
        let saved = ended.row.labels.get(SAVED).map(|saved| list::label_word(SAVED, saved));
        self.read(move |sql| {
            let key = sql.dialect().name_key();
            let (which, word) = match &saved {
                Some(word) => ("id IN (SELECT job FROM label WHERE word = $1)".to_owned(), word),
                None => (format!("{key} = substr($1, 1, 64) AND name = $1"), &name),
            };
            let query = format!(
                "SELECT state FROM job WHERE {which} AND id < $2 AND ended_no < $3 \
                 AND state IN ('successful', 'failed', 'error') ORDER BY id DESC LIMIT 1"
            );
            sql.query(&query, values![word, id, number])?.pop().map(|mut row| row.take()).transpose()
        })
        .await
    }
}

/// Gives numbers to jobs that have none. Returns how many there were.
fn number_some(sql: &mut dyn Sql) -> Result<u64, Error> {
    let wait = sql.dialect().lock_row();
    sql.query(&format!("SELECT 1 FROM meta WHERE key = '{LAST}'{wait}"), &[])?;
    // Read by a statement of its own, which sees what whoever held the lock has written.
    let before = last(sql)?.max(sql.now().0.saturating_sub(1));
    let statement = format!(
        "UPDATE job SET ended_no = $1 + few.place FROM (SELECT id, row_number() OVER (ORDER BY finished, id) AS place \
         FROM job WHERE {UNNUMBERED} ORDER BY finished, id LIMIT {AT_ONCE}) few WHERE job.id = few.id"
    );
    let count = sql.execute(&statement, values![before])?;
    schema::set(sql, LAST, &before.saturating_add_unsigned(count).to_string())?;
    Ok(count)
}

fn last(sql: &mut dyn Sql) -> Result<i64, Error> {
    Ok(schema::get(sql, LAST)?.and_then(|last| last.parse().ok()).unwrap_or(0))
}

fn page(sql: &mut dyn Sql, after: i64, limit: u32) -> Result<Vec<EndedJob>, Error> {
    let query = format!(
        "SELECT job.ended_no, (SELECT outcome FROM attempt a WHERE a.job = job.id AND a.n = job.attempt), {} FROM job \
         WHERE job.ended_no > $1 ORDER BY job.ended_no LIMIT $2",
        list::COLUMNS
    );
    let rows = sql.query(&query, values![after, limit])?.into_iter();
    rows.map(|mut row| {
        let (number, outcome): (i64, Option<Ending>) = (row.take()?, row.take()?);
        let row = list::read(&mut row)?;
        let is_lost = row.attempt > 0 && matches!(outcome, None | Some(Ending::Lost));
        Ok(EndedJob { number, is_lost, row })
    })
    .collect()
}
