//! The tables, and the steps that bring an older store up to date.
//!
//! Steps go forward by number and only add. Each names the oldest program that still understands the result, so that
//! control nodes can be upgraded one at a time. `meta` holds both numbers, as `schema` and `min_reader`.

use super::error::Error;
use super::sql::{Dialect, Sql, insert, values};
use crate::controller::core::Group;
use crate::controller::store::{documents, ended, groups, turn};

/// One step forward.
#[derive(Clone, Copy)]
pub(super) struct Step {
    /// The oldest program that may use the store after this step, by the number of the newest step that it knows.
    pub(super) min_reader: i64,
    /// The statements.
    pub(super) apply: fn(&mut dyn Sql) -> Result<(), Error>,
}

/// As the server numbers its versions.
const OLDEST_POSTGRES: i64 = 130_000;

/// All steps; the first one makes schema 1.
pub(super) const STEPS: &[Step] = &[
    Step { min_reader: 1, apply: create },
    // 0.1.0 may still use the store: it ignores these columns, and never sends a unit again that has an ID of its
    // node's own.
    Step { min_reader: 1, apply: add_far_units },
    Step { min_reader: 1, apply: |sql| sql.batch(documents::TABLE) },
    Step { min_reader: 1, apply: |sql| sql.batch("ALTER TABLE job ADD COLUMN failure TEXT") },
    Step { min_reader: 1, apply: |sql| sql.batch(ended::TABLE) },
];

/// Brings the store up to date, one program at a time. A store that is up to date is only read, so that no right to
/// change tables is needed.
///
/// # Errors
/// The store demands a newer program.
pub(super) fn migrate(sql: &mut dyn Sql, steps: &[Step]) -> Result<(), Error> {
    let has_meta = match sql.dialect() {
        Dialect::Sqlite => false,
        Dialect::Postgres => prepare_postgres(sql)?,
    };
    if !has_meta {
        // A second program waits here for the end of the first one's transaction.
        sql.batch("CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)")?;
    }
    let wait = sql.dialect().lock_row();
    sql.query(&format!("SELECT 1 FROM meta WHERE key = 'schema'{wait}"), &[])?;
    let program = steps.len() as i64;
    let schema = number(sql, "schema")?;
    check_reader(sql, program)?;
    if schema >= program {
        return Ok(());
    }
    for step in steps.iter().skip(usize::try_from(schema).unwrap_or(0)) {
        (step.apply)(sql)?;
        set(sql, "min_reader", &step.min_reader.to_string())?;
    }
    set(sql, "schema", &program.to_string())
}

/// Checks the server's version, and creates the schema unless an administrator did. Returns whether `meta` is there.
fn prepare_postgres(sql: &mut dyn Sql) -> Result<bool, Error> {
    let version = "SELECT current_setting('server_version_num')::bigint";
    let version: i64 = sql.query(version, &[])?.remove(0).take()?;
    if version < OLDEST_POSTGRES {
        return Err(Error::Settings(format!("PostgreSQL 13 or newer is needed, the server is {version}")));
    }
    let found = sql.query("SELECT 1::bigint FROM pg_namespace WHERE nspname = 'meshd'", &[])?;
    if found.is_empty() {
        sql.batch("CREATE SCHEMA IF NOT EXISTS meshd")?;
    }
    let meta = "SELECT 1::bigint FROM pg_class WHERE oid = to_regclass('meshd.meta')";
    Ok(!sql.query(meta, &[])?.is_empty())
}

/// Checks that this program understands a store, for instance a backup.
///
/// # Errors
/// It is no store, or it demands a newer program.
pub(super) fn check(sql: &mut dyn Sql) -> Result<(), Error> {
    match number(sql, "schema")? {
        0 => Err(Error::Corrupt("it is not a controller's store".into())),
        _ => check_reader(sql, STEPS.len() as i64),
    }
}

fn check_reader(sql: &mut dyn Sql, program: i64) -> Result<(), Error> {
    let min_reader = number(sql, "min_reader")?;
    if min_reader > program { Err(Error::TooOld { program, min_reader }) } else { Ok(()) }
}

