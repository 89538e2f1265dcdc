//! The last bytes of a text, such as what a worker wrote outside its stream: usually the traceback that explains its
//! end.

use crate::controller::core::readable;

/// The most bytes that are kept.
const KEPT: usize = 1_000;

/// The end of a text of any length.
#[derive(Debug, Default)]
pub(super) struct Tail(Vec<u8>);

impl Tail {
    /// Adds a line.
    pub(super) fn push(&mut self, line: &[u8]) {
        self.0.extend_from_slice(&line[line.len().saturating_sub(KEPT)..]);
        self.0.push(b'\n');
        let excess = self.0.len().saturating_sub(KEPT);
        self.0.drain(..excess);
    }

    /// The text, fit for a table or a terminal.
    pub(super) fn text(&self) -> String {
        readable(&String::from_utf8_lossy(&self.0), usize::MAX)
    }
}
