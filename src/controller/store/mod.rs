//! The controller's store: jobs, attempts, instances, groups, leases, in SQLite or PostgreSQL.
//!
//! [`Store`] has verbs of the domain; each is one transaction. A verb loads a job or an instance, lets `core` decide
//! what it does next, and saves the difference, so the rules are the same on both databases and in simulations. The
//! store holds headers, but no payloads and no credentials.
//!
//! - `submit`, `drive`, `pass`, `owners`, `registry`, `list`, `ended`, `recaps`, `holders`, `projects`, `documents`,
//!   `audit`, `clock`: the verbs. `turn`: what only one control node may do at a time.
//! - `copy`: copies a whole store into another database.
//! - `jobs`, `instances`, `groups`, `leases`, `scene`: the core's types as rows; `schema`: the tables.
//! - `sql`: one transaction over either database; `sqlite`, `postgres`: the two databases; `sqlstate`: what
//!   PostgreSQL's refusals mean; `reserve`: what SQLite can still write on a full disk; `options`: which database;
//!   `inspect`: looks at a store without changing it.
//!
//! Every write of an owner carries the owner's epoch. A write with an outdated epoch changes nothing, is counted, and
//! fails with [`Error::Fenced`]: its caller stands down. docs/controller-store.md describes the data for operators.

mod audit;
mod clock;
mod copy;
mod documents;
mod drive;
mod ended;
mod error;
mod groups;
mod holders;
mod inspect;
mod instances;
mod jobs;
mod leases;
mod list;
mod options;
mod owners;
mod pass;
mod postgres;
mod projects;
mod recaps;
mod registry;
mod reserve;
mod scene;
mod schema;
mod sql;
mod sqlite;
mod sqlite_files;
mod sqlstate;
mod submit;
mod tls;
mod turn;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::watch;

pub use self::audit::Audit;
pub use self::clock::Clock;
pub use self::copy::copy_store;
pub use self::documents::StoredDocument;
pub use self::drive::{Figures, HeldOutput, Sending};
pub use self::ended::EndedJob;
pub use self::error::Error;
pub use self::groups::GroupRecord;
pub use self::holders::{Holding, Kept};
pub use self::inspect::{StoreFinding, inspect};
pub use self::instances::{InstanceRecord, Observed};
pub use self::jobs::Terms;
pub use self::list::{JobNumbers, JobPage, JobRecord, JobRow, JobSelection, PAGE_MAX};
pub use self::options::{Options, PostgresOptions, SslMode};
pub use self::owners::{Beat, Look, Losses};
pub use self::pass::{PassLimits, Passed};
use self::postgres::Postgres;
pub use self::projects::{BegunSync, NewSync, Project};
pub use self::recaps::RecapPage;
pub use self::registry::InstanceRegistry;
pub use self::scene::{ExplainedJob, Overview, Waits};
use self::schema::Step;
use self::sql::Sql;
use self::sqlite::Sqlite;
pub use self::sqlite_files::restore;
pub use self::submit::{Submission, Submitted};
pub use self::turn::TurnHolder;
use crate::controller::core::{Fence, InstanceName, JobState, Time};
use crate::counters::{Durations, Lengths};

/// A handle to the store. Clones share it; the last one that is dropped closes it.
#[derive(Debug, Clone)]
pub struct Store {
    engine: Arc<Engine>,
    changes: Arc<watch::Sender<u64>>,
    /// Transactions that failed because the database was away.
    away: Arc<AtomicU64>,
    counted: Arc<Counted>,
}

/// How PostgreSQL is backed up.
pub const POSTGRES_TOOLS: &str = "it is PostgreSQL: back it up with `pg_dump --format=custom --schema=meshd`, and \
    restore it with `pg_restore --clean`";

/// What is counted of transactions.
#[derive(Debug, Default)]
struct Counted {
    reads: Durations,
    writes: Durations,
    fenced: AtomicU64,
}

#[derive(Debug)]
enum Engine {
    Sqlite(Sqlite),
    Postgres(Postgres),
}

impl Store {
    /// Opens the store of a control node, and creates or migrates its tables.
    ///
    /// # Errors
    /// The settings or files are wrong, another control node has the file, the store is for newer programs, or the
    /// database cannot be reached.
    pub async fn open(options: &Options, node: &InstanceName) -> Result<Self, Error> {
        let store = Self::open_with(options, node, schema::STEPS).await?;
        store.read(copy::check).await?;
        Ok(store)
    }

    async fn open_with(
        options: &Options,
        node: &InstanceName,
        steps: &'static [Step],
    ) -> Result<Self, Error> {
        let changes = Arc::new(watch::Sender::new(0));
        let engine = match options {
            Options::Sqlite(path) => Engine::Sqlite(Sqlite::open(path, node, changes.clone())?),
            Options::Postgres(options) => Engine::Postgres(Postgres::open(options, changes.clone())?),
        };
        let store = Self { engine: Arc::new(engine), changes, away: Arc::default(), counted: Arc::default() };
        store.write(move |sql| schema::migrate(sql, steps)).await?;
        Ok(store)
    }

