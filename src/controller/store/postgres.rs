//! PostgreSQL: a few connections, each transaction on a thread that may wait.
//!
//! A verb is plain code that waits for each answer, so it runs on a thread of its own, outside the runtime. Nothing is
//! kept on a connection between transactions, so the store works through a transaction pooler, except for
//! notifications. A transaction that lost a race is repeated. This file knows no table.

use std::convert::Infallible;
use std::fmt;
use std::future::poll_fn;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Semaphore, watch};
use tokio::task::AbortHandle;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Connection, SimpleQueryMessage};

use super::error::Error;
use super::options::PostgresOptions;
use super::sql::{Dialect, Row, Sql, SqlValue};
use super::sqlstate::TransactionRefusal;
use super::tls::Tls;
use crate::controller::core::Time;
use crate::os::back_off::BackOff;

/// Connections for transactions; one more listens.
const CONNECTIONS: usize = 8;
/// How often a transaction that keeps losing races is tried.
const ATTEMPTS: u32 = 10;
/// An answer takes longer only if the server or the network hangs.
const ANSWER_WITHIN: Duration = Duration::from_secs(45);
/// How often the listening connection asks for an answer, because a device in between may have forgotten it.
const LISTENING_ASKED: Duration = Duration::from_secs(60);
/// Short, so that all control nodes have reconnected and renewed their leases before the first of them judges who is
/// lost.
const RECONNECT: BackOff = BackOff::new(Duration::from_millis(100), Duration::from_millis(500));
const CHANNEL: &str = "meshd_controller";

/// Begins a transaction, with settings that hold for it alone, and reads the clock.
const BEGIN: &str = "BEGIN; SET LOCAL search_path TO meshd; SET LOCAL statement_timeout = '30s'; \
    SET LOCAL lock_timeout = '10s'; SET LOCAL idle_in_transaction_session_timeout = '10s'; \
    SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint";

pub(super) struct Postgres {
    pool: Arc<Pool>,
    slots: Arc<Semaphore>,
    listener: AbortHandle,
}

struct Pool {
    options: PostgresOptions,
    tls: Tls,
    runtime: OwnRuntime,
    /// Locked only to take a connection or to put it back.
    idle: Mutex<Vec<Client>>,
    /// The failures to connect since the last success. Locked for moments.
    failures: Mutex<Failures>,
    changes: Arc<watch::Sender<u64>>,
    /// Tells our own notifications from those of others.
    id: String,
}

/// Connections that failed in a row.
#[derive(Default)]
struct Failures {
    count: u32,
    retry_at: Option<Instant>,
    why: String,
    /// The server refuses: waiting does not help.
    is_refusal: bool,
}

impl Failures {
    fn error(&self) -> Error {
        let why = self.why.clone();
        if self.is_refusal { Error::Refused(why) } else { Error::Away(why) }
    }
}

impl Postgres {
    /// Begins to listen. The first transaction shows whether the server can be reached.
    pub(super) fn open(options: &PostgresOptions, changes: Arc<watch::Sender<u64>>) -> Result<Self, Error> {
        // Reports a wrong password file at once.
        options.config()?;
        let pool = Arc::new(Pool {
            options: options.clone(),
            tls: Tls::new(&options.ssl)?,
            runtime: OwnRuntime::start()?,
            idle: Mutex::default(),
            failures: Mutex::default(),
            changes,
            id: format!("{:016x}", rand::random::<u64>()),
        });
        let listener = pool.runtime.spawn(listen(pool.clone())).abort_handle();
        Ok(Self { pool, slots: Arc::new(Semaphore::new(CONNECTIONS)), listener })
    }

    /// Runs one transaction, which completes even if the caller stops waiting. If it only reads, its end is not
    /// awaited.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        reads: bool,
        verb: impl Fn(&mut dyn Sql) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let slot = self.slots.clone().acquire_owned().await;
        let slot = slot.map_err(|closed| Error::Away(closed.to_string()))?;
        let pool = self.pool.clone();
        let work = move || {
            let _slot = slot;
            pool.run(reads, &verb)
        };
        tokio::task::spawn_blocking(work).await.map_err(|error| Error::Away(error.to_string()))?
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postgres").field("options", &self.pool.options).finish_non_exhaustive()
    }
}

