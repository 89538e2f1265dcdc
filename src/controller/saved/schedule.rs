//! When a saved job starts by itself: the `schedule` of its file, and the times that follow from it. Pure: the caller brings
//! the time and the holidays. What has been started, and what is started next, decides `ticks`.
//!
//! Times are those of the schedule's zone. A time of the day that a change of the clocks leaves out comes at the moment of
//! the change, and one that comes twice is the first of both. With a `*` in minutes or hours the expression means a rhythm:
//! it follows the time that passes, as in Vixie's cron.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use cronexpr::{Crontab, FallbackTimezoneOption, MakeTimestamp, ParseOptions, parse_crontab_with};
use jiff::civil::{Date, DateTime};
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value};

use super::rules as own;
use crate::controller::header::rules;
use crate::duration;
use crate::rpc::report::saved::{MissedStarts, Overlap};

/// The shortest rhythm, and the longest delay.
const LEAST: Duration = Duration::from_secs(60);
const LONGEST_JITTER: Duration = Duration::from_secs(24 * 3600);
/// Fields of an expression: minute, hour, day of the month, month, day of the week.
const FIELDS: usize = 5;

/// A schedule as its file says it.
#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Schedule {
    /// The expression.
    #[serde(deserialize_with = "own::line")]
    pub cron: Option<String>,
    /// The rhythm, instead of an expression.
    #[serde(deserialize_with = "rules::span::deserialize")]
    pub every: Option<Duration>,
    /// The name of the zone in the database of zones.
    #[serde(deserialize_with = "own::line")]
    pub zone: Option<String>,
    /// The longest delay of a start, which differs from time to time.
    #[serde(deserialize_with = "rules::span::deserialize")]
    pub jitter: Option<Duration>,
    /// No start is before that time of the zone.
    #[serde(deserialize_with = "own::line")]
    pub not_before: Option<String>,
    /// No start is after that.
    #[serde(deserialize_with = "own::line")]
    pub until: Option<String>,
    /// A file with dates at which nothing starts.
    #[serde(deserialize_with = "own::absolute")]
    pub holidays: Option<PathBuf>,
    /// What happens while the job before has not ended.
    pub overlap: Overlap,
    /// What happens about starts that were missed.
    pub missed: MissedStarts,
    /// Values of the job's variables.
    pub vars: Map<String, Value>,
    /// Nothing starts otherwise.
    pub enabled: bool,
}

impl Default for Schedule {
    fn default() -> Self {
        Self {
            cron: None,
            every: None,
            zone: None,
            jitter: None,
            not_before: None,
            until: None,
            holidays: None,
            overlap: Overlap::default(),
            missed: MissedStarts::default(),
            vars: Map::new(),
            enabled: true,
        }
    }
}

/// A schedule that nodes follow. Ten thousand of them are in memory, so it has only what is needed again and again.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadedSchedule {
    /// Its times.
    pub timetable: Timetable,
    /// Dates at which nothing starts.
    pub holidays: BTreeSet<Date>,
    /// They come from a file.
    pub has_holidays: bool,
    /// The expression or the rhythm, for people.
    pub rule: Box<str>,
    /// A text that differs whenever the times differ.
    pub(super) rule_text: Box<str>,
    /// What happens while the job before has not ended.
    pub overlap: Overlap,
    /// What happens about starts that were missed.
    pub missed: MissedStarts,
    /// Values of the job's variables, if it gives any.
    pub vars: Option<Box<Map<String, Value>>>,
    /// Nothing starts otherwise.
    pub enabled: bool,
}

/// The times of a schedule.
#[derive(Debug, Clone, PartialEq)]
pub struct Timetable {
    rule: TickRule,
    zone: TimeZone,
    not_before: Timestamp,
    until: Timestamp,
    jitter: Duration,
}

