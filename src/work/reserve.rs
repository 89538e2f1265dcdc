//! The part of its disk that a node leaves free; pure. Owns how large this reserve is, and which unit is stopped when
//! less is free: of the units that print fast, the one with the most output. No unit is stopped if the disk is full for
//! another reason. It asks no file system, and stops nothing itself.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use super::unit::UnitId;

/// The default reserve: one part in [`PART`] of the disk, but at most [`MOST_RESERVED`] bytes.
const PART: u64 = 20;
const MOST_RESERVED: u64 = 1 << 30;
/// A unit that prints more bytes than this within [`WINDOW`] counts as one that fills the disk.
pub(crate) const FAST: u64 = 64 << 20;
const WINDOW: Duration = Duration::from_secs(60);
/// Time between two notes of what units have printed. They are not taken more often, because thousands of units may
/// run.
const NOTE_EVERY: Duration = Duration::from_secs(5);
/// How long to wait for the effect of a stop before the next one.
const SETTLE: Duration = Duration::from_secs(10);
/// A disk with less than this many times its reserve free is checked more often.
const NEAR: u64 = 4;
const SELDOM: Duration = Duration::from_secs(5);
const OFTEN: Duration = Duration::from_millis(500);

/// A disk's space, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Space {
    pub(crate) free: u64,
    pub(crate) size: u64,
}

impl Space {
    /// The bytes of this disk to be left free: `set`, or the default reserve.
    pub(crate) fn reserve(&self, set: Option<u64>) -> u64 {
        set.unwrap_or(MOST_RESERVED.min(self.size / PART))
    }

    /// Whether less than the reserve is free.
    pub(crate) fn is_scarce(&self, set: Option<u64>) -> bool {
        self.free < self.reserve(set)
    }

    /// The time until the next check of the disk.
    pub(crate) fn pause(&self, set: Option<u64>) -> Duration {
        if self.free < self.reserve(set).saturating_mul(NEAR) { OFTEN } else { SELDOM }
    }
}

/// A unit that is to be stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UnitStop {
    pub(crate) unit: UnitId,
    /// Bytes that the unit printed within the last minute.
    pub(crate) printed: u64,
}

/// What was observed of a disk and of the units that print to it.
#[derive(Debug, Default)]
pub(crate) struct DiskWatch {
    /// What each unit had printed at that time, oldest note first.
    notes: VecDeque<(Instant, BTreeMap<UnitId, u64>)>,
    /// Bytes that were free at the last check.
    free: Option<u64>,
    stopped: BTreeSet<UnitId>,
    settles_at: Option<Instant>,
}

impl DiskWatch {
    /// Takes in the disk's space, and what each running unit has printed so far. Returns the unit to be stopped, if
    /// any.
    pub(crate) fn handle_look(
        &mut self,
        now: Instant,
        space: Space,
        set: Option<u64>,
        printed: BTreeMap<UnitId, u64>,
    ) -> Option<UnitStop> {
        self.notes.retain(|(then, _)| now.duration_since(*then) <= WINDOW);
        self.stopped.retain(|unit| printed.contains_key(unit));
        let falls = self.free.replace(space.free).is_some_and(|before| space.free < before);
        let is_nearly_gone = space.free < space.reserve(set) / NEAR;
        let has_settled = self.settles_at.is_none_or(|then| now >= then);
        let is_due = space.is_scarce(set) && (falls || is_nearly_gone) && has_settled;
        let stop = if is_due { self.largest(&printed) } else { None };
        if let Some(stop) = &stop {
            self.stopped.insert(stop.unit.clone());
            self.settles_at = Some(now + SETTLE);
        }
        if self.notes.back().is_none_or(|(then, _)| now.duration_since(*then) >= NOTE_EVERY) {
            self.notes.push_back((now, printed));
        }
        stop
    }

