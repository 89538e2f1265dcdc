//! When the clock that decides about deletion is believed.

use std::time::Duration;

use super::super::*;

const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const YEARS: Duration = Duration::from_secs(5 * 365 * 24 * 60 * 60);

/// Looks once a minute, and keeps each record that is news. Returns the record that is kept, and the clock's time at
/// the end.
fn run(mut record: ClockRecord, mut now: Time, span: Duration) -> (ClockRecord, Time) {
    let end = now + span;
    while now < end {
        now = now + MINUTE;
        let seen = record.looked_at(now);
        if seen.is_news(&record) {
            record = seen;
        }
    }
    (record, now)
}

#[test]
fn a_clock_that_runs_is_believed_and_rarely_written_down() {
    let mut written = 0;
    let mut record = ClockRecord::believed(Time(0));
    for minute in 1..=1440 {
        let now = Time(0) + MINUTE * minute;
        assert!(!record.doubts(now));
        let seen = record.looked_at(now);
        if seen.is_news(&record) {
            (record, written) = (seen, written + 1);
        }
    }
    assert_eq!((written, record.latest), (144, Time(0) + DAY));
}

#[test]
fn a_clock_that_is_years_ahead_deletes_nothing_and_may_come_back() {
    let record = ClockRecord::believed(Time(1_000));
    let ahead = Time(1_000) + YEARS;
    // Even before anybody has looked.
    assert!(record.doubts(ahead) && !record.doubts(Time(1_000) + DAY));
    let (record, now) = run(record, ahead, DAY / 2);
    assert!(record.doubts(now));
    // The clock is set right again: nothing is left of the wrong time.
    let right = Time(1_000) + DAY / 2;
    assert_eq!(record.looked_at(right), ClockRecord::believed(right));
}

#[test]
fn a_clock_that_has_run_for_a_day_or_is_confirmed_is_believed() {
    let record = ClockRecord::believed(Time(0));
    let (record, now) = run(record, Time(0) + YEARS, DAY - MINUTE * 20);
    assert!(record.doubts(now));
    let (record, now) = run(record, now, MINUTE * 40);
    assert!(!record.doubts(now), "{record:?}");
    let (doubted, now) = run(ClockRecord::believed(Time(0)), Time(0) + YEARS, MINUTE);
    assert!(doubted.doubts(now) && !ClockRecord::believed(now).doubts(now));
}

#[test]
fn a_time_that_was_believed_wrongly_is_forgotten_once_the_right_one_has_run_for_a_day() {
    let (record, ahead) = run(ClockRecord::believed(Time(0)), Time(0) + YEARS, DAY + MINUTE * 20);
    assert_eq!(record.doubt, None, "believed: nobody has set it right");
    // A machine boots with a clock that is behind, and is set right within moments.
    let (booted, now) = run(record, Time(0), MINUTE * 20);
    assert!(!booted.doubts(now) && booted.latest == record.latest);
    assert_eq!(booted.looked_at(ahead).latest, ahead);
    let (record, now) = run(record, Time(0), DAY + MINUTE * 20);
    assert!(!record.doubts(now) && record.doubts(ahead), "{record:?}");
}

#[test]
fn time_in_which_nobody_looked_proves_nothing() {
    let mut record = ClockRecord::believed(Time(0));
    let mut now = Time(0) + YEARS;
    // A machine boots again and again, each time with another wrong time.
    for _ in 0..100 {
        let (looked, end) = run(record, now, MINUTE * 10);
        assert!(looked.doubts(end));
        (record, now) = (looked, end + YEARS);
    }
    // The clock goes back, but not far enough.
    let (record, now) = run(record, Time(0) + YEARS, MINUTE * 10);
    assert!(record.doubts(now));
}