/// A runtime of the connections' own, with one thread. Verbs outlast the daemon's runtime by moments, and waiting on a
/// runtime that has ended panics.
struct OwnRuntime(Option<Runtime>);

impl OwnRuntime {
    fn start() -> Result<Self, Error> {
        let started = Builder::new_multi_thread().worker_threads(1).thread_name("store").enable_all().build();
        started
            .map(|runtime| Self(Some(runtime)))
            .map_err(|error| Error::Away(format!("failed to start a thread: {error}")))
    }
}

impl Deref for OwnRuntime {
    type Target = Runtime;

    fn deref(&self) -> &Runtime {
        self.0.as_ref().expect("it is taken by `drop` alone")
    }
}

impl Drop for OwnRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Pool {
    fn run<T>(&self, reads: bool, verb: &impl Fn(&mut dyn Sql) -> Result<T, Error>) -> Result<T, Error> {
        for attempt in 1..=ATTEMPTS {
            match self.run_once(reads, verb) {
                Err(Error::Raced) => {
                    // The pause is random, so that two racing transactions do not meet again.
                    let pause = rand::random::<u64>() % (1 << attempt.min(7));
                    std::thread::sleep(Duration::from_millis(pause));
                }
                result => return result,
            }
        }
        Err(Error::Away("other transactions came first, again and again".into()))
    }

    fn run_once<T>(&self, reads: bool, verb: &impl Fn(&mut dyn Sql) -> Result<T, Error>) -> Result<T, Error> {
        let (client, now) = self.begin()?;
        let mut transaction = Transaction { pool: self, client: &client, now, announced: false };
        let result = verb(&mut transaction);
        let announced = transaction.announced;
        let end = match &result {
            Ok(_) if announced => format!("NOTIFY {CHANNEL}, '{}'; COMMIT", self.id),
            Ok(_) => "COMMIT".to_owned(),
            Err(_) => "ROLLBACK".to_owned(),
        };
        let ended = match &result {
            // Sending it is enough: the next transaction's first answer comes after this one's.
            Ok(_) if reads => {
                let _sent = client.batch_execute(&end).now_or_never();
                Ok(())
            }
            Ok(_) | Err(_) => self.wait(client.batch_execute(&end)),
        };
        if ended.is_ok() && !client.is_closed() {
            self.idle.lock().push(client);
        }
        let value = result?;
        ended?;
        if announced {
            self.changes.send_modify(|count| *count += 1);
        }
        Ok(value)
    }

    /// A connection with a transaction. An idle connection that turns out to be dead is replaced.
    fn begin(&self) -> Result<(Client, Time), Error> {
        loop {
            let idle = self.idle.lock().pop();
            let is_new = idle.is_none();
            let client = match idle {
                Some(client) => client,
                None => self.connect()?,
            };
            match self.wait(client.simple_query(BEGIN)) {
                Ok(answers) => return Ok((client, clock(&answers)?)),
                Err(error) if is_new => return Err(error),
                // Nothing has happened yet, so a fresh connection may try.
                Err(_) => {}
            }
        }
    }

    fn connect(&self) -> Result<Client, Error> {
        {
            let failures = self.failures.lock();
            if failures.retry_at.is_some_and(|at| Instant::now() < at) {
                return Err(failures.error());
            }
        }
        let connected = self.options.config().and_then(|config| self.wait(config.connect(self.tls.clone())));
        let mut failures = self.failures.lock();
        match connected {
            Ok((client, connection)) => {
                *failures = Failures::default();
                // The task ends with the client. Its error is dropped, because the client's next statement reports it
                // as well.
                self.runtime.spawn(async move { drop(connection.await) });
                Ok(client)
            }
            Err(error) => {
                failures.count = failures.count.saturating_add(1);
                failures.retry_at = Some(Instant::now() + RECONNECT.after(failures.count));
                (failures.why, failures.is_refusal) = match &error {
                    Error::Away(why) => (why.clone(), false),
                    Error::Refused(why) => (why.clone(), true),
                    other => (other.to_string(), false),
                };
                Err(error)
            }
        }
    }

    fn wait<T>(&self, work: impl Future<Output = Result<T, tokio_postgres::Error>>) -> Result<T, Error> {
        self.runtime.block_on(answered(work))
    }
}

