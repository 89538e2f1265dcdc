//! Lists of jobs, newest first, filtered and paged in the store; and all that is known of one job.
//!
//! A filter by time becomes a range of numbers by one look-up, since later jobs have higher numbers. PostgreSQL plans the
//! rest. SQLite has no statistics of a history that grows, so here it is probed which filter few jobs pass: that one's
//! index is read, else the one that has all columns of the filters.

use std::collections::BTreeMap;

use super::Store;
use super::error::Error;
use super::holders::Kept;
use super::jobs::{self, Terms};
use super::sql::{Dialect, Row, Sql, SqlValue, from_json, values};
use crate::controller::core::{Attempt, GroupName, InstanceName, JobId, JobKind, JobState, Time};

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
    /// In order.
    pub attempts: Vec<Attempt>,
    /// Jobs that must succeed first.
    pub depends_on: Vec<JobId>,
    /// Bytes of output so far.
    pub output_bytes: u64,
    /// The commit that was checked out.
    pub revision: Option<String>,
    /// Who holds its payload and its output: node, unit, and what it is.
    pub holders: Vec<(InstanceName, String, Kept)>,
}

/// The most rows of one page.
pub const PAGE_MAX: u32 = 1000;

/// As long as a transaction of PostgreSQL may take: within this time numbers may not follow the order of creation.
const SLACK_MS: i64 = 60_000;

/// Fewer jobs than this are read and sorted for one page.
const FEW: i64 = 1000;

const COLUMNS: &str = "job.id, job.key, job.kind, job.name, job.state, job.priority, job.controller_node, \
    job.execution_node, job.instance_group, job.attempt, job.impact, job.hosts, job.forks, job.created, \
    job.started, job.finished, job.cancel_requested, job.explanation, job.events, job.rc, job.labels, \
    job.launched_by, job.terms";

impl Store {
    /// One page of jobs, newest first, at most `limit` and [`PAGE_MAX`] of them.
    pub async fn list(&self, filter: JobFilter, limit: u32) -> Result<JobPage, Error> {
        self.read(move |sql| page(sql, &filter, limit.clamp(1, PAGE_MAX))).await
    }

    /// All that is known of one job.
    ///
    /// # Errors
    /// There is no such job.
    pub async fn detail(&self, id: JobId) -> Result<JobDetail, Error> {
        self.read(move |sql| detail(sql, id)).await
    }

