//! What a node says about a unit, read once. Owns the names of the states; keeps the answer as it came, because
//! newer nodes may say more.

use serde::Deserialize;
use serde_json::Value;

use super::ControlError;

/// Where a unit is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnitState {
    /// Not started yet.
    Pending,
    /// Started.
    Running,
    /// Ended well.
    Succeeded,
    /// Ended badly; the detail says how.
    Failed,
    /// Ended because somebody asked.
    Canceled,
    /// A state that only a newer node knows.
    Unknown(i64),
}

impl UnitState {
    /// True once nothing can change any more.
    pub fn is_final(self) -> bool {
        match self {
            Self::Succeeded | Self::Failed | Self::Canceled => true,
            Self::Pending | Self::Running | Self::Unknown(_) => false,
        }
    }

    /// The state's name, as nodes spell it.
    pub fn name(self) -> String {
        match self {
            Self::Pending => "Pending".to_owned(),
            Self::Running => "Running".to_owned(),
            Self::Succeeded => "Succeeded".to_owned(),
            Self::Failed => "Failed".to_owned(),
            Self::Canceled => "Canceled".to_owned(),
            Self::Unknown(number) => format!("State {number}"),
        }
    }
}

impl From<i64> for UnitState {
    fn from(number: i64) -> Self {
        match number {
            0 => Self::Pending,
            1 => Self::Running,
            2 => Self::Succeeded,
            3 => Self::Failed,
            4 => Self::Canceled,
            other => Self::Unknown(other),
        }
    }
}

/// A unit's status.
#[derive(Debug, Clone, PartialEq)]
pub struct UnitReport {
    /// Where it is in its life.
    pub state: UnitState,
    /// The node's words about it.
    pub detail: String,
    /// Bytes of standard output so far.
    pub stdout_size: u64,
    /// Work type; `remote` for a unit that runs elsewhere.
    pub work_type: String,
    /// The node it runs on and its type there, if it runs elsewhere.
    pub remote: Option<(String, String)>,
    /// The answer as it came.
    pub raw: Value,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Shape {
    state: i64,
    #[serde(default)]
    detail: String,
    #[serde(default)]
    stdout_size: i64,
    #[serde(default)]
    work_type: String,
    #[serde(default)]
    extra_data: Value,
}

impl UnitReport {
    /// Reads one unit's status.
    ///
    /// # Errors
    /// [`ControlError::Protocol`] if it is none.
    pub fn from_answer(raw: Value) -> Result<Self, ControlError> {
        let shape = Shape::deserialize(&raw)
            .map_err(|error| ControlError::Protocol { question: "work status", answer: error.to_string() })?;
        let extra = |key: &str| shape.extra_data.get(key)?.as_str().map(str::to_owned);
        Ok(Self {
            state: shape.state.into(),
            detail: shape.detail,
            stdout_size: u64::try_from(shape.stdout_size).unwrap_or(0),
            work_type: shape.work_type,
            remote: extra("RemoteNode").zip(extra("RemoteWorkType")),
            raw,
        })
    }
}
