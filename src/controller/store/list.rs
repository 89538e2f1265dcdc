//! Lists of jobs, newest first, filtered and paged in the store; and all that is known of one job.
//!
//! A filter by time becomes a range of numbers by one look-up, since later jobs have higher numbers. The database plans
//! the rest by its statistics, which SQLite has to be asked for: [`Store::analyze`].

use std::collections::BTreeMap;

use super::error::Error;
use super::holders::Kept;
use super::jobs::{self, Terms};
use super::sql::{Dialect, Row, Sql, SqlValue, from_json, values};
use super::{Engine, Store};
use crate::controller::core::{
    Ending, GroupName, InstanceName, Job, JobId, JobKind, JobState, OutputEnd, Progress, Time,
};
use crate::os::answers::PAGE;

/// Which jobs a list shows. An empty filter shows all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobFilter {
    /// Any of these states.
    pub states: Vec<JobState>,
    /// Any of these kinds.
    pub kinds: Vec<JobKind>,
    /// The beginning of the name.
    pub name: Option<String>,
    /// The group it was placed through.
    pub group: Option<GroupName>,
    /// The instance that runs or ran it.
    pub node: Option<InstanceName>,
    /// All of these labels.
    pub labels: BTreeMap<String, String>,
    /// Created then or later.
    pub since: Option<Time>,
    /// Created then or earlier.
    pub until: Option<Time>,
    /// A lower number: the next page begins below the last job of this one.
    pub before: Option<JobId>,
    /// Without what came with a submission, the name aside, and why a job is in its state.
    pub brief: bool,
}

/// A job in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobRow {
    /// Its number.
    pub id: JobId,
    /// Chosen by the client.
    pub key: Option<String>,
    /// What it does.
    pub kind: JobKind,
    /// Shown to operators.
    pub name: String,
    /// Its state.
    pub state: JobState,
    /// −100 to 100; higher goes first.
    pub priority: i8,
    /// Its owner.
    pub controller_node: Option<InstanceName>,
    /// The instance of its latest attempt.
    pub execution_node: Option<InstanceName>,
    /// The group of its latest attempt.
    pub instance_group: Option<GroupName>,
    /// The number of its latest attempt; 0 if there is none.
    pub attempt: u32,
    /// Its impact.
    pub impact: u32,
    /// Hosts in its inventory, if the header says so.
    pub hosts: Option<u32>,
    /// Forks that the header requests.
    pub forks: u32,
    /// When it was submitted.
    pub created: Time,
    /// When its latest attempt was accepted.
    pub started: Option<Time>,
    /// When it ended.
    pub finished: Option<Time>,
    /// A cancel was requested.
    pub cancel_requested: bool,
    /// Why it is in its state, or what it waits for.
    pub explanation: String,
    /// Events so far.
    pub events: u64,
    /// The playbook's exit code.
    pub rc: Option<i32>,
    /// What it can be found by.
    pub labels: BTreeMap<String, String>,
    /// Who submitted it.
    pub launched_by: String,
    /// How it is placed and retried, and what it runs.
    pub terms: Terms,
}

/// One page of a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobPage {
    /// Newest first.
    pub jobs: Vec<JobRow>,
    /// What the next page asks for as `before`, if there may be one.
    pub next: Option<JobId>,
}

/// All that is known of one job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobDetail {
    /// As in lists.
    pub row: JobRow,
    /// The header as JSON.
    pub header: String,
    /// As the core knows it, with its attempts in order.
    pub job: Job,
    /// Jobs that must succeed first.
    pub depends_on: Vec<JobId>,
    /// Bytes of output so far.
    pub output_bytes: u64,
    /// The commit that was checked out.
    pub revision: Option<String>,
    /// Who holds its payload and its output: node, unit, and what it is.
    pub holders: Vec<(InstanceName, String, Kept)>,
    /// Those of them that have all of its output, as its latest attempt left it.
    pub complete: Vec<(InstanceName, String)>,
    /// Its owner has a copy, and says when it has all of it.
    pub owner_measures: bool,
    /// Its output is lost, with this control node.
    pub output_lost: Option<InstanceName>,
}