/// A value of `meta`.
pub(super) fn get(sql: &mut dyn Sql, key: &str) -> Result<Option<String>, Error> {
    let rows = sql.query("SELECT value FROM meta WHERE key = $1", values![key])?;
    rows.into_iter().next().map(|mut row| row.take()).transpose()
}

/// Sets a value of `meta`.
pub(super) fn set(sql: &mut dyn Sql, key: &str, value: &str) -> Result<(), Error> {
    sql.execute(
        "INSERT INTO meta (key, value) VALUES ($1, $2) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        values![key, value],
    )?;
    Ok(())
}

fn number(sql: &mut dyn Sql, key: &str) -> Result<i64, Error> {
    let Some(text) = get(sql, key)? else { return Ok(0) };
    text.parse().map_err(|_| Error::Corrupt(format!("{key} in meta is {text}")))
}

fn create(sql: &mut dyn Sql) -> Result<(), Error> {
    let dialect = sql.dialect();
    sql.batch(&TABLES.replace("SERIAL", dialect.serial()))?;
    sql.batch(match dialect {
        Dialect::Sqlite => SQLITE_INDEXES,
        Dialect::Postgres => POSTGRES_INDEXES,
    })?;
    set(sql, "install_id", &format!("{:032x}", rand::random::<u128>()))?;
    set(sql, "paused", "0")?;
    for row in turn::ROWS {
        set(sql, row, "")?;
    }
    let reserved = Group::reserved().into_iter().enumerate();
    let rows = reserved.map(|(at, group)| groups::row(&group.into(), at as u64)).collect();
    insert(sql, groups::INTO, rows, "")
}

fn add_far_units(sql: &mut dyn Sql) -> Result<(), Error> {
    sql.batch(
        "ALTER TABLE attempt ADD COLUMN far_unit TEXT;
         ALTER TABLE attempt ADD COLUMN sent_epoch BIGINT",
    )
}

