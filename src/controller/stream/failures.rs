//! What went wrong in a playbook, from the events of failed tasks: which task, on which hosts, with which message, and
//! where in the output that stands. An output may name any number of tasks and hosts, so a bounded number is kept, the
//! first ones; the rest is counted. Knows nothing of retries.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer as _, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::line::{FAILED, UNREACHABLE};
use super::stats::{self, Recap, RecapCounts};
use crate::controller::core::readable;
pub use crate::rpc::report::controller::{FailedTask, FailureReport};

/// The most tasks, and hosts of each, that are kept.
const MOST_TASKS: usize = 20;
const MOST_HOSTS: usize = 10;
/// The most bytes of a task's name, of a message and of a host's name.
const LONGEST_TASK: usize = 100;
const LONGEST_MESSAGE: usize = 200;
const LONGEST_HOST: usize = 64;
/// The most bytes of JSON that a store keeps of it.
const LONGEST_REPORT: usize = 2048;
/// Hosts that a line names of each task.
const NAMED_HOSTS: usize = 3;

/// The failures of one attempt so far.
#[derive(Debug, Default)]
pub(super) struct Failures {
    /// Those of which no host's last failure is left have a count of 0.
    tasks: Vec<FailedTask>,
    /// At which of them each host failed last; `None` if that task found no room.
    last: BTreeMap<String, Option<usize>>,
    /// Failures of other tasks, which found no room.
    others: u64,
    /// Of the recap, once it has come.
    counts: Option<RecapCounts>,
}

/// A task that failed on a host.
#[derive(Debug)]
pub(super) struct TaskFailure {
    task: String,
    host: String,
    message: String,
    unreachable: bool,
}

/// The data of an event that tells of it. Modules and plugins write much of it, so every key may be missing or something else.
#[derive(Deserialize)]
struct EventData<'a> {
    #[serde(borrow)]
    host: Option<&'a RawValue>,
    #[serde(borrow)]
    task: Option<&'a RawValue>,
    /// True if the playbook goes on after it.
    #[serde(borrow)]
    ignore_errors: Option<&'a RawValue>,
    #[serde(borrow)]
    res: Option<&'a RawValue>,
}

/// The result of a module.
#[derive(Default, Deserialize)]
struct TaskResult<'a> {
    #[serde(borrow)]
    msg: Option<&'a RawValue>,
    #[serde(borrow)]
    stderr: Option<&'a RawValue>,
    #[serde(borrow)]
    module_stderr: Option<&'a RawValue>,
    /// Stands there instead of the result of a task with `no_log`.
    #[serde(borrow)]
    censored: Option<&'a RawValue>,
    #[serde(borrow)]
    failed: Option<&'a RawValue>,
    /// The results of the items of a loop.
    #[serde(borrow)]
    results: Option<&'a RawValue>,
}

/// The first item of a loop that failed.
struct FirstFailed;

impl TaskFailure {
    /// The failure that an event tells; `None` if it tells none, or the playbook was to ignore it.
    pub(super) fn of(event: &str, data: &str) -> Option<Self> {
        let unreachable = event == UNREACHABLE;
        if !unreachable && event != FAILED {
            return None;
        }
        let data: EventData<'_> = serde_json::from_str(data).ok()?;
        if is_true(data.ignore_errors) && !unreachable {
            return None;
        }
        Some(Self {
            task: readable(&text(data.task), LONGEST_TASK),
            host: readable(&text(data.host), LONGEST_HOST),
            message: data.res.map(|result| TaskResult::of(result).message()).unwrap_or_default(),
            unreachable,
        })
    }
}

impl Failures {
    /// Takes the next failure, whose line begins at byte `offset` of the output. A host that fails again has gone on in
    /// between, because the playbook rescued its former failure: only the last one counts.
    pub(super) fn add(&mut self, failure: TaskFailure, offset: u64) {
        let TaskFailure { task, host, message, unreachable } = failure;
        if let Some(former) = self.last.get(&host).copied() {
            self.take_back(&host, former);
        }
        let is_same = |one: &FailedTask| one.unreachable == unreachable && one.task == task;
        let known = self.tasks.iter().position(|one| one.count > 0 && is_same(one));
        let at = known.or_else(|| {
            let new = FailedTask { task, unreachable, message, offset, ..FailedTask::default() };
            // Nobody's last failure is there any more.
            if let Some(at) = self.tasks.iter().position(|one| one.count == 0) {
                self.tasks[at] = new;
                return Some(at);
            }
            let has_room = self.tasks.len() < MOST_TASKS;
            has_room.then(|| {
                self.tasks.push(new);
                self.tasks.len() - 1
            })
        });
        match at.map(|at| &mut self.tasks[at]) {
            Some(found) => {
                found.count += 1;
                if found.hosts.len() < MOST_HOSTS {
                    found.hosts.push(host.clone());
                }
            }
            None => self.others += 1,
        }
        if self.last.len() < stats::MOST_HOSTS || self.last.contains_key(&host) {
            self.last.insert(host, at);
        }
    }

