//! The trace of payloads, for an operator who wants to see what a client really sends. It is off unless the variable of
//! Go nodes asks for it: `RECEPTOR_PAYLOAD_TRACE_LEVEL` 1 logs where a payload comes from, 2 the unit as well, 3 the
//! bytes themselves, with any secrets in them. Logged at level debug.
//! Keeps nothing: each piece is logged as it passes.

use std::sync::OnceLock;

/// The variable.
const VARIABLE: &str = "RECEPTOR_PAYLOAD_TRACE_LEVEL";

/// How much is logged of payloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    Off,
    Source,
    Unit,
    Bytes,
}

impl Level {
    /// What the environment asks for, looked up once.
    pub(super) fn asked() -> Self {
        static ASKED: OnceLock<Level> = OnceLock::new();
        *ASKED.get_or_init(|| Self::parse(std::env::var(VARIABLE).ok().as_deref()))
    }

    /// Anything but the three numbers asks for nothing.
    fn parse(text: Option<&str>) -> Self {
        match text {
            Some("1") => Self::Source,
            Some("2") => Self::Unit,
            Some("3") => Self::Bytes,
            Some(_) | None => Self::Off,
        }
    }

    /// Logs that a payload begins.
    pub(super) fn begins(self, unit: &str, local: bool) {
        let from = if local { "unix socket" } else { "network connection" };
        match self {
            Self::Off => {}
            Self::Source => tracing::debug!(from, "payload trace: begins"),
            Self::Unit | Self::Bytes => tracing::debug!(unit, from, "payload trace: begins"),
        }
    }

    /// Logs its next bytes.
    pub(super) fn piece(self, unit: &str, bytes: &[u8]) {
        if self == Self::Bytes {
            // Quoted, so that no payload can pass for lines of the log.
            tracing::debug!(unit, payload = ?String::from_utf8_lossy(bytes), "payload trace");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_traced_unless_a_level_is_named() {
        for text in [None, Some(""), Some("0"), Some("4"), Some("yes")] {
            assert_eq!(Level::parse(text), Level::Off, "{text:?}");
        }
        let levels = ["1", "2", "3"].map(|text| Level::parse(Some(text)));
        assert_eq!(levels, [Level::Source, Level::Unit, Level::Bytes]);
    }
}
