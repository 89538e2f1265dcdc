//! SQLite: one file, one writer thread, readers beside it.
//!
//! A durable commit waits for the disk, so queued writes are committed together: each runs in a savepoint of one
//! transaction, and all are answered after its commit. A reader sees the last commit and waits for nobody. This file
//! knows no table; `sqlite_files` handles the files.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rusqlite::config::DbConfig;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, ErrorCode, OpenFlags, params_from_iter};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};

use super::error::Error;
use super::reserve::StoreReserve;
use super::schema;
use super::sql::{Dialect, Row, Sql, SqlValue};
use super::sqlite_files::{copy, lock_file, with_suffix};
use crate::controller::core::{InstanceName, Time};

/// The most writes of one commit, and how long it collects them.
const WRITES_AT_ONCE: usize = 128;
const COLLECT: Duration = Duration::from_millis(20);
/// Writes that the queue holds; further callers wait to enter it.
const QUEUE: usize = 256;
/// Compiled statements that a connection keeps.
const STATEMENTS: usize = 128;
/// Idle readers that are kept.
const READERS: usize = 4;

#[derive(Debug)]
pub(super) struct Sqlite {
    path: PathBuf,
    clock: Clock,
    /// `None` only while it is dropped.
    pub(super) queue: Option<mpsc::Sender<Box<dyn Waiting>>>,
    writer: Option<JoinHandle<()>>,
    /// Idle connections. Locked only to take one or to put it back.
    readers: Arc<Mutex<Vec<Connection>>>,
}

impl Sqlite {
    /// Opens or creates the database, and locks it against other processes.
    pub(super) fn open(
        path: &Path,
        node: &InstanceName,
        changes: Arc<watch::Sender<u64>>,
    ) -> Result<Self, Error> {
        let lock = lock_file(path, node)?;
        // SQLite would create the file with the umask's mode, and gives its other files the mode of this one.
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path);
        let file = file.map_err(Error::file(path))?;
        let connection = Connection::open(path)?;
        connection.execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON; \
             PRAGMA busy_timeout = 5000; PRAGMA journal_size_limit = 67108864; PRAGMA temp_store = MEMORY;",
        )?;
        let mut reserve = StoreReserve::new(file, &connection, &with_suffix(path, "-wal"))?;
        keep_statements(&connection)?;
        let clock = Clock::start();
        let own = clock.clone();
        let (queue, waiting) = mpsc::channel(QUEUE);
        let writer = std::thread::Builder::new()
            .name("controller-store".into())
            .spawn(move || {
                write_all(&connection, &clock, waiting, &changes, &mut reserve);
                drop(connection);
                drop(reserve);
                // The lock goes last, so that its next holder finds a closed database.
                drop(lock);
            })
            .map_err(Error::file(path))?;
        let readers = Arc::default();
        Ok(Self { path: path.to_owned(), clock: own, queue: Some(queue), writer: Some(writer), readers })
    }

    pub(super) async fn write<T: Send + 'static>(
        &self,
        verb: impl Fn(&mut dyn Sql) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let stopped = || Error::Away("its writer has stopped".into());
        let (answer, answered) = oneshot::channel();
        let queue = self.queue.as_ref().ok_or_else(stopped)?;
        let write = PendingWrite { verb, result: None, answer };
        queue.send(Box::new(write)).await.map_err(|_| stopped())?;
        answered.await.map_err(|_| stopped())?
    }

    pub(super) async fn read<T: Send + 'static>(
        &self,
        verb: impl Fn(&mut dyn Sql) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (path, clock, readers) = (self.path.clone(), self.clock.clone(), self.readers.clone());
        let work = move || {
            let idle = readers.lock().pop();
            let connection = idle.map_or_else(|| open_reader(&path), Ok)?;
            connection.execute_batch("BEGIN")?;
            let mut transaction = Transaction { connection: &connection, now: clock.now(), announced: false };
            let result = verb(&mut transaction);
            connection.execute_batch("ROLLBACK")?;
            let mut idle = readers.lock();
            if idle.len() < READERS {
                idle.push(connection);
            }
            result
        };
        tokio::task::spawn_blocking(work).await.map_err(|error| Error::Away(error.to_string()))?
    }

    /// Closes idle readers, because a connection keeps the statistics from when it was opened.
    pub(super) fn close_readers(&self) {
        self.readers.lock().clear();
    }

    /// How far the system's clock was set back since the start.
    pub(super) fn set_back(&self) -> Duration {
        self.clock.set_back()
    }

    pub(super) async fn backup(&self, to: &Path) -> Result<(), Error> {
        let (from, to) = (self.path.clone(), to.to_owned());
        let work = move || copy(&open_reader(&from)?, &to);
        tokio::task::spawn_blocking(work).await.map_err(|error| Error::Away(error.to_string()))?
    }
}

