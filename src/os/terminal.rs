//! Which characters a terminal obeys or hides rather than shows. Owns this set, for code that prints strangers'
//! text where a person reads it.

/// Whether a terminal obeys a character, hides it, or reorders others by it, rather than shows it. Tabs and ends of
/// lines are harmless, and words of some languages need the two joiners. The page has the same set
/// (http/page/dom.js).
pub(crate) fn is_command(c: char) -> bool {
    let is_format = matches!(c,
        '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{890}' | '\u{891}' | '\u{8e2}'
        | '\u{180e}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2064}'
        | '\u{2066}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{110bd}' | '\u{110cd}'
        | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0001}'
        | '\u{e0020}'..='\u{e007f}');
    is_format || (c.is_control() && c != '\n' && c != '\t')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_shows_what_the_page_shows() {
        // COMMANDS of http/page/dom.js, without unpaired surrogates, which no text here contains.
        let page = regex::Regex::new("[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}--[\t\n\u{200c}\u{200d}]]").unwrap();
        let differ =
            ('\0'..=char::MAX).filter(|c| is_command(*c) != page.is_match(c.encode_utf8(&mut [0; 4])));
        assert_eq!(differ.map(|c| c.escape_unicode().to_string()).collect::<Vec<_>>(), [""; 0]);
    }
}
