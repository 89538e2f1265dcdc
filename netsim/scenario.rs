//! Stories: what happens to a mesh, and how long it may then take to come to rest. Every story ends with the same
//! questions to the oracle and the ledger.

use std::time::Duration;

use meshd_core::wire::{Problem, ServiceName};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use crate::ledger::Fate;
use crate::liar::Liar;
use crate::link::{Kind, Link, State};
use crate::oracle::Truth;
use crate::topology::{self, Topology};
use crate::world::{Counts, World, service};

/// How long two nodes have one ID: long enough for both to notice, and for a receptor node that started later to end.
const TWIN_LIVES: Duration = Duration::from_secs(60);
/// After the last lie, all tables are true again within this time.
const LIE_LIVES: Duration = Duration::from_secs(20);
/// Additional time for each node, because a lie and its correction may have to cross a line of all nodes.
const LIE_CROSSES: Duration = Duration::from_millis(160);
/// The same in a mixed mesh: where a receptor node held the correction back, the node itself must announce its links
/// again, 60 s after its last update.
const LIE_LIVES_IF_MIXED: Duration = Duration::from_secs(75);

/// What happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scenario {
    ColdStart,
    /// Both ends of every link dial at the same moment.
    Crossing,
    LinkReset,
    /// A link loses everything, and neither end notices.
    LinkSilent,
    LinkRestored,
    NodeKilled,
    NodeVanishes,
    NodeRestarts,
    /// The clock is an hour behind after the restart.
    ClockSetBack,
    Flapping,
    Partition,
    Lossy,
    /// A second node with the ID of another node appears, and later leaves.
    Twin,
    /// A node lies about others, is quiet for a while, lies again, and leaves.
    Liar,
    /// In a large mesh with some links that lose messages: a partition, restarts and flapping links all at once, and
    /// then a twin. This scenario is not played with many seeds.
    Everything,
}

impl Scenario {
    pub(crate) const ALL: [Self; 14] = [
        Self::ColdStart,
        Self::Crossing,
        Self::LinkReset,
        Self::LinkSilent,
        Self::LinkRestored,
        Self::NodeKilled,
        Self::NodeVanishes,
        Self::NodeRestarts,
        Self::ClockSetBack,
        Self::Flapping,
        Self::Partition,
        Self::Lossy,
        Self::Twin,
        Self::Liar,
    ];

    /// The longest time until the mesh is at rest: it covers 21 s of silence, a redial after up to 20 s, and on links
    /// that lose messages several periods of updates and of advertisements.
    fn patience(self) -> Duration {
        Duration::from_secs(match self {
            Self::ColdStart => 15,
            Self::LinkReset | Self::NodeKilled | Self::LinkSilent | Self::NodeVanishes => 30,
            Self::Crossing
            | Self::NodeRestarts
            | Self::ClockSetBack
            | Self::Twin
            | Self::Liar
            | Self::Everything => 60,
            Self::LinkRestored | Self::Flapping | Self::Partition => 90,
            Self::Lossy => 300,
        })
    }
}

/// One run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Case {
    pub scenario: Scenario,
    pub topology: Topology,
    pub nodes: usize,
    pub seed: u64,
}

/// What a run measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Report {
    /// From the change until the last change of a table.
    pub convergence: Duration,
    /// Messages per node in that time.
    pub messages_per_node: f64,
    /// A hash of everything that was sent.
    pub trace: u64,
}