fn clock(answers: &[SimpleQueryMessage]) -> Result<Time, Error> {
    let row = answers.iter().find_map(|answer| match answer {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    let now = row.and_then(|text| text.parse().ok());
    now.map(Time).ok_or_else(|| Error::Away("PostgreSQL did not tell the time".into()))
}

/// Listens for notifications, on a connection of its own, until the store is closed.
async fn listen(pool: Arc<Pool>) {
    let mut pauses = RECONNECT;
    loop {
        let connected = match pool.options.config() {
            Ok(config) => answered(config.connect(pool.tls.clone())).await,
            Err(error) => Err(error),
        };
        let error = match connected {
            Ok((client, connection)) => {
                pauses.reset();
                receive(&pool, &client, connection).await
            }
            Err(error) => error,
        };
        tracing::debug!(%error, "cannot receive notifications from the store, connecting again");
        tokio::time::sleep(pauses.next()).await;
    }
}

/// Receives notifications until the connection fails, or its other end does not answer.
async fn receive<S, T>(pool: &Pool, client: &Client, mut connection: Connection<S, T>) -> Error
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    let asking = async {
        answered(client.batch_execute(&format!("LISTEN {CHANNEL}"))).await?;
        // Changes before `LISTEN` were not notified, so something may have changed.
        pool.changes.send_modify(|count| *count += 1);
        loop {
            tokio::time::sleep(LISTENING_ASKED).await;
            answered(client.batch_execute("SELECT 1")).await?;
        }
    };
    let hearing = async {
        loop {
            match poll_fn(|cx| connection.poll_message(cx)).await {
                Some(Ok(AsyncMessage::Notification(note))) if note.payload() != pool.id => {
                    pool.changes.send_modify(|count| *count += 1);
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return error.into(),
                None => return Error::Away("the connection was closed".into()),
            }
        }
    };
    tokio::select! {
        Err::<Infallible, Error>(error) = asking => error,
        error = hearing => error,
    }
}

async fn answered<T>(work: impl Future<Output = Result<T, tokio_postgres::Error>>) -> Result<T, Error> {
    let answer = tokio::time::timeout(ANSWER_WITHIN, work).await;
    Ok(answer.map_err(|_| Error::Away("PostgreSQL does not answer".into()))??)
}

struct Transaction<'a> {
    pool: &'a Pool,
    client: &'a Client,
    now: Time,
    announced: bool,
}

impl Sql for Transaction<'_> {
    fn dialect(&self) -> Dialect {
        Dialect::Postgres
    }

    fn now(&self) -> Time {
        self.now
    }

    fn execute(&mut self, sql: &str, values: &[SqlValue]) -> Result<u64, Error> {
        self.pool.wait(self.client.execute_typed(sql, &typed(values)))
    }

    fn query(&mut self, sql: &str, values: &[SqlValue]) -> Result<Vec<Row>, Error> {
        let rows = self.pool.wait(self.client.query_typed(sql, &typed(values)))?;
        rows.iter().map(read).collect()
    }

    fn batch(&mut self, sql: &str) -> Result<(), Error> {
        self.pool.wait(self.client.batch_execute(sql))
    }

    fn announce(&mut self) {
        self.announced = true;
    }
}

fn typed(values: &[SqlValue]) -> Vec<(&(dyn ToSql + Sync), Type)> {
    fn typed(value: &SqlValue) -> (&(dyn ToSql + Sync), Type) {
        match value {
            SqlValue::Int(int) => (int, Type::INT8),
            SqlValue::Text(text) => (text, Type::TEXT),
        }
    }
    values.iter().map(typed).collect()
}

fn read(row: &tokio_postgres::Row) -> Result<Row, Error> {
    let value = |(at, column): (usize, &tokio_postgres::Column)| match *column.type_() {
        Type::INT8 => row.try_get(at).map(SqlValue::Int).map_err(Error::from),
        Type::INT4 => {
            let int: Option<i32> = row.try_get(at)?;
            Ok(SqlValue::Int(int.map(i64::from)))
        }
        Type::TEXT => row.try_get(at).map(SqlValue::Text).map_err(Error::from),
        ref other => Err(Error::Corrupt(format!("the column {} has type {other}", column.name()))),
    };
    let values = row.columns().iter().enumerate().map(value);
    Ok(Row::new(values.collect::<Result<_, _>>()?))
}

