//! The bound that one unit has on its output: where it is set, and how a unit that reaches it ends. Whoever runs the unit,
//! as processes or as a pod, keeps it.

use serde::{Deserialize, Serialize};

/// A bound that one unit has on its output from the moment it is made, wherever it runs. With more it fails.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct OutputBound {
    /// Bytes.
    pub bytes: u64,
    /// What set it, for the unit's Detail.
    pub setting: Box<str>,
}

impl OutputBound {
    /// Why a unit that printed more was ended.
    pub(crate) fn exceeded(&self) -> String {
        format!("it wrote more than {} bytes ({})", self.bytes, self.setting)
    }

    /// How much of a piece may be kept behind the first `size` bytes.
    pub(crate) fn room_for(&self, piece: usize, size: u64) -> usize {
        usize::try_from(self.bytes.saturating_sub(size)).unwrap_or(usize::MAX).min(piece)
    }
}