/// Expressions are kept as texts that have been parsed before: parsed, one takes a kilobyte.
#[derive(Debug, Clone, PartialEq)]
enum TickRule {
    /// Each so many milliseconds, from a moment on.
    Every { step: i64, from: i64 },
    /// Times of the day: as if they were of UTC, to be found in the zone.
    Daily(Box<str>),
    /// A rhythm in the zone.
    Rhythm(Box<str>),
}

impl Schedule {
    /// Its times.
    ///
    /// # Errors
    /// The key that is wrong, and why.
    pub fn timetable(&self) -> Result<Timetable, (&'static str, String)> {
        let name = self.zone.as_deref().unwrap_or("UTC");
        let zone = TimeZone::get(name).map_err(|_| {
            ("zone", format!("this host knows no time zone {name}: give a name as Europe/Berlin"))
        })?;
        let moment = |key: &'static str, text: &Option<String>| {
            let Some(text) = text else { return Ok(None) };
            let moment = text.parse::<DateTime>().and_then(|time| zone.to_timestamp(time));
            moment.map(Some).map_err(|_| {
                (key, "it is not a time of the zone, as in 2026-12-31 or 2026-12-31T18:00".to_owned())
            })
        };
        let not_before = moment("not_before", &self.not_before)?;
        let until = moment("until", &self.until)?;
        let rule = match (&self.cron, self.every) {
            (Some(text), None) => expression(text, &zone).map_err(|why| ("cron", why))?,
            (None, Some(every)) if every >= LEAST => TickRule::Every {
                step: i64::try_from(every.as_millis()).unwrap_or(i64::MAX),
                from: not_before.unwrap_or(Timestamp::UNIX_EPOCH).as_millisecond(),
            },
            (None, Some(_)) => return Err(("every", "it must be at least a minute".to_owned())),
            (None, None) => return Err(("cron", "it is missing: give `cron`, or `every`".to_owned())),
            (Some(_), Some(_)) => return Err(("every", "it excludes `cron`".to_owned())),
        };
        let jitter = self.jitter.unwrap_or_default();
        if jitter > LONGEST_JITTER {
            return Err(("jitter", "it must be at most a day".to_owned()));
        }
        let (not_before, until) = (not_before.unwrap_or(Timestamp::MIN), until.unwrap_or(Timestamp::MAX));
        Ok(Timetable { rule, zone, not_before, until, jitter })
    }

    /// The schedule with its times and with the dates of its file of holidays.
    pub fn loaded(self, timetable: Timetable, holidays: BTreeSet<Date>) -> LoadedSchedule {
        let Self { cron, every, zone, not_before, until, enabled, .. } = &self;
        let rule_text = format!("{cron:?} {every:?} {zone:?} {not_before:?} {until:?} {enabled}");
        let every = || self.every.map(|every| format!("every {}", duration::print(every)));
        LoadedSchedule {
            timetable,
            holidays,
            has_holidays: self.holidays.is_some(),
            rule_text: rule_text.into(),
            rule: self.cron.clone().or_else(every).unwrap_or_default().into(),
            overlap: self.overlap,
            missed: self.missed,
            vars: Some(self.vars).filter(|vars| !vars.is_empty()).map(Box::new),
            enabled: self.enabled,
        }
    }
}

impl Timetable {
    /// The name of the zone.
    pub(crate) fn zone(&self) -> &str {
        self.zone.iana_name().unwrap_or("UTC")
    }

    /// The first time after a moment.
    pub(crate) fn after(&self, moment: Timestamp) -> Option<Timestamp> {
        let from = moment.max(self.not_before.saturating_sub(SignedDuration::from_nanos(1)).ok()?);
        let next = match &self.rule {
            TickRule::Every { step, from: first } => {
                let passed = from.as_millisecond().checked_sub(*first)?.div_euclid(*step);
                let next = passed.checked_add(1)?.checked_mul(*step)?.checked_add(*first)?;
                Timestamp::from_millisecond(next).ok()
            }
            TickRule::Rhythm(text) => {
                let next = parsed(text).ok()?.find_next(MakeTimestamp(from));
                next.ok().map(|next| next.timestamp())
            }
            TickRule::Daily(text) => self.daily(&parsed(text).ok()?, from),
        };
        next.filter(|next| *next <= self.until)
    }

