//! A schedule that two control nodes keep: each tick starts one job, and a pause stays. What is due is the product's own
//! decision (`controller::saved`); here are the transactions around it, the faults, and the time, which passes by minutes.

use std::time::Duration;

use jiff::Timestamp;
use meshd::controller::saved::{Due, LoadedSchedule, Schedule, ScheduleLook, ScheduleState};

use super::check::Model;

/// Ticks come at the minutes 2 and 4. A node that has taken one may be silent for a minute.
const TICKS: usize = 2;
const LAST_MINUTE: u8 = 5;
const PASSES: &str = "a minute passes";
const MADE_AGAIN: &str = "a unit makes the job again that the store has lost";
const REPLICATES: &str = "the standby gets all commits";
const LOSES_COMMITS: &str = "the store loses what the standby does not have";
const PAUSES: &str = "an operator pauses the schedule";
const GOES_ON: [&str; 2] = ["c1 goes on", "c2 goes on"];
const STOPS: [&str; 2] = ["c1 stops, and starts again", "c2 stops, and starts again"];

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TickProperty {
    OneStart,
    PauseStays,
    /// From every state each tick still gets its start, unless the schedule is paused.
    EachStart,
}

pub(crate) struct Ticks {
    /// A job has a key that the store takes once.
    pub(crate) has_key: bool,
    /// A start is noted behind the version that took the tick, not behind whichever is the latest.
    pub(crate) notes_behind_taken: bool,
    pub(crate) faults: &'static [&'static str],
    schedule: LoadedSchedule,
    states: Vec<ScheduleState>,
}

/// The document by its version and its state, and how many jobs each tick has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct TickStore {
    version: u8,
    state: usize,
    jobs: [u8; TICKS],
    is_paused: bool,
}

/// What a node has decided to do next. The store may change before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Keeper {
    Idle,
    /// With the tick that this takes, and the state after its start.
    Write(u8, usize, Option<(usize, usize)>),
    Submit(u8, (usize, usize)),
}

#[derive(Debug, Clone, Copy, Hash)]
pub(crate) struct TickWorld {
    store: TickStore,
    standby: TickStore,
    minute: u8,
    nodes: [Keeper; 2],
    has_unit: [bool; TICKS],
    faults_left: u8,
}

fn time(minute: u8) -> Timestamp {
    Timestamp::from_second(i64::from(minute) * 60).expect("it is small")
}

impl Ticks {
    pub(crate) fn new(has_key: bool, notes_behind_taken: bool, faults: &'static [&'static str]) -> Self {
        let said = Schedule { every: Some(Duration::from_secs(120)), ..Schedule::default() };
        let timetable = said.timetable().expect("it is right");
        let schedule = said.loaded(timetable, Default::default());
        let mut this = Self { has_key, notes_behind_taken, faults, schedule, states: Vec::new() };
        let Due::Write(begun) = this.due(0, None, 0) else { panic!("a new schedule begins") };
        this.number(begun);
        this
    }

    /// The jobs of earlier ticks have ended.
    fn due(&self, node: usize, known: Option<usize>, minute: u8) -> Due {
        let look =
            ScheduleLook { name: "s", schedule: &self.schedule, node: GOES_ON[node], now: time(minute) };
        look.due(known.map(|known| &self.states[known]), &[])
    }

    fn number(&mut self, state: ScheduleState) -> usize {
        let known = self.states.iter().position(|known| *known == state);
        known.unwrap_or_else(|| {
            self.states.push(state);
            self.states.len() - 1
        })
    }

    fn goes_on(&mut self, world: &mut TickWorld, node: usize) -> Keeper {
        let store = &mut world.store;
        match world.nodes[node] {
            Keeper::Idle => match self.due(node, Some(store.state), world.minute) {
                Due::Nothing(_) => Keeper::Idle,
                Due::Write(next) => Keeper::Write(store.version, self.number(next), None),
                Due::Start { tick, taken, done, .. } => {
                    let at = usize::try_from(tick.as_second() / 120 - 1).expect("it is after the beginning");
                    let then = Some((at, self.number(done.started(tick, None))));
                    Keeper::Write(store.version, self.number(*taken), then)
                }
            },
            Keeper::Write(version, state, then) if version == store.version => {
                (store.version, store.state) = (version + 1, state);
                then.map_or(Keeper::Idle, |then| Keeper::Submit(version + 1, then))
            }
            Keeper::Write(..) => Keeper::Idle,
            Keeper::Submit(version, (tick, done)) => {
                store.jobs[tick] += u8::from(store.jobs[tick] == 0 || !self.has_key);
                world.has_unit[tick] = true;
                Keeper::Write(if self.notes_behind_taken { version } else { store.version }, done, None)
            }
        }
    }
}

