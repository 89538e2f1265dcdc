//! Schedules: their times, also where the clocks change, and what is due for control nodes that share a store.

use std::collections::{BTreeMap, BTreeSet};

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

use super::super::schedule::{LoadedSchedule, holidays};
use super::super::ticks::{Due, OpenJob, ScheduleLook, ScheduleState, next_starts};
use super::{SavedJob, parse};

fn loaded(schedule: &str) -> LoadedSchedule {
    let job = parse(&format!("module: ping\nschedule: {schedule}\n"));
    job.schedule.unwrap().loaded(job.timetable.unwrap(), BTreeSet::new())
}

fn fault(schedule: &str) -> String {
    let text = format!(
        "module: ping\nvars: {{a: , s: {{secret: true}}, num: {{type: int, default: 1}}}}\nschedule: {schedule}\n"
    );
    let fault = SavedJob::parse(&text).unwrap_err();
    assert_eq!(fault.line, 3, "{}", fault.text);
    fault.text
}

fn moment(zone: &str, text: &str) -> Timestamp {
    TimeZone::get(zone).unwrap().to_timestamp(text.parse::<DateTime>().unwrap()).unwrap()
}

/// The first times after a moment of a zone, as people there read them.
fn times(schedule: &str, zone: &str, from: &str, count: usize) -> Vec<String> {
    let timetable = loaded(schedule).timetable;
    let first = timetable.after(moment(zone, from));
    let times = std::iter::successors(first, |time| timetable.after(*time)).take(count);
    let zone = TimeZone::get(zone).unwrap();
    times.map(|time| time.to_zoned(zone.clone()).strftime("%m-%d %H:%M%:::z").to_string()).collect()
}

#[test]
fn times_of_the_day_come_once_where_the_clocks_change() {
    // The table of docs/saved-jobs.md.
    let berlin = |cron: &str, from: &str, count| {
        times(&format!("{{cron: '{cron}', zone: Europe/Berlin}}"), "Europe/Berlin", from, count)
    };
    // On 29 March 2026 there is no time from 2:00 to 3:00, on 25 October there are two.
    assert_eq!(berlin("30 2 * * *", "2026-03-28T03:00", 2), ["03-29 03:00+02", "03-30 02:30+02"]);
    assert_eq!(berlin("0,30 2 * * *", "2026-03-28T03:00", 2), ["03-29 03:00+02", "03-30 02:00+02"]);
    assert_eq!(berlin("0 3 * * *", "2026-03-28T03:00", 2), ["03-29 03:00+02", "03-30 03:00+02"]);
    assert_eq!(
        berlin("30 2,3 * * *", "2026-03-28T04:00", 3),
        ["03-29 03:00+02", "03-29 03:30+02", "03-30 02:30+02"]
    );
    assert_eq!(berlin("30 2 * * *", "2026-10-24T03:00", 2), ["10-25 02:30+02", "10-26 02:30+01"]);
    assert_eq!(
        berlin("0,30 2 * * *", "2026-10-24T03:00", 3),
        ["10-25 02:00+02", "10-25 02:30+02", "10-26 02:00+01"]
    );
    // A rhythm follows the time that passes.
    let spring = ["03-29 01:30+01", "03-29 03:00+02", "03-29 03:30+02"];
    assert_eq!(berlin("*/30 * * * *", "2026-03-29T01:00", 3), spring);
    let autumn = ["10-25 02:00+02", "10-25 02:30+02", "10-25 02:00+01", "10-25 02:30+01", "10-25 03:00+01"];
    assert_eq!(berlin("*/30 * * * *", "2026-10-25T01:30", 5), autumn);
    assert_eq!(
        berlin("0 * * * *", "2026-10-25T01:30", 3),
        ["10-25 02:00+02", "10-25 02:00+01", "10-25 03:00+01"]
    );
    let every = times("{every: 12h, zone: Europe/Berlin}", "Europe/Berlin", "2026-10-24T20:00", 3);
    assert_eq!(every, ["10-25 02:00+02", "10-25 13:00+01", "10-26 01:00+01"]);
    // Half an hour, on Lord Howe Island; and a whole day that Samoa left out.
    let howe = times(
        "{cron: '15 2 * * *', zone: Australia/Lord_Howe}",
        "Australia/Lord_Howe",
        "2026-10-03T03:00",
        2,
    );
    assert_eq!(howe, ["10-04 02:30+11", "10-05 02:15+11"]);
    let apia = times("{cron: '0 12 * * *', zone: Pacific/Apia}", "Pacific/Apia", "2011-12-29T11:00", 3);
    assert_eq!(apia, ["12-29 12:00-10", "12-31 00:00+14", "12-31 12:00+14"]);
}

