//! Recognises the rest of a line that was cut in two by a rotation of the log, by its length and its end. Knows no streams.

/// Lines up to this length are not cut: a container runtime does that after 8 or 16 KiB. As many bytes are compared.
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

    pub(super) fn may_be_split(&self) -> bool {
        self.length > KEPT as u64
    }

    pub(super) fn is_shorter_than(&self, whole: &Self) -> bool {
        self.length < whole.length
    }

    /// Whether this whole line is how that one ends.
    pub(super) fn is_rest_of(&self, whole: &Self) -> bool {
        let is_shorter = self.length >= SHORTEST_REST && self.is_shorter_than(whole);
        is_shorter && whole.bytes.ends_with(&self.bytes)
    }
}