impl Case {
    /// The run of a seed. Every fiftieth is a large mesh.
    pub(crate) fn of(scenario: Scenario, seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed ^ 0x5eed);
        let topology = Topology::ALL[rng.random_range(0..Topology::ALL.len())];
        let nodes = if seed % 50 == 49 { rng.random_range(60..=200) } else { rng.random_range(4..=20) };
        // Nothing repeats a flood before the next round, so few floods cross a long line of links that lose messages,
        // and no patience is enough.
        let short = scenario == Scenario::Lossy && matches!(topology, Topology::Line | Topology::Ring);
        let nodes = if short { nodes.min(8) } else { nodes };
        Self { scenario, topology, nodes, seed }
    }

    /// Plays it through.
    ///
    /// # Errors
    /// What was wrong, in words.
    pub(crate) fn run(&self) -> Result<Report, String> {
        let mut world = self.build();
        (0..self.nodes).for_each(|node| world.start(node, 0));
        let mut before = (world.now, world.counts);
        if !matches!(self.scenario, Scenario::ColdStart | Scenario::Crossing | Scenario::Lossy) {
            world.run(self.settling());
            Truth::of(&world).routes_are_shortest().map_err(|e| format!("before the change: {e}"))?;
            before = (world.now, world.counts);
            self.change(&mut world, &mut before)?;
        }
        self.chatter(&mut world);
        // Receptor nodes tell a new neighbour nothing, so it learns of other nodes only in their rounds.
        let rounds = if self.is_mixed() && self.scenario != Scenario::Everything { 75 } else { 0 };
        world.run(self.scenario.patience() + Duration::from_secs(rounds));
        self.judge(&mut world, before)
    }

    /// Every third mesh has some nodes that do what receptor nodes do, and no more.
    fn is_mixed(&self) -> bool {
        let every_third = self.seed.is_multiple_of(3) && self.scenario != Scenario::Lossy;
        every_third || self.scenario == Scenario::Everything
    }

    /// Time from the start until the change. In the large mesh no node depends on a receptor node's rounds.
    fn settling(&self) -> Duration {
        let everything = self.scenario == Scenario::Everything;
        Duration::from_secs(if everything {
            15
        } else if self.is_mixed() {
            75
        } else {
            30
        })
    }

    fn loses_messages(&self) -> bool {
        matches!(self.scenario, Scenario::Lossy | Scenario::Everything)
    }

    fn build(&self) -> World {
        let mut world = World::new(self.seed);
        let mut rng = SmallRng::seed_from_u64(self.seed);
        for i in 0..self.nodes {
            let advertises = rng.random_bool(0.3);
            world.add_node(topology::name(i, &mut rng), advertises);
        }
        // Receptor nodes lack what it takes to survive links that lose messages, so they get none.
        let (mixed, everything) = (self.is_mixed(), self.scenario == Scenario::Everything);
        for node in &mut world.nodes {
            node.receptor_like = mixed && rng.random_bool(if everything { 0.005 } else { 0.4 });
            node.skew = if rng.random_bool(0.3) { rng.random_range(-7_200..7_200) } else { 0 };
        }
        let datagrams = rng.random_bool(0.3);
        for (a, b) in self.topology.edges(self.nodes, &mut rng) {
            let mut nodes = [a, b];
            nodes.shuffle(&mut rng);
            let ours = nodes.iter().all(|&node| !world.nodes[node].receptor_like);
            let datagrams = if everything { ours && rng.random_bool(0.05) } else { datagrams };
            world.links.push(self.link(nodes, datagrams, &mut rng));
        }
        if self.scenario == Scenario::Liar {
            let liar = rng.random_range(0..self.nodes);
            world.nodes[liar].receptor_like = false;
            world.liar = Some(Liar::new(liar, world.nodes[liar].id.clone()));
        }
        world
    }

    fn link(&self, nodes: [usize; 2], datagrams: bool, rng: &mut SmallRng) -> Link {
        let crossing = self.scenario == Scenario::Crossing;
        let (ms, loss) = (rng.random_range(1..=80), rng.random_range(0.1..0.3));
        // Little loss in one direction, much in the other.
        let other = rng.random_range(0.0..loss);
        let loss = if self.scenario == Scenario::Lossy {
            [loss, other]
        } else if self.scenario == Scenario::Everything && datagrams {
            [loss / 3.0, other / 3.0]
        } else {
            [0.0; 2]
        };
        let bad = Kind::Datagram { loss, duplication: 0.02, jitter: Duration::from_millis(30) };
        let kind = if datagrams || loss[0] > 0.0 { bad } else { Kind::Stream };
        let (cost, delay) = (topology::cost(rng), Duration::from_millis(ms));
        Link { nodes, cost, delay, kind, state: State::Up, dials: [true, crossing] }
    }

    fn change(&self, world: &mut World, before: &mut (Duration, Counts)) -> Result<(), String> {
        let link = world.pick(world.links.len());
        let node = world.pick(self.nodes);
        match self.scenario {
            Scenario::ColdStart | Scenario::Crossing | Scenario::Lossy => {}
            Scenario::LinkReset => world.set_link(link, State::Down),
            Scenario::LinkSilent => world.set_link(link, State::Silent),
            Scenario::LinkRestored => {
                let cut = if world.rng.random() { State::Down } else { State::Silent };
                self.bridged(world, &[link], cut, before);
            }
            Scenario::NodeKilled => world.kill(node, false),
            Scenario::NodeVanishes => world.kill(node, true),
            Scenario::NodeRestarts => self.restart(world, node, 0, before),
            Scenario::ClockSetBack => self.restart(world, node, -3_600, before),
            Scenario::Flapping => self.flap(world, link, before),
            Scenario::Partition => {
                let cut = self.across(world, 0.5);
                let state = if world.rng.random() { State::Down } else { State::Silent };
                self.bridged(world, &cut, state, before);
            }
            Scenario::Twin => return self.twin(world, node, before),
            Scenario::Liar => return self.lie(world, before),
            Scenario::Everything => return self.everything(world, node, before),
        }
        Ok(())
    }

    /// The links between two sides of the mesh; each node is on the first side with this probability.
    fn across(&self, world: &mut World, probability: f64) -> Vec<usize> {
        let side: Vec<bool> = (0..self.nodes).map(|_| world.rng.random_bool(probability)).collect();
        let across = |link: &Link| side[link.nodes[0]] != side[link.nodes[1]];
        (0..world.links.len()).filter(|&link| across(&world.links[link])).collect()
    }

    /// While the mesh is split in two, nodes restart, one of them with its clock set back, and links flap.
    fn everything(
        &self,
        world: &mut World,
        node: usize,
        before: &mut (Duration, Counts),
    ) -> Result<(), String> {
        const RESTARTS: usize = 5;
        const FLAPPING: usize = 5;
        let cut = self.across(world, 0.1);
        cut.iter().for_each(|&link| world.set_link(link, State::Down));
        let flapping: Vec<usize> = (0..FLAPPING).map(|_| world.pick(world.links.len())).collect();
        let restarted: Vec<usize> = (0..RESTARTS).map(|_| world.pick(self.nodes)).collect();
        restarted.iter().for_each(|&node| world.kill(node, node % 2 == 0));
        for state in [State::Silent, State::Up, State::Down, State::Up].into_iter().cycle().take(12) {
            flapping.iter().for_each(|&link| world.set_link(link, state));
            world.run(Duration::from_millis(1_500));
        }
        for (i, &node) in restarted.iter().enumerate() {
            if world.nodes[node].mesh.is_none() {
                world.start(node, if i == 0 { -3_600 } else { 0 });
            }
        }
        cut.iter().for_each(|&link| world.set_link(link, State::Up));
        world.run(Duration::from_secs(30));
        self.twin(world, node, before)
    }

    /// Cuts links, lets the mesh notice, and restores them: the restoration is the change.
    fn bridged(&self, world: &mut World, cut: &[usize], state: State, before: &mut (Duration, Counts)) {
        cut.iter().for_each(|&link| world.set_link(link, state));
        self.chatter(world);
        let seconds = world.rng.random_range(1..60);
        world.run(Duration::from_secs(seconds));
        cut.iter().for_each(|&link| world.set_link(link, State::Up));
        *before = (world.now, world.counts);
    }

    fn restart(&self, world: &mut World, node: usize, clock: i64, before: &mut (Duration, Counts)) {
        let silent = world.rng.random();
        world.kill(node, silent);
        let millis = world.rng.random_range(10..30_000);
        world.run(Duration::from_millis(millis));
        world.start(node, clock);
        *before = (world.now, world.counts);
    }

    fn flap(&self, world: &mut World, link: usize, before: &mut (Duration, Counts)) {
        for _ in 0..6 {
            let state = if world.rng.random() { State::Down } else { State::Silent };
            world.set_link(link, state);
            let millis = world.rng.random_range(10..8_000);
            world.run(Duration::from_millis(millis));
            world.set_link(link, State::Up);
            let millis = world.rng.random_range(10..8_000);
            world.run(Duration::from_millis(millis));
        }
        *before = (world.now, world.counts);
    }

    /// Links a newcomer with the ID of `node` to a node that is no neighbour of `node`, if there is such a node. The
    /// newcomer ends if it is a receptor node; otherwise both know of each other until the newcomer is taken away.
    fn twin(&self, world: &mut World, node: usize, before: &mut (Duration, Counts)) -> Result<(), String> {
        let neighbour =
            |other: usize| world.links.iter().any(|l| l.nodes == [node, other] || l.nodes == [other, node]);
        let far = (0..self.nodes).find(|&other| other != node && !neighbour(other));
        let Some(far) = far else { return Ok(()) };
        let twin = world.add_node(world.nodes[node].id.clone(), false);
        // Both clocks are wrong by the same amount, so that the newcomer also looks newer.
        world.nodes[twin].skew = world.nodes[node].skew;
        world.nodes[twin].receptor_like = self.is_mixed() && self.seed.is_multiple_of(2);
        let mut rng = SmallRng::seed_from_u64(self.seed);
        world.links.push(self.link([twin, far], false, &mut rng));
        world.start(twin, 5);
        // No datagrams are sent meanwhile, because nobody promises which of the two they reach.
        world.run(TWIN_LIVES);
        let stopped: Vec<usize> = (0..=twin).filter(|&node| world.nodes[node].stopped.is_some()).collect();
        if world.nodes[twin].receptor_like != (stopped == [twin]) || stopped.len() > 1 {
            return Err(format!("of {node} and its twin {twin} these stopped: {stopped:?}"));
        }
        let knows = |node: usize| world.nodes[node].spoken_for || world.nodes[node].receptor_like;
        if !knows(node) || !knows(twin) {
            return Err(format!("{node} or its twin {twin} does not know of the other"));
        }
        let silent = world.rng.random();
        world.kill(twin, silent);
        *before = (world.now, world.counts);
        Ok(())
    }

    /// Lies for a second, checks the tables, and then lies for half a minute, unless there are receptor nodes. No node
    /// may end because of lies.
    fn lie(&self, world: &mut World, before: &mut (Duration, Counts)) -> Result<(), String> {
        let Some(liar) = world.liar.as_ref().map(|liar| liar.node) else { return Ok(()) };
        let ours = |node: &usize| *node != liar && !world.nodes[*node].receptor_like;
        let about: Vec<_> = (0..self.nodes).filter(ours).map(|node| world.nodes[node].id.clone()).collect();
        // Nodes that only the liar connects may keep its lies, because receptor nodes do not say what they lack:
        // docs/security.md.
        let may_keep = self.is_mixed() && Truth::of(world).is_only_way(liar);
        for (quiet, lies) in [(true, 50), (false, if self.is_mixed() { 0 } else { 1_500 })] {
            for _ in 0..lies {
                world.lie(&about);
                world.run(Duration::from_millis(20));
            }
            if let Some(node) = world.nodes.iter().find(|node| node.stopped.is_some()) {
                return Err(format!("{} was ended by lies", node.id));
            }
            if quiet {
                let lives = if self.is_mixed() { LIE_LIVES_IF_MIXED } else { LIE_LIVES };
                world.run(lives + LIE_CROSSES * world.nodes.len() as u32);
            }
            if quiet && !may_keep {
                let truth = Truth::of(world);
                truth.routes_are_shortest().map_err(|e| format!("while the liar is quiet: {e}"))?;
                truth.tables_are_true().map_err(|e| format!("while the liar is quiet: {e}"))?;
            }
        }
        world.kill(liar, false);
        *before = (world.now, world.counts);
        Ok(())
    }

    /// Sends datagrams between random nodes while the mesh changes.
    fn chatter(&self, world: &mut World) {
        for _ in 0..20 {
            let (from, to) = (world.pick(self.nodes), world.pick(self.nodes));
            world.send(from, to, service());
            let millis = world.rng.random_range(1..400);
            world.run(Duration::from_millis(millis));
        }
    }

    fn judge(&self, world: &mut World, before: (Duration, Counts)) -> Result<Report, String> {
        let (rest, counts) = world.last_change;
        let convergence = rest.saturating_sub(before.0);
        let sent = (counts.control + counts.data).saturating_sub(before.1.control + before.1.data);
        let messages_per_node = sent as f64 / self.nodes as f64;
        self.await_lost_services(world);
        let truth = Truth::of(world);
        truth.routes_are_shortest()?;
        truth.tables_are_true()?;
        truth.services_are_known()?;
        self.one_change_costs_little(world, before.1)?;
        self.floods_are_bounded(world, before)?;
        truth.memory_is_bounded()?;
        self.floods_have_stopped(world)?;
        self.datagrams_arrive(world)?;
        Ok(Report { convergence, messages_per_node, trace: world.trace() })
    }

    /// Waits for advertisements, which are sent once a minute and must survive each link on their way. Over a long line
    /// of links that lose messages this takes many rounds.
    fn await_lost_services(&self, world: &mut World) {
        for _ in 0..60 {
            if !self.loses_messages() || Truth::of(world).services_are_known().is_ok() {
                return;
            }
            world.run(Duration::from_secs(60));
        }
    }

    /// Both ends announce the reset of a link, once over each link, or twice if the reset took two steps.
    fn one_change_costs_little(&self, world: &World, before: Counts) -> Result<(), String> {
        let sent = world.last_change.1.control.saturating_sub(before.control);
        let most = 2 * 2 * 2 * world.links.len() as u64 + Truth::of(world).most_messages_at_rest(10, 54);
        if self.scenario == Scenario::LinkReset && !self.is_mixed() && sent > most {
            return Err(format!("{sent} messages for the reset of one link, {most} are enough"));
        }
        Ok(())
    }

    /// Whatever has happened, each node floods its links only a few times, and each flood crosses each link twice at
    /// most.
    fn floods_are_bounded(&self, world: &World, before: (Duration, Counts)) -> Result<(), String> {
        // Two nodes with one ID answer each other for half a minute.
        let floods = if self.scenario == Scenario::Twin { 16 } else { 12 };
        let sent = world.counts.control - before.1.control;
        let seconds = (world.now - before.0).as_secs();
        let round = self.round();
        let most = floods * world.nodes.len() as u64 * 2 * world.links.len() as u64;
        let most = most + Truth::of(world).most_messages_at_rest(seconds, round);
        if sent > most {
            return Err(format!("{sent} messages in {seconds} s, {most} are enough"));
        }
        Ok(())
    }

    /// How often a node announces its links at rest, in seconds.
    fn round(&self) -> u64 {
        if self.is_mixed() || self.scenario == Scenario::Twin { 9 } else { 54 }
    }

    fn floods_have_stopped(&self, world: &mut World) -> Result<(), String> {
        const REST: u64 = 20;
        let most = Truth::of(world).most_messages_at_rest(REST, self.round());
        let (before, changes) = (world.counts.control, world.last_change.0);
        world.run(Duration::from_secs(REST));
        let sent = world.counts.control - before;
        // Links that lose messages may lose an introduction long after everything else is at rest.
        if sent > most && !self.loses_messages() {
            return Err(format!("{sent} messages in {REST} s at rest, {most} are enough"));
        }
        if world.last_change.0 != changes && !self.loses_messages() {
            return Err("routes change at rest".into());
        }
        Ok(())
    }

    fn datagrams_arrive(&self, world: &mut World) -> Result<(), String> {
        let nobody = ServiceName::new("nobody").expect("valid");
        let mut sent = Vec::new();
        for i in 0..60 {
            let (from, to) = (world.pick(self.nodes), world.pick(self.nodes));
            if from == to || world.nodes[from].mesh.is_none() {
                continue;
            }
            let to_service = if i % 4 == 0 { nobody } else { service() };
            sent.push((world.send(from, to, to_service), from, to, to_service));
        }
        world.run(Duration::from_secs(if self.scenario == Scenario::Everything { 10 } else { 40 }));
        let truth = Truth::of(world);
        for (id, from, to, to_service) in sent {
            let fates = world.ledger.fates(id);
            if world.ledger.circled(id) {
                return Err(format!("datagram {id} from {from} to {to} came twice to one node"));
            }
            let right = match truth.reaches(from, to) {
                false => Fate::Counted,
                true if truth.hops(from, to)? > 30 => Fate::Unreachable(Problem::MessageExpired),
                true if to_service == nobody => Fate::Unreachable(Problem::ServiceUnknown),
                true => Fate::Delivered,
            };
            let lost = self.loses_messages() && fates.contains(&Fate::DroppedByLink);
            if !fates.contains(&right) && !lost {
                return Err(format!("datagram {id} from {from} to {to}: {fates:?}, {right:?} is right"));
            }
        }
        match world.ledger.silently_lost()[..] {
            [] => Ok(()),
            ref lost => Err(format!("datagrams {lost:?} have vanished")),
        }
    }
}
