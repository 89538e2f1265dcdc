//! Tables and transactions, on SQLite, and a standby that has all transactions but the last ones. It knows where the
//! two dialects of the product's statements differ, and answers the product's few queries of PostgreSQL's own tables.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use meshd_machine as machine;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, ffi, params_from_iter};
use tokio::sync::{Mutex, OwnedMutexGuard, broadcast};
use tokio::time::timeout;

use super::BEHIND;

/// As the product sets it for each transaction.
const LOCK_WITHIN: Duration = Duration::from_secs(10);

const VERSION: i64 = 160_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    Null,
    Integer(i64),
    Text(String),
}

/// The result of a statement.
#[derive(Debug, Default)]
pub(super) struct Rows {
    /// The number of columns; 0 for a statement that gives no rows.
    pub(super) columns: usize,
    pub(super) rows: Vec<Vec<Value>>,
    pub(super) changed: usize,
}

/// An SQLSTATE and a message.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) code: &'static str,
    pub(super) words: String,
}

type Statement = (String, Vec<Value>);

pub(super) struct Tables {
    dir: PathBuf,
    /// How often a standby has taken over. Each primary has a file of its own.
    turn: u32,
    writing: Arc<Mutex<()>>,
    standby: Connection,
    /// Transactions that the standby does not have yet.
    behind: RefCell<VecDeque<(Duration, Vec<Statement>)>>,
    notes: broadcast::Sender<(String, String)>,
    idle: RefCell<Vec<Connection>>,
}

impl Tables {
    pub(super) fn new(dir: &Path) -> Self {
        std::fs::create_dir(dir).unwrap();
        Self::open(dir.to_owned(), 0)
    }

    fn open(dir: PathBuf, turn: u32) -> Self {
        let primary = connect(&primary(&dir, turn));
        let standby = dir.join(format!("standby{turn}.db"));
        primary.execute("VACUUM INTO ?1", [standby.display().to_string()]).unwrap();
        Self {
            dir,
            turn,
            writing: Arc::default(),
            standby: connect(&standby),
            behind: RefCell::default(),
            notes: broadcast::Sender::new(1024),
            idle: RefCell::new(vec![primary]),
        }
    }

    /// The file of the last primary.
    pub(super) fn newest(dir: &Path) -> PathBuf {
        let files = (0..).map(|turn| primary(dir, turn));
        files.take_while(|file| file.exists()).last().expect("there is one from the start")
    }

    /// Lets the standby take over without this many of the last transactions. Returns the time since which transactions
    /// are lost, if any.
    pub(super) fn fail_over(self, lost: usize) -> (Self, Option<Duration>) {
        let mut behind = self.behind.into_inner();
        let lost = behind.split_off(behind.len().saturating_sub(lost));
        behind.into_iter().for_each(|(_, transaction)| apply(&self.standby, transaction));
        let turn = self.turn + 1;
        let file = primary(&self.dir, turn);
        self.standby.execute("VACUUM INTO ?1", [file.display().to_string()]).unwrap();
        (Self::open(self.dir, turn), lost.front().map(|(at, _)| *at))
    }

    pub(super) fn begin(&self) -> Transaction {
        let idle = self.idle.borrow_mut().pop();
        let connection = idle.unwrap_or_else(|| connect(&primary(&self.dir, self.turn)));
        Transaction { connection, writes: None, done: Vec::new() }
    }

    pub(super) fn listen(&self) -> broadcast::Receiver<(String, String)> {
        self.notes.subscribe()
    }
}

fn primary(dir: &Path, turn: u32) -> PathBuf {
    dir.join(format!("primary{turn}.db"))
}

fn connect(path: &Path) -> Connection {
    let connection = Connection::open(path).unwrap();
    connection
        .execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF; PRAGMA foreign_keys = ON;")
        .unwrap();
    connection
}

/// Applies a transaction to the standby, which gives the same result again.
fn apply(standby: &Connection, transaction: Vec<Statement>) {
    standby.execute_batch("BEGIN").unwrap();
    for (sql, values) in transaction {
        run(standby, &sql, &values).unwrap();
    }
    standby.execute_batch("COMMIT").unwrap();
}

/// A transaction, which is rolled back when it is dropped.
pub(super) struct Transaction {
    connection: Connection,
    /// Held from its first write or lock to its end.
    writes: Option<OwnedMutexGuard<()>>,
    done: Vec<Statement>,
}

/// What a statement does with locks.
#[derive(PartialEq, Eq)]
enum Lock {
    No,
    Waits,
    /// The statement skips what others have locked.
    Skips,
}

