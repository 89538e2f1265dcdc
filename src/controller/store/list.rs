//! Lists of jobs, newest first, filtered and paged in the store; and all that is known of one job.
//!
//! Later jobs have higher numbers, so one look-up turns a filter by time into a range of numbers. The database plans
//! the rest by its statistics, which SQLite gathers only when asked: [`Store::analyze`].

use std::collections::BTreeMap;

use super::error::Error;
use super::holders::Kept;
use super::jobs::{self, Terms};
use super::sql::{Dialect, Row, Sql, SqlValue, from_json, values};
use super::{Engine, Store};
use crate::controller::core::{
    Ending, GroupName, InstanceName, Job, JobId, JobKind, JobState, OutputEnd, Progress, Time,
};
use crate::controller::header::Header;
use crate::controller::stream::FailureReport;
use crate::os::answers::PAGE;

/// Which jobs a list shows. An empty filter shows all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobSelection {
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
    /// Stands in the name, or unless the list is brief in the playbook, the module, the limit, a label, a host or the
    /// explanation. Capital letters of ASCII count as small ones.
    pub search: Option<String>,
    /// Created then or later.
    pub since: Option<Time>,
    /// Created then or earlier.
    pub until: Option<Time>,
    /// Only lower numbers: the next page begins below the last job of this one.
    pub before: Option<JobId>,
    /// Leaves out the texts that came with the submission, except the name, and why a job is in its state.
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
    /// Labels to find it by.
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
    /// The next page's `before`, if there may be a next page.
    pub next: Option<JobId>,
}

/// How many jobs there are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobNumbers {
    /// By state; states without jobs are left out.
    pub states: BTreeMap<JobState, u64>,
    /// The lowest number, with the time of its submission.
    pub oldest: Option<(JobId, Time)>,
}

/// All that is known of one job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobRecord {
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
    /// Who holds its payload and its output: node, unit, and which of the two.
    pub holders: Vec<(InstanceName, String, Kept)>,
    /// The holders that have all of its output, as its latest attempt left it.
    pub complete: Vec<(InstanceName, String)>,
    /// Its owner keeps its output, and reports when it has all of it.
    pub owner_measures: bool,
    /// The control node with which its output was lost.
    pub output_lost: Option<InstanceName>,
    /// What went wrong in its playbook.
    pub failure: Option<FailureReport>,
}

impl JobRecord {
    /// The header.
    ///
    /// # Errors
    /// No program of ours wrote it.
    pub fn parsed_header(&self) -> Result<Header, Error> {
        let id = self.row.id;
        Header::parse(self.header.as_bytes())
            .map_err(|error| Error::Corrupt(format!("header of job {id}: {error}")))
    }

    /// The end of the output of a job that has ended. `None` before that, and until its owner has reported it.
    pub fn output_end(&self) -> Option<OutputEnd> {
        if !self.row.state.is_final() {
            return None;
        }
        let Some(last) = self.job.attempts.last() else { return Some(OutputEnd { bytes: 0, hash: None }) };
        // An owner that keeps no output has nothing to report. After a lost attempt the owner still has to close the
        // output.
        let is_lost = matches!(last.progress, Progress::Lost | Progress::Over(Ending::Lost));
        let is_said = (last.swept && !is_lost) || !(self.owner_measures || last.has_unread_output());
        last.output.or(is_said.then_some(OutputEnd { bytes: self.output_bytes, hash: None }))
    }

    /// Whether a unit belongs to this job, and not to another one that had its number before the store lost its last
    /// commits.
    pub fn is_shown_by(&self, node: &InstanceName, unit: &str) -> bool {
        self.holders.iter().any(|(holder, held, _)| holder == node && held == unit)
    }

    /// Whether a unit with `size` bytes of output has all of it, as far as is known without comparing bytes.
    pub fn is_whole(&self, node: &InstanceName, unit: &str, size: u64) -> bool {
        let is_noted = || self.complete.iter().any(|(holder, held)| holder == node && held == unit);
        self.output_end().is_some_and(|end| match end.hash {
            Some(_) => size == end.bytes && is_noted(),
            None => size >= end.bytes,
        })
    }
}

