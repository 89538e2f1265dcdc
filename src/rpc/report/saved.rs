//! What a control node says of its saved jobs. docs/saved-jobs.md and docs/controller-reference.md specify the keys. Values
//! of variables are in none of them.

#![expect(missing_docs, reason = "the keys are specified in docs/controller-reference.md")]

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Lenient;
use super::names::names;

names! {
    /// What the value of a variable is.
    #[derive(Default)]
    enum VarKind {
        /// A text.
        #[default]
        Text = "text",
        /// A whole number.
        Int = "int",
        /// A number.
        Number = "number",
        /// True or false.
        Flag = "bool",
        /// Anything that JSON can say.
        Json = "json",
    }
}

names! {
    /// What happens about a start while the job before has not ended.
    #[derive(Default)]
    enum Overlap {
        /// Nothing starts.
        #[default]
        Skip = "skip",
        /// One job waits for the end of the other.
        Queue = "queue",
        /// The other job is cancelled.
        Replace = "replace",
    }
}

names! {
    /// What happens about starts that were missed.
    #[derive(Default)]
    enum MissedStarts {
        /// Nothing.
        #[default]
        Skip = "skip",
        /// One start makes up for all.
        RunOnce = "run-once",
    }
}

/// The schedule of a saved job.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ScheduleReport {
    pub name: String,
    /// Its expression, or `every` and a duration.
    pub rule: String,
    pub zone: String,
    pub overlap: Lenient<Overlap>,
    pub missed: Lenient<MissedStarts>,
    pub enabled: bool,
    pub paused: bool,
    /// The next starts, five at most.
    pub next: Vec<String>,
    pub last: Option<StartedTick>,
    pub skipped: Option<SkippedTick>,
}

/// A time at which a job was started.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct StartedTick {
    pub tick: String,
    /// Its number, which is null if the store was away then.
    pub job: Option<i64>,
}

/// A time at which none was started.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SkippedTick {
    pub tick: String,
    pub why: String,
}

/// A page of schedules, by name.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SchedulePage {
    pub schedules: Vec<ScheduleReport>,
    /// `after` of the next page, or null.
    pub next: Option<String>,
}

names! {
    /// Who sends what starts a saved job.
    enum HookKind {
        /// Anybody who knows its token.
        Token = "token",
        /// GitHub, or a forge that signs as it does: Gitea, Forgejo.
        Github = "github",
        /// GitLab.
        Gitlab = "gitlab",
    }
}

/// A saved job in a list.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SavedSummary {
    pub name: String,
    pub description: Option<String>,
    /// Its playbook, or its module.
    pub runs: Option<String>,
    /// The address of its project, or its directory.
    pub source: Option<String>,
    /// Of the file of which it is started; null if there has been no good one.
    pub hash: Option<String>,
    /// What is wrong with the file now.
    pub fault: Option<String>,
}

/// A page of saved jobs, by name.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SavedPage {
    pub saved: Vec<SavedSummary>,
    /// What is wrong with the directory, or with files that can have no name.
    pub faults: Vec<String>,
    /// `after` of the next page, or null.
    pub next: Option<String>,
}

/// All of a saved job but the values of its variables.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SavedReport {
    #[serde(flatten)]
    pub summary: SavedSummary,
    pub revision: Option<String>,
    /// A text of several lines stands there as their number.
    pub inventory: Vec<String>,
    pub limit: Option<String>,
    pub tags: Vec<String>,
    pub skip_tags: Vec<String>,
    /// The names of its extra variables.
    pub extra_vars: Vec<String>,
    pub vars: BTreeMap<String, VarReport>,
    /// Who may start it besides those who may operate, by what they send to `/api/v1/hooks/NAME`.
    pub hook: Option<Lenient<HookKind>>,
    /// The header that its jobs get.
    pub header: Value,
}

/// A variable that may be given at the start.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct VarReport {
    #[serde(rename = "type")]
    pub kind: Lenient<VarKind>,
    pub description: Option<String>,
    pub default: Option<Value>,
    pub choices: Vec<Value>,
    pub pattern: Option<String>,
    pub secret: bool,
}

/// A job that was started. Its number is null while the store is away.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct StartedJob {
    pub id: Option<i64>,
    pub unit: String,
    pub hash: String,
}

/// What a delivery to a hook has started.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct HookAnswer {
    pub started: bool,
    /// Null if nothing was started, and while the store is away.
    pub job: Option<i64>,
    /// An earlier delivery with this ID has started the job.
    pub repeated: bool,
    /// Why nothing was started.
    pub why: Option<String>,
}