impl JobDetail {
    /// How the output of a job that has ended ends. `None` before that, and while its owner still has to say so.
    pub fn output_end(&self) -> Option<OutputEnd> {
        if !self.row.state.is_final() {
            return None;
        }
        let Some(last) = self.job.attempts.last() else { return Some(OutputEnd { bytes: 0, hash: None }) };
        // An owner without a unit has nothing to say. Where an attempt was lost, the owner has to close the output.
        let is_lost = matches!(last.progress, Progress::Lost | Progress::Over(Ending::Lost));
        let is_said = (last.swept && !is_lost) || !(self.owner_measures || last.has_unread_output());
        last.output.or(is_said.then_some(OutputEnd { bytes: self.output_bytes, hash: None }))
    }

    /// Whether a unit shows this job, and no other one that had its number before the store lost its last commits.
    pub fn is_shown_by(&self, node: &InstanceName, unit: &str) -> bool {
        self.holders.iter().any(|(holder, held, _)| holder == node && held == unit)
    }

    /// Whether a unit that has so many bytes of output has all of it, as far as is known without comparing them.
    pub fn is_whole(&self, node: &InstanceName, unit: &str, size: u64) -> bool {
        let is_noted = || self.complete.iter().any(|(holder, held)| holder == node && held == unit);
        self.output_end().is_some_and(|end| match end.hash {
            Some(_) => size == end.bytes && is_noted(),
            None => size >= end.bytes,
        })
    }
}

/// The most rows of one page, and those that are read at a time, after which it may end by its bytes.
pub const PAGE_MAX: u32 = 1000;
const ROWS_AT_ONCE: u32 = 50;
/// Bytes of a row's keys and numbers where it is shown.
const ROW: usize = 512;

/// As long as a transaction of PostgreSQL may take: within this time numbers may not follow the order of creation.
const SLACK_MS: i64 = 60_000;

const COLUMNS: &str = "job.id, job.key, job.kind, job.name, job.state, job.priority, job.controller_node, \
    job.execution_node, job.instance_group, job.attempt, job.impact, job.hosts, job.forks, job.created, \
    job.started, job.finished, job.cancel_requested, job.explanation, job.events, job.rc, job.labels, \
    job.launched_by, job.terms";

/// The same without texts that came with a submission or say why; the name is shown to everybody.
const BRIEF: &str = "job.id, NULL, job.kind, job.name, job.state, job.priority, job.controller_node, \
    job.execution_node, job.instance_group, job.attempt, job.impact, job.hosts, job.forks, job.created, \
    job.started, job.finished, job.cancel_requested, '', job.events, job.rc, '{}', '', ''";

impl Store {
    /// One page of jobs, newest first, at most `limit` and [`PAGE_MAX`] of them, and of [`PAGE`] bytes, about.
    pub async fn list(&self, filter: JobFilter, limit: u32) -> Result<JobPage, Error> {
        self.read(move |sql| page(sql, &filter, limit.clamp(1, PAGE_MAX))).await
    }

    /// Has SQLite count what it plans lists by. Writes wait for it, a second or two for 200,000 jobs. PostgreSQL counts by
    /// itself.
    pub async fn analyze(&self) -> Result<(), Error> {
        if let Engine::Sqlite(sqlite) = &*self.engine {
            self.write(|sql| sql.batch("ANALYZE job; ANALYZE label")).await?;
            sqlite.close_readers();
        }
        Ok(())
    }

    /// All that is known of one job.
    ///
    /// # Errors
    /// There is no such job.
    pub async fn detail(&self, id: JobId) -> Result<JobDetail, Error> {
        self.read(move |sql| detail(sql, id)).await
    }
}

/// Conditions and their parameters.
#[derive(Default)]
struct Conditions {
    texts: Vec<String>,
    values: Vec<SqlValue>,
}

