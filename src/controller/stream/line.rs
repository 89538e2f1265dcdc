//! What one line of a runner's stream is, by its keys.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

const KEEPALIVE: &str = "keepalive";
/// The event of a task that failed on a host.
pub(super) const FAILED: &str = "runner_on_failed";
/// The event of a task whose host could not be reached.
pub const UNREACHABLE: &str = "runner_on_unreachable";
/// The event of an item of a loop that failed.
const ITEM_FAILED: &str = "runner_item_on_failed";

/// The keys that are read. All others are skipped.
#[derive(Debug, Deserialize)]
pub(super) struct RunnerLine<'a> {
    #[serde(borrow)]
    pub kwargs: Option<&'a RawValue>,
    pub zipfile: Option<u64>,
    pub eof: Option<IgnoredAny>,
    pub status: Option<String>,
    pub job_explanation: Option<String>,
    pub event: Option<String>,
    pub counter: Option<u64>,
    pub uuid: Option<IgnoredAny>,
    #[serde(borrow)]
    pub event_data: Option<&'a RawValue>,
    #[serde(borrow)]
    pub stdout: Option<&'a RawValue>,
}

impl<'a> RunnerLine<'a> {
    /// `None` if the runner does not write such lines.
    pub(super) fn parse(line: &'a [u8]) -> Option<Self> {
        serde_json::from_slice(line).ok()
    }
}

impl RunnerLine<'_> {
    /// Whether the line is an event, and no sign of life. The keys that `ansible-runner process` looks at first take
    /// precedence.
    pub(super) fn is_event(&self) -> bool {
        let is_other = self.status.is_some() || self.zipfile.is_some() || self.eof.is_some();
        let is_sign_of_life = self.event.as_deref() == Some(KEEPALIVE);
        !is_other
            && !is_sign_of_life
            && self.counter.is_some_and(|counter| counter > 0)
            && self.uuid.is_some()
    }

    /// Whether the event is of a task or an item that failed.
    pub(super) fn is_failure(&self) -> bool {
        [FAILED, UNREACHABLE, ITEM_FAILED].contains(&self.event.as_deref().unwrap_or_default())
    }

    /// Whether the event is one of the playbook itself; others bring what was printed around it.
    pub(super) fn is_of_playbook(&self) -> bool {
        let name = self.event.as_deref().unwrap_or_default();
        ["playbook_on_", "runner_"].iter().any(|kind| name.starts_with(kind))
    }
}
