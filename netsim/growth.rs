//! A mesh of thousands of nodes in the shape that users give it: it grows in stages, then a link breaks, a node
//! restarts, a region is cut off and comes back, and nothing happens for a while. Owns this story, the bounds of
//! what each part may cost, and the account of the run's own time and memory. The oracle checks a sample of the nodes.

use std::time::{Duration, Instant};

use meshd_core::mesh::Options;
use meshd_core::wire::Cost;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::ledger::Fate;
use crate::link::{Kind, Link, State};
use crate::oracle::Truth;
use crate::topology::{self, Tiers};
use crate::world::{Counts, World, service};

/// The number of stages in which the execution nodes join, and the time of one stage.
const STAGES: usize = 20;
const STAGE: Duration = Duration::from_secs(2);

/// What one part of the story cost.
pub(crate) struct Part {
    name: &'static str,
    /// Virtual time until the last change of a forwarding table.
    time: Duration,
    /// Floods through the whole mesh, advertisements aside.
    floods: f64,
    /// Routing updates for each node.
    updates_per_node: f64,
    /// Real time of this part.
    real: Duration,
}

/// The run.
pub(crate) struct Growth {
    world: World,
    tiers: Tiers,
    nodes: usize,
    began: Instant,
    memory_before: usize,
    parts: Vec<Part>,
    complaints: Vec<String>,
}

impl Growth {
    /// A mesh of `nodes` nodes, none of which is started.
    pub(crate) fn new(nodes: usize) -> Self {
        let memory_before = resident();
        let mut rng = SmallRng::seed_from_u64(nodes as u64);
        let mut world = World::new(nodes as u64);
        for i in 0..nodes {
            let id = topology::name(i, &mut rng);
            world.add_node(id, i % 10 == 0);
        }
        let tiers = Tiers::new(nodes, &mut rng);
        for &(a, b) in &tiers.edges {
            let delay = Duration::from_millis(rng.random_range(1..=20));
            let (cost, kind, state) = (Cost::DEFAULT, Kind::Stream, State::Up);
            world.links.push(Link { nodes: [a, b], cost, delay, kind, state, dials: [true, false] });
        }
        let (parts, complaints) = (Vec::new(), Vec::new());
        Self { world, tiers, nodes, began: Instant::now(), memory_before, parts, complaints }
    }

    /// Plays the whole story, to its end even if something in it goes wrong.
    ///
    /// # Errors
    /// What was wrong, in words.
    pub(crate) fn play(&mut self) -> Result<(), String> {
        let nodes = self.nodes as f64;
        self.part("growth", 8.0 * nodes, Self::grow);
        self.part("answers to newcomers", 1.2 * nodes, Self::await_answers);
        let spare = self.tiers.spare[0];
        self.part("a link breaks", 2.0, |growth| {
            growth.world.set_link(spare, State::Down);
            growth.run(5)
        });
        let hop = self.tiers.core - 1;
        let links = self.world.links.iter().filter(|link| link.nodes.contains(&hop)).count() as f64;
        // Each end announces the loss, the return, and then once more, because other ends are faster.
        self.part("a hop node restarts", 3.0 * (2.0 * links + 2.0), |growth| {
            growth.world.kill(hop, false);
            growth.run(2)?;
            growth.world.start(hop, 0);
            growth.settle(30)
        });
        let region = self.tiers.uplinks[0].clone();
        let ends = 2.0 * region.len() as f64;
        self.part("a region is cut off", 2.0 * ends, |growth| {
            region.iter().for_each(|&link| growth.world.set_link(link, State::Down));
            growth.run(10)
        });
        // Each uplink also carries what has changed meanwhile on the other side.
        self.part("... and comes back", 4.0 * ends + 30.0, |growth| {
            region.iter().for_each(|&link| growth.world.set_link(link, State::Up));
            growth.settle(30)
        });
        self.part("rest", 0.0, |growth| growth.run(20));
        let arrived = self.datagrams_arrive();
        self.complaints.extend(arrived.err());
        if self.complaints.is_empty() { Ok(()) } else { Err(self.complaints.join("\n")) }
    }

    /// Plays a part that may cost `most` floods more than a mesh at rest, and then asks the oracle.
    fn part(&mut self, name: &'static str, most: f64, play: impl FnOnce(&mut Self) -> Result<(), String>) {
        let (start, before, began) = (self.world.now, self.world.counts, Instant::now());
        let played = play(self);
        let time = self.world.last_change.0.saturating_sub(start);
        let updates = updates(self.world.counts) - updates(before);
        let floods = updates as f64 / self.messages_per_flood();
        let (updates_per_node, real) = (updates as f64 / self.nodes as f64, began.elapsed());
        self.parts.push(Part { name, time, floods, updates_per_node, real });
        self.say(&format!("{name}, {floods:.1} floods"));
        let rounds = self.nodes as f64 * (self.world.now - start).as_secs_f64() / self.round();
        let dear = || format!("{floods:.1} floods, {most} and {rounds:.1} at rest are enough");
        let cheap = if floods > most + rounds + 1.0 { Err(dear()) } else { Ok(()) };
        for error in [played, cheap, self.is_right()].into_iter().filter_map(Result::err) {
            println!("{name}: {error}");
            self.complaints.push(format!("{name}: {error}"));
        }
    }

