//! Which start of a schedule is due, and what becomes of it. Pure: decides from the timetable, from what the store keeps of
//! the schedule, and from the jobs that it has started and that have not ended.
//!
//! Each tick is handled once by whichever control node writes first that it takes it. A node that dies after that is followed by another one,
//! and the key of the job, which is made of the tick, keeps both from starting two.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::schedule::LoadedSchedule;
use crate::rpc::report::saved::{MissedStarts, Overlap, SkippedTick, StartedTick};

/// How late a start may be and still counts as on time: a control node restarts, or another one takes over.
const ON_TIME: SignedDuration = SignedDuration::from_mins(5);
/// How long another node may take to start a job that it has taken.
const TAKEN: SignedDuration = SignedDuration::from_mins(1);
/// A cursor that is so far ahead was written while the clock was wrong. What then is due again has been started, and so has
/// its key.
const AHEAD: SignedDuration = SignedDuration::from_mins(5);

/// Times among which the next starts are looked for, because all of them may be holidays.
const MOST_TICKS: usize = 500;

/// What the store keeps of a schedule.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ScheduleState {
    /// Everything up to this moment has been handled.
    pub cursor: Timestamp,
    /// The rule that held then. Under another one nothing has been missed yet.
    pub rule: String,
    /// An operator has paused it.
    pub paused: bool,
    /// Who handles the next tick.
    pub taken: Option<TakenTick>,
    /// The latest start.
    pub last: Option<StartedTick>,
    /// The latest tick without one.
    pub skipped: Option<SkippedTick>,
}

/// A tick that a node handles.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TakenTick {
    tick: Timestamp,
    node: String,
    at: Timestamp,
}

/// What is done about a schedule.
#[derive(Debug, Clone, PartialEq)]
pub enum Due {
    /// Nothing before that moment, if ever.
    Nothing(Option<Timestamp>),
    /// Write this, and look again.
    Write(ScheduleState),
    /// Write the first, start the job of this tick and end those jobs, and write the second.
    Start {
        /// The time that the schedule says.
        tick: Timestamp,
        /// This node handles it.
        taken: Box<ScheduleState>,
        /// It is handled.
        done: Box<ScheduleState>,
        /// Jobs that the new one replaces.
        end: Vec<i64>,
    },
}

/// A look at a schedule.
pub struct ScheduleLook<'a> {
    /// The name of the saved job.
    pub name: &'a str,
    /// Its schedule.
    pub schedule: &'a LoadedSchedule,
    /// The control node that looks.
    pub node: &'a str,
    /// By the store's clock.
    pub now: Timestamp,
}

/// A job of the schedule that has not ended.
pub struct OpenJob {
    /// Its number.
    pub id: i64,
    /// It waits for its place.
    pub is_pending: bool,
}

impl ScheduleLook<'_> {
    /// What is done, with what the store keeps and with the jobs that have not ended.
    pub fn due(&self, known: Option<&ScheduleState>, open: &[OpenJob]) -> Due {
        let now = self.now;
        let LoadedSchedule { timetable, holidays, rule_text, overlap, missed, .. } = self.schedule;
        let state = match known {
            Some(state) if *state.rule == **rule_text && state.cursor <= now + AHEAD => state,
            former => {
                let former = former.cloned().unwrap_or_default();
                let rule = rule_text.to_string();
                return Due::Write(ScheduleState { cursor: now, rule, taken: None, ..former });
            }
        };
        if state.paused {
            return Due::Nothing(None);
        }
        let Some(tick) = timetable.after(state.cursor) else { return Due::Nothing(None) };
        let moment = tick + timetable.delay(self.name, tick);
        if moment > now {
            return Due::Nothing(Some(moment));
        }
        let skip = |cursor: Timestamp, why: String| {
            let skipped = Some(SkippedTick { tick: tick.to_string(), why });
            Due::Write(ScheduleState { cursor, skipped, taken: None, ..state.clone() })
        };
        let is_late = now.duration_since(moment) > ON_TIME;
        if is_late && *missed == MissedStarts::Skip {
            // All that would have started before has been missed, too.
            let before = now - ON_TIME - timetable.longest_delay();
            return skip(tick.max(before), "no control node was at work".to_owned());
        }
        let date = timetable.date(tick);
        if holidays.contains(&date) {
            return skip(tick, format!("{date} is a holiday"));
        }
        let pending = open.iter().find(|job| job.is_pending);
        match (overlap, open.first(), pending) {
            (Overlap::Skip, Some(OpenJob { id, .. }), _) => {
                return skip(tick, format!("job {id} had not ended"));
            }
            (Overlap::Queue, _, Some(OpenJob { id, .. })) => {
                return skip(tick, format!("job {id} waited already"));
            }
            (Overlap::Skip | Overlap::Queue | Overlap::Replace, _, _) => {}
        }
        if let Some(TakenTick { tick: other, node, at }) = &state.taken
            && *other == tick
            && node != self.node
            && now.duration_since(*at) < TAKEN
        {
            return Due::Nothing(Some(*at + TAKEN));
        }
        let is_replaced = *overlap == Overlap::Replace;
        let end = open.iter().filter(|_| is_replaced).map(|job| job.id).collect();
        let taken = ScheduleState {
            taken: Some(TakenTick { tick, node: self.node.to_owned(), at: now }),
            ..state.clone()
        };
        // One start makes up for all that were missed.
        let cursor = if is_late { now } else { tick };
        let done = Box::new(ScheduleState { cursor, taken: None, ..taken.clone() });
        Due::Start { tick, done, taken: Box::new(taken), end }
    }
}

impl ScheduleState {
    /// What is known after an operator has paused the schedule, or has let it go on.
    pub fn paused(known: Option<Self>, schedule: &LoadedSchedule, paused: bool, now: Timestamp) -> Self {
        let rule = schedule.rule_text.to_string();
        Self { cursor: now, rule, paused, taken: None, ..known.unwrap_or_default() }
    }

    /// The job of a tick has been started.
    pub fn started(self, tick: Timestamp, job: Option<i64>) -> Self {
        Self { last: Some(StartedTick { tick: tick.to_string(), job }), ..self }
    }

    /// The job of a tick could not be started.
    pub(crate) fn failed(self, tick: Timestamp, why: String) -> Self {
        Self { skipped: Some(SkippedTick { tick: tick.to_string(), why }), ..self }
    }
}

/// The starts that are to come, while the schedule is in force.
pub(crate) fn next_starts(
    name: &str,
    schedule: &LoadedSchedule,
    known: Option<&ScheduleState>,
    now: Timestamp,
) -> impl Iterator<Item = Timestamp> {
    let is_in_force = schedule.enabled && !known.is_some_and(|known| known.paused);
    let first = schedule.timetable.after(now).filter(|_| is_in_force);
    let ticks = std::iter::successors(first, |tick| schedule.timetable.after(*tick)).take(MOST_TICKS);
    let opens = ticks.filter(|tick| !schedule.holidays.contains(&schedule.timetable.date(*tick)));
    opens.map(move |tick| tick + schedule.timetable.delay(name, tick))
}