impl Drop for Sqlite {
    /// Waits for the writer's last commit: then the file is closed, and another process may open it.
    fn drop(&mut self) {
        self.close_readers();
        drop(self.queue.take());
        if let Some(writer) = self.writer.take() {
            // A writer that panicked has closed the file, too.
            let _panicked = writer.join();
        }
    }
}

/// Checks that a file, which may be in use, is a store that this program understands.
pub(super) fn look(path: &Path) -> Result<(), Error> {
    let connection = open_reader(path)?;
    let mut transaction =
        Transaction { connection: &connection, now: Clock::start().now(), announced: false };
    schema::check(&mut transaction)
}

pub(super) fn open_reader(path: &Path) -> Result<Connection, Error> {
    let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    connection.execute_batch("PRAGMA busy_timeout = 5000;")?;
    keep_statements(&connection)?;
    Ok(connection)
}

/// Makes a connection compile each statement once. Without the guarantee of a stable plan (QPSG), SQLite compiles a
/// statement again whenever a new value might change the use of a partial index or of statistics.
fn keep_statements(connection: &Connection) -> Result<(), Error> {
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(())
}

/// The wall clock at the start, plus the time that has passed on the runtime's monotonic clock, which every timer of
/// the driver uses. The runtime's handle makes that clock work on the store's own thread, too.
#[derive(Debug, Clone)]
struct Clock {
    runtime: Option<Handle>,
    started: tokio::time::Instant,
    wall: i64,
    /// The start on the system's monotonic clock, which tests do not change.
    began: Instant,
}

impl Clock {
    fn start() -> Self {
        Self {
            runtime: Handle::try_current().ok(),
            started: tokio::time::Instant::now(),
            wall: jiff::Timestamp::now().as_millisecond(),
            began: Instant::now(),
        }
    }

    fn set_back(&self) -> Duration {
        let expected = Time(self.wall) + self.began.elapsed();
        expected.since(Time(jiff::Timestamp::now().as_millisecond()))
    }

    fn now(&self) -> Time {
        let _within = self.runtime.as_ref().map(Handle::enter);
        Time(self.wall) + self.started.elapsed()
    }
}

/// A write that waits for its commit.
pub(super) trait Waiting: Send {
    /// Runs the write, and returns whether its changes should be kept.
    fn run(&mut self, sql: &mut dyn Sql) -> bool;

    /// Tells the caller that the transaction was committed, or why not.
    fn answer(self: Box<Self>, committed: Result<(), String>);
}

struct PendingWrite<T, F> {
    verb: F,
    result: Option<Result<T, Error>>,
    answer: oneshot::Sender<Result<T, Error>>,
}

impl<T: Send, F: Fn(&mut dyn Sql) -> Result<T, Error> + Send> Waiting for PendingWrite<T, F> {
    fn run(&mut self, sql: &mut dyn Sql) -> bool {
        self.result.insert((self.verb)(sql)).is_ok()
    }

    fn answer(self: Box<Self>, committed: Result<(), String>) {
        let result = match (self.result, committed) {
            (Some(Ok(value)), Ok(())) => Ok(value),
            (Some(Ok(_)) | None, Err(why)) => Err(Error::Away(why)),
            (Some(Err(error)), _) => Err(error),
            (None, Ok(())) => Err(Error::Away("it was not run".into())),
        };
        // The caller may have gone away; its write stays.
        let _gone = self.answer.send(result);
    }
}

/// The writer's thread: commits until all handles are dropped, and tops up the reserve in between.
fn write_all(
    connection: &Connection,
    clock: &Clock,
    mut queue: mpsc::Receiver<Box<dyn Waiting>>,
    changes: &watch::Sender<u64>,
    reserve: &mut StoreReserve,
) {
    while let Some(first) = queue.blocking_recv() {
        let mut writes = Vec::new();
        let mut announced = false;
        let committed = commit_together(connection, clock, first, &mut queue, &mut writes, &mut announced);
        if announced && committed.is_ok() {
            changes.send_modify(|count| *count += 1);
        }
        for write in writes {
            write.answer(committed.clone());
        }
        if let Err(error) = reserve.top_up(connection) {
            tracing::debug!(%error, "cannot top up the store's reserve for a full disk");
        }
    }
}

