//! The states of a job: their names, their numbers as states of a unit, and which are final.
//!
//! Which state follows which is decided in `job` and `driven`.

/// Where a job stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Not placed.
    Pending,
    /// Placed; its child was not accepted yet.
    Waiting,
    /// Its child was accepted.
    Running,
    /// Its playbook succeeded.
    Successful,
    /// Its playbook failed, or its instance was lost.
    Failed,
    /// It could not be run.
    Error,
    /// A saved cancel ended it.
    Canceled,
}

impl State {
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

    /// Whether nothing can follow.
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

    /// Whether it is placed and not over.
    pub const fn is_active(self) -> bool {
        match self {
            Self::Waiting | Self::Running => true,
            Self::Pending | Self::Successful | Self::Failed | Self::Error | Self::Canceled => false,
        }
    }

    /// The number of that state in a unit's status.
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
