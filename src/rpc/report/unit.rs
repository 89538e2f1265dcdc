//! What a node reports about a unit: its state and the JSON of `work status` and `work list`, written and read here.

use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use crate::rpc::CallError;

/// The state of a unit. The numbers are those of the protocol and of the status file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UnitState {
    /// Accepted, not running yet.
    Pending = 0,
    /// Its command runs.
    Running = 1,
    /// Ended well.
    Succeeded = 2,
    /// Ended badly, or never started.
    Failed = 3,
    /// Ended because a client asked for it.
    Canceled = 4,
}

impl UnitState {
    /// The state with this number.
    pub fn from_number(number: u64) -> Option<Self> {
        [Self::Pending, Self::Running, Self::Succeeded, Self::Failed, Self::Canceled]
            .get(usize::try_from(number).ok()?)
            .copied()
    }

    /// The name that clients see.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
            Self::Canceled => "Canceled",
        }
    }

    /// Whether no other state can follow.
    pub const fn is_final(self) -> bool {
        match self {
            Self::Pending | Self::Running => false,
            Self::Succeeded | Self::Failed | Self::Canceled => true,
        }
    }
}

/// A unit as clients see it. `E` is the data that only units of one type have.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "Received<E>", bound(deserialize = "E: Deserialize<'de> + Default"))]
pub struct UnitReport<E = Value> {
    /// The state, a number in JSON.
    pub state: UnitState,
    /// Phase and cause.
    pub detail: String,
    /// Bytes of stdout so far.
    pub stdout_size: u64,
    /// The work type; `remote` for a unit that runs elsewhere.
    pub work_type: String,
    /// The data that only units of this type have.
    pub extra_data: E,
    /// How its process ended, if the node reports it.
    pub exit_code: Option<i32>,
}

impl UnitReport {
    /// Reads the answer to `work status`.
    ///
    /// # Errors
    /// [`CallError::Protocol`] if it is no such answer.
    pub fn from_answer(answer: &Value) -> Result<Self, CallError> {
        Self::deserialize(answer)
            .map_err(|error| CallError::Protocol { question: "work status", answer: error.to_string() })
    }

    /// The node that a unit runs on and its type there, if it runs elsewhere.
    pub fn remote(&self) -> Option<(&str, &str)> {
        let extra = |key: &str| self.extra_data.get(key)?.as_str();
        extra("RemoteNode").zip(extra("RemoteWorkType"))
    }

    /// The process ID of its runner, if the node reports one.
    pub fn runner(&self) -> Option<u64> {
        self.extra_data.get("Pid")?.as_u64().filter(|pid| *pid > 0)
    }
}

impl<E: Serialize> Serialize for UnitReport<E> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let Self { state, detail, stdout_size, work_type, extra_data, exit_code } = self;
        let (state_name, state) = (state.name(), *state as u8);
        let (stdout_size, exit_code) = (*stdout_size, *exit_code);
        Sent { state, detail, stdout_size, work_type, extra_data, state_name, exit_code }.serialize(s)
    }
}

/// A report as it is sent.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Sent<'a, E> {
    state: u8,
    detail: &'a str,
    stdout_size: u64,
    work_type: &'a str,
    extra_data: &'a E,
    state_name: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
}

/// A report as any node sends it. Nodes of other releases leave keys out.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Received<E> {
    state: u64,
    #[serde(default)]
    detail: String,
    #[serde(default)]
    stdout_size: i64,
    #[serde(default)]
    work_type: String,
    #[serde(default)]
    extra_data: E,
    #[serde(default)]
    exit_code: Option<i32>,
}

impl<E> TryFrom<Received<E>> for UnitReport<E> {
    type Error = String;

    fn try_from(received: Received<E>) -> Result<Self, String> {
        let Received { state, detail, stdout_size, work_type, extra_data, exit_code } = received;
        let state = UnitState::from_number(state).ok_or_else(|| format!("there is no state {state}"))?;
        let stdout_size = u64::try_from(stdout_size).unwrap_or(0);
        Ok(Self { state, detail, stdout_size, work_type, extra_data, exit_code })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_reads_back_and_a_short_one_is_filled_up() {
        let text = r#"{"State":3,"Detail":"exit status 1","StdoutSize":7,"WorkType":"remote","ExtraData":{"RemoteNode":"n2","RemoteWorkType":"sh"},"StateName":"Failed","ExitCode":1}"#;
        let report: UnitReport = serde_json::from_str(text).unwrap();
        assert_eq!(report.remote(), Some(("n2", "sh")));
        assert_eq!(serde_json::to_string(&report).unwrap(), text);
        let told = text.replace(r#""ExitCode":1"#, r#""ExitCode":1,"Times":[{"Node":"n1"}]"#);
        assert_eq!(serde_json::from_str::<UnitReport>(&told).unwrap(), report);
        let short: UnitReport = serde_json::from_str(r#"{"State":0,"StdoutSize":-1}"#).unwrap();
        assert_eq!((short.state, short.stdout_size, short.exit_code), (UnitState::Pending, 0, None));
        assert!(serde_json::from_str::<UnitReport>(r#"{"State":5}"#).is_err());
    }
}