impl Conditions {
    /// Adds a condition whose `?` is the value.
    fn add(&mut self, text: &str, value: impl Into<SqlValue>) {
        self.values.push(value.into());
        self.texts.push(text.replace('?', &format!("${}", self.values.len())));
    }

    /// Adds a choice among names of our own enums, in which nothing needs quoting.
    fn add_any(&mut self, column: &str, names: impl Iterator<Item = &'static str>) {
        let names: Vec<String> = names.map(|name| format!("'{name}'")).collect();
        if !names.is_empty() {
            self.texts.push(format!("{column} IN ({})", names.join(",")));
        }
    }
}

fn page(sql: &mut dyn Sql, filter: &JobFilter, limit: u32) -> Result<JobPage, Error> {
    let (mut rest, mut page, mut left, mut size) = (filter.clone(), JobPage::default(), limit, 0);
    // Labels are cut in the index, so jobs with other long ones are sorted out at the end.
    let has_labels =
        |row: &JobRow| filter.labels.iter().all(|(name, value)| row.labels.get(name) == Some(value));
    loop {
        let rows = left.min(ROWS_AT_ONCE);
        let found = rows_of(sql, &rest, rows)?;
        let is_end = found.len() < rows as usize;
        for mut row in found {
            size += ROW + row.text_bytes();
            let row = read(&mut row)?;
            (left, rest.before) = (left - 1, Some(row.id));
            page.jobs.extend(Some(row).filter(has_labels));
            if left == 0 || size >= PAGE {
                return Ok(JobPage { next: rest.before, ..page });
            }
        }
        if is_end {
            return Ok(page);
        }
    }
}

/// The first rows that a filter leaves.
fn rows_of(sql: &mut dyn Sql, filter: &JobFilter, limit: u32) -> Result<Vec<Row>, Error> {
    let mut all = time_range(sql, filter)?;
    all.add_any("job.state", filter.states.iter().map(|state| state.name()));
    all.add_any("job.kind", filter.kinds.iter().map(|kind| kind.name()));
    if let Some(name) = &filter.name {
        add_name(&mut all, sql.dialect(), name);
        let letters = name.chars().count();
        all.add(&format!("substr(job.name, 1, {letters}) = ?"), name.as_str());
    }
    if let Some(group) = &filter.group {
        all.add("job.instance_group = ?", group);
    }
    if let Some(node) = &filter.node {
        all.add("job.execution_node = ?", node);
    }
    if let Some(before) = filter.before {
        all.add("job.id < ?", before);
    }
    let (mut from, mut order) = ("job".to_owned(), "job.id");
    for (n, (name, value)) in filter.labels.iter().enumerate() {
        from.push_str(&format!(" JOIN label l{n} ON l{n}.job = job.id"));
        all.add(&format!("l{n}.word = ?"), label_word(name, value));
        // In this order an index of SQLite has the jobs with a label.
        order = "l0.job";
    }
    let conditions = if all.texts.is_empty() { "TRUE".into() } else { all.texts.join(" AND ") };
    let columns = if filter.brief && filter.labels.is_empty() { BRIEF } else { COLUMNS };
    let query = format!(
        "SELECT {columns} FROM job WHERE job.id IN \
         (SELECT job.id FROM {from} WHERE {conditions} ORDER BY {order} DESC LIMIT {limit}) \
         ORDER BY job.id DESC"
    );
    sql.query(&query, &all.values)
}

/// The range of the index of names in which all names with that beginning are.
fn add_name(all: &mut Conditions, dialect: Dialect, name: &str) {
    let key = dialect.name_key();
    let first: String = name.chars().take(64).collect();
    let last = format!("{first}{}", char::MAX);
    all.values.extend([SqlValue::from(first), SqlValue::from(last)]);
    let n = all.values.len();
    all.texts.push(format!("{key} BETWEEN ${} AND ${n}", n - 1));
}

