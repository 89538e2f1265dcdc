//! Times as people type and read them: `24s`, `3m ago`, `2d`, `yesterday`. Pure: what time it is now is an argument.

use std::time::Duration;

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, Zoned};

use crate::duration;

const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;
/// How far two clocks that are right may be apart, in seconds.
const APART: i64 = 2;

/// Seconds: `12s`, `5m03s`, `2h05m`, `3d04h`.
pub(super) fn span(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / HOUR, seconds / DAY);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m{:02}s", seconds % 60),
        (0, ..) => format!("{hours}h{:02}m", minutes % 60),
        _ => format!("{days}d{:02}h", hours % 24),
    }
}

/// Seconds since a time; below zero if it is still to come. What may be a difference between two right clocks counts as
/// 0.
pub(super) fn since(time: Timestamp, now: Timestamp) -> i64 {
    let seconds = now.as_second().saturating_sub(time.as_second());
    if (-APART..0).contains(&seconds) { 0 } else { seconds }
}

/// How long ago a time of a report is, in one unit: `24s ago`, `3m ago`, `in 2h`. A text that is no time stays as it
/// is.
pub(super) fn ago(text: &str, now: &Zoned) -> String {
    let Ok(time) = text.parse() else { return text.to_owned() };
    let seconds = since(time, now.timestamp());
    let length = match seconds.unsigned_abs() {
        length @ ..60 => format!("{length}s"),
        length @ ..HOUR => format!("{}m", length / 60),
        length if length < 2 * DAY => format!("{}h", length / HOUR),
        length => format!("{}d", length / DAY),
    };
    if seconds < 0 { format!("in {length}") } else { format!("{length} ago") }
}

/// The time itself, and how long ago it is.
pub(super) fn at(text: &str, now: &Zoned) -> String {
    let Ok(time) = text.parse::<Timestamp>() else { return text.to_owned() };
    format!("{} ({})", zoned(time, now.time_zone()), ago(text, now))
}

/// A time in whole seconds and in this zone: `2026-01-10T01:00:00+01:00`, or with `Z` where that is UTC. [`TypedTime`]
/// reads it.
pub(super) fn zoned(time: Timestamp, zone: &TimeZone) -> String {
    let time = time.to_zoned(zone.clone());
    time.strftime(if time.offset().is_zero() { "%FT%TZ" } else { "%FT%T%:z" }).to_string()
}

/// The time of day with its zone, and with its date unless it is today: `12:04:10 UTC`.
pub(super) fn clock(text: &str, now: &Zoned) -> String {
    let Ok(time) = text.parse::<Timestamp>() else { return text.to_owned() };
    let time = time.to_zoned(now.time_zone().clone());
    time.strftime(if time.date() == now.date() { "%T %Z" } else { "%F %T %Z" }).to_string()
}

/// A length of time as typed: `60d`, or as in configurations, `1h30m`.
pub(super) fn length(text: &str) -> Result<Duration, String> {
    let days = text.strip_suffix('d').and_then(|number| number.parse::<u32>().ok());
    match days {
        Some(days) => Ok(Duration::from_secs(u64::from(days) * DAY)),
        None => duration::parse(text).map_err(|_| format!("{text:?} is not a time such as 60d or 12h")),
    }
}

/// A time as typed: how long ago it is, a day, or a date with a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TypedTime {
    At(Timestamp),
    Ago(SignedDuration),
    /// Without a zone.
    Local(DateTime),
    Today,
    Yesterday,
}

