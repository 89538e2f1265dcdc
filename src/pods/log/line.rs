//! Lines of a log stream with timestamps, `TIME TEXT` with TIME in RFC 3339, however the stream is cut. A line's text
//! is passed on as it arrives, so even the longest line needs no memory.
//!
//! Two kinds of lines have no timestamp. A message of the kubelet or API server stands at the end of a stream, in place
//! of what they could not send. The other kind is the rest of a known line at the beginning of a stream: the kubelet
//! stores a long line in pieces, prints a timestamp only before the first piece, and omits the pieces from before the
//! requested time. A line without a timestamp is therefore no message if a line with one follows, and is skipped.

use jiff::Timestamp;

/// The longest timestamp: nanoseconds and an offset.
const LONGEST_STAMP: usize = 35;
/// How many bytes of a line without a timestamp are kept.
const UNSTAMPED_KEPT: usize = 4096;

/// A piece of a stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LogPiece<'a> {
    /// Start of a line from the container.
    Begin(Timestamp),
    /// More of its text, including the newline if `ends`.
    Text { bytes: &'a [u8], ends: bool },
}

/// The position of the stream within a line.
#[derive(Debug, Default)]
pub(super) struct LineParser {
    place: LinePosition,
    /// The first word so far, or a line without a timestamp.
    held: Vec<u8>,
    /// The first line without a timestamp after the last line with one.
    said: Option<String>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum LinePosition {
    #[default]
    Stamp,
    Text,
    Unstamped,
}

impl LineParser {
    /// Takes the next piece off the front of `bytes`; `None` if it needs more bytes.
    pub(super) fn next<'a>(&mut self, bytes: &mut &'a [u8]) -> Option<LogPiece<'a>> {
        loop {
            if bytes.is_empty() {
                return None;
            }
            match self.place {
                LinePosition::Text => return Some(self.text(bytes)),
                LinePosition::Stamp => {
                    if let Some(stamp) = self.stamp(bytes) {
                        self.said = None;
                        return Some(LogPiece::Begin(stamp));
                    }
                }
                LinePosition::Unstamped => self.unstamped(bytes),
            }
        }
    }

    /// The message at the end of a stream that ended in order.
    pub(super) fn message(&mut self) -> Option<String> {
        if std::mem::take(&mut self.place) != LinePosition::Text {
            self.end_unstamped();
        }
        self.said.take()
    }

    fn text<'a>(&mut self, bytes: &mut &'a [u8]) -> LogPiece<'a> {
        let newline = bytes.iter().position(|byte| *byte == b'\n');
        let (text, rest) = bytes.split_at(newline.map_or(bytes.len(), |at| at + 1));
        *bytes = rest;
        if newline.is_some() {
            self.place = LinePosition::Stamp;
        }
        LogPiece::Text { bytes: text, ends: newline.is_some() }
    }

    /// Collects the first word. If it is not a timestamp, the line has none.
    fn stamp(&mut self, bytes: &mut &[u8]) -> Option<Timestamp> {
        while let Some((byte, rest)) = bytes.split_first() {
            if *byte == b' '
                && let Some(stamp) = parse_stamp(&self.held)
            {
                self.held.clear();
                (self.place, *bytes) = (LinePosition::Text, rest);
                return Some(stamp);
            }
            if *byte == b' ' || *byte == b'\n' || self.held.len() >= LONGEST_STAMP {
                self.place = LinePosition::Unstamped;
                return None;
            }
            self.held.push(*byte);
            *bytes = rest;
        }
        None
    }

    fn unstamped(&mut self, bytes: &mut &[u8]) {
        let newline = bytes.iter().position(|byte| *byte == b'\n');
        let (text, rest) = bytes.split_at(newline.unwrap_or(bytes.len()));
        let room = UNSTAMPED_KEPT.saturating_sub(self.held.len());
        self.held.extend_from_slice(&text[..text.len().min(room)]);
        *bytes = if newline.is_some() { &rest[1..] } else { rest };
        if newline.is_some() {
            self.place = LinePosition::Stamp;
            self.end_unstamped();
        }
    }

    fn end_unstamped(&mut self) {
        let line = std::mem::take(&mut self.held);
        if self.said.is_none() && !line.is_empty() {
            self.said = Some(String::from_utf8_lossy(&line).trim().to_owned());
        }
    }
}