/// The range of numbers that jobs of a time range have, and the exact times.
fn time_range(sql: &mut dyn Sql, filter: &JobFilter) -> Result<Conditions, Error> {
    let mut all = Conditions::default();
    let mut id_of = |query: &str, time: i64| {
        let row = sql.query(query, values![time])?.pop();
        row.map(|mut row| row.take::<JobId>()).transpose()
    };
    if let Some(Time(since)) = filter.since {
        let last_before = "SELECT id FROM job WHERE created < $1 ORDER BY created DESC LIMIT 1";
        if let Some(id) = id_of(last_before, since.saturating_sub(SLACK_MS))? {
            all.add("job.id > ?", id);
        }
        all.add("job.created >= ?", since);
    }
    if let Some(Time(until)) = filter.until {
        let first_after = "SELECT id FROM job WHERE created > $1 ORDER BY created LIMIT 1";
        if let Some(id) = id_of(first_after, until.saturating_add(SLACK_MS))? {
            all.add("job.id < ?", id);
        }
        all.add("job.created <= ?", until);
    }
    Ok(all)
}

/// A label as the index has it: cut, because an entry of an index has a size limit.
pub(super) fn label_word(name: &str, value: &str) -> String {
    const LONGEST: usize = 200;
    format!("{name}={value}").chars().take(LONGEST).collect()
}

fn read(row: &mut Row) -> Result<JobRow, Error> {
    Ok(JobRow {
        id: row.take()?,
        key: row.take()?,
        kind: row.take()?,
        name: row.take()?,
        state: row.take()?,
        priority: row.take()?,
        controller_node: row.take()?,
        execution_node: row.take()?,
        instance_group: row.take()?,
        attempt: row.take()?,
        impact: row.take()?,
        hosts: row.take()?,
        forks: row.take()?,
        created: row.take()?,
        started: row.take()?,
        finished: row.take()?,
        cancel_requested: row.take()?,
        explanation: row.take()?,
        events: row.take()?,
        rc: row.take()?,
        labels: from_json(&row.take::<String>()?)?,
        launched_by: row.take()?,
        terms: match row.take::<String>()?.as_str() {
            "" => Terms::default(),
            terms => from_json(terms)?,
        },
    })
}

pub(super) fn detail(sql: &mut dyn Sql, id: JobId) -> Result<JobDetail, Error> {
    let query =
        format!("SELECT {COLUMNS}, header, output_bytes, revision, output_lost FROM job WHERE id = $1");
    let mut found = sql.query(&query, values![id])?.pop().ok_or(Error::NoJob(id))?;
    let (row, header, output_bytes) = (read(&mut found)?, found.take()?, found.take()?);
    let (revision, output_lost) = (found.take()?, found.take()?);
    let loaded = jobs::load(sql, "job.id = $1", values![id], false)?.pop().ok_or(Error::NoJob(id))?;
    let depends_on = sql.query("SELECT needs FROM dep WHERE job = $1 ORDER BY needs", values![id])?;
    let query =
        "SELECT node, unit, has, complete, attempt FROM holder WHERE job = $1 ORDER BY node, unit, has";
    let (mut holders, mut complete, mut owner_measures) = (Vec::new(), Vec::new(), false);
    for mut held in sql.query(query, values![id])? {
        let (node, unit, kept): (InstanceName, String, Kept) = (held.take()?, held.take()?, held.take()?);
        let (is_complete, attempt): (bool, Option<i64>) = (held.take()?, held.take()?);
        if is_complete && attempt == Some(i64::from(row.attempt)) {
            complete.push((node.clone(), unit.clone()));
        }
        owner_measures |= kept == Kept::Output && Some(&node) == row.controller_node.as_ref();
        holders.push((node, unit, kept));
    }
    Ok(JobDetail {
        row,
        header,
        job: loaded.job,
        depends_on: depends_on.into_iter().map(|mut row| row.take()).collect::<Result<_, _>>()?,
        output_bytes,
        revision,
        holders,
        complete,
        owner_measures,
        output_lost,
    })
}