#[test]
fn times_keep_to_their_bounds_and_rhythms_begin_there() {
    let utc = |schedule: &str, from: &str, count| times(schedule, "UTC", from, count);
    let schedule = "{cron: '0 9 * * *', not_before: 2026-12-01T09:00, until: '2026-12-02'}";
    assert_eq!(utc(schedule, "2026-01-01", 5), ["12-01 09:00+00"]);
    let schedule = "{every: 7h, not_before: 2026-12-01T01:00, until: 2026-12-01T15:00}";
    assert_eq!(utc(schedule, "2026-01-01", 5), ["12-01 01:00+00", "12-01 08:00+00", "12-01 15:00+00"]);
    assert_eq!(utc("{cron: '0 9 L 2 *'}", "2028-01-01", 2), ["02-29 09:00+00", "02-28 09:00+00"]);
    assert_eq!(utc("{cron: '0 9 * * MON#1'}", "2026-11-30T08:00", 1), ["12-07 09:00+00"]);
    let delayed = loaded("{cron: '0 9 * * *', jitter: 10m}");
    let from = moment("UTC", "2026-12-01");
    let starts = |name| next_starts(name, &delayed, None, from).take(5).collect::<Vec<_>>();
    assert!(
        starts("a") == starts("a") && starts("a") != starts("b"),
        "a delay is the schedule's own, on each node"
    );
    let spread = |at: Timestamp| at.duration_since(moment("UTC", "2026-12-01T09:00")).as_mins() % (24 * 60);
    assert!(starts("a").into_iter().all(|at| (0..10).contains(&spread(at))), "{:?}", starts("a"));
}

#[test]
fn a_wrong_schedule_says_what_is_wrong() {
    for (schedule, text) in [
        ("{}", "schedule.cron: it is missing: give `cron`, or `every`"),
        ("{cron: '* * * * *', every: 1h}", "schedule.every: it excludes `cron`"),
        ("{every: 10s}", "schedule.every: it must be at least a minute"),
        (
            "{cron: '0 3 * *'}",
            "schedule.cron: it must have five fields: minute, hour, day of the month, month, day of the week",
        ),
        ("{cron: '0 3 30 2 *'}", "schedule.cron: no day is such a day"),
        (
            "{cron: '0 25 * * *'}",
            "schedule.cron: it is not a cron expression: value must be in range 0..=23; found 25",
        ),
        (
            "{cron: '0 3 * * *', zone: Europe/Bonn}",
            "schedule.zone: this host knows no time zone Europe/Bonn: give a name as Europe/Berlin",
        ),
        (
            "{every: 1h, until: soon}",
            "schedule.until: it is not a time of the zone, as in 2026-12-31 or 2026-12-31T18:00",
        ),
        ("{every: 1h, jitter: 25h}", "schedule.jitter: it must be at most a day"),
        ("{every: 1h, overlap: never}", "schedule.overlap: it must be one of skip, queue, replace"),
        ("{every: 1h, vars: {s: x}}", "schedule.vars: s is secret: a file is no place for it"),
        ("{every: 1h, vars: {a: x}}", "schedule.vars: missing: s"),
        ("{every: 1h, evry: 2h}", "unknown key `schedule.evry`: did you mean `every`?"),
    ] {
        assert_eq!(fault(schedule), text, "{schedule}");
    }
    assert_eq!(holidays("2026-12-25 Christmas\n\n# more\n2027-01-01\n").unwrap().len(), 2);
    assert_eq!(holidays("2026-12-25\n25.12.2026\n"), Err(2));
}

/// A look by the node `c1`.
fn due(schedule: &LoadedSchedule, now: Timestamp, known: Option<&ScheduleState>, open: &[OpenJob]) -> Due {
    ScheduleLook { name: "app", schedule, node: "c1", now }.due(known, open)
}

