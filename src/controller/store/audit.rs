//! Who changed what, on request: one row for each operate and admin operation.
//!
//! The row is written in the transaction of the change, so neither exists without the other.

use super::Store;
use super::error::Error;
use super::sql::{Sql, values};
use crate::controller::core::Time;

/// An operator's request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Audit {
    /// Who asked, as the door determined: `unix:1000`, `cert:NAME`, `mesh:NODE` or `web:NAME`.
    pub who: String,
    /// The operation, for instance `group.create`.
    pub op: String,
    /// What it changes: a name, or a job's number.
    pub target: String,
}

impl Audit {
    pub(super) fn insert(self, sql: &mut dyn Sql) -> Result<(), Error> {
        let now = sql.now();
        sql.execute(
            "INSERT INTO audit (at, who, op, target) VALUES ($1, $2, $3, $4)",
            values![now, self.who, self.op, self.target],
        )?;
        Ok(())
    }

    pub(super) fn save(audit: Option<&Self>, sql: &mut dyn Sql) -> Result<(), Error> {
        audit.map_or(Ok(()), |audit| audit.clone().insert(sql))
    }
}

impl Store {
    /// Records a request that changes nothing in the store.
    pub async fn record(&self, audit: Audit) -> Result<(), Error> {
        self.write(move |sql| audit.clone().insert(sql)).await
    }

    /// Deletes the oldest requests from before a time, at most `limit` of them. Returns how many it deleted.
    pub async fn cut_audit(&self, before: Time, limit: u32) -> Result<u64, Error> {
        self.write(move |sql| {
            sql.execute(
                "DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE at < $1 ORDER BY at LIMIT $2)",
                values![before, limit],
            )
        })
        .await
    }

    /// The latest requests, newest first, or those after a number, oldest first. Each with its number.
    pub async fn audit(&self, after: Option<i64>, limit: u32) -> Result<Vec<(i64, Time, Audit)>, Error> {
        self.read(move |sql| {
            let order = if after.is_some() { "" } else { "DESC" };
            let query = format!(
                "SELECT id, at, who, op, target FROM audit WHERE id > $1 ORDER BY id {order} LIMIT $2"
            );
            let read = |mut row: super::sql::Row| {
                let (id, at) = (row.take()?, row.take()?);
                Ok((id, at, Audit { who: row.take()?, op: row.take()?, target: row.take()? }))
            };
            sql.query(&query, values![after.unwrap_or(0), limit])?.into_iter().map(read).collect()
        })
        .await
    }
}