impl Transaction {
    pub(super) async fn query(
        &mut self,
        tables: &Tables,
        sql: &str,
        values: &[Value],
    ) -> Result<Rows, Refusal> {
        if let Some(rows) = catalogue(sql) {
            return Ok(rows);
        }
        let (sql, lock) = translated(sql);
        let writes = ["INSERT", "UPDATE", "DELETE", "CREATE", "ALTER"];
        let writes = writes.iter().any(|word| sql.trim_start().starts_with(word));
        if self.writes.is_none() && (writes || lock != Lock::No) {
            let writing = tables.writing.clone();
            let held = match lock {
                Lock::Skips => writing.try_lock_owned().ok(),
                Lock::No | Lock::Waits => {
                    Some(timeout(LOCK_WITHIN, writing.lock_owned()).await.map_err(|_| Refusal {
                        code: "55P03",
                        words: "canceling statement due to lock timeout".to_owned(),
                    })?)
                }
            };
            let Some(held) = held else {
                return Ok(Rows { columns: usize::from(!writes), ..Rows::default() });
            };
            self.connection.execute_batch("BEGIN IMMEDIATE").map_err(refused)?;
            self.writes = Some(held);
        }
        let rows = run(&self.connection, &sql, values).map_err(refused)?;
        if writes {
            self.done.push((sql, values.to_vec()));
        }
        Ok(rows)
    }

    pub(super) fn commit(mut self, tables: &Tables, notes: Vec<(String, String)>) -> Result<(), Refusal> {
        if self.writes.is_some() {
            self.connection.execute_batch("COMMIT").map_err(refused)?;
        }
        if !self.done.is_empty() {
            let mut behind = tables.behind.borrow_mut();
            behind.push_back((machine::now(), std::mem::take(&mut self.done)));
            if behind.len() > BEHIND {
                apply(&tables.standby, behind.pop_front().expect("there are some").1);
            }
        }
        drop(self.writes.take());
        tables.idle.borrow_mut().push(self.connection);
        notes.into_iter().for_each(|note| drop(tables.notes.send(note)));
        Ok(())
    }
}

/// Answers queries of the server's own tables.
fn catalogue(sql: &str) -> Option<Rows> {
    let one = |value: i64| Rows { columns: 1, rows: vec![vec![Value::Integer(value)]], changed: 0 };
    if sql.contains("server_version_num") {
        Some(one(VERSION))
    } else if sql.contains("clock_timestamp") {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        Some(one(now.as_millis() as i64))
    } else if sql.contains("pg_namespace") {
        Some(one(1))
    } else if sql.contains("pg_locks") {
        Some(Rows { columns: 2, ..Rows::default() })
    } else {
        None
    }
}

/// A statement in SQLite's dialect.
fn translated(sql: &str) -> (String, Lock) {
    let lock = match (sql.contains(" FOR UPDATE SKIP LOCKED"), sql.contains(" FOR UPDATE")) {
        (true, _) => Lock::Skips,
        (false, true) => Lock::Waits,
        (false, false) => Lock::No,
    };
    let mut text = sql.to_owned();
    for (from, to) in [
        (" FOR UPDATE SKIP LOCKED", ""),
        (" FOR UPDATE", ""),
        ("::bigint", ""),
        ("::text", ""),
        ("COLLATE \"C\"", "COLLATE BINARY"),
        ("BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY", "INTEGER PRIMARY KEY AUTOINCREMENT"),
        ("pg_class WHERE oid = to_regclass('meshd.meta')", "sqlite_master WHERE name = 'meta'"),
        ("$", "?"),
    ] {
        text = text.replace(from, to);
    }
    (text, lock)
}

fn run(connection: &Connection, sql: &str, values: &[Value]) -> Result<Rows, rusqlite::Error> {
    let mut statement = connection.prepare_cached(sql)?;
    let columns = statement.column_count();
    if columns == 0 {
        let changed = statement.execute(params_from_iter(values))?;
        return Ok(Rows { changed, ..Rows::default() });
    }
    let mut found = statement.query(params_from_iter(values))?;
    let mut rows = Vec::new();
    while let Some(row) = found.next()? {
        let value = |at| {
            Ok(match row.get_ref(at)? {
                ValueRef::Null => Value::Null,
                ValueRef::Integer(int) => Value::Integer(int),
                ValueRef::Text(text) => Value::Text(String::from_utf8_lossy(text).into_owned()),
                other => panic!("no column of the product's has {other:?}"),
            })
        };
        rows.push((0..columns).map(value).collect::<Result<_, rusqlite::Error>>()?);
    }
    Ok(Rows { columns, rows, changed: 0 })
}

impl rusqlite::ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<rusqlite::types::ToSqlOutput<'_>> {
        Ok(rusqlite::types::ToSqlOutput::Borrowed(match self {
            Self::Null => ValueRef::Null,
            Self::Integer(int) => ValueRef::Integer(*int),
            Self::Text(text) => ValueRef::Text(text.as_bytes()),
        }))
    }
}

/// The error as PostgreSQL would report it.
fn refused(error: rusqlite::Error) -> Refusal {
    let code = match &error {
        rusqlite::Error::SqliteFailure(failure, _) => match failure.extended_code {
            ffi::SQLITE_CONSTRAINT_UNIQUE | ffi::SQLITE_CONSTRAINT_PRIMARYKEY => "23505",
            ffi::SQLITE_CONSTRAINT_FOREIGNKEY => "23503",
            _ => "42601",
        },
        _ => "42601",
    };
    Refusal { code, words: error.to_string() }
}
