//! Copies a store into another one, of either kind. The copy is made in parts, so that no transaction is open for long.
//! Until the last part is there, a mark keeps control nodes away, and another try begins anew.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::error::Error;
use super::leases::HELD;
use super::sql::{Dialect, Row, Sql, SqlValue, values};
use super::{Options, Store, ended, schema, sqlite_files};
use crate::controller::core::InstanceName;

/// Large tables, in the order in which their rows can be inserted, each with the column that divides it into parts. The
/// number says how many rows of the group's first table a part has.
const LARGE: [(usize, &[(&str, &str)]); 2] = [
    (
        50,
        &[
            ("job", "id"),
            ("attempt", "job"),
            ("holder", "job"),
            ("dep", "job"),
            ("lock", "job"),
            ("label", "job"),
            ("stat", "job"),
        ],
    ),
    (500, &[("audit", "id")]),
];
const SMALL: [&str; 7] = ["instance", "seen", "grp", "member", "project", "lease", "document"];
/// Tables whose numbers the database assigns. No number is used again, because units on other nodes are named by them.
const NUMBERED: [&str; 3] = ["job", "instance", "audit"];
/// The keys of `meta` that are copied.
const SETTINGS: [&str; 4] = ["install_id", "paused", "clock", ended::LAST];
/// The key in `meta` of a copy that has not ended.
const UNFINISHED: &str = "unfinished_copy";
/// The most rows of one statement.
const ROWS: usize = 100;
/// How often leases are looked at.
const LEASES_EVERY: Duration = Duration::from_secs(1);

/// Copies the store `from` into the empty store `to`. Returns how many jobs it has.
///
/// # Errors
/// A control node has one of them open, `to` has jobs, or one of them cannot be read or written.
pub async fn copy_store(from: &Options, to: &Options) -> Result<u64, Error> {
    let at = |options: &Options| match options {
        Options::Sqlite(path) => path.canonicalize().ok(),
        Options::Postgres(_) => None,
    };
    if from == to || at(from).is_some_and(|from| Some(from) == at(to)) {
        return Err(Error::Conflict("it is this store".to_owned()));
    }
    let who = InstanceName::from("a copy");
    if let Options::Sqlite(path) = to {
        sqlite_files::make_store_directory(path)?;
    }
    let own = |error| Error::Conflict(format!("the node's own store: {error}"));
    let source = Store::open(from, &who).await.map_err(own)?;
    let target = Store::open_with(to, &who, schema::STEPS).await?;
    if source.install_id().await? == target.install_id().await? {
        let text =
            "it is this store or an earlier copy of it, but a store can only be copied into an empty one";
        return Err(Error::Conflict(text.to_owned()));
    }
    tokio::try_join!(source.is_unused(), target.is_unused())?;
    target.write(empty).await?;
    for (step, tables) in LARGE {
        let mut last = 0i64;
        while let Some((end, part)) = source.read(move |sql| part(sql, step, tables, last)).await? {
            target.write(move |sql| insert(sql, &part)).await?;
            last = end;
        }
    }
    let rest = source.read(rest).await?;
    target.write(move |sql| finish(sql, &rest)).await?;
    let jobs: i64 = target.read(|sql| sql.query("SELECT count(*) FROM job", &[])?.remove(0).take()).await?;
    // All its files are there once it is closed.
    drop(target);
    if let Options::Sqlite(path) = to {
        sqlite_files::give_store_to_owner(path)?;
    }
    Ok(jobs.unsigned_abs())
}

/// Checks that a store is no unfinished copy.
pub(super) fn check(sql: &mut dyn Sql) -> Result<(), Error> {
    let is_whole = schema::get(sql, UNFINISHED)?.is_none();
    let text = "a copy into this store was not finished: repeat `meshctl controller copy`";
    if is_whole { Ok(()) } else { Err(Error::Settings(text.to_owned())) }
}

impl Store {
    /// Checks that no control node uses the store. A control node that runs renews its lease while the longest lease
    /// lasts, so this waits that long; one that has stopped leaves its lease as it is.
    async fn is_unused(&self) -> Result<(), Error> {
        let query = format!("SELECT node, epoch, beat, lasts FROM lease WHERE {HELD} ORDER BY node");
        let held = move |sql: &mut dyn Sql| -> Result<Vec<(String, i64, i64, u64)>, Error> {
            let read = |mut row: Row| Ok((row.take()?, row.take()?, row.take()?, row.take()?));
            sql.query(&query, &[])?.into_iter().map(read).collect()
        };
        let (before, begun) = (self.read(held.clone()).await?, Instant::now());
        let lasts = before.iter().map(|(_, _, _, lasts)| Duration::from_millis(*lasts)).max();
        // No wait is needed for SQLite, because its file is locked.
        while self.is_shared() && begun.elapsed() < lasts.unwrap_or_default() {
            sleep(LEASES_EVERY).await;
            let now = self.read(held.clone()).await?;
            if let Some((node, ..)) = now.iter().find(|lease| !before.contains(lease)) {
                let text = format!("the control node {node} uses this store: stop it first");
                return Err(Error::Conflict(text));
            }
        }
        Ok(())
    }
}