/// The most rows of one page, and how many are read at a time. The bytes of a page may end it earlier.
pub const PAGE_MAX: u32 = 1000;
const ROWS_AT_ONCE: u32 = 50;
/// How many numbers of jobs a search looks at, since no index has their texts: the next page goes on below these.
const SEARCHED: i64 = 5000;
/// Roughly the bytes that a row's keys and numbers take where it is shown.
const ROW: usize = 512;

/// How long a transaction of PostgreSQL may take: within this time numbers may not follow the order of creation.
const SLACK_MS: i64 = 60_000;

pub(super) const COLUMNS: &str = "job.id, job.key, job.kind, job.name, job.state, job.priority, job.controller_node, \
    job.execution_node, job.instance_group, job.attempt, job.impact, job.hosts, job.forks, job.created, \
    job.started, job.finished, job.cancel_requested, job.explanation, job.events, job.rc, job.labels, \
    job.launched_by, job.terms";

/// The same columns without the explanation and the texts that came with the submission, except the name.
const BRIEF: &str = "job.id, NULL, job.kind, job.name, job.state, job.priority, job.controller_node, \
    job.execution_node, job.instance_group, job.attempt, job.impact, job.hosts, job.forks, job.created, \
    job.started, job.finished, job.cancel_requested, '', job.events, job.rc, '{}', '', ''";

impl Store {
    /// One page of jobs, newest first: at most `limit` and [`PAGE_MAX`] of them, and about [`PAGE`] bytes.
    pub async fn list(&self, filter: JobSelection, limit: u32) -> Result<JobPage, Error> {
        self.read(move |sql| page(sql, &filter, limit.clamp(1, PAGE_MAX))).await
    }

    /// How many jobs of each state a list has. A search counts among the jobs of its first page alone.
    pub async fn count_jobs(&self, filter: JobSelection) -> Result<JobNumbers, Error> {
        self.read(move |sql| count(sql, &filter)).await
    }

    /// Makes SQLite gather the statistics that it plans lists by. Writes wait for that, a second or two for 200,000
    /// jobs. PostgreSQL gathers its own.
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
    pub async fn detail(&self, id: JobId) -> Result<JobRecord, Error> {
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

    fn text(&self) -> String {
        if self.texts.is_empty() { "TRUE".to_owned() } else { self.texts.join(" AND ") }
    }

    /// Adds a choice among names of our own enums, which need no quoting.
    fn add_any(&mut self, column: &str, names: impl Iterator<Item = &'static str>) {
        let names: Vec<String> = names.map(|name| format!("'{name}'")).collect();
        if !names.is_empty() {
            self.texts.push(format!("{column} IN ({})", names.join(",")));
        }
    }
}

fn page(sql: &mut dyn Sql, filter: &JobSelection, limit: u32) -> Result<JobPage, Error> {
    let (mut rest, mut page, mut left, mut size) = (filter.clone(), JobPage::default(), limit, 0);
    let searched = searched(sql, filter)?;
    // The index has cut labels, so jobs whose long labels differ after the cut are left out here.
    let has_labels =
        |row: &JobRow| filter.labels.iter().all(|(name, value)| row.labels.get(name) == Some(value));
    loop {
        let rows = left.min(ROWS_AT_ONCE);
        let found = rows_of(sql, &rest, searched, rows)?;
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
            return Ok(JobPage { next: searched, ..page });
        }
    }
}

/// The number down to which a page is searched; none without a search, or where nothing is left below.
fn searched(sql: &mut dyn Sql, filter: &JobSelection) -> Result<Option<JobId>, Error> {
    if filter.search.is_none() {
        return Ok(None);
    }
    let before = filter.before.map_or(i64::MAX, |before| before.0);
    let at = "SELECT id FROM job WHERE id < $1 ORDER BY id DESC LIMIT 1";
    let Some(mut newest) = sql.query(at, values![before])?.pop() else { return Ok(None) };
    let last = JobId(newest.take::<JobId>()?.0.saturating_sub(SEARCHED - 1));
    Ok(sql.query(at, values![last])?.pop().map(|_| last))
}