impl TypedTime {
    /// Reads it.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let at = || text.parse().ok().map(Self::At);
        let local = || text.parse().ok().map(Self::Local);
        let before = || {
            let length = SignedDuration::try_from(length(text).ok()?).ok()?;
            Timestamp::UNIX_EPOCH.checked_sub(length).ok().map(|_| Self::Ago(length))
        };
        match text {
            "today" => Ok(Self::Today),
            "yesterday" => Ok(Self::Yesterday),
            _ => at().or_else(local).or_else(before).ok_or_else(|| {
                "write 90s, 3h or 2d for how long ago, today, yesterday, 2026-01-31 or 2026-01-31T12:00:00Z"
                    .to_owned()
            }),
        }
    }

    /// The time that it means, in the zone of `now`. What lies before all time is its beginning.
    pub(super) fn moment(self, now: &Zoned) -> Timestamp {
        let found = match self {
            Self::At(time) => return time,
            Self::Ago(length) => return now.timestamp().checked_sub(length).unwrap_or(Timestamp::MIN),
            Self::Local(time) => time.to_zoned(now.time_zone().clone()),
            Self::Today => now.start_of_day(),
            Self::Yesterday => now.yesterday().and_then(|day| day.start_of_day()),
        };
        found.map_or(Timestamp::MIN, |time| time.timestamp())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_and_ages_are_short() {
        for (seconds, text) in
            [(0, "0s"), (59, "59s"), (63, "1m03s"), (7500, "2h05m"), (3 * DAY + 4 * HOUR, "3d04h")]
        {
            assert_eq!(span(seconds), text);
        }
        let now: Zoned = "2026-01-10T00:00:00+00:00[UTC]".parse().unwrap();
        for (time, text) in [
            ("2026-01-10T00:00:01Z", "0s ago"),
            ("2026-01-09T23:59:36Z", "24s ago"),
            ("2026-01-09T23:56:59Z", "3m ago"),
            ("2026-01-08T00:00:01Z", "47h ago"),
            ("2026-01-07T12:00:00Z", "2d ago"),
            ("2026-01-10T02:00:00Z", "in 2h"),
            ("soon", "soon"),
        ] {
            assert_eq!(ago(time, &now), text, "{time}");
        }
    }

    #[test]
    fn a_time_is_shown_in_the_zone_of_the_reader_and_says_which() {
        let utc: Zoned = "2026-01-10T00:00:00+00:00[UTC]".parse().unwrap();
        let berlin: Zoned = "2026-01-10T01:00:00+01:00[Europe/Berlin]".parse().unwrap();
        let time = "2026-01-09T23:56:59.723Z";
        assert_eq!(at(time, &utc), "2026-01-09T23:56:59Z (3m ago)");
        assert_eq!(at(time, &berlin), "2026-01-10T00:56:59+01:00 (3m ago)");
        assert_eq!(clock(time, &utc), "2026-01-09 23:56:59 UTC");
        assert_eq!(clock(time, &berlin), "00:56:59 CET");
        let summer: Zoned = "2026-07-10T01:00:00+02:00[Europe/Berlin]".parse().unwrap();
        assert_eq!(at(time, &summer), "2026-01-10T00:56:59+01:00 (180d ago)");
        let typed = TypedTime::parse(&zoned(time.parse().unwrap(), berlin.time_zone())).unwrap();
        assert_eq!(zoned(typed.moment(&utc), utc.time_zone()), "2026-01-09T23:56:59Z");
    }

    #[test]
    fn a_time_is_typed_in_many_ways() {
        let now: Zoned = "2026-03-10T12:30:00+01:00[Europe/Berlin]".parse().unwrap();
        for (text, time) in [
            ("90s", "2026-03-10T11:28:30Z"),
            ("1h30m", "2026-03-10T10:00:00Z"),
            ("2d", "2026-03-08T11:30:00Z"),
            ("today", "2026-03-09T23:00:00Z"),
            ("yesterday", "2026-03-08T23:00:00Z"),
            ("2026-03-01", "2026-02-28T23:00:00Z"),
            ("2026-03-01T10:00", "2026-03-01T09:00:00Z"),
            ("2026-03-01T10:00:00Z", "2026-03-01T10:00:00Z"),
        ] {
            let typed = TypedTime::parse(text).unwrap();
            assert_eq!(typed.moment(&now), time.parse().unwrap(), "{text}");
        }
        for text in ["", "d", "tomorrow", "-1h", "2026-13-01", "4294967295d"] {
            assert!(TypedTime::parse(text).is_err(), "{text}");
        }
        assert_eq!(length("60d"), Ok(Duration::from_secs(60 * DAY)));
    }
}