/// The state after these looks without an open job; panics at one that waits.
fn begun(schedule: &LoadedSchedule, now: Timestamp) -> ScheduleState {
    match due(schedule, now, None, &[]) {
        Due::Write(state) => state,
        other => panic!("{other:?}"),
    }
}

fn skipped(due: Due) -> (String, Timestamp) {
    match due {
        Due::Write(ScheduleState { skipped: Some(skipped), cursor, .. }) => (skipped.why, cursor),
        other => panic!("{other:?}"),
    }
}

fn started(due: Due) -> (Timestamp, ScheduleState, Vec<i64>) {
    match due {
        Due::Start { tick, done, end, .. } => (tick, *done, end),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_due_follows_from_the_time_and_from_the_jobs_that_have_not_ended() {
    let at = |text: &str| moment("UTC", text);
    let (running, pending) = (OpenJob { id: 7, is_pending: false }, OpenJob { id: 8, is_pending: true });
    let schedule = loaded("{cron: '0 9 * * *'}");
    let state = begun(&schedule, at("2026-12-01T08:00"));
    let nine = at("2026-12-01T09:00");
    assert_eq!(due(&schedule, at("2026-12-01T08:59"), Some(&state), &[]), Due::Nothing(Some(nine)));
    let (tick, done, end) = started(due(&schedule, nine, Some(&state), &[]));
    assert_eq!((tick, done.cursor, end.len()), (nine, nine, 0));
    assert_eq!(due(&schedule, nine, Some(&done), &[]), Due::Nothing(Some(at("2026-12-02T09:00"))));
    // A restart makes nobody miss a start, and a day off does.
    assert_eq!(started(due(&schedule, at("2026-12-01T09:05"), Some(&state), &[])).0, nine);
    let (why, cursor) = skipped(due(&schedule, at("2026-12-01T09:06"), Some(&state), &[]));
    assert_eq!((why.as_str(), cursor), ("no control node was at work", at("2026-12-01T09:01")));
    let once = loaded("{cron: '0 9 * * *', missed: run-once}");
    let state = begun(&once, at("2026-12-01T08:00"));
    let late = at("2026-12-04T12:00");
    let (tick, done, _) = started(due(&once, late, Some(&state), &[]));
    assert_eq!((tick, done.cursor), (nine, late), "one start makes up for three");
    // Another rule begins anew.
    let other = loaded("{cron: '1 9 * * *'}");
    assert!(matches!(due(&other, late, Some(&state), &[]), Due::Write(state) if state.cursor == late));
    // Overlaps.
    let state = begun(&schedule, at("2026-12-01T08:00"));
    let open = [running, pending];
    assert_eq!(skipped(due(&schedule, nine, Some(&state), &open)), ("job 7 had not ended".to_owned(), nine));
    let queue = loaded("{cron: '0 9 * * *', overlap: queue}");
    assert_eq!(started(due(&queue, nine, Some(&state), &open[..1])).0, nine);
    assert_eq!(skipped(due(&queue, nine, Some(&state), &open)).0, "job 8 waited already");
    let replace = loaded("{cron: '0 9 * * *', overlap: replace}");
    assert_eq!(started(due(&replace, nine, Some(&state), &open)).2, [7, 8]);
    // Holidays, and a pause.
    let mut off = loaded("{cron: '30 23 * * *', zone: Asia/Tokyo}");
    off.holidays = holidays("2026-12-01").unwrap();
    let state = begun(&off, at("2026-12-01T08:00"));
    let (why, _) = skipped(due(&off, at("2026-12-01T14:30"), Some(&state), &[]));
    assert_eq!(why, "2026-12-01 is a holiday", "the date is that of the zone");
    let first = next_starts("app", &off, None, at("2026-12-01T08:00")).next();
    assert_eq!(first, Some(at("2026-12-02T14:30")));
    let paused = ScheduleState::paused(Some(state), &schedule, true, nine);
    assert_eq!(due(&schedule, at("2026-12-09"), Some(&paused), &[]), Due::Nothing(None));
    let resumed = ScheduleState::paused(Some(paused), &schedule, false, at("2026-12-09"));
    assert_eq!(
        due(&schedule, at("2026-12-09"), Some(&resumed), &[]),
        Due::Nothing(Some(at("2026-12-09T09:00")))
    );
    // A cursor of a wrong clock.
    let ahead = ScheduleState { cursor: at("2027-12-01"), ..resumed.clone() };
    assert!(matches!(due(&schedule, nine, Some(&ahead), &[]), Due::Write(state) if state.cursor == nine));
    let slightly = ScheduleState { cursor: at("2026-12-01T09:04"), ..resumed };
    assert_eq!(due(&schedule, nine, Some(&slightly), &[]), Due::Nothing(Some(at("2026-12-02T09:00"))));
}

/// A day of two control nodes that share a store, of which each step may be the last one of a node: it dies between
/// two writes, stands still, or the store loses its last commits. A job's key is unique in the store.
struct Day {
    rng: SmallRng,
    now: Timestamp,
    document: Option<(u64, ScheduleState)>,
    former: Option<(u64, ScheduleState)>,
    /// Jobs by key, and how often each was handed to the store.
    jobs: BTreeMap<Timestamp, usize>,
    faults: usize,
}

impl Day {
    /// One look of a node, which may stop at any point.
    fn look(&mut self, node: &str, schedule: &LoadedSchedule) {
        let (version, state) =
            self.document.clone().map_or((0, None), |(version, state)| (version, Some(state)));
        let due = ScheduleLook { name: "app", schedule, node, now: self.now }.due(state.as_ref(), &[]);
        match due {
            Due::Nothing(_) => {}
            Due::Write(next) => drop(self.write(version, next)),
            Due::Start { tick, taken, done, .. } => {
                if self.write(version, *taken) && !self.fails() {
                    // What another node does meanwhile.
                    if self.rng.random_bool(0.1) {
                        self.now += SignedDuration::from_secs(self.rng.random_range(1..60));
                        self.look(if node == "c1" { "c2" } else { "c1" }, schedule);
                    }
                    *self.jobs.entry(tick).or_default() += 1;
                    if !self.fails() {
                        let version = self.document.as_ref().map_or(0, |(version, _)| *version);
                        self.write(version, *done);
                    }
                }
            }
        }
    }

    fn write(&mut self, version: u64, state: ScheduleState) -> bool {
        let is_latest = self.document.as_ref().map_or(0, |(version, _)| *version) == version;
        if is_latest {
            self.former = self.document.replace((version + 1, state));
        }
        is_latest
    }

    fn fails(&mut self) -> bool {
        let fails = self.faults < 300 && self.rng.random_bool(0.4);
        self.faults += usize::from(fails);
        fails
    }
}

#[test]
fn each_tick_of_a_day_with_300_faults_starts_one_job() {
    for seed in 0..20 {
        let schedule = loaded("{cron: '*/2 * * * *', jitter: 30s}");
        let start = moment("UTC", "2026-12-01");
        let end = start + SignedDuration::from_hours(24);
        let rng = SmallRng::seed_from_u64(seed);
        let mut day = Day { rng, now: start, document: None, former: None, jobs: BTreeMap::new(), faults: 0 };
        while day.now < end {
            for node in ["c1", "c2"] {
                if day.rng.random_bool(0.8) {
                    day.look(node, &schedule);
                }
            }
            // The store loses its last commit; the keys of jobs are in other commits, or come again with their units.
            if day.faults < 300 && day.rng.random_bool(0.02) && day.former.is_some() {
                day.faults += 1;
                day.document = day.former.take().map(|(version, state)| (version + 1000, state));
            }
            day.now += SignedDuration::from_secs(day.rng.random_range(1..20));
        }
        assert!(day.faults >= 300, "seed {seed}: {} faults", day.faults);
        // The first look comes at the beginning, and a start may be as late as a node is taken for lost.
        let known =
            std::iter::successors(schedule.timetable.after(start), |tick| schedule.timetable.after(*tick));
        let due: Vec<Timestamp> =
            known.take_while(|tick| *tick < end - SignedDuration::from_mins(5)).collect();
        let missing: Vec<_> = due.iter().filter(|tick| !day.jobs.contains_key(tick)).collect();
        assert!(missing.is_empty(), "seed {seed}: no start at {missing:?}");
        assert!(day.jobs.keys().all(|tick| *tick > start && tick.as_second() % 120 == 0), "seed {seed}");
    }
}