    fn is_right(&self) -> Result<(), String> {
        let truth = Truth::of_few(&self.world);
        truth.routes_are_shortest()?;
        truth.tables_are_true()?;
        truth.services_are_known()?;
        truth.memory_is_bounded()
    }

    /// Starts control and hop nodes first, then the others in stages, evenly over the first half of each stage.
    fn grow(&mut self) -> Result<(), String> {
        let mut next = 0;
        for stage in 0..=STAGES {
            let until = self.tiers.core + (self.nodes - self.tiers.core) * stage / STAGES;
            let gap = STAGE / 2 / (until - next).max(1) as u32;
            for node in next..until {
                self.world.start(node, 0);
                self.world.run(gap);
            }
            next = until;
            self.world.run(STAGE / 2);
            self.say(&format!("{until} nodes"));
        }
        self.settle(30)
    }

    /// Runs for that many seconds.
    fn run(&mut self, seconds: u64) -> Result<(), String> {
        self.world.run(Duration::from_secs(seconds));
        Ok(())
    }

    /// Runs until no forwarding table has changed for three seconds, within `seconds`.
    fn settle(&mut self, seconds: u64) -> Result<(), String> {
        let start = self.world.now;
        while self.world.now < self.world.last_change.0.max(start) + Duration::from_secs(3) {
            self.world.run(Duration::from_secs(1));
            if self.world.now > start + Duration::from_secs(seconds) {
                return Err(format!("it does not come to rest within {seconds} s"));
            }
        }
        Ok(())
    }

    /// Waits until each node has answered newcomers by announcing its links once more; nodes of a large mesh delay
    /// this.
    fn await_answers(&mut self) -> Result<(), String> {
        let options = Options::default();
        let until = self.world.now + options.answer_hold + options.answer_per_node * self.nodes as u32;
        while self.world.now < until {
            self.run(10.min((until - self.world.now).as_secs() + 1))?;
            self.say("answers to newcomers");
        }
        Ok(())
    }

    fn datagrams_arrive(&mut self) -> Result<(), String> {
        let mut pair = || (self.world.pick(self.nodes), self.world.pick(self.nodes));
        let pairs: Vec<(usize, usize)> = (0..200).map(|_| pair()).filter(|(a, b)| a != b).collect();
        let sent: Vec<usize> = pairs.iter().map(|&(a, b)| self.world.send(a, b, service())).collect();
        self.run(2)?;
        let arrived = |id: &&usize| self.world.ledger.fates(**id) == [Fate::Delivered];
        let count = sent.iter().filter(arrived).count();
        if count < sent.len() {
            Err(format!("{count} of {} datagrams have arrived", sent.len()))
        } else {
            Ok(())
        }
    }

    /// Seconds between two announcements of a node's links at rest.
    fn round(&self) -> f64 {
        let options = Options::default();
        (options.relaxed_interval + options.relaxed_per_node * self.nodes as u32).as_secs_f64() * 0.9
    }

    /// Messages of one flood: one over each link in either direction, but none back to the node that it came from.
    fn messages_per_flood(&self) -> f64 {
        (2 * self.world.links.len() - self.nodes + 1) as f64
    }

    /// The parts as a Markdown table.
    pub(crate) fn table(&self) -> String {
        let mut text = String::from("| part | s | floods | updates/node | real s |\n|---|---|---|---|---|\n");
        for Part { name, time, floods, updates_per_node, real } in &self.parts {
            let (time, real) = (time.as_secs_f64(), real.as_secs_f64());
            text += &format!("| {name} | {time:.2} | {floods:.1} | {updates_per_node:.1} | {real:.0} |\n");
        }
        text
    }

    /// Bytes that the run holds for each pair of nodes.
    pub(crate) fn memory_per_pair(&self) -> f64 {
        (resident().saturating_sub(self.memory_before)) as f64 / (self.nodes * self.nodes) as f64
    }

    fn say(&self, what: &str) {
        println!(
            "{:7.1} s, in virtual time {:6.1} s: {what}; {:.1} million messages, {:.0} MiB",
            self.began.elapsed().as_secs_f64(),
            self.world.now.as_secs_f64(),
            (self.world.counts.control + self.world.counts.probes) as f64 / 1e6,
            resident() as f64 / f64::from(1 << 20),
        );
    }
}

fn updates(counts: Counts) -> u64 {
    counts.control - counts.adverts
}

/// Bytes of memory of this process; 0 if the system does not say.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<usize>().ok());
    kib.unwrap_or(0) * 1024
}