/// Runs the first write and those that are queued after it, and commits them.
fn commit_together(
    connection: &Connection,
    clock: &Clock,
    first: Box<dyn Waiting>,
    queue: &mut mpsc::Receiver<Box<dyn Waiting>>,
    writes: &mut Vec<Box<dyn Waiting>>,
    announced: &mut bool,
) -> Result<(), String> {
    let failed = |error: rusqlite::Error| error.to_string();
    writes.push(first);
    connection.execute_batch("BEGIN IMMEDIATE").map_err(failed)?;
    let until = Instant::now() + COLLECT;
    loop {
        let write = writes.last_mut().expect("the first one at least");
        *announced |= run_in_savepoint(connection, clock, &mut **write).map_err(|error| {
            // On a full disk SQLite has undone the whole transaction already.
            let _undone = connection.execute_batch("ROLLBACK");
            failed(error)
        })?;
        if writes.len() >= WRITES_AT_ONCE || Instant::now() >= until {
            break;
        }
        let Ok(next) = queue.try_recv() else { break };
        writes.push(next);
    }
    connection.execute_batch("COMMIT").map_err(|error| {
        let _undone = connection.execute_batch("ROLLBACK");
        failed(error)
    })
}

/// Runs one write so that its failure undoes nothing else. Returns whether it has something to announce.
fn run_in_savepoint(
    connection: &Connection,
    clock: &Clock,
    write: &mut dyn Waiting,
) -> Result<bool, rusqlite::Error> {
    connection.execute_batch("SAVEPOINT one")?;
    let mut transaction = Transaction { connection, now: clock.now(), announced: false };
    let keep = write.run(&mut transaction);
    let announced = transaction.announced && keep;
    connection.execute_batch(if keep { "RELEASE one" } else { "ROLLBACK TO one; RELEASE one" })?;
    Ok(announced)
}

struct Transaction<'a> {
    connection: &'a Connection,
    now: Time,
    announced: bool,
}

impl Sql for Transaction<'_> {
    fn dialect(&self) -> Dialect {
        Dialect::Sqlite
    }

    fn now(&self) -> Time {
        self.now
    }

    fn execute(&mut self, sql: &str, values: &[SqlValue]) -> Result<u64, Error> {
        let mut statement = self.connection.prepare_cached(&numbered(sql))?;
        Ok(statement.execute(params_from_iter(values))? as u64)
    }

    fn query(&mut self, sql: &str, values: &[SqlValue]) -> Result<Vec<Row>, Error> {
        let mut statement = self.connection.prepare_cached(&numbered(sql))?;
        let columns = statement.column_count();
        let mut rows = statement.query(params_from_iter(values))?;
        let mut found = Vec::new();
        while let Some(row) = rows.next()? {
            let values = (0..columns).map(|at| read(row.get_ref(at)?));
            found.push(Row::new(values.collect::<Result<_, _>>()?));
        }
        Ok(found)
    }

    fn batch(&mut self, sql: &str) -> Result<(), Error> {
        Ok(self.connection.execute_batch(sql)?)
    }

    fn announce(&mut self) {
        self.announced = true;
    }
}

/// Turns `$1` into `?1`, because SQLite numbers `$1` by first use, but `?1` by its number. No statement of ours has a
/// dollar for anything else.
fn numbered(sql: &str) -> String {
    sql.replace('$', "?")
}

fn read(value: ValueRef<'_>) -> Result<SqlValue, Error> {
    match value {
        ValueRef::Null => Ok(SqlValue::Int(None)),
        ValueRef::Integer(int) => Ok(SqlValue::Int(Some(int))),
        ValueRef::Text(text) => Ok(SqlValue::Text(Some(String::from_utf8_lossy(text).into_owned()))),
        ValueRef::Real(_) | ValueRef::Blob(_) => Err(Error::Corrupt(format!("a column has {value:?}"))),
    }
}

impl rusqlite::ToSql for SqlValue {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match self {
            Self::Int(Some(int)) => ToSqlOutput::Borrowed(ValueRef::Integer(*int)),
            Self::Text(Some(text)) => ToSqlOutput::Borrowed(ValueRef::Text(text.as_bytes())),
            Self::Int(None) | Self::Text(None) => ToSqlOutput::Borrowed(ValueRef::Null),
        })
    }
}

impl From<rusqlite::Error> for Error {
    fn from(error: rusqlite::Error) -> Self {
        let words = error.to_string();
        let is_passing = match &error {
            rusqlite::Error::SqliteFailure(failure, _) => is_passing(failure.code),
            // An error in our own statement.
            _ => false,
        };
        if is_passing { Self::Away(words) } else { Self::Refused(words) }
    }
}

/// Whether the same transaction may work later. It may not if its statements, its rows or the file have to change
/// first.
fn is_passing(code: ErrorCode) -> bool {
    !matches!(
        code,
        ErrorCode::ConstraintViolation
            | ErrorCode::TooBig
            | ErrorCode::TypeMismatch
            | ErrorCode::ApiMisuse
            | ErrorCode::ParameterOutOfRange
            | ErrorCode::DatabaseCorrupt
            | ErrorCode::NotADatabase
            | ErrorCode::Unknown
    )
}