impl Model for Ticks {
    type State = TickWorld;
    type Step = &'static str;
    type Property = TickProperty;

    fn start(&self) -> TickWorld {
        let store = TickStore { version: 1, state: 0, jobs: [0; TICKS], is_paused: false };
        let (nodes, has_unit) = ([Keeper::Idle; 2], [false; TICKS]);
        TickWorld { store, standby: store, minute: 0, nodes, has_unit, faults_left: 2 }
    }

    fn next(&mut self, world: &TickWorld, next: &mut Vec<(&'static str, TickWorld)>) {
        if self.broken(world).is_some() {
            return;
        }
        let mut push = |step, change: &mut dyn FnMut(&mut TickWorld)| {
            let mut after = *world;
            change(&mut after);
            next.push((step, after));
        };
        if world.minute < LAST_MINUTE {
            push(PASSES, &mut |after| after.minute += 1);
        }
        for (node, step) in GOES_ON.into_iter().enumerate() {
            push(step, &mut |after| after.nodes[node] = self.goes_on(after, node));
        }
        for tick in (0..TICKS).filter(|tick| world.has_unit[*tick] && world.store.jobs[*tick] == 0) {
            push(MADE_AGAIN, &mut |after| after.store.jobs[tick] = 1);
        }
        if self.faults.contains(&LOSES_COMMITS) {
            push(REPLICATES, &mut |after| after.standby = after.store);
        }
        for fault in self.faults.iter().filter(|_| world.faults_left > 0) {
            push(*fault, &mut |after| {
                after.faults_left -= 1;
                match *fault {
                    LOSES_COMMITS => after.store = after.standby,
                    PAUSES => {
                        let known = Some(self.states[after.store.state].clone());
                        let now = time(after.minute);
                        after.store.state =
                            self.number(ScheduleState::paused(known, &self.schedule, true, now));
                        (after.store.version, after.store.is_paused) = (after.store.version + 1, true);
                    }
                    stops => after.nodes[usize::from(stops == STOPS[1])] = Keeper::Idle,
                }
            });
        }
    }

    fn is_fault(&self, step: &'static str) -> bool {
        self.faults.contains(&step)
    }

    fn broken(&self, world: &TickWorld) -> Option<TickProperty> {
        let is_twice = world.store.jobs.iter().any(|jobs| *jobs > 1);
        let is_forgotten = world.store.is_paused && !self.states[world.store.state].paused;
        let twice = is_twice.then_some(TickProperty::OneStart);
        twice.or_else(|| is_forgotten.then_some(TickProperty::PauseStays))
    }

    fn is_done(&mut self, world: &TickWorld) -> bool {
        let is_due = |node| self.due(node, Some(world.store.state), LAST_MINUTE);
        let is_quiet = world.nodes == [Keeper::Idle; 2] && matches!(is_due(0), Due::Nothing(_));
        is_quiet && (world.store.is_paused || world.store.jobs == [1; TICKS])
    }

    fn stuck(&self) -> TickProperty {
        TickProperty::EachStart
    }
}

/// Each tick of a schedule starts one job, whatever fails, and each rule is needed.
#[test]
fn a_schedule_starts_each_tick_once() {
    use TickProperty::{OneStart, PauseStays};
    const TAKEOVERS: &[&str] = &[STOPS[0], STOPS[1]];
    let found = |has_key, notes_behind_taken, faults| {
        let found = super::check::search(&mut Ticks::new(has_key, notes_behind_taken, faults));
        println!("{faults:?}: {} states, {:?}", found.states, found.broken);
        assert!(found.states > 200, "hardly anything was searched");
        found.broken.into_keys().collect::<Vec<_>>()
    };
    assert_eq!(found(true, true, &[STOPS[0], STOPS[1], LOSES_COMMITS]), []);
    assert_eq!(found(true, true, &[STOPS[0], STOPS[1], PAUSES]), []);
    assert_eq!(found(false, true, TAKEOVERS), [OneStart]);
    assert_eq!(found(true, false, &[PAUSES]), [PauseStays]);
}
