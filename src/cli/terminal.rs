//! Makes texts from elsewhere safe for a terminal: names, explanations, errors of other nodes, output of jobs. Colours
//! pass if they are wanted; every other character that could command the terminal or reorder text is shown as a
//! replacement character. Does not know who wrote a text.

use std::fmt::Write as _;

use crate::os::terminal::is_command;

/// Most bytes of a sequence that sets colours; longer sequences do not count as such.
const LONGEST_SGR: usize = 64;
const ESCAPE: char = '\u{1b}';

/// What becomes of the sequences that set colours, which ECMA-48 calls SGR.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Colours {
    /// They pass.
    Kept,
    /// They are left out.
    Dropped,
}

/// A text, made safe for a terminal.
pub(super) fn shown(text: &str, colours: Colours) -> String {
    let mut safe = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let (mut length, mut part) = (c.len_utf8(), &rest[..c.len_utf8()]);
        match c {
            ESCAPE => match sgr(rest.as_bytes()) {
                Sgr::Whole(whole) => {
                    length = whole;
                    part = if colours == Colours::Kept { &rest[..whole] } else { "" };
                }
                Sgr::Begun | Sgr::None => part = "\u{fffd}",
            },
            '\r' if rest[length..].starts_with('\n') => part = "",
            c if is_command(c) => part = "\u{fffd}",
            _ => {}
        }
        safe.push_str(part);
        rest = &rest[length..];
    }
    safe
}

/// A text in one line, for places where a second line would look like one of ours.
pub(super) fn one_line(text: &str) -> String {
    text.replace(char::is_control, "\u{fffd}")
}

/// JSON with the same meaning, made safe for a terminal.
pub(super) fn shown_json(json: &str) -> String {
    let mut safe = String::with_capacity(json.len());
    for c in json.chars() {
        if is_command(c) {
            // The character is in a string, because JSON allows no such character outside one.
            let _never_fails = write!(safe, "\\u{:04x}", u32::from(c));
        } else {
            safe.push(c);
        }
    }
    safe
}

/// What a text begins with.
enum Sgr {
    /// A sequence that sets colours, of that many bytes.
    Whole(usize),
    /// The beginning of such a sequence.
    Begun,
    None,
}

fn sgr(text: &[u8]) -> Sgr {
    for (at, byte) in text.iter().enumerate().take(LONGEST_SGR) {
        match (at, byte) {
            (0, 0x1b) | (1, b'[') | (2.., b'0'..=b'9' | b';' | b':') => {}
            (2.., b'm') => return Sgr::Whole(at + 1),
            _ => return Sgr::None,
        }
    }
    if text.len() < LONGEST_SGR { Sgr::Begun } else { Sgr::None }
}

/// Makes bytes that come in pieces safe, as [`shown`] does; reads them as UTF-8.
#[derive(Debug)]
pub(super) struct ShownStream {
    colours: Colours,
    /// A sequence or character that may go on in the next piece.
    begun: Vec<u8>,
}

impl ShownStream {
    pub(super) fn new(colours: Colours) -> Self {
        Self { colours, begun: Vec::new() }
    }

    /// The next piece.
    pub(super) fn push(&mut self, bytes: &[u8]) -> String {
        self.begun.extend_from_slice(bytes);
        let rest = self.begun.split_off(whole(&self.begun));
        shown(&String::from_utf8_lossy(&std::mem::replace(&mut self.begun, rest)), self.colours)
    }

    /// What is left at the end.
    pub(super) fn finish(&mut self) -> String {
        shown(&String::from_utf8_lossy(&std::mem::take(&mut self.begun)), self.colours)
    }
}

/// How many of the bytes can be shown without knowing those to come.
fn whole(bytes: &[u8]) -> usize {
    let last = bytes.len().saturating_sub(LONGEST_SGR);
    let escape = bytes[last..].iter().rposition(|byte| *byte == 0x1b).map(|at| last + at);
    if let Some(escape) = escape.filter(|at| matches!(sgr(&bytes[*at..]), Sgr::Begun)) {
        return escape;
    }
    if bytes.ends_with(b"\r") {
        return bytes.len() - 1;
    }
    // A character that is cut off has at most three of its bytes here.
    let last = bytes.len().saturating_sub(3);
    let begun = (last..bytes.len()).find(|&at| {
        std::str::from_utf8(&bytes[at..])
            .is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
    });
    begun.unwrap_or(bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CASES: [(&str, &str, &str); 13] = [
        ("plain\tä\n", "plain\tä\n", "plain\tä\n"),
        ("\u{1b}[0;32mok\u{1b}[0m", "\u{1b}[0;32mok\u{1b}[0m", "ok"),
        ("\u{1b}[m\u{1b}[38:5:1mx", "\u{1b}[m\u{1b}[38:5:1mx", "x"),
        ("a\u{1b}]0;title\u{7}b", "a�]0;title�b", "a�]0;title�b"),
        ("\u{1b}]52;c;eA==\u{1b}\\", "�]52;c;eA==�\\", "�]52;c;eA==�\\"),
        ("\u{1b}[2J\u{1b}[1;1H", "�[2J�[1;1H", "�[2J�[1;1H"),
        ("\u{1b}[?25m\u{1b}[>4m", "�[?25m�[>4m", "�[?25m�[>4m"),
        ("\u{9b}2J\u{9d}0;x\u{9c}\u{85}", "�2J�0;x��", "�2J�0;x��"),
        ("a\r\nb\rc\u{8}\u{0}\u{7f}", "a\nb�c���", "a\nb�c���"),
        ("\u{202e}abc\u{2066}\u{200f}\u{61c}", "�abc���", "�abc���"),
        ("a\u{2028}b\u{200b}\u{200d}c\u{feff}", "a�b�\u{200d}c�", "a�b�\u{200d}c�"),
        ("\u{1b}", "�", "�"),
        ("\u{1b}[1", "�[1", "�[1"),
    ];

    #[test]
    fn only_colours_pass_however_a_text_is_cut() {
        for (text, kept, dropped) in CASES {
            for (colours, expected) in [(Colours::Kept, kept), (Colours::Dropped, dropped)] {
                assert_eq!(shown(text, colours), expected, "{text:?}");
                for step in [1, 2, 3, 1000] {
                    let mut stream = ShownStream::new(colours);
                    let mut safe: String =
                        text.as_bytes().chunks(step).map(|part| stream.push(part)).collect();
                    safe.push_str(&stream.finish());
                    assert_eq!(safe, expected, "{text:?} in pieces of {step}");
                }
            }
        }
        let long = format!("\u{1b}[{}m", "1;".repeat(100));
        assert!(shown(&long, Colours::Kept).starts_with('\u{fffd}'));
        assert_eq!(shown(&shown(&long, Colours::Kept), Colours::Kept), shown(&long, Colours::Kept));
    }

    #[test]
    fn json_stays_the_same_json() {
        let value = serde_json::json!({"a\u{9b}": "\u{1b}[2J\u{202e}\u{7f}ä\n", "b": ["\u{85}"]});
        for json in [value.to_string(), format!("{value:#}")] {
            let safe = shown_json(&json);
            assert!(!safe.chars().any(is_command), "{safe}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&safe).unwrap(), value);
        }
    }
}