/// Tables with some of their rows.
type Part = Vec<(&'static str, Vec<Vec<SqlValue>>)>;

/// The next part after the number `last`, and the number with which the part ends.
fn part(
    sql: &mut dyn Sql,
    step: usize,
    tables: &'static [(&'static str, &'static str)],
    last: i64,
) -> Result<Option<(i64, Part)>, Error> {
    let (first, key) = tables[0];
    let ids = format!("SELECT {key} FROM {first} WHERE {key} > $1 ORDER BY {key} LIMIT {step}");
    let Some(mut row) = sql.query(&ids, values![last])?.pop() else { return Ok(None) };
    let end: i64 = row.take()?;
    let rows_of = |(table, key): &(&'static str, _)| {
        rows(sql, table, &format!("WHERE {key} > $1 AND {key} <= $2"), values![last, end])
    };
    Ok(Some((end, tables.iter().map(rows_of).collect::<Result<_, _>>()?)))
}

fn rows(
    sql: &mut dyn Sql,
    table: &'static str,
    which: &str,
    values: &[SqlValue],
) -> Result<(&'static str, Vec<Vec<SqlValue>>), Error> {
    let found = sql.query(&format!("SELECT * FROM {table} {which}"), values)?;
    Ok((table, found.into_iter().map(Row::into_values).collect()))
}

/// Inserts rows without naming columns: the same steps have made both stores, so they have the same columns.
fn insert(sql: &mut dyn Sql, part: &Part) -> Result<(), Error> {
    for (table, rows) in part {
        for rows in rows.chunks(ROWS) {
            let mut values = Vec::new();
            let mut mark = |value: &SqlValue| match value {
                // SQLite does not tell the type of a null.
                SqlValue::Int(None) | SqlValue::Text(None) => "NULL".to_owned(),
                SqlValue::Int(Some(_)) | SqlValue::Text(Some(_)) => {
                    values.push(value.clone());
                    format!("${}", values.len())
                }
            };
            let mut tuple = |row: &Vec<SqlValue>| row.iter().map(&mut mark).collect::<Vec<_>>().join(",");
            let tuples: Vec<String> = rows.iter().map(&mut tuple).collect();
            sql.execute(&format!("INSERT INTO {table} VALUES ({})", tuples.join("),(")), &values)?;
        }
    }
    Ok(())
}

/// Empties a store that has no jobs, or only those of an unfinished copy.
fn empty(sql: &mut dyn Sql) -> Result<(), Error> {
    let jobs: i64 = sql.query("SELECT count(*) FROM job", &[])?.remove(0).take()?;
    if jobs > 0 && schema::get(sql, UNFINISHED)?.is_none() {
        return Err(Error::Conflict(format!(
            "it has {jobs} jobs: a store can only be copied into an empty one"
        )));
    }
    schema::set(sql, UNFINISHED, "")?;
    // Rows that refer to jobs are deleted with them.
    let mut tables = SMALL.into_iter().chain(["job", "audit"]);
    tables.try_for_each(|table| sql.execute(&format!("DELETE FROM {table}"), &[]).map(drop))
}

/// Small tables, last numbers and settings.
type Remainder = (Part, Vec<(&'static str, i64)>, Vec<(&'static str, Option<String>)>);

fn rest(sql: &mut dyn Sql) -> Result<Remainder, Error> {
    let small = SMALL.into_iter().map(|table| rows(sql, table, "", &[])).collect::<Result<_, _>>()?;
    let mut numbers = Vec::new();
    for table in NUMBERED {
        let query = match sql.dialect() {
            Dialect::Sqlite => format!("SELECT max(seq) FROM sqlite_sequence WHERE name = '{table}'"),
            Dialect::Postgres => format!("SELECT last_value FROM {table}_id_seq"),
        };
        numbers.push((table, sql.query(&query, &[])?.remove(0).take::<Option<i64>>()?.unwrap_or(1)));
    }
    let settings = SETTINGS.into_iter().map(|key| Ok((key, schema::get(sql, key)?)));
    Ok((small, numbers, settings.collect::<Result<_, Error>>()?))
}

/// Inserts the rest and removes the mark: now the store is whole.
fn finish(sql: &mut dyn Sql, (small, numbers, settings): &Remainder) -> Result<(), Error> {
    insert(sql, small)?;
    for (table, number) in numbers {
        match sql.dialect() {
            Dialect::Sqlite => {
                sql.execute("DELETE FROM sqlite_sequence WHERE name = $1", values![*table])?;
                let set = "INSERT INTO sqlite_sequence (name, seq) VALUES ($1, $2)";
                sql.execute(set, values![*table, *number])?;
            }
            Dialect::Postgres => {
                sql.query(&format!("SELECT setval('{table}_id_seq', $1)"), values![*number])?;
            }
        }
    }
    for (key, value) in settings {
        value.iter().try_for_each(|value| schema::set(sql, key, value))?;
    }
    sql.execute("DELETE FROM meta WHERE key = $1", values![UNFINISHED]).map(drop)
}
