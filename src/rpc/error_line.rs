//! The meaning of the text after `ERROR: `. A node explains a failure in words, so this module owns the one table that
//! turns the words of Go nodes and our own into codes.
//!
//! It does not know what a client does about an error.

use std::fmt;

/// How many bytes of a node's words are kept: our own nodes never send more.
const LONGEST_WORDS: usize = 4096;

/// What an error is about, as far as callers decide by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorCode {
    /// The node does not know the command or its subcommand.
    UnknownCommand,
    /// The node has no such unit, and does not remember one.
    UnknownUnit,
    /// The node had such a unit, and remembers its release.
    ReleasedUnit,
    /// The node has no such work type.
    UnknownWorkType,
    /// The node has no such TLS profile.
    UnknownTlsProfile,
    /// Another unit has the ID that was chosen.
    UnitIdInUse,
    /// The node has promised not to run a unit of that ID.
    UnitDisclaimed,
    /// The payload could not be put together from pieces; sent as it is, it is taken.
    OtherPieces,
    /// The unit was submitted again over another connection, and that submission counts.
    SubmittedAgain,
    /// The signature is not accepted now, but a signature made a little later is.
    SignatureNotYet,
    /// The signature is missing, unexpected or not accepted.
    Signature,
    /// This connection may not ask for that.
    NotAllowed,
    /// A reload changes something that only a restart can change.
    NeedsRestart,
    /// The configuration cannot be read or applied.
    BadConfiguration,
    /// Anything else.
    Other,
}

impl ErrorCode {
    /// Whether the same request may succeed a little later.
    pub fn is_temporary(self) -> bool {
        matches!(self, Self::SignatureNotYet | Self::SubmittedAgain)
    }

    /// Whether the node has no such unit.
    pub fn is_no_unit(self) -> bool {
        matches!(self, Self::UnknownUnit | Self::ReleasedUnit)
    }

    /// The table. A name that the client chose must not decide the code of the text that quotes it.
    fn of(text: &str) -> Self {
        let (begins, ends) = (|words: &str| text.starts_with(words), |words: &str| text.ends_with(words));
        if let Some(cause) = text.strip_prefix("could not verify signature: ") {
            return match cause {
                "too many signed requests at once: try again in a minute"
                | "the token was made before this node started: make another" => Self::SignatureNotYet,
                _ => Self::Signature,
            };
        }
        match text {
            "bad command" => Self::UnknownCommand,
            // Newer Go nodes repeat the command after these words.
            _ if begins("Unknown command") => Self::UnknownCommand,
            _ if begins("unknown work unit") && text.contains(": it was released ") => Self::ReleasedUnit,
            _ if begins("unknown work unit") => Self::UnknownUnit,
            _ if begins("unknown work type") => Self::UnknownWorkType,
            _ if begins("unknown TLS config ") => Self::UnknownTlsProfile,
            _ if begins("workunit ID ") && text.contains("is already in use") => Self::UnitIdInUse,
            _ if begins("work unit ") && text.contains(" was disclaimed: ") => Self::UnitDisclaimed,
            _ if begins("work unit ") && ends("it was submitted again before its payload was complete") => {
                Self::SubmittedAgain
            }
            _ if begins("cannot put the payload together: ") => Self::OtherPieces,
            // A node that knows no payloads in pieces.
            "submit parameters must all be strings and payloadpieces is not" => Self::OtherPieces,
            "work type did not expect a signature" => Self::Signature,
            _ if text.contains(" over this connection is not allowed") => Self::NotAllowed,
            _ if ends("ERRORCODE 3") => Self::NeedsRestart,
            _ if ends("ERRORCODE 4") => Self::BadConfiguration,
            _ => Self::Other,
        }
    }
}

/// An error of a node: its words and what they mean.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorLine {
    code: ErrorCode,
    text: String,
}

impl ErrorLine {
    /// From the text after `ERROR:`.
    pub fn new(text: impl Into<String>) -> Self {
        let mut text = text.into();
        let code = ErrorCode::of(&text);
        text.truncate(text.floor_char_boundary(LONGEST_WORDS));
        Self { code, text }
    }

    /// What it is about.
    pub fn code(&self) -> ErrorCode {
        self.code
    }
}

impl fmt::Display for ErrorLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recorded from receptor 1.4.9 and 1.5.1. `tests/system/work/test_error_lines.py` asks the programs again.
    const RECORDED: [(&str, ErrorCode); 14] = [
        ("Unknown command", ErrorCode::UnknownCommand),
        ("Unknown command, nonsense", ErrorCode::UnknownCommand),
        ("bad command", ErrorCode::UnknownCommand),
        ("unknown work unit gone", ErrorCode::UnknownUnit),
        ("unknown work type nosuch", ErrorCode::UnknownWorkType),
        (
            "workunit ID dup1 is already in use, cannot use the same workunit ID more than once",
            ErrorCode::UnitIdInUse,
        ),
        ("could not verify signature: signature is empty", ErrorCode::Signature),
        ("could not verify signature: verifying key not specified", ErrorCode::Signature),
        ("could not verify signature: token contains an invalid number of segments", ErrorCode::Signature),
        ("work type did not expect a signature", ErrorCode::Signature),
        (
            "no configuration file was provided, reload function not set ERRORCODE 4",
            ErrorCode::BadConfiguration,
        ),
        ("extra params provided but not allowed", ErrorCode::Other),
        ("INTERNAL_ERROR (local): no route to node", ErrorCode::Other),
        ("unknown TLS config nosuch", ErrorCode::UnknownTlsProfile),
    ];

    #[test]
    fn the_words_of_go_nodes_are_in_the_table() {
        for (text, code) in RECORDED {
            assert_eq!(ErrorLine::new(text).code(), code, "{text}");
        }
    }

    #[test]
    fn our_nodes_remember_a_release() {
        let code = |text: &str| ErrorLine::new(text).code();
        let released = code("unknown work unit abcd1234: it was released 7 s ago");
        assert_eq!(released, ErrorCode::ReleasedUnit);
        assert!(released.is_no_unit() && code("unknown work unit abcd1234").is_no_unit());
        assert!(!code("unknown work type abcd1234").is_no_unit());
        assert_eq!(code("work unit abcd1234 was disclaimed: x"), ErrorCode::UnitDisclaimed);
    }

    #[test]
    fn a_name_of_the_clients_choice_decides_nothing() {
        for name in
            ["bad command", "unknown work unit x", "x is already in use", "could not verify signature: x"]
        {
            assert_eq!(
                ErrorLine::new(format!("unknown TLS config {name}")).code(),
                ErrorCode::UnknownTlsProfile,
                "{name}"
            );
        }
    }
}
