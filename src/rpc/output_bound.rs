//! The bound on one unit's output: its size, the setting it comes from, and the words for a unit that exceeds it. The
//! code that runs the unit, as processes or as a pod, enforces it.

use serde::{Deserialize, Serialize};

/// A bound on one unit's output, fixed when the unit is made, wherever it runs. A unit that exceeds it fails.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct OutputBound {
    /// Bytes.
    pub bytes: u64,
    /// The setting that it comes from, for the unit's Detail.
    pub setting: Box<str>,
}

impl OutputBound {
    /// Why a unit that printed more was ended.
    pub(crate) fn exceeded(&self) -> String {
        format!("it wrote more than {} bytes ({})", self.bytes, self.setting)
    }

    /// How many bytes of a piece may be kept after the first `size` bytes.
    pub(crate) fn room_for(&self, piece: usize, size: u64) -> usize {
        usize::try_from(self.bytes.saturating_sub(size)).unwrap_or(usize::MAX).min(piece)
    }
}
