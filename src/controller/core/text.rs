//! Text that another program wrote, made fit for the store, a table and a terminal.

/// The first `longest` bytes of a text. Control characters other than newline and tab are replaced, because PostgreSQL
/// refuses a row with a NUL and a terminal obeys the others.
pub fn readable(text: &str, longest: usize) -> String {
    let shown =
        |c: char| if c.is_control() && c != '\n' && c != '\t' { char::REPLACEMENT_CHARACTER } else { c };
    let mut text: String = text.trim().chars().map(shown).collect();
    text.truncate(text.floor_char_boundary(longest));
    text
}
