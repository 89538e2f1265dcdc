//! What jobs did on their hosts, as rows of `stat`: a bounded number of hosts, written once at the end of an attempt
//! and read in pages. No decision about jobs reads them.

use std::collections::BTreeMap;

use super::Store;
use super::error::Error;
use super::sql::{Row, Sql, from_json, insert, values};
use crate::controller::core::JobId;
use crate::controller::stream::{HostStats, RecapCounts};

/// One page of the hosts of a job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecapPage {
    /// How many hosts there are; `None` if there was no recap.
    pub counts: Option<RecapCounts>,
    /// How many of them are kept.
    pub kept: u64,
    /// The hosts of this page: failed and unreachable ones first, then by name.
    pub hosts: Vec<(String, HostStats)>,
}

/// Hosts that failed or were not reached.
const FAILED: &str = "(failures > 0 OR dark > 0)";

impl Store {
    /// At most `limit` hosts of a job, from place `from` in their order on.
    ///
    /// # Errors
    /// There is no such job.
    pub async fn recap(&self, job: JobId, from: u64, limit: u32) -> Result<RecapPage, Error> {
        self.read(move |sql| {
            let (counts, kept) = counts(sql, job)?;
            let query = format!(
                "SELECT host, ok, changed, failures, dark, skipped, rescued, ignored FROM stat WHERE job = $1 \
                 ORDER BY CASE WHEN {FAILED} THEN 0 ELSE 1 END, host LIMIT $2 OFFSET $3"
            );
            let rows = sql.query(&query, values![job, limit, from])?;
            Ok(RecapPage { counts, kept, hosts: rows.into_iter().map(read).collect::<Result<_, _>>()? })
        })
        .await
    }

    /// How many hosts a job has, and those of the kept ones on which it failed or which it did not reach.
    ///
    /// # Errors
    /// There is no such job.
    pub async fn failed_hosts(&self, job: JobId) -> Result<(Option<RecapCounts>, Vec<String>), Error> {
        self.read(move |sql| {
            let (counts, _) = counts(sql, job)?;
            let query = format!("SELECT host FROM stat WHERE job = $1 AND {FAILED} ORDER BY host");
            let hosts = sql.query(&query, values![job])?.into_iter().map(|mut row| row.take());
            Ok((counts, hosts.collect::<Result<_, _>>()?))
        })
        .await
    }
}

/// How many hosts a job has, and how many are kept.
fn counts(sql: &mut dyn Sql, job: JobId) -> Result<(Option<RecapCounts>, u64), Error> {
    let query = "SELECT recap, (SELECT count(*) FROM stat WHERE job = id) FROM job WHERE id = $1";
    let mut row = sql.query(query, values![job])?.pop().ok_or(Error::NoJob(job))?;
    let saved: Option<String> = row.take()?;
    Ok((saved.map(|text| from_json(&text)).transpose()?, row.take()?))
}

/// Replaces the hosts that were saved before with these.
pub(super) fn replace(
    sql: &mut dyn Sql,
    job: JobId,
    hosts: &BTreeMap<String, HostStats>,
) -> Result<(), Error> {
    sql.execute("DELETE FROM stat WHERE job = $1", values![job])?;
    let rows = hosts.iter().map(|(host, stats)| {
        let HostStats { ok, changed, failures, dark, skipped, rescued, ignored } = *stats;
        values![job, host.as_str(), ok, changed, failures, dark, skipped, rescued, ignored].to_vec()
    });
    insert(
        sql,
        "stat (job, host, ok, changed, failures, dark, skipped, rescued, ignored)",
        rows.collect(),
        "",
    )
}

fn read(mut row: Row) -> Result<(String, HostStats), Error> {
    let host = row.take()?;
    let stats = HostStats {
        ok: row.take()?,
        changed: row.take()?,
        failures: row.take()?,
        dark: row.take()?,
        skipped: row.take()?,
        rescued: row.take()?,
        ignored: row.take()?,
    };
    Ok((host, stats))
}