    /// Changes whenever something changed that a control node should look at: jobs, instances, groups, the pause.
    /// Notifications of other control nodes may be lost, so also look from time to time without one.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Whether other control nodes may use the store, too.
    pub fn is_shared(&self) -> bool {
        match &*self.engine {
            Engine::Sqlite(_) => false,
            Engine::Postgres(_) => true,
        }
    }

    /// How many transactions failed because the database was away, since the store was opened. Callers may repeat them.
    pub fn times_away(&self) -> u64 {
        self.away.load(Ordering::Relaxed)
    }

    /// Transactions since the store was opened: those that read, those that wrote, and how many of these were fenced.
    pub fn figures(&self) -> (Lengths, Lengths, u64) {
        let Counted { reads, writes, fenced } = &*self.counted;
        (reads.lengths(), writes.lengths(), fenced.load(Ordering::Relaxed))
    }

    /// The jobs that have not ended, by state and kind, and how long the oldest pending one has waited.
    ///
    /// # Errors
    /// The database is away.
    pub async fn open_jobs(&self) -> Result<(Vec<(String, String, u64)>, Duration), Error> {
        let query = "SELECT state, kind, count(*), min(created) FROM job \
             WHERE state IN ('pending', 'waiting', 'running') GROUP BY state, kind ORDER BY state, kind";
        self.read(move |sql| {
            let (mut jobs, mut oldest) = (Vec::new(), Duration::ZERO);
            for mut row in sql.query(query, &[])? {
                let (state, kind, count): (String, String, i64) = (row.take()?, row.take()?, row.take()?);
                if state == JobState::Pending.name() {
                    oldest = oldest.max(sql.now().since(row.take()?));
                }
                jobs.push((state, kind, count.unsigned_abs()));
            }
            Ok((jobs, oldest))
        })
        .await
    }

    /// The store's clock: the database's, or with SQLite one that never goes back while the process runs.
    pub async fn now(&self) -> Result<Time, Error> {
        self.read(|sql| Ok(sql.now())).await
    }

    /// How far the system's clock was set back since the store was opened; the store's own clock did not follow. Zero
    /// with PostgreSQL, because the store's clock is the server's.
    fn set_back(&self) -> Duration {
        match &*self.engine {
            Engine::Sqlite(sqlite) => sqlite.set_back(),
            Engine::Postgres(_) => Duration::ZERO,
        }
    }

    /// The number that tells this install from others, 32 hex digits.
    pub async fn install_id(&self) -> Result<String, Error> {
        self.read(|sql| schema::get(sql, "install_id"))
            .await?
            .ok_or_else(|| Error::Corrupt("meta has no install_id".into()))
    }

    /// Writes a copy of the store, which may be in use, into a new file. The copy contains what was committed before.
    ///
    /// # Errors
    /// The file exists or cannot be written, or the store is PostgreSQL, which has pg_dump.
    pub async fn backup(&self, to: &Path) -> Result<(), Error> {
        match &*self.engine {
            Engine::Sqlite(sqlite) => sqlite.backup(to).await,
            Engine::Postgres(_) => Err(Error::Settings(POSTGRES_TOOLS.into())),
        }
    }

    /// Runs one transaction that writes. `verb` may run more than once.
    async fn write<T: Send + 'static>(
        &self,
        verb: impl Fn(&mut dyn Sql) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let begun = Instant::now();
        let written = match &*self.engine {
            Engine::Sqlite(sqlite) => sqlite.write(verb).await,
            Engine::Postgres(postgres) => postgres.run(false, verb).await,
        };
        self.counted.writes.note(begun.elapsed());
        self.counted(written)
    }

    /// Runs one transaction that only reads. `verb` may run more than once.
    async fn read<T: Send + 'static>(
        &self,
        verb: impl Fn(&mut dyn Sql) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let begun = Instant::now();
        let read = match &*self.engine {
            Engine::Sqlite(sqlite) => sqlite.read(verb).await,
            Engine::Postgres(postgres) => postgres.run(true, verb).await,
        };
        self.counted.reads.note(begun.elapsed());
        self.counted(read)
    }

    fn counted<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        match &result {
            Err(Error::Away(_)) => drop(self.away.fetch_add(1, Ordering::Relaxed)),
            Err(Error::Fenced(_)) => drop(self.counted.fenced.fetch_add(1, Ordering::Relaxed)),
            Ok(_) | Err(_) => {}
        }
        result
    }

    /// Runs one transaction of an owner.
    async fn fenced_write<T: Send + 'static>(
        &self,
        by: Fence,
        verb: impl Fn(&mut dyn Sql, &Fence) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        self.write(move |sql| verb(sql, &by)).await
    }
}

#[cfg(test)]
mod tests;