/// Parses a timestamp in the kubelet's format. Rejects other formats, so that no word of a message passes for a
/// timestamp.
fn parse_stamp(word: &[u8]) -> Option<Timestamp> {
    let is_shaped =
        word.len() >= 20 && word[4] == b'-' && word[7] == b'-' && word[10] == b'T' && word[13] == b':';
    if !is_shaped {
        return None;
    }
    std::str::from_utf8(word).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(chunks: &[&[u8]]) -> (Vec<String>, Option<String>) {
        let (mut parser, mut seen) = (LineParser::default(), Vec::new());
        for mut chunk in chunks.iter().copied() {
            while let Some(piece) = parser.next(&mut chunk) {
                match piece {
                    LogPiece::Begin(stamp) => seen.push(format!("{stamp} ")),
                    LogPiece::Text { bytes, ends } => {
                        assert_eq!(ends, bytes.ends_with(b"\n"));
                        seen.last_mut().unwrap().push_str(std::str::from_utf8(bytes).unwrap());
                    }
                }
            }
        }
        (seen, parser.message())
    }

    const STREAM: &[u8] = b"the rest of a line\n2026-01-02T03:04:05.123456789Z one two\n\
        2026-01-02T05:04:05.5+02:00 \n\nanother rest\n2026-01-02T03:04:06Z  x\n\
        failed to create fsnotify watcher: too many open files\nand more\n";

    #[test]
    fn lines_without_a_timestamp_are_messages_only_at_the_end() {
        let expected = [
            "2026-01-02T03:04:05.123456789Z one two\n",
            "2026-01-02T03:04:05.5Z \n",
            "2026-01-02T03:04:06Z  x\n",
        ];
        let message = "failed to create fsnotify watcher: too many open files";
        assert_eq!(pieces(&[STREAM]).0, expected);
        for cut in 0..STREAM.len() {
            let (head, tail) = STREAM.split_at(cut);
            let found = pieces(&[head, tail]);
            assert_eq!(
                found,
                (expected.map(str::to_owned).to_vec(), Some(message.to_owned())),
                "cut at {cut}"
            );
        }
        let single: Vec<&[u8]> = STREAM.chunks(1).collect();
        assert_eq!(pieces(&single).0, expected);
    }

    #[test]
    fn the_last_piece_needs_no_newline() {
        let (seen, rest) = pieces(&[b"2026-01-02T03:04:05Z the en", b"d"]);
        assert_eq!((seen[0].as_str(), rest), ("2026-01-02T03:04:05Z the end", None));
        let words = "unable to retrieve container logs for containerd://0123456789abcdef0123456789abcdef";
        assert_eq!(pieces(&[words.as_bytes()]), (Vec::new(), Some(words.into())));
        assert_eq!(pieces(&[b"unable"]).1.as_deref(), Some("unable"));
    }

    #[test]
    fn words_are_no_stamps() {
        for word in ["2026", "20260102T030405Z", "2026-01-02", "2026-13-02T03:04:05Z", "x026-01-02T03:04:05Z"]
        {
            assert!(parse_stamp(word.as_bytes()).is_none(), "{word}");
        }
        assert!(parse_stamp(b"2026-01-02T03:04:05.123456789+05:30").is_some());
    }

    #[test]
    fn no_length_of_nonsense_takes_memory() {
        let (mut parser, chunk) = (LineParser::default(), [b'x'; 1 << 16]);
        for _ in 0..64 {
            assert_eq!(parser.next(&mut &chunk[..]), None);
        }
        assert!(parser.held.len() <= UNSTAMPED_KEPT);
        assert_eq!(parser.message().map(|text| text.len()), Some(UNSTAMPED_KEPT));
    }
}
