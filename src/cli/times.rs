//! Times as people type and read them: `24s`, `3m ago`, `2d`, `yesterday`. Pure: what time it is now is an argument.

use std::time::Duration;

use jiff::civil::DateTime;
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

/// Seconds since a time; below zero if it is still to come, by a clock that is right.
pub(super) fn since(time: Timestamp, now: Timestamp) -> i64 {
    let seconds = now.as_second().saturating_sub(time.as_second());
    if (-APART..0).contains(&seconds) { 0 } else { seconds }
}

/// How long ago a time of a report is, in one unit: `24s ago`, `3m ago`, `in 2h`. What is no time stays as it is.
pub(super) fn ago(text: &str, now: Timestamp) -> String {
    let Ok(time) = text.parse() else { return text.to_owned() };
    let seconds = since(time, now);
    let length = match seconds.unsigned_abs() {
        length @ ..60 => format!("{length}s"),
        length @ ..HOUR => format!("{}m", length / 60),
        length if length < 2 * DAY => format!("{}h", length / HOUR),
        length => format!("{}d", length / DAY),
    };
    if seconds < 0 { format!("in {length}") } else { format!("{length} ago") }
}

/// The same with the time itself, in whole seconds.
pub(super) fn at(text: &str, now: Timestamp) -> String {
    let Ok(time) = text.parse::<Timestamp>() else { return text.to_owned() };
    format!("{time:.0} ({})", ago(text, now))
}

/// A length of time as typed: `60d`, or as in configurations, `1h30m`.
pub(super) fn length(text: &str) -> Result<Duration, String> {
    let days = text.strip_suffix('d').and_then(|number| number.parse::<u32>().ok());
    match days {
        Some(days) => Ok(Duration::from_secs(u64::from(days) * DAY)),
        None => duration::parse(text).map_err(|_| format!("{text:?} is no time such as 60d or 12h")),
    }
}

/// A time as typed: how long it is ago, a day, or a time by the clock.
pub(super) fn moment(text: &str) -> Result<Timestamp, String> {
    moment_before(text, &Zoned::now())
}

fn moment_before(text: &str, now: &Zoned) -> Result<Timestamp, String> {
    if let Ok(time) = text.parse() {
        return Ok(time);
    }
    let start_of = |day: Result<Zoned, jiff::Error>| day.and_then(|day| day.start_of_day());
    let local = |time: DateTime| time.to_zoned(now.time_zone().clone());
    let by_the_calendar = match text {
        "today" => start_of(Ok(now.clone())).ok(),
        "yesterday" => start_of(now.yesterday()).ok(),
        text => text.parse::<DateTime>().ok().and_then(|time| local(time).ok()),
    };
    let before = |length| now.timestamp().checked_sub(SignedDuration::try_from(length).ok()?).ok();
    let found = by_the_calendar.map(|time| time.timestamp());
    found.or_else(|| length(text).ok().and_then(before)).ok_or_else(|| {
        "write 90s, 3h or 2d for how long ago, today, yesterday, 2026-01-31 or 2026-01-31T12:00:00Z"
            .to_owned()
    })
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
        let now = "2026-01-10T00:00:00Z".parse().unwrap();
        for (time, text) in [
            ("2026-01-10T00:00:01Z", "0s ago"),
            ("2026-01-09T23:59:36Z", "24s ago"),
            ("2026-01-09T23:56:59Z", "3m ago"),
            ("2026-01-08T00:00:01Z", "47h ago"),
            ("2026-01-07T12:00:00Z", "2d ago"),
            ("2026-01-10T02:00:00Z", "in 2h"),
            ("soon", "soon"),
        ] {
            assert_eq!(ago(time, now), text, "{time}");
        }
        assert_eq!(at("2026-01-09T23:56:59.123Z", now), "2026-01-09T23:56:59Z (3m ago)");
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
            assert_eq!(moment_before(text, &now), Ok(time.parse().unwrap()), "{text}");
        }
        for text in ["", "d", "tomorrow", "-1h", "2026-13-01", "4294967295d"] {
            assert!(moment_before(text, &now).is_err(), "{text}");
        }
        assert_eq!(length("60d"), Ok(Duration::from_secs(60 * DAY)));
    }
}
