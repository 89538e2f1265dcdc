//! Values of a line as they are written: bounded, and on one line.
//!
//! Owns their length. Most of them are other nodes' and clients' words, and some of those come at any length.

use std::fmt::{self, Debug, Write};

/// Bytes of a field's value, and of the message.
pub(super) const LONGEST: usize = 256;
/// Ends a value that was cut.
const MARK: char = '…';

/// A value as it is written: no more of it is formatted than is kept, and control characters are escaped.
pub(super) fn short(value: &dyn Debug) -> String {
    let mut short = Short(String::new());
    // Fails where the value is cut.
    let _is_cut = write!(short, "{value:?}");
    let Short(mut text) = short;
    if text.len() > LONGEST {
        text.truncate(text.floor_char_boundary(LONGEST - MARK.len_utf8()));
        text.push(MARK);
    }
    text
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
        match char.is_control() {
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
        ] {
            assert_eq!(short(&format_args!("{text}")), expected);
        }
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
