//! Turns: work that only one control node may do at a time. The node that does it locks a row of `meta` for its
//! transaction. An advisory lock of PostgreSQL would not do, because any role that may connect can take it; a row can
//! only be locked with the right to write it. SQLite needs no lock: it has one control node, and one writer at a time.

use super::Store;
use super::error::Error;
use super::sql::{Dialect, Sql, values};

/// What a turn is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TurnLock {
    /// Place jobs. A takeover, or the removal of an instance or a group, waits for the end of a pass.
    Pass,
    /// Change instances and groups.
    Registry,
}

/// The connection that has a turn, as the server reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TurnHolder {
    /// The server's process for it.
    pub pid: i64,
    /// The role that it logged in with.
    pub role: String,
}

impl TurnLock {
    /// The key of its row.
    const fn key(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Registry => "registry",
        }
    }
}

/// The keys of all rows.
pub(super) const ROWS: [&str; 2] = [TurnLock::Pass.key(), TurnLock::Registry.key()];

/// Takes a lock until the end of the transaction, if no other control node has it.
pub(super) fn try_lock(sql: &mut dyn Sql, lock: TurnLock) -> Result<bool, Error> {
    let skip = sql.dialect().skip_locked();
    let row = sql.query(&format!("SELECT 1 FROM meta WHERE key = $1{skip}"), values![lock.key()])?;
    Ok(!row.is_empty())
}

/// Waits for a lock, and holds it until the end of the transaction.
pub(super) fn lock(sql: &mut dyn Sql, lock: TurnLock) -> Result<(), Error> {
    let wait = sql.dialect().lock_row();
    if sql.query(&format!("SELECT 1 FROM meta WHERE key = $1{wait}"), values![lock.key()])?.is_empty() {
        return Err(Error::Corrupt(format!("meta has no row {}", lock.key())));
    }
    Ok(())
}

impl Store {
    /// The connection that holds the lock of passes; `None` with SQLite.
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
            let found = sql.query(holder, values![TurnLock::Pass.key()])?.pop();
            found.map(|mut row| Ok(TurnHolder { pid: row.take()?, role: row.take()? })).transpose()
        })
        .await
    }
}