    /// How many jobs of each state and kind there are.
    pub async fn counts(&self) -> Result<BTreeMap<(JobState, JobKind), u64>, Error> {
        self.read(|sql| {
            let read = |mut row: Row| Ok(((row.take()?, row.take()?), row.take()?));
            let query = "SELECT state, kind, count(*) FROM job GROUP BY state, kind";
            sql.query(query, &[])?.into_iter().map(read).collect()
        })
        .await
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
    fn add_any(
        &mut self,
        column: &str,
        names: impl Iterator<Item = &'static str>,
        index: &'static str,
        indexes: &mut Vec<(&'static str, usize)>,
    ) {
        let names: Vec<String> = names.map(|name| format!("'{name}'")).collect();
        if !names.is_empty() {
            indexes.push((index, self.texts.len()));
            self.texts.push(format!("{column} IN ({})", names.join(",")));
        }
    }
}

fn page(sql: &mut dyn Sql, filter: &JobFilter, limit: u32) -> Result<JobPage, Error> {
    let mut all = time_range(sql, filter)?;
    let mut indexes = Vec::new();
    all.add_any("job.state", filter.states.iter().map(|state| state.name()), "job_state", &mut indexes);
    all.add_any("job.kind", filter.kinds.iter().map(|kind| kind.name()), "job_kind", &mut indexes);
    if let Some(name) = &filter.name {
        add_name(&mut all, sql.dialect(), name);
        indexes.push(("job_name", all.texts.len() - 1));
        let letters = name.chars().count();
        all.add(&format!("substr(job.name, 1, {letters}) = ?"), name.as_str());
    }
    if let Some(group) = &filter.group {
        all.add("job.instance_group = ?", group);
        indexes.push(("job_group", all.texts.len() - 1));
    }
    if let Some(node) = &filter.node {
        all.add("job.execution_node = ?", node);
        indexes.push(("job_node", all.texts.len() - 1));
    }
    if let Some(before) = filter.before {
        all.add("job.id < ?", before);
    }
    let from = match sql.dialect().plans_by_statistics() {
        true => "job".to_owned(),
        false => format!("job INDEXED BY {}", rarest(sql, &all, &indexes)?.unwrap_or("job_facets")),
    };
    let (from, order) = add_labels(&mut all, filter, from);
    let conditions = if all.texts.is_empty() { "TRUE".into() } else { all.texts.join(" AND ") };
    let query = format!(
        "SELECT {COLUMNS} FROM job WHERE job.id IN \
         (SELECT job.id FROM {from} WHERE {conditions} ORDER BY {order} DESC LIMIT {limit}) \
         ORDER BY job.id DESC"
    );
    let rows = sql.query(&query, &all.values)?;
    let mut jobs = rows.into_iter().map(|mut row| read(&mut row)).collect::<Result<Vec<_>, _>>()?;
    let next = jobs.last().filter(|_| jobs.len() == limit as usize).map(|job| job.id);
    // Labels are cut in the index, so jobs with other long ones are sorted out at the end.
    let has_labels =
        |row: &JobRow| filter.labels.iter().all(|(name, value)| row.labels.get(name) == Some(value));
    jobs.retain(has_labels);
    Ok(JobPage { jobs, next })
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

/// Adds the labels. The jobs with the first one are walked, unless another filter leaves few.
fn add_labels(all: &mut Conditions, filter: &JobFilter, from: String) -> (String, &'static str) {
    let mut words = filter.labels.iter().map(|(name, value)| label_word(name, value)).peekable();
    if words.peek().is_none() {
        return (from, "job.id");
    }
    let walks_labels = from == "job" || from.ends_with("job_facets");
    if walks_labels {
        all.texts.push("job.id = label.job".into());
        all.add("label.word = ?", words.next().unwrap_or_default());
    }
    for word in words {
        all.add("EXISTS (SELECT 1 FROM label other WHERE other.word = ? AND other.job = job.id)", word);
    }
    // SQLite begins with the left one of a cross join; the other would read all jobs.
    if walks_labels { ("label CROSS JOIN job".into(), "label.job") } else { (from, "job.id") }
}

/// The index of the first filter that few jobs pass.
fn rarest(
    sql: &mut dyn Sql,
    all: &Conditions,
    indexes: &[(&'static str, usize)],
) -> Result<Option<&'static str>, Error> {
    for (index, at) in indexes {
        // It numbers its parameters as the whole query does, which then all must be there.
        let query = format!(
            "SELECT count(*) FROM (SELECT 1 FROM job INDEXED BY {index} WHERE {} LIMIT {FEW}) few",
            all.texts[*at]
        );
        let used = (1..=all.values.len()).rev().find(|n| all.texts[*at].contains(&format!("${n}")));
        let count: i64 = sql.query(&query, &all.values[..used.unwrap_or(0)])?.remove(0).take()?;
        if count < FEW {
            return Ok(Some(index));
        }
    }
    Ok(None)
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
        terms: from_json(&row.take::<String>()?)?,
    })
}

fn detail(sql: &mut dyn Sql, id: JobId) -> Result<JobDetail, Error> {
    let query = format!("SELECT {COLUMNS}, header, output_bytes, revision FROM job WHERE id = $1");
    let mut row = sql.query(&query, values![id])?.pop().ok_or(Error::NoJob(id))?;
    let (job, header, output_bytes) = (read(&mut row)?, row.take()?, row.take()?);
    let revision = row.take()?;
    let loaded = jobs::load(sql, "job.id = $1", values![id], false)?.pop().ok_or(Error::NoJob(id))?;
    let depends_on = sql.query("SELECT needs FROM dep WHERE job = $1 ORDER BY needs", values![id])?;
    let holders =
        sql.query("SELECT node, unit, has FROM holder WHERE job = $1 ORDER BY node, unit, has", values![id])?;
    Ok(JobDetail {
        row: job,
        header,
        attempts: loaded.job.attempts,
        depends_on: depends_on.into_iter().map(|mut row| row.take()).collect::<Result<_, _>>()?,
        output_bytes,
        revision,
        holders: holders
            .into_iter()
            .map(|mut row| Ok((row.take()?, row.take()?, row.take()?)))
            .collect::<Result<_, Error>>()?,
    })
}