/// Truth values are 0 and 1, times milliseconds since 1970, UTC; lists and maps are JSON.
const TABLES: &str = "
CREATE TABLE instance (
    id SERIAL, name TEXT NOT NULL UNIQUE, node_type TEXT NOT NULL, node_state TEXT NOT NULL,
    enabled BIGINT NOT NULL, managed_by_policy BIGINT NOT NULL, draining BIGINT NOT NULL,
    capacity_adjustment BIGINT NOT NULL, cpu_capacity BIGINT NOT NULL, mem_capacity BIGINT NOT NULL,
    cpu BIGINT NOT NULL, memory BIGINT NOT NULL, offer TEXT NOT NULL, signs BIGINT NOT NULL, uuid TEXT,
    version TEXT, errors TEXT NOT NULL, health_due BIGINT, health_failures BIGINT NOT NULL,
    last_health_check BIGINT, created BIGINT NOT NULL
);
CREATE TABLE seen (
    instance TEXT NOT NULL, observer TEXT NOT NULL, routed BIGINT NOT NULL, beat BIGINT NOT NULL,
    at BIGINT NOT NULL,
    PRIMARY KEY (instance, observer)
);
CREATE TABLE grp (
    name TEXT PRIMARY KEY, position BIGINT NOT NULL, is_container_group BIGINT NOT NULL,
    policy_instance_percentage BIGINT NOT NULL, policy_instance_minimum BIGINT NOT NULL,
    policy_instance_list TEXT NOT NULL, max_concurrent_jobs BIGINT NOT NULL, max_forks BIGINT NOT NULL,
    cluster TEXT, namespace TEXT, pod_spec_override TEXT, registry TEXT
);
CREATE TABLE member (
    grp TEXT NOT NULL, instance TEXT NOT NULL, origin TEXT NOT NULL,
    PRIMARY KEY (grp, instance)
);
CREATE TABLE job (
    id SERIAL, key TEXT UNIQUE, kind TEXT NOT NULL, class TEXT NOT NULL, name TEXT NOT NULL,
    state TEXT NOT NULL, priority BIGINT NOT NULL, header TEXT NOT NULL, terms TEXT NOT NULL,
    labels TEXT NOT NULL, impact BIGINT NOT NULL, hosts BIGINT, forks BIGINT NOT NULL,
    launched_by TEXT NOT NULL, controller_node TEXT, execution_node TEXT, instance_group TEXT,
    attempt BIGINT NOT NULL, epoch BIGINT NOT NULL, cancel_requested BIGINT NOT NULL,
    explanation TEXT NOT NULL, quota TEXT, rc BIGINT, events BIGINT NOT NULL, output_bytes BIGINT NOT NULL,
    recap TEXT, output_lost TEXT, revision TEXT, created BIGINT NOT NULL, pending_since BIGINT NOT NULL, placed BIGINT, started BIGINT,
    finished BIGINT
);
CREATE TABLE attempt (
    job BIGINT NOT NULL REFERENCES job (id) ON DELETE CASCADE, n BIGINT NOT NULL, unit TEXT NOT NULL UNIQUE,
    sender TEXT NOT NULL, node TEXT, grp TEXT NOT NULL, work_type TEXT NOT NULL, placed BIGINT NOT NULL,
    started BIGINT, ended BIGINT, outcome TEXT, confirmed BIGINT NOT NULL, swept BIGINT NOT NULL,
    sent BIGINT NOT NULL, output_end BIGINT, output_hash TEXT, released_by TEXT,
    PRIMARY KEY (job, n)
);
CREATE TABLE holder (
    job BIGINT NOT NULL REFERENCES job (id) ON DELETE CASCADE, node TEXT NOT NULL, unit TEXT NOT NULL,
    has TEXT NOT NULL, complete BIGINT NOT NULL, attempt BIGINT,
    PRIMARY KEY (job, node, unit, has)
);
CREATE TABLE dep (
    job BIGINT NOT NULL REFERENCES job (id) ON DELETE CASCADE, needs BIGINT NOT NULL,
    PRIMARY KEY (job, needs)
);
CREATE TABLE lock (
    word TEXT NOT NULL, job BIGINT NOT NULL REFERENCES job (id) ON DELETE CASCADE,
    PRIMARY KEY (job, word)
);
CREATE TABLE label (
    word TEXT NOT NULL, job BIGINT NOT NULL REFERENCES job (id) ON DELETE CASCADE,
    PRIMARY KEY (word, job)
);
CREATE TABLE stat (
    job BIGINT NOT NULL REFERENCES job (id) ON DELETE CASCADE, host TEXT NOT NULL, ok BIGINT NOT NULL,
    changed BIGINT NOT NULL, failures BIGINT NOT NULL, dark BIGINT NOT NULL, skipped BIGINT NOT NULL,
    rescued BIGINT NOT NULL, ignored BIGINT NOT NULL,
    PRIMARY KEY (job, host)
);
CREATE TABLE project (
    url TEXT NOT NULL, node TEXT NOT NULL, \"commit\" TEXT NOT NULL, synced BIGINT NOT NULL,
    status TEXT NOT NULL,
    PRIMARY KEY (url, node)
);
CREATE TABLE lease (
    node TEXT PRIMARY KEY, epoch BIGINT NOT NULL, beat BIGINT NOT NULL, lasts BIGINT NOT NULL
);
CREATE TABLE audit (
    id SERIAL, at BIGINT NOT NULL, who TEXT NOT NULL, op TEXT NOT NULL, target TEXT NOT NULL
);
CREATE INDEX job_state ON job (state, id);
CREATE INDEX job_kind ON job (kind, id);
CREATE INDEX job_group ON job (instance_group, id);
CREATE INDEX job_node ON job (execution_node, id);
CREATE INDEX job_created ON job (created);
CREATE INDEX job_finished ON job (finished);
CREATE INDEX audit_at ON audit (at);
CREATE INDEX attempt_unswept ON attempt (job) WHERE swept = 0;
CREATE INDEX holder_unit ON holder (node, unit);
CREATE INDEX label_job ON label (job);
CREATE INDEX dep_needs ON dep (needs);
";

/// `job_facets` has all columns that lists of jobs are filtered by. A scan of it is fast; a scan of the rows is not,
/// because they carry headers.
const SQLITE_INDEXES: &str = "
CREATE INDEX job_facets ON job (id, created, state, kind, instance_group, execution_node, name);
CREATE INDEX job_name ON job (substr(name, 1, 64));
";

const POSTGRES_INDEXES: &str = "
CREATE INDEX job_name ON job ((substr(name, 1, 64) COLLATE \"C\"));
";
