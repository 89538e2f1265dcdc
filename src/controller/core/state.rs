//! What follows from the state of a job. `job` and `driven` decide the transitions.

pub use crate::rpc::report::JobState;

impl JobState {
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
}
