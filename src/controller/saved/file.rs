//! The text of a saved job's file. It is parsed once, and every value of a parsed job is valid. A fault has its line, the
//! key, and what is allowed there.
//!
//! The words are those of `meshctl job run`, and those of a header where a flag takes several values. This module opens
//! no file, and does not know whether groups, credentials and playbooks exist.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value};

use super::hook::SavedHook;
use super::rules as own;
use super::schedule::{Schedule, Timetable};
use super::vars::{self, Patterns, SavedVar};
use crate::controller::core::{GroupName, Word};
use crate::controller::header::{ProjectSync, RetryWords, RunnerWords, rules};
use crate::controller::notify::NoticeEvent;
use crate::rpc::strict::{self, Misfit};
use crate::yaml::{self, YamlFault};

/// The key whose values strangers to this grammar read, so that a null in it is kept.
const EXTRA_VARS: &str = "extra_vars";
const VARS: &str = "vars";
const SCHEDULE: &str = "schedule";

/// A job as its file says it.
#[derive(Debug, Clone, Default, PartialEq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct SavedJob {
    /// For people.
    #[serde(deserialize_with = "own::line")]
    pub description: Option<String>,
    /// The project, or a runner's directory, on the disk of this node.
    #[serde(deserialize_with = "own::absolute")]
    pub directory: Option<PathBuf>,
    /// A project from git.
    pub project: Option<ProjectSync>,
    /// The playbook, as a path within the project.
    #[serde(deserialize_with = "own::inside")]
    pub playbook: Option<String>,
    /// A module instead of a playbook.
    #[serde(deserialize_with = "own::line")]
    pub module: Option<String>,
    /// Its arguments.
    #[serde(deserialize_with = "own::line")]
    pub args: Option<String>,
    /// Its hosts.
    #[serde(deserialize_with = "own::line")]
    pub pattern: Option<String>,
    /// Each a path within the project, hosts with a comma after each, or what stands in an inventory file.
    #[serde(deserialize_with = "own::texts")]
    pub inventory: Vec<String>,
    /// Variables that nobody gives at the start.
    pub extra_vars: Map<String, Value>,
    /// Variables that may be given at the start.
    pub vars: BTreeMap<String, SavedVar>,
    /// The hosts that it is limited to.
    #[serde(deserialize_with = "own::line")]
    pub limit: Option<String>,
    /// Hosts at a time.
    #[serde(deserialize_with = "rules::count")]
    pub forks: Option<u32>,
    /// Tags that run.
    #[serde(deserialize_with = "own::words")]
    pub tags: Vec<String>,
    /// Tags that do not.
    #[serde(deserialize_with = "own::words")]
    pub skip_tags: Vec<String>,
    /// How much the playbook prints.
    #[serde(deserialize_with = "own::verbosity")]
    pub verbose: u8,
    /// Change nothing.
    pub check: bool,
    /// Show what changes in files.
    pub diff: bool,
    /// Become another user on the hosts.
    #[serde(rename = "become")]
    pub becomes: bool,
    /// User to become.
    #[serde(deserialize_with = "own::line")]
    pub become_user: Option<String>,
    /// User to connect as.
    #[serde(deserialize_with = "own::line")]
    pub user: Option<String>,
    /// Kind of connection.
    #[serde(deserialize_with = "own::line")]
    pub connection: Option<String>,
    /// The private key for the hosts, on the disk of this node.
    #[serde(deserialize_with = "own::absolute")]
    pub private_key: Option<PathBuf>,
    /// The password of the vault, on the disk of this node.
    #[serde(deserialize_with = "own::absolute")]
    pub vault_password_file: Option<PathBuf>,
    /// The name in lists; that of the file if not given.
    #[serde(deserialize_with = "rules::name")]
    pub name: Option<String>,
    /// Labels, for filters.
    #[serde(deserialize_with = "own::labels")]
    pub labels: BTreeMap<String, String>,
    /// Groups, tried in this order.
    #[serde(deserialize_with = "own::groups")]
    pub group: Vec<GroupName>,
    /// Higher goes first.
    #[serde(deserialize_with = "rules::priority")]
    pub priority: i8,
    /// Words of which only one running job may hold each.
    #[serde(deserialize_with = "own::exclusive")]
    pub exclusive: Vec<Word>,
    /// Hosts of the inventory, for its size.
    #[serde(deserialize_with = "rules::count")]
    pub hosts: Option<u32>,
    /// When it runs again; a number is that of attempts after a loss.
    #[serde(deserialize_with = "own::retry")]
    pub retry: RetryWords,
    /// How long it may be pending.
    #[serde(deserialize_with = "rules::span::deserialize")]
    pub pending_timeout: Option<Duration>,
    /// How long it may run.
    #[serde(deserialize_with = "rules::span::deserialize")]
    pub timeout: Option<Duration>,
    /// How long its node may be silent.
    #[serde(deserialize_with = "rules::span::deserialize")]
    pub lost_after: Option<Duration>,
    /// How the runner starts it.
    pub runner: Option<RunnerWords>,
    /// Targets that get notices of its jobs, each with its events if it names any.
    #[serde(deserialize_with = "own::notify")]
    pub notify: BTreeMap<String, Vec<NoticeEvent>>,
    /// Keep the payload after its end, for reruns.
    pub keep: Keep,
    /// When it starts by itself.
    pub schedule: Option<Schedule>,
    /// Its times, which follow from it.
    #[serde(skip)]
    pub(super) timetable: Option<Timetable>,
    /// Who else may start it.
    pub hook: Option<SavedHook>,
}

