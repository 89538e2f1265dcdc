//! The states of a job: their names, the matching states of a unit, and which are final.
//!
//! `job` and `driven` decide the transitions.

/// The state of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum JobState {
    /// Not placed.
    Pending,
    /// Placed, but its child is not accepted yet.
    Waiting,
    /// Its child was accepted.
    Running,
    /// Its playbook succeeded.
    Successful,
    /// Its playbook failed, or its instance was lost.
    Failed,
    /// It could not be run.
    Error,
    /// A cancel ended it.
    Canceled,
}

impl JobState {
    /// Every state.
    pub const ALL: [Self; 7] = [
        Self::Pending,
        Self::Waiting,
        Self::Running,
        Self::Successful,
        Self::Failed,
        Self::Error,
        Self::Canceled,
    ];

    /// The name in the store and in answers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Successful => "successful",
            Self::Failed => "failed",
            Self::Error => "error",
            Self::Canceled => "canceled",
        }
    }

    /// Whether the state is final.
    pub const fn is_final(self) -> bool {
        match self {
            Self::Pending | Self::Waiting | Self::Running => false,
            Self::Successful | Self::Failed | Self::Error | Self::Canceled => true,
        }
    }

    /// Whether jobs that depend on it may start.
    pub const fn is_success(self) -> bool {
        match self {
            Self::Successful => true,
            Self::Pending | Self::Waiting | Self::Running | Self::Failed | Self::Error | Self::Canceled => {
                false
            }
        }
    }

    /// Whether it is placed and has not ended.
    pub const fn is_active(self) -> bool {
        match self {
            Self::Waiting | Self::Running => true,
            Self::Pending | Self::Successful | Self::Failed | Self::Error | Self::Canceled => false,
        }
    }

    /// The matching state in a unit's status.
    pub const fn unit_state(self) -> u8 {
        match self {
            Self::Pending | Self::Waiting => 0,
            Self::Running => 1,
            Self::Successful => 2,
            Self::Failed | Self::Error => 3,
            Self::Canceled => 4,
        }
    }
}