    /// The failure of this host at that task, or at one that found no room, is none.
    fn take_back(&mut self, host: &str, at: Option<usize>) {
        match at.map(|at| &mut self.tasks[at]) {
            Some(task) => {
                task.count -= 1;
                task.hosts.retain(|one| one != host);
            }
            None => self.others -= 1,
        }
    }

    /// The recap tells which hosts failed in the end; the playbook rescued the last failures of the others.
    pub(super) fn close(&mut self, recap: &Recap) {
        for (host, at) in std::mem::take(&mut self.last) {
            if recap.hosts.get(&host).is_some_and(|stats| stats.failures + stats.dark == 0) {
                self.take_back(&host, at);
            }
        }
        self.counts = Some(recap.counts);
    }

    /// All of it; `None` if nothing failed.
    pub(super) fn report(&self) -> Option<FailureReport> {
        let mut tasks: Vec<FailedTask> = self.tasks.iter().filter(|task| task.count > 0).cloned().collect();
        if tasks.is_empty() {
            return None;
        }
        tasks.sort_by_key(|task| task.offset);
        let mut report = FailureReport { line: self.line(&tasks), tasks, others: self.others };
        while serde_json::to_string(&report).is_ok_and(|text| text.len() > LONGEST_REPORT)
            && let Some(last) = report.tasks.pop()
        {
            report.others += last.count;
        }
        Some(report)
    }

    /// The failures in a line: those of the first task, those of the task that failed most often, and hosts out of
    /// reach.
    fn line(&self, tasks: &[FailedTask]) -> String {
        let (away, failed): (Vec<_>, Vec<_>) = tasks.iter().partition(|task| task.unreachable);
        let first = failed.first().copied();
        let most = failed.iter().copied().rev().max_by_key(|task| task.count);
        let most = most.filter(|most| first.is_some_and(|first| first.count < most.count));
        let told = first.into_iter().chain(most).map(|task| {
            let message = if task.message.is_empty() { String::new() } else { format!(": {}", task.message) };
            format!("{}: {}{message}", list(&task.hosts, task.count), task.task)
        });
        let mut told: Vec<String> = told.collect();
        let more = failed.len().saturating_sub(told.len()) as u64 + self.others;
        if more > 0 {
            told.push(format!("{more} more"));
        }
        // Each play that meets a host out of reach says so in the name of its own first task.
        let mut hosts: Vec<String> = Vec::new();
        for host in away.iter().flat_map(|task| &task.hosts) {
            if !hosts.contains(host) {
                hosts.push(host.clone());
            }
        }
        if !hosts.is_empty() {
            let most = away.iter().map(|task| task.count).max().unwrap_or(0);
            told.push(format!("{} unreachable", list(&hosts, most)));
        }
        let counts = self.counts.filter(|counts| counts.hosts > 0);
        let begin = counts.map_or_else(String::new, |counts| {
            format!("{} of {} hosts failed: ", counts.failed + counts.unreachable, counts.hosts)
        });
        begin + &told.join("; ")
    }
}

/// Names the first of `count` hosts, and says how many more there are.
fn list(hosts: &[String], count: u64) -> String {
    let named = &hosts[..hosts.len().min(NAMED_HOSTS)];
    match count.max(hosts.len() as u64) - named.len() as u64 {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

impl<'a> TaskResult<'a> {
    fn of(result: &'a RawValue) -> Self {
        serde_json::from_str(result.get()).unwrap_or_default()
    }

    /// What a person reads first: the module's message, and the last line that its command wrote to stderr.
    fn message(&self) -> String {
        if self.censored.is_some() {
            return "hidden by no_log".to_owned();
        }
        let items = |results: &'a RawValue| {
            serde_json::Deserializer::from_str(results.get()).deserialize_seq(FirstFailed)
        };
        if let Some(Ok(Some(item))) = self.results.map(items) {
            return item.message();
        }
        let said = text(self.msg);
        let said = said.trim().lines().next().unwrap_or_default();
        let last = |value| text(value).trim_end().lines().next_back().unwrap_or_default().trim().to_owned();
        let stderr = [self.stderr, self.module_stderr].map(last);
        let stderr = stderr.into_iter().find(|line| !line.is_empty() && !said.contains(line.as_str()));
        let parts = [said.to_owned(), stderr.unwrap_or_default()];
        let message: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        readable(&message.join(": "), LONGEST_MESSAGE)
    }
}

impl<'de> Visitor<'de> for FirstFailed {
    type Value = Option<TaskResult<'de>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("results")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let mut first = None;
        while let Some(item) = items.next_element::<TaskResult<'de>>()? {
            if first.is_none() && is_true(item.failed) {
                first = Some(item);
            }
        }
        Ok(first)
    }
}

fn is_true(value: Option<&RawValue>) -> bool {
    value.is_some_and(|value| value.get() == "true")
}

/// The text, or nothing if it is something else.
fn text(value: Option<&RawValue>) -> Cow<'_, str> {
    value
        .and_then(|value| serde_json::from_str::<JsonText<'_>>(value.get()).ok())
        .map_or(Cow::Borrowed(""), |text| text.0)
}

/// Borrowed unless something in it is escaped.
#[derive(Deserialize)]
struct JsonText<'a>(#[serde(borrow)] Cow<'a, str>);