fn count(sql: &mut dyn Sql, filter: &JobSelection) -> Result<JobNumbers, Error> {
    let searched = searched(sql, filter)?;
    let (from, conditions, _) = conditions(sql, filter, searched)?;
    let query = format!(
        "SELECT job.state, count(*), min(job.id) FROM {from} WHERE {} GROUP BY job.state",
        conditions.text()
    );
    let mut numbers = JobNumbers::default();
    let mut oldest = None::<JobId>;
    for mut row in sql.query(&query, &conditions.values)? {
        let (state, number, first): (JobState, i64, JobId) = (row.take()?, row.take()?, row.take()?);
        numbers.states.insert(state, number.cast_unsigned());
        oldest = Some(oldest.map_or(first, |oldest| oldest.min(first)));
    }
    if let Some(id) = oldest {
        let created = sql.query("SELECT created FROM job WHERE id = $1", values![id])?.pop();
        numbers.oldest = created.map(|mut row| Ok::<_, Error>((id, row.take()?))).transpose()?;
    }
    Ok(numbers)
}

/// The first rows that match a filter.
fn rows_of(
    sql: &mut dyn Sql,
    filter: &JobSelection,
    searched: Option<JobId>,
    limit: u32,
) -> Result<Vec<Row>, Error> {
    let (from, conditions, order) = conditions(sql, filter, searched)?;
    let columns = if filter.brief && filter.labels.is_empty() { BRIEF } else { COLUMNS };
    let query = format!(
        "SELECT {columns} FROM job WHERE job.id IN \
         (SELECT job.id FROM {from} WHERE {} ORDER BY {order} DESC LIMIT {limit}) \
         ORDER BY job.id DESC",
        conditions.text()
    );
    sql.query(&query, &conditions.values)
}

/// The tables that a filter needs, its conditions, and what has its jobs in their order.
fn conditions(
    sql: &mut dyn Sql,
    filter: &JobSelection,
    searched: Option<JobId>,
) -> Result<(String, Conditions, &'static str), Error> {
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
        // An index of SQLite has the jobs with a label in this order.
        order = "l0.job";
    }
    if let Some(search) = &filter.search {
        add_search(&mut all, sql.dialect(), search, filter.brief);
    }
    if let Some(searched) = searched {
        all.add("job.id >= ?", searched);
    }
    Ok((from, all, order))
}

/// Adds that a text stands in one of those of a job.
fn add_search(all: &mut Conditions, dialect: Dialect, search: &str, is_brief: bool) {
    all.values.push(search.to_ascii_lowercase().into());
    let word = format!("${}", all.values.len());
    let has = |text: &str| dialect.contains(text, &word);
    let mut ways = vec![has("job.name")];
    if !is_brief {
        ways.push(has("job.explanation"));
        ways.extend(
            ["playbook", "module", "limit"].map(|key| has(&dialect.in_json("job.terms", ["run", key]))),
        );
        let rows = [("label", "word"), ("stat", "host")];
        ways.extend(rows.map(|(table, column)| {
            let has = has(&format!("{table}.{column}"));
            format!("EXISTS (SELECT 1 FROM {table} WHERE {table}.job = job.id AND {has})")
        }));
    }
    all.texts.push(format!("({})", ways.join(" OR ")));
}

/// Adds the range of the index of names that has all names with that beginning.
fn add_name(all: &mut Conditions, dialect: Dialect, name: &str) {
    let key = dialect.name_key();
    let first: String = name.chars().take(64).collect();
    let last = format!("{first}{}", char::MAX);
    all.values.extend([SqlValue::from(first), SqlValue::from(last)]);
    let n = all.values.len();
    all.texts.push(format!("{key} BETWEEN ${} AND ${n}", n - 1));
}

/// Conditions for a time range: the numbers that its jobs can have, and the exact times.
fn time_range(sql: &mut dyn Sql, filter: &JobSelection) -> Result<Conditions, Error> {
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
    const LONGEST_LABEL: usize = 200;
    format!("{name}={value}").chars().take(LONGEST_LABEL).collect()
}

pub(super) fn read(row: &mut Row) -> Result<JobRow, Error> {
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

pub(super) fn detail(sql: &mut dyn Sql, id: JobId) -> Result<JobRecord, Error> {
    let query = format!(
        "SELECT {COLUMNS}, header, output_bytes, revision, output_lost, failure FROM job WHERE id = $1"
    );
    let mut found = sql.query(&query, values![id])?.pop().ok_or(Error::NoJob(id))?;
    let (row, header, output_bytes) = (read(&mut found)?, found.take()?, found.take()?);
    let (revision, output_lost) = (found.take()?, found.take()?);
    let failure: Option<String> = found.take()?;
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
    Ok(JobRecord {
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
        failure: failure.map(|text| from_json(&text)).transpose()?,
    })
}
