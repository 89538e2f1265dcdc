//! Recognises the rest of a line that was cut in two by a rotation of the log, by its length and its end. Knows no streams.

/// How much of a line's end is compared. Shorter lines are taken to be whole: containerd cuts them after 16 KiB. (CRI-O
/// cuts where a container pauses within a line, too; the rest of such a line is not recognised.)
const KEPT: usize = 4096;
/// A shorter rest could be a line of its own too easily, as an empty one is.
const SHORTEST_REST: u64 = 16;

/// Length and last bytes of a line.
#[derive(Debug, Default)]
pub(super) struct LineEnd {
    length: u64,
    bytes: Vec<u8>,
}

impl LineEnd {
    pub(super) fn add(&mut self, text: &[u8]) {
        self.length += text.len() as u64;
        let text = &text[text.len().saturating_sub(KEPT)..];
        let room = KEPT - text.len();
        self.bytes.drain(..self.bytes.len().saturating_sub(room));
        self.bytes.extend_from_slice(text);
    }

    /// Whether the line is long enough to be cut.
    pub(super) fn is_long(&self) -> bool {
        self.length > KEPT as u64
    }

    pub(super) fn is_shorter_than(&self, whole: &Self) -> bool {
        self.length < whole.length
    }

    /// Whether that line, which is longer, ends in this one.
    pub(super) fn is_rest_of(&self, whole: &Self) -> bool {
        self.length >= SHORTEST_REST && whole.bytes.ends_with(&self.bytes)
    }
}