    /// The first time after a moment of an expression with times of the day.
    fn daily(&self, cron: &Crontab, from: Timestamp) -> Option<Timestamp> {
        let mut time = from.to_zoned(self.zone.clone()).datetime();
        loop {
            let as_utc = TimeZone::UTC.to_timestamp(time).ok()?;
            time = cron.find_next(MakeTimestamp(as_utc)).ok()?.datetime();
            let there = self.zone.to_ambiguous_zoned(time);
            let moment = match there.offset() {
                AmbiguousOffset::Gap { .. } => {
                    let behind = there.later().ok()?.timestamp();
                    self.zone.preceding(behind).next()?.timestamp()
                }
                AmbiguousOffset::Fold { .. } | AmbiguousOffset::Unambiguous { .. } => {
                    there.earlier().ok()?.timestamp()
                }
            };
            if moment > from {
                return Some(moment);
            }
        }
    }

    /// The date at a moment, in the zone.
    pub(super) fn date(&self, moment: Timestamp) -> Date {
        moment.to_zoned(self.zone.clone()).date()
    }

    /// How long after a time its job starts: the same on all control nodes. `seed` is different for each schedule.
    pub(super) fn delay(&self, seed: &str, tick: Timestamp) -> SignedDuration {
        let Some(most) = u64::try_from(self.jitter.as_millis()).ok().filter(|most| *most > 0) else {
            return SignedDuration::ZERO;
        };
        let text = format!("{seed} {}", tick.as_millisecond());
        let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, text.as_bytes());
        let number = hash.as_ref().iter().take(8).fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
        SignedDuration::from_millis((number % most).try_into().unwrap_or(0))
    }

    /// The longest such delay.
    pub(super) fn longest_delay(&self) -> SignedDuration {
        SignedDuration::try_from(self.jitter).unwrap_or_default()
    }
}

fn expression(text: &str, zone: &TimeZone) -> Result<TickRule, String> {
    let fields: Vec<&str> = text.split_whitespace().collect();
    if fields.len() != FIELDS {
        return Err(
            "it must have five fields: minute, hour, day of the month, month, day of the week".to_owned()
        );
    }
    let is_rhythm = fields.iter().take(2).any(|field| field.starts_with('*'));
    let name = zone.iana_name().filter(|_| is_rhythm).unwrap_or("UTC");
    let text = format!("{} {name}", fields.join(" "));
    let cron = parsed(&text)
        // Its message draws the place below the text, in several lines.
        .map_err(|error| match error.to_string().lines().last() {
            Some(line) => format!("it is not a cron expression: {}", line.trim_start_matches([' ', '^'])),
            None => "it is not a cron expression".to_owned(),
        })?;
    if cron.find_next(MakeTimestamp(Timestamp::UNIX_EPOCH)).is_err() {
        return Err("no day is such a day".to_owned());
    }
    Ok(if is_rhythm { TickRule::Rhythm(text.into()) } else { TickRule::Daily(text.into()) })
}

/// The meaning of an expression's fields and its zone.
fn parsed(text: &str) -> Result<Crontab, cronexpr::Error> {
    let mut options = ParseOptions::default();
    options.fallback_timezone_option = FallbackTimezoneOption::UTC;
    parse_crontab_with(text, options)
}

/// The dates of a file of holidays: one at the beginning of each line, and then what people want to say of it.
///
/// # Errors
/// The line that is wrong, counted from 1.
pub(super) fn holidays(text: &str) -> Result<BTreeSet<Date>, usize> {
    let lines = text.lines().enumerate();
    let said = lines.filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
    said.map(|(at, line)| line.split_whitespace().next().and_then(|date| date.parse().ok()).ok_or(at + 1))
        .collect()
}