impl From<tokio_postgres::Error> for Error {
    fn from(error: tokio_postgres::Error) -> Self {
        let Some(refusal) = error.as_db_error() else {
            let cause =
                std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
            return Self::Away(format!("{error}{cause}"));
        };
        let code = refusal.code().code();
        let words = refusal.message();
        match TransactionRefusal::of(code) {
            TransactionRefusal::Race => Self::Raced,
            TransactionRefusal::Passing => Self::Away(format!("PostgreSQL: {words} ({code})")),
            TransactionRefusal::Value => Self::Conflict(format!("PostgreSQL does not store this: {words}")),
            TransactionRefusal::Final => Self::Refused(format!("PostgreSQL: {words} ({code})")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::path::Path;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
    use tokio_postgres::{Config, NoTls};

    use super::super::options::Options;
    use super::*;

    fn pool() -> Pool {
        let options = Options::parse("postgresql://u@127.0.0.1:1/db?sslmode=disable", None, Path::new(""));
        let Ok(Options::Postgres(options)) = options else { panic!("{options:?}") };
        Pool {
            tls: Tls::new(&options.ssl).unwrap(),
            options: *options,
            runtime: OwnRuntime::start().unwrap(),
            idle: Mutex::default(),
            failures: Mutex::default(),
            changes: Arc::new(watch::Sender::new(0)),
            id: "own".to_owned(),
        }
    }

    /// A server that answers that many statements, and then nothing more.
    async fn serve(mut stream: DuplexStream, answers: usize) {
        let mut buffer = [0; 4096];
        assert!(stream.read(&mut buffer).await.unwrap() > 0);
        // The authentication is accepted, and the server is ready.
        stream.write_all(b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I").await.unwrap();
        for _ in 0..answers {
            assert!(stream.read(&mut buffer).await.unwrap() > 0);
            stream.write_all(b"C\0\0\0\x07OK\0Z\0\0\0\x05I").await.unwrap();
        }
        while stream.read(&mut buffer).await.is_ok_and(|count| count > 0) {}
    }

    #[tokio::test(start_paused = true)]
    async fn who_listens_to_silence_notices_and_comes_again() {
        for answers in [0, 1, 3] {
            let (near, far) = duplex(4096);
            let server = tokio::spawn(serve(far, answers));
            let (client, connection) = Config::new().user("u").connect_raw(near, NoTls).await.unwrap();
            let (pool, begun) = (pool(), tokio::time::Instant::now());
            let most = LISTENING_ASKED * 4 + ANSWER_WITHIN;
            let ended = tokio::time::timeout(most, receive(&pool, &client, connection)).await;
            assert_eq!(ended.unwrap().to_string(), "the store is away: PostgreSQL does not answer");
            let asked = LISTENING_ASKED * answers as u32;
            assert_eq!(begun.elapsed().as_secs(), (asked + ANSWER_WITHIN).as_secs());
            assert_eq!(*pool.changes.borrow(), u64::from(answers > 0));
            server.abort();
        }
    }

    #[test]
    fn a_verb_goes_on_when_the_daemons_runtime_has_ended() {
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("postgresql://u@{}/db?sslmode=disable", server.local_addr().unwrap());
        let Ok(Options::Postgres(options)) = Options::parse(&url, None, Path::new("")) else { panic!() };
        let daemon = Runtime::new().unwrap();
        let pool = {
            let _inside = daemon.enter();
            Pool { options: *options, ..pool() }
        };
        daemon.shutdown_timeout(ANSWER_WITHIN);
        std::thread::scope(|scope| {
            let verb = scope.spawn(|| pool.run(true, &|_| Ok(())));
            let (mut server, _) = server.accept().unwrap();
            assert!(server.read(&mut [0; 64]).unwrap() > 0);
            drop(server);
            assert!(matches!(verb.join().unwrap(), Err(Error::Away(_))));
        });
    }

    #[tokio::test(start_paused = true)]
    async fn who_connects_to_silence_notices_and_comes_again() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let url = format!("postgresql://u@127.0.0.1:{port}/db?sslmode=disable");
        let Ok(Options::Postgres(options)) = Options::parse(&url, None, Path::new("")) else { panic!() };
        let pool = Pool { options: *options, ..pool() };
        let listening = tokio::spawn(listen(Arc::new(pool)));
        let _silent = listener.accept().await.unwrap();
        tokio::time::timeout(ANSWER_WITHIN * 2, listener.accept()).await.unwrap().unwrap();
        listening.abort();
    }
}
