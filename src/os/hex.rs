//! Bytes as hexadecimal digits. Knows nothing of what they are.

/// Two small digits for each byte.
pub(crate) fn print(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of a text that is nothing but pairs of digits, small or capital.
pub(crate) fn parse(text: &[u8]) -> Option<Vec<u8>> {
    let digit = |letter: u8| char::from(letter).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (pairs, rest) = text.as_chunks::<2>();
    let bytes = pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?));
    if rest.is_empty() { bytes.collect() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_read_and_nothing_else_is() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(print(&[0, 10, 255]), "000aff");
        assert_eq!(parse(print(&all).as_bytes()), Some(all));
        assert_eq!(parse(b"0aFf"), Some(vec![10, 255]));
        assert_eq!(parse(b""), Some(Vec::new()));
        for wrong in ["0", "0g", "0aé", "0a ", "+1"] {
            assert_eq!(parse(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
