//! Health checks: the child that asks a node for its processors and memory, what its answer means, and which
//! instances are asked next. It sends nothing; [`Instance`](super::core::Instance) knows when a check is due.

mod schedule;
mod surroundings;

use std::time::Duration;

use serde_json::Value;

use super::core::{ChildEnd, Cpus, HealthResult, InstanceName, readable};

use crate::rpc::OutputBound;

pub use self::schedule::{CHECKS_AT_ONCE, is_checked_by, next_checks, uncheckable};
pub use self::surroundings::Surroundings;

/// The `params` of the child.
pub const PARAMS: &str = "--worker-info";
/// How long a check may take. It is also the child's `ttl`.
pub const CHECK_LIMIT: Duration = Duration::from_secs(20);
/// The most that a unit of the controller's own may print.
pub const LONGEST_OUTPUT: usize = 64 << 10;

const LONGEST_ERROR: usize = 1_000;
const MOST_ERRORS: usize = 16;
const LONGEST_WORD: usize = 64;

/// The bound of a unit that belongs to no job: a check or a clean-up.
pub fn output_bound(purpose: &'static str) -> OutputBound {
    OutputBound { bytes: LONGEST_OUTPUT as u64, setting: format!("the bound of a {purpose}").into() }
}

/// How a check ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckEnd {
    /// How its unit ended.
    pub child: ChildEnd,
    /// The unit's Detail.
    pub detail: String,
    /// The unit's output, at most [`LONGEST_OUTPUT`].
    pub output: Vec<u8>,
}

impl CheckEnd {
    /// Its result for the instance.
    ///
    /// # Errors
    /// The entries for the instance's `errors`. The instance starts no jobs until a check succeeds.
    pub fn report(&self) -> Result<HealthResult, Vec<String>> {
        let output = String::from_utf8_lossy(&self.output);
        let said = [self.detail.trim(), output.trim()].into_iter().filter(|text| !text.is_empty());
        let said = said.collect::<Vec<_>>().join(": ");
        let failed = |what: &str| vec![shown(&format!("{what}: {said}"))];
        match self.child {
            ChildEnd::Succeeded => {
                let info = find(&output).ok_or_else(|| failed("cannot understand the runner's answer"))?;
                read(&info)
            }
            ChildEnd::Failed | ChildEnd::Unsent => Err(failed("the health check failed")),
            ChildEnd::Canceled => Err(failed("the health check was cancelled")),
            ChildEnd::Released => Err(failed("the health check was released")),
            ChildEnd::Unknown | ChildEnd::Refused => Err(failed("the health check is gone")),
        }
    }
}

/// A check without an answer within [`BUDGET`].
#[derive(Debug)]
pub struct Silence<'a> {
    /// The instance that was asked.
    pub instance: &'a InstanceName,
    /// The control node that asked.
    pub observer: &'a InstanceName,
    /// The work type of its unit.
    pub work_type: &'a str,
    /// The instance took the unit.
    pub is_accepted: bool,
    /// The unit's Detail, as far as it is known.
    pub detail: Option<String>,
}

impl std::fmt::Display for Silence<'_> {
    /// What was tried, and what an operator may look at.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { instance, observer, work_type, is_accepted, detail } = self;
        let last = detail.as_ref().filter(|detail| !detail.is_empty());
        let last = last.map(|detail| format!(" ({})", shown(detail))).unwrap_or_default();
        write!(f, "no answer to the health check within {} s: ", CHECK_LIMIT.as_secs())?;
        if *is_accepted {
            write!(
                f,
                "{instance} accepted a unit of type {work_type}, but its command, called with {PARAMS}, did not \
                 end: find out on {instance} what it is waiting for"
            )
        } else if instance == observer {
            write!(f, "a unit of type {work_type} did not start here{last}: check the units of that type")
        } else {
            write!(
                f,
                "the control service of {instance} did not accept a unit of type {work_type}{last}: check whether a \
                 firewall rule closes that service to {observer}, whether {instance} has that work type, and \
                 whether it can be reached"
            )
        }
    }
}

/// The runner's answer, which warnings of Python may surround.
fn find(output: &str) -> Option<Value> {
    let parse = |text: &str| {
        let options = serde_saphyr::options! { with_snippet: false };
        serde_saphyr::from_str_with_options::<Value>(text, options).ok().filter(Value::is_object)
    };
    parse(output).or_else(|| output.lines().rev().filter(|line| line.starts_with('{')).find_map(parse))
}

fn read(info: &Value) -> Result<HealthResult, Vec<String>> {
    let reported = info["errors"].as_array().into_iter().flatten();
    let mut errors: Vec<String> = reported
        .take(MOST_ERRORS)
        .map(|error| error.as_str().map_or_else(|| shown(&error.to_string()), shown))
        .collect();
    let mut missing = |key: &str| errors.push(format!("the runner's answer has no usable {key}"));
    let cpus = info["cpu_count"].as_u64().filter(|count| *count > 0);
    let cpus = cpus.and_then(|count| u32::try_from(count).ok());
    if cpus.is_none() {
        missing("cpu_count");
    }
    let memory = info["mem_in_bytes"].as_u64();
    if memory.is_none() {
        missing("mem_in_bytes");
    }
    // YAML reads a version such as 2.4 as a number.
    let version = match &info["runner_version"] {
        Value::String(text) => word(text),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    if version.is_none() {
        missing("runner_version");
    }
    match (cpus, memory, version) {
        (Some(cpus), Some(memory), Some(version)) if errors.is_empty() => Ok(HealthResult {
            cpus: Cpus::whole(cpus),
            memory,
            uuid: info["uuid"].as_str().and_then(word),
            version: format!("ansible-runner-{version}"),
        }),
        (_, _, _) => Err(errors),
    }
}

fn word(text: &str) -> Option<String> {
    let plain = !text.is_empty() && text.len() <= LONGEST_WORD && text.bytes().all(|b| b.is_ascii_graphic());
    plain.then(|| text.to_owned())
}

/// A text of another node, fit for a table.
fn shown(text: &str) -> String {
    readable(text, LONGEST_ERROR)
}

#[cfg(test)]
mod tests;
