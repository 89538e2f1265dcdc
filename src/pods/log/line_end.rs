//! Recognises the rest of a line that was cut in two by a rotation of the log, by its length and its end. Knows no streams.

/// How much of a line's end is compared. Shorter lines count as whole, because containerd cuts lines after 16 KiB.
/// (CRI-O also cuts where a container pauses within a line; the rest of such a line is not recognised.)
const KEPT: usize = 4096;
/// A shorter rest, for example an empty one, could too easily be a line of its own.
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

    /// Whether `whole`, which is longer, ends with this line.
    pub(super) fn is_rest_of(&self, whole: &Self) -> bool {
        self.length >= SHORTEST_REST && whole.bytes.ends_with(&self.bytes)
    }
}
