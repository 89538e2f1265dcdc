//! What only one control node may do at a time: who does it locks a row of `meta` for its transaction. Such a row is locked
//! by who may write it, and an advisory lock of PostgreSQL by every role that may connect. SQLite has one control node, and
//! one writer at a time.

use super::Store;
use super::error::Error;
use super::sql::{Dialect, Sql, values};

/// What it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lock {
    /// Place jobs. Whoever changes what a pass goes by, owners and instances, waits for its end.
    Pass,
    /// Change instances and groups.
    Registry,
}

/// Who has a turn, by what the server tells of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TurnHolder {
    /// The process of the server.
    pub pid: i64,
    /// The role that it serves.
    pub role: String,
}

impl Lock {
    /// Of the row.
    const fn key(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Registry => "registry",
        }
    }
}

/// The rows.
pub(super) fn begin(sql: &mut dyn Sql) -> Result<(), Error> {
    for lock in [Lock::Pass, Lock::Registry] {
        super::schema::set(sql, lock.key(), "")?;
    }
    Ok(())
}

/// Takes a lock until the end of the transaction, if no other control node has it.
pub(super) fn try_lock(sql: &mut dyn Sql, lock: Lock) -> Result<bool, Error> {
    let skip = sql.dialect().skip_locked();
    let row = sql.query(&format!("SELECT 1 FROM meta WHERE key = $1{skip}"), values![lock.key()])?;
    Ok(!row.is_empty())
}

/// Waits for a lock, and holds it until the end of the transaction.
pub(super) fn lock(sql: &mut dyn Sql, lock: Lock) -> Result<(), Error> {
    let wait = sql.dialect().lock_row();
    if sql.query(&format!("SELECT 1 FROM meta WHERE key = $1{wait}"), values![lock.key()])?.is_empty() {
        return Err(Error::Corrupt(format!("meta has no row {}", lock.key())));
    }
    Ok(())
}

impl Store {
    /// Who keeps others from making a pass.
    pub async fn turn_holder(&self) -> Result<Option<TurnHolder>, Error> {
        self.read(|sql| {
            let holder = match sql.dialect() {
                Dialect::Sqlite => return Ok(None),
                Dialect::Postgres => {
                    "SELECT l.pid::bigint, coalesce(a.usename::text, '?') FROM pg_locks l \
                     LEFT JOIN pg_stat_activity a ON a.pid = l.pid WHERE l.granted \
                     AND l.transactionid = (SELECT xmax FROM meta WHERE key = $1)"
                }
            };
            let found = sql.query(holder, values![Lock::Pass.key()])?.pop();
            found.map(|mut row| Ok(TurnHolder { pid: row.take()?, role: row.take()? })).transpose()
        })
        .await
    }
}
