//! Durations in Go's notation, which configuration files, clients and answers use: `1h20m30s`, `1.5h`,
//! `210.5µs`. Owns parsing and printing; knows nothing of what a duration is for.

use std::time::Duration;

/// A text that is no duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a duration: write for example 1.5h, 30m or 30m10s")]
pub struct InvalidDuration(pub String);

const UNITS: [(&str, f64); 8] =
    [("ns", 1.0), ("us", 1e3), ("µs", 1e3), ("μs", 1e3), ("ms", 1e6), ("s", 1e9), ("m", 60e9), ("h", 3600e9)];

/// Reads a duration of zero or more: numbers, each with a unit (`ns`, `us`, `ms`, `s`, `m`, `h`), or a bare `0`.
///
/// # Errors
/// [`InvalidDuration`] for anything else, negative durations and those beyond 292 years included.
pub(crate) fn parse(text: &str) -> Result<Duration, InvalidDuration> {
    let invalid = || InvalidDuration(text.to_owned());
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut total = 0.0_f64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(invalid)?;
        let number: f64 = rest[..digits].parse().map_err(|_| invalid())?;
        rest = &rest[digits..];
        let end = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        let (_, scale) = UNITS.iter().find(|(unit, _)| *unit == &rest[..end]).ok_or_else(invalid)?;
        total += number * scale;
        rest = &rest[end..];
    }
    // Go keeps a duration in 63 bits of nanoseconds.
    if total > i64::MAX as f64 {
        return Err(invalid());
    }
    Ok(Duration::from_nanos(total.round() as u64))
}

/// Prints a duration as Go does: `0s`, `1.5µs`, `1.234ms`, `2.5s`, `1m0s`, `1h20m30s`.
pub(crate) fn print(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    let fraction = |unit: u128, name: &str| {
        let (whole, part) = (nanos / unit, nanos % unit);
        if part == 0 {
            return format!("{whole}{name}");
        }
        let width = unit.ilog10() as usize;
        let part = format!("{part:0width$}");
        format!("{whole}.{}{name}", part.trim_end_matches('0'))
    };
    match nanos {
        0 => "0s".to_owned(),
        1..=999 => format!("{nanos}ns"),
        1_000..=999_999 => fraction(1_000, "µs"),
        1_000_000..=999_999_999 => fraction(1_000_000, "ms"),
        _ => {
            let minutes = duration.as_secs() / 60;
            let below = Duration::new(duration.as_secs() % 60, duration.subsec_nanos());
            let seconds = if below.is_zero() {
                "0s".to_owned()
            } else {
                let mut text = format!("{}.{:09}", below.as_secs(), below.subsec_nanos());
                text.truncate(text.trim_end_matches('0').trim_end_matches('.').len());
                text + "s"
            };
            match (minutes / 60, minutes % 60) {
                (0, 0) => seconds,
                (0, m) => format!("{m}m{seconds}"),
                (h, m) => format!("{h}h{m}m{seconds}"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_what_go_reads() {
        for (text, nanos) in [
            ("0", 0),
            ("1h20m30s", 4_830_000_000_000),
            ("1.5h", 5_400_000_000_000),
            ("30m10s", 1_810_000_000_000),
            ("20s", 20_000_000_000),
            ("100ms", 100_000_000),
            ("1.5us", 1_500),
            ("2µs", 2_000),
            (".5s", 500_000_000),
            ("+3ns", 3),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_nanos(nanos)), "{text}");
        }
        for bad in ["", "5", "s", "-1s", "1x", "1.2.3s", "1h ", "300000000h", "."] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn prints_as_go_prints() {
        for (nanos, text) in [
            (0, "0s"),
            (1, "1ns"),
            (1_500, "1.5µs"),
            (210_000, "210µs"),
            (1_234_000, "1.234ms"),
            (999_999_999, "999.999999ms"),
            (1_000_000_000, "1s"),
            (2_500_000_000, "2.5s"),
            (60_000_000_000, "1m0s"),
            (4_830_000_000_000, "1h20m30s"),
            (3_600_000_000_000, "1h0m0s"),
            (61_000_000_001, "1m1.000000001s"),
        ] {
            assert_eq!(print(Duration::from_nanos(nanos)), text);
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back(nanos in 0_u64..9_000_000_000_000_000) {
            let duration = Duration::from_nanos(nanos);
            let back = parse(&print(duration)).unwrap();
            // Parsing goes through a float, which may round.
            prop_assert!(back.abs_diff(duration) <= Duration::from_nanos(2));
        }
    }
}
