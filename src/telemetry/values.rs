//! Values of a line in their written form: bounded, on one line, and never readable as two values.
//!
//! Owns their length and their quotes. Most values come from other nodes and clients and may have any length. Refuses
//! to know the fields.

use std::fmt::{self, Debug, Write};

use crate::os::terminal::is_command;

/// Most bytes of a field's value or of the message.
pub(super) const LONGEST: usize = 256;
/// Ends a value that was cut.
const MARK: char = '…';

/// A value in its written form. Formatting stops at the limit, and characters that terminals obey are escaped.
pub(super) fn short(value: &dyn Debug) -> String {
    let mut short = Short(String::new());
    // Fails if the value is cut.
    let _is_cut = write!(short, "{value:?}");
    let Short(mut text) = short;
    if text.len() > LONGEST {
        text.truncate(text.floor_char_boundary(LONGEST - MARK.len_utf8()));
        text.push(MARK);
    }
    text
}

/// A value among the fields of a text line: in quotes if a part of it could be read as a field and it has no quotes
/// yet. Most error messages therefore stay without quotes.
pub(super) fn field(value: &dyn Debug) -> String {
    let text = short(value);
    if has_field(&text) && !is_quoted(&text) { format!("{text:?}") } else { text }
}

/// Whether there is a `=` directly after a word.
fn has_field(text: &str) -> bool {
    let is_word = |char: char| char.is_alphanumeric() || char == '_';
    text.match_indices('=').any(|(at, _)| text[..at].ends_with(is_word))
}

/// Whether the text as a whole is one quoted string.
fn is_quoted(text: &str) -> bool {
    let Some(inner) = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) else { return false };
    let mut is_escaped = false;
    for char in inner.chars() {
        if char == '"' && !is_escaped {
            return false;
        }
        is_escaped = char == '\\' && !is_escaped;
    }
    !is_escaped
}

struct Short(String);

impl Write for Short {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars().try_for_each(|char| self.write_char(char))
    }

    fn write_char(&mut self, char: char) -> fmt::Result {
        if self.0.len() > LONGEST {
            return Err(fmt::Error);
        }
        match char.is_control() || is_command(char) {
            true => self.0.extend(char.escape_default()),
            false => self.0.push(char),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_cut_between_characters_and_keeps_to_its_line() {
        for (text, expected) in [
            ("x".repeat(LONGEST), "x".repeat(LONGEST)),
            ("x".repeat(LONGEST + 1), "x".repeat(253) + "…"),
            ("ü".repeat(1 << 20), "ü".repeat(126) + "…"),
            ("x".repeat(LONGEST - 1) + "😀", "x".repeat(253) + "…"),
            ("a\nINFO ready\u{1b}[2J".to_owned(), "a\\nINFO ready\\u{1b}[2J".to_owned()),
            ("a\u{2028}b\u{202e}\u{2066}".to_owned(), "a\\u{2028}b\\u{202e}\\u{2066}".to_owned()),
            ("\u{e0041}\u{200b}\t".to_owned(), "\\u{e0041}\\u{200b}\\t".to_owned()),
        ] {
            assert_eq!(short(&format_args!("{text}")), expected);
        }
    }

    #[test]
    fn no_part_of_a_value_reads_as_a_field() {
        for (text, expected) in [
            ("", ""),
            ("link lost: \"x\" is no = b", "link lost: \"x\" is no = b"),
            ("a cost=1.0 peer=b", r#""a cost=1.0 peer=b""#),
            ("ü=", r#""ü=""#),
            (r#""a" cost="1""#, r#""\"a\" cost=\"1\"""#),
            (r#""a=\""#, r#""\"a=\\\"""#),
            (r#""a=\" b""#, r#""a=\" b""#),
            ("\"a=", r#""\"a=""#),
        ] {
            assert_eq!(field(&format_args!("{text}")), expected);
        }
        assert_eq!(field(&"a=b \"c\""), r#""a=b \"c\"""#, "a string has its quotes");
        let cut = field(&format!("a=b{}", "x".repeat(300)));
        assert!(cut.starts_with(r#""\"a=bx"#) && cut.ends_with("x…\""), "{cut}");
    }

    #[test]
    fn no_more_of_a_value_is_formatted_than_is_kept() {
        struct Endless;
        impl Debug for Endless {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                loop {
                    f.write_str("endless ")?;
                }
            }
        }
        assert!(short(&Endless).len() <= LONGEST);
    }
}