/// Whether a payload is kept. A type of its own for its default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(transparent)]
pub(crate) struct Keep(pub bool);

impl Default for Keep {
    fn default() -> Self {
        Self(true)
    }
}

impl SavedJob {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// The first fault, with its line.
    pub(crate) fn parse(text: &str) -> Result<Self, YamlFault> {
        Self::parse_one(text, &mut Patterns::default())
    }

    /// Reads the text of one file of several, which share their patterns.
    ///
    /// # Errors
    /// As those of [`Self::parse`].
    pub(super) fn parse_one(text: &str, patterns: &mut Patterns) -> Result<Self, YamlFault> {
        let written = yaml::parse(text)?;
        let mut keys = written.to_object()?;
        let misfit = |misfit: Misfit| {
            let (path, text) = told(&misfit);
            YamlFault { line: written.line_of(path), text }
        };
        let extra_vars = match keys.remove(EXTRA_VARS) {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(extra_vars)) => extra_vars,
            Some(_) => return Err(misfit(rule(EXTRA_VARS, "it is not a map"))),
        };
        if let Some(Value::Object(vars)) = keys.get_mut(VARS) {
            // A variable without rules is one all the same.
            vars.values_mut().filter(|var| var.is_null()).for_each(|var| *var = Value::Object(Map::new()));
        }
        // `strict` takes a null for no key at all, and then anything would be meant.
        let when = keys.get("hook").and_then(|hook| hook.get("when")).and_then(Value::as_object);
        if let Some((place, _)) = when.and_then(|when| when.iter().find(|(_, value)| value.is_null())) {
            return Err(misfit(rule(&format!("hook.when.{place}"), "it is empty")));
        }
        let mut job: Self = strict::read(keys).map_err(misfit)?;
        job.extra_vars = extra_vars;
        if let Some(fault) = job.check_whole(patterns) {
            return Err(misfit(fault));
        }
        job.timetable = job.check_schedule(patterns).map_err(misfit)?;
        Ok(job)
    }

    /// What is wrong with several keys together, if anything.
    fn check_whole(&self, patterns: &mut Patterns) -> Option<Misfit> {
        let needs_module = [("args", &self.args), ("pattern", &self.pattern)];
        let stray = needs_module.into_iter().find(|(_, given)| given.is_some() && self.module.is_none());
        if let Some((key, _)) = stray {
            return Some(rule(key, "it needs `module`"));
        }
        match (&self.playbook, &self.module) {
            (None, None) => {
                return Some(rule("playbook", "it is missing: say what to run, a `playbook` or a `module`"));
            }
            (Some(_), Some(_)) => return Some(rule("module", "it excludes `playbook`")),
            (Some(_), None) | (None, Some(_)) => {}
        }
        if self.project.is_none() && self.directory.is_none() && self.module.is_none() {
            let text = "it is missing: say where the playbook is, in a `project` of git or a `directory` of this node";
            return Some(rule("project", text));
        }
        let mut fault_of = |(name, var): (&String, &SavedVar)| {
            let is_name = |text: &str| {
                let letters = |c: char| c.is_ascii_alphanumeric() || c == '_';
                text.chars().all(letters)
                    && !text.starts_with(|c: char| c.is_ascii_digit())
                    && !text.is_empty()
            };
            let text = match () {
                () if !is_name(name) => {
                    "it is not the name of a variable: letters, digits and _, and no digit first".to_owned()
                }
                () if self.extra_vars.contains_key(name) => {
                    format!("it is in `{EXTRA_VARS}` too: leave it out there, and give it a default here")
                }
                () => {
                    return var
                        .fault(patterns)
                        .map(|(key, text)| rule(&format!("{VARS}.{name}.{key}"), text));
                }
            };
            Some(rule(&format!("{VARS}.{name}"), text))
        };
        self.vars.iter().find_map(&mut fault_of).or_else(|| {
            let (key, why) = self.hook.as_ref()?.fault(self)?;
            Some(rule(&format!("hook.{key}"), why))
        })
    }

    fn check_schedule(&self, patterns: &mut Patterns) -> Result<Option<Timetable>, Misfit> {
        let Some(schedule) = &self.schedule else { return Ok(None) };
        let wrong = |key: &str, why| rule(&format!("{SCHEDULE}.{key}"), why);
        let timetable = schedule.timetable().map_err(|(key, why)| wrong(key, why))?;
        let is_secret = |name: &&String| self.vars.get(*name).is_some_and(|var| var.secret);
        if let Some(secret) = schedule.vars.keys().find(is_secret) {
            return Err(wrong(VARS, format!("{secret} is secret: a file is no place for it")));
        }
        vars::settle(&self.vars, schedule.vars.clone(), patterns).map_err(|why| wrong(VARS, why))?;
        Ok(Some(timetable))
    }
}

fn rule(path: &str, rule: impl Into<String>) -> Misfit {
    Misfit::Value { path: path.to_owned(), rule: rule.into() }
}

/// Where a misfit is, and what people read of it: the name that was probably meant, or else those that there are.
fn told(misfit: &Misfit) -> (&str, String) {
    match misfit {
        Misfit::UnknownKey { path, known } => {
            let given = path.rsplit('.').next().unwrap_or_default();
            let names: Vec<&str> = known.split(", ").collect();
            let near = yaml::nearest(given, &names);
            let text = near.map(|name| format!("unknown key `{path}`: did you mean `{name}`?"));
            (path, text.unwrap_or_else(|| misfit.to_string()))
        }
        Misfit::Value { path, .. } => (path, misfit.to_string()),
    }
}