    /// Of the units that print fast, the one that has printed most in total.
    fn largest(&self, printed: &BTreeMap<UnitId, u64>) -> Option<UnitStop> {
        // Output from before the first check is of unknown age, so that it does not count as printed in this minute.
        let (_, then) = self.notes.front()?;
        let growth = printed.iter().map(|(unit, all)| {
            let before = then.get(unit).copied().unwrap_or(0);
            (*all, UnitStop { unit: unit.clone(), printed: all.saturating_sub(before) })
        });
        let fast = growth.filter(|(_, stop)| stop.printed > FAST && !self.stopped.contains(&stop.unit));
        fast.max_by_key(|(all, _)| *all).map(|(_, stop)| stop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    /// A disk, units that print to it, and virtual time.
    struct World {
        watch: DiskWatch,
        now: Instant,
        space: Space,
        printed: BTreeMap<UnitId, u64>,
        /// Bytes a second.
        rates: BTreeMap<UnitId, u64>,
        stops: Vec<(u64, String)>,
        begun: Instant,
    }

    impl World {
        fn new(size: u64, free: u64) -> Self {
            let now = Instant::now();
            let (watch, space) = (DiskWatch::default(), Space { free, size });
            let (printed, rates, stops) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
            Self { watch, now, space, printed, rates, stops, begun: now }
        }

        fn unit(&mut self, name: &str, before: u64, rate: u64) {
            let unit: UnitId = name.parse().unwrap();
            self.printed.insert(unit.clone(), before);
            self.rates.insert(unit, rate);
        }

        fn run(&mut self, span: u64) {
            let until = self.now + Duration::from_secs(span);
            while self.now < until {
                let pause = self.space.pause(None);
                self.now += pause;
                for (unit, rate) in &self.rates {
                    let more = (rate * pause.as_millis() as u64 / 1000).min(self.space.free);
                    self.space.free -= more;
                    *self.printed.get_mut(unit).unwrap() += more;
                }
                let stop = self.watch.handle_look(self.now, self.space, None, self.printed.clone());
                if let Some(stop) = stop {
                    let at = self.now.duration_since(self.begun).as_secs();
                    self.rates.insert(stop.unit.clone(), 0);
                    self.stops.push((at, stop.unit.to_string()));
                }
            }
        }

        fn stopped(&self) -> Vec<&str> {
            self.stops.iter().map(|(_, unit)| unit.as_str()).collect()
        }
    }

    #[test]
    fn the_reserve_is_a_part_of_a_small_disk_and_a_gibibyte_of_a_large_one() {
        let space = |size| Space { free: size, size };
        assert_eq!(space(10 * GIB).reserve(None), GIB / 2);
        assert_eq!(space(1000 * GIB).reserve(None), GIB);
        assert_eq!(space(10 * GIB).reserve(Some(7)), 7);
        assert!(!Space { free: 0, size: GIB }.is_scarce(Some(0)), "nobody wants a reserve");
        let full = Space { free: 100 * GIB * 4 / 100, size: 100 * GIB };
        assert!(!full.is_scarce(None));
        assert_eq!((full.pause(None), space(GIB).pause(None)), (SELDOM, SELDOM));
        assert_eq!(Space { free: 3 * GIB, size: 100 * GIB }.pause(None), OFTEN);
    }

    #[test]
    fn a_disk_that_is_nearly_full_ends_nobody() {
        // As after an upgrade: there are large outputs, but none grows fast.
        let mut world = World::new(10 * GIB, 400 * MIB);
        for n in 0..50 {
            world.unit(&format!("slow{n}"), GIB, 20_000);
        }
        world.run(3600);
        assert!(world.space.is_scarce(None) && world.stops.is_empty(), "{:?}", world.stops);
        // Not even when it gets full.
        world.run(36_000);
        assert_eq!((world.space.free, world.stops.len()), (0, 0));
    }

    #[test]
    fn who_fills_it_is_stopped_and_nobody_else() {
        let mut world = World::new(100 * GIB, 20 * GIB);
        world.unit("old", 30 * GIB, 100_000);
        world.unit("flood", 0, 300 * MIB);
        world.unit("slow", 0, 100_000);
        world.run(600);
        assert_eq!(world.stopped(), ["flood"]);
        assert!(world.space.free > GIB / 2, "what is left of the reserve is {}", world.space.free);
    }

    #[test]
    fn the_largest_goes_first_and_the_next_one_only_if_the_disk_goes_on_to_fill() {
        let mut world = World::new(100 * GIB, 4 * GIB);
        world.unit("small", 0, 2 * MIB);
        world.unit("large", GIB, 40 * MIB);
        world.unit("middle", 0, 3 * MIB);
        world.run(300);
        assert_eq!(world.stopped(), ["large", "middle", "small"]);
        let pauses: Vec<u64> = world.stops.windows(2).map(|two| two[1].0 - two[0].0).collect();
        assert!(pauses.iter().all(|pause| *pause >= SETTLE.as_secs()), "{:?}", world.stops);
        // A unit that prints 60 MiB a minute does not count as fast.
        let mut world = World::new(100 * GIB, 4 * GIB);
        world.unit("large", GIB, 40 * MIB);
        world.unit("busy", 0, MIB);
        world.run(300);
        assert_eq!(world.stopped(), ["large"]);
    }

    #[test]
    fn a_disk_that_was_filled_between_two_looks_is_given_back() {
        // The unit that filled the disk now waits for space, and prints nothing.
        let mut world = World::new(GIB, GIB - MIB);
        world.unit("other", 0, 1000);
        world.run(5);
        world.unit("flood", 0, 700 * MIB);
        world.run(30);
        assert_eq!(world.stopped(), ["flood"]);
        assert_eq!(world.space.free, 0);
    }

    #[test]
    fn what_was_printed_before_the_first_look_is_nobody_s_fault() {
        let mut world = World::new(100 * GIB, GIB / 2);
        world.unit("large", 80 * GIB, 0);
        world.unit("slow", 0, 1000);
        world.run(120);
        assert!(world.stops.is_empty(), "{:?}", world.stops);
    }
}
