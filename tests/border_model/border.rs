//! The model itself: what its control nodes, its instance, its store and its faults do in a state. Each step is what happens
//! between two awaits of the product: one transaction, one request, or one write to a disk.
//!
//! `owner` has what an owner does about its attempts, `units` what units of the job show.

use super::check::Model;
use super::rows::{Change, Rows};
use super::rules::{Commits, Fault, Known, Lease, Property, Released, Rules, Scope};
use super::step::{Answer, Step};
use super::world::{Child, Node, Run, SLOTS, Task, Unit, WAYS, WHOLE, Way, World};

/// The next states.
pub(crate) type Next = Vec<(Step, World)>;

pub(crate) struct Border {
    pub(crate) rules: Rules,
    pub(crate) scope: Scope,
    pub(crate) rows: Rows,
    first: World,
}

impl Border {
    pub(crate) fn new(rules: Rules, scope: Scope) -> Self {
        let (rows, row) = Rows::new(scope.retries);
        let first = World::new(row, scope.budget, scope.has(Fault::LostCommits));
        Self { rules, scope, rows, first }
    }

    /// Changes the row, if the writer is not fenced. Returns whether it did.
    pub(crate) fn write(&mut self, world: &mut World, change: Change) -> bool {
        let Some(row) = self.rows.change(world.store.row, change) else { return false };
        world.store.row = row;
        let state = self.rows.view(row).state;
        match world.end {
            None if state.is_final() => world.end = Some(state),
            Some(end) if end != state => world.note(Property::OneEnd),
            None | Some(_) => {}
        }
        true
    }

    /// A commit that waits for the standby has waited.
    fn replicate(&self, before: &World, step: Step, after: &mut World) {
        let is_final = |world: &World| self.rows.view(world.store.row).state.is_final();
        let ends = after.store.row != before.store.row && is_final(after) && !is_final(before);
        if (ends || matches!(step, Step::Prepare(..))) && !matches!(step, Step::LoseCommits) {
            after.standby = Some(after.store);
        }
    }

    /// Whether something of that kind may fail here.
    pub(crate) fn may(&self, world: &World, fault: Fault) -> bool {
        world.faults_left > 0 && self.scope.has(fault)
    }

    fn faults(&mut self, world: &World, next: &mut Next) {
        if world.faults_left == 0 {
            return;
        }
        let mut push = |step, change: &dyn Fn(&mut World)| {
            let mut after = World { faults_left: world.faults_left - 1, ..*world };
            change(&mut after);
            next.push((step, after));
        };
        for at in 0..2 {
            if self.may(world, Fault::Crash) && world.nodes[at].is_up {
                push(Step::Stop(at), &|world| stop(&mut world.nodes[at], self.rules.known));
            }
            if self.may(world, Fault::PowerCut) && world.nodes[at].is_up {
                push(Step::CutPower(at), &|world| {
                    stop(&mut world.nodes[at], self.rules.known);
                    world.nodes[at].copy = world.nodes[at].flushed;
                    self.check_copy(world, at);
                });
            }
            if self.may(world, Fault::Pause) && world.acts(at) {
                push(Step::Pause(at), &|world| {
                    (world.nodes[at].is_paused, world.nodes[at].is_late) = (true, true);
                });
            }
        }
        if self.may(world, Fault::Crash) && world.instance.is_up {
            let keeps = self.rules.unknown != super::rules::Unknown::PromisedInMemory;
            push(Step::StopInstance, &|world| {
                world.instance.is_up = false;
                if !keeps {
                    world.instance.refused = [false; SLOTS];
                }
            });
        }
        if self.may(world, Fault::Cut) {
            for way in WAYS.into_iter().filter(|way| !world.is_cut(*way)) {
                push(Step::Cut(way), &|world| {
                    world.set_cut(way, true);
                    if let Way::ToStore(node) = way {
                        world.nodes[node].is_late = true;
                    }
                });
            }
        }
        if self.may(world, Fault::ClockStep) && world.store.expired != [true; 2] {
            push(Step::ClockGoesForward, &|world| world.store.expired = [true; 2]);
        }
        if self.may(world, Fault::Cancel) && !self.rows.view(world.store.row).is_cancelled {
            let mut after = World { faults_left: world.faults_left - 1, ..*world };
            self.write(&mut after, Change::Cancel);
            next.push((Step::Cancel, after));
        }
        for slot in 0..SLOTS {
            if let (true, Run::Running(pieces)) = (self.may(world, Fault::Kill), world.instance.runs[slot]) {
                let mut after = World { faults_left: world.faults_left - 1, ..*world };
                after.instance.runs[slot] = Run::Cancelled(pieces);
                next.push((Step::Kill(slot), after));
            }
        }
        if let Some(standby) = world.standby.filter(|standby| *standby != world.store)
            && self.may(world, Fault::LostCommits)
        {
            let mut after = World { store: standby, faults_left: world.faults_left - 1, ..*world };
            // What no unit has shown has not been.
            if after.nodes.iter().all(|node| !matches!(node.unit, Unit::Ended(_))) {
                after.end = Some(self.rows.view(standby.row).state).filter(|state| state.is_final());
            }
            next.push((Step::LoseCommits, after));
        }
    }

    fn repairs(&mut self, world: &World, next: &mut Next) {
        let mut push = |step, change: &dyn Fn(&mut World)| {
            let mut after = *world;
            change(&mut after);
            next.push((step, after));
        };
        for way in WAYS.into_iter().filter(|way| world.is_cut(*way)) {
            push(Step::Heal(way), &|world| world.set_cut(way, false));
        }
        if !world.instance.is_up {
            push(Step::StartInstance, &|world| world.instance.is_up = true);
        }
        for at in 0..2 {
            if world.nodes[at].is_paused {
                push(Step::Resume(at), &|world| world.nodes[at].is_paused = false);
            }
        }
        if world.standby.is_some_and(|standby| standby != world.store) && world.faults_left > 0 {
            push(Step::Replicate, &|world| world.standby = Some(world.store));
        }
        for at in 0..2 {
            if !world.nodes[at].is_up && !world.is_cut(Way::ToStore(at)) {
                let mut after = *world;
                after.nodes[at].is_up = true;
                self.begin_lease(&mut after, at);
                next.push((Step::Start(at), after));
            }
        }
    }

    fn instance(&mut self, world: &World, next: &mut Next) {
        if !world.instance.is_up {
            return;
        }
        for slot in 0..SLOTS {
            if world.instance.coming[slot] {
                let mut after = *world;
                after.instance.coming[slot] = false;
                self.arrive(&mut after, slot);
                next.push((Step::Arrive(slot), after));
            }
            if let Run::Running(pieces) = world.instance.runs[slot] {
                let mut after = *world;
                let more = pieces + 1;
                after.instance.runs[slot] = if more == WHOLE { Run::Succeeded } else { Run::Running(more) };
                next.push((Step::Write(slot), after));
            }
        }
    }

    /// A submission comes to the instance. Returns whether its unit is there now.
    pub(crate) fn arrive(&self, world: &mut World, slot: usize) -> bool {
        let instance = &mut world.instance;
        if instance.runs[slot].pieces().is_some() {
            return true;
        }
        if instance.refused[slot] {
            return false;
        }
        let view = self.rows.view(world.store.row);
        let is_over = view.of_slot(slot).is_some_and(|attempt| !attempt.is_open);
        // Another one that ran must be known to be over.
        let other = 1 - slot;
        let other_is_over = view.of_slot(other).is_some_and(|attempt| !attempt.is_open)
            && !matches!(instance.runs[other], Run::Running(_));
        let is_second = instance.was_started[other] && !other_is_over;
        let is_run_again = std::mem::replace(&mut instance.was_started[slot], true);
        instance.runs[slot] = Run::Running(0);
        if is_over || is_second || is_run_again {
            world.note(Property::OneRun);
        }
        true
    }

    /// A unit is released on the instance.
    pub(crate) fn release(&self, world: &mut World, slot: usize, is_sender: bool) {
        if world.instance.runs[slot] != Run::None {
            world.instance.runs[slot] = Run::Released;
        }
        world.instance.refused[slot] |= match self.rules.released {
            Released::Forgotten => false,
            Released::RefusedToSenders => !is_sender,
            Released::Refused => true,
        };
    }

    fn leases(&mut self, world: &World, at: usize, next: &mut Next) {
        if !world.reaches_store(at) {
            return;
        }
        let (node, other) = (&world.nodes[at], 1 - at);
        let holds = world.holds_lease(at);
        if node.is_late || world.store.expired[at] || !holds {
            let mut after = *world;
            if holds {
                let node = &mut after.nodes[at];
                (node.is_late, node.is_gated, after.store.expired[at]) = (false, false, false);
            } else {
                after.nodes[at].tasks = [Task::Idle; SLOTS];
                self.begin_lease(&mut after, at);
            }
            next.push((Step::Renew(at), after));
        }
        let view = self.rows.view(world.store.row);
        let is_due = !view.state.is_final() || view.tries().any(|(_, attempt)| !attempt.is_swept);
        let is_lost = match self.rules.lease {
            Lease::Counter => world.nodes[other].is_late,
            Lease::Clock => {
                (world.store.expired[other] || world.nodes[other].is_late) && !world.store.expired[at]
            }
        };
        if holds && is_due && is_lost && view.is_owned_by(other) {
            let mut after = *world;
            let epoch = self.issue(&mut after, other);
            after.store.epoch[other] = epoch;
            let late = &mut after.nodes[other];
            if !late.is_late {
                after.broken.get_or_insert(Property::OwnersStay);
            } else if self.rules.lease == Lease::Clock && !late.is_paused {
                // Its own clock has told it, before anybody could know.
                late.is_gated = true;
            }
            self.write(&mut after, Change::TakeOver(world.pen(at)));
            if self.needs_unit(&view) {
                self.ensure_unit(&mut after, at);
            }
            next.push((Step::TakeOver(at), after));
        }
    }

    fn issue(&self, world: &mut World, node: usize) -> u8 {
        world.issued[node] += 1;
        world.issued[node]
    }

    /// A control node gets a lease. Its jobs go on under it, and children of others' jobs are forgotten.
    fn begin_lease(&mut self, world: &mut World, at: usize) {
        let epoch = self.issue(world, at);
        world.store.epoch[at] = epoch;
        world.store.expired[at] = false;
        let node = &mut world.nodes[at];
        (node.epoch, node.is_late, node.is_gated) = (epoch, false, false);
        if self.rows.view(world.store.row).is_owned_by(at) {
            let pen = world.pen(at);
            self.write(world, Change::TakeOver(pen));
        }
        let view = self.rows.view(world.store.row);
        for slot in 0..SLOTS {
            let attempt = view.of_slot(slot);
            if view.owner.is_some() && !view.is_owned_by(at) || attempt.is_some_and(|one| one.is_swept) {
                world.nodes[at].children[slot] = Child::None;
            }
        }
    }

    /// A control node that drives the job has a place for its output.
    pub(crate) fn ensure_unit(&self, world: &mut World, at: usize) {
        if world.nodes[at].unit == Unit::None {
            world.nodes[at].unit = Unit::Open;
        }
    }

    fn place(&mut self, world: &World, at: usize, next: &mut Next) {
        let can_be_placed = self.rows.view(world.store.row).can_be_placed;
        if !can_be_placed
            || usize::from(world.placements) == SLOTS
            || !world.reaches_store(at)
            || !world.holds_lease(at)
        {
            return;
        }
        let mut after = World { placements: world.placements + 1, ..*world };
        self.write(&mut after, Change::Place(world.pen(at), world.placements));
        self.ensure_unit(&mut after, at);
        next.push((Step::Place(at), after));
    }
}

impl Model for Border {
    type State = World;
    type Step = Step;
    type Property = Property;

    fn start(&self) -> World {
        self.first
    }

    fn next(&mut self, world: &World, next: &mut Next) {
        if world.broken.is_some() {
            return;
        }
        self.repairs(world, next);
        self.instance(world, next);
        for node in 0..2 {
            self.leases(world, node, next);
            self.place(world, node, next);
            self.attempts(world, node, next);
            self.units(world, node, next);
        }
        self.faults(world, next);
        if world.standby.is_some() && self.rules.commits == Commits::Synchronous {
            next.iter_mut().for_each(|(step, after)| self.replicate(world, *step, after));
        }
    }

    fn is_fault(&self, step: Step) -> bool {
        step.is_fault()
    }

    fn broken(&self, world: &World) -> Option<Property> {
        world.broken
    }

    fn is_done(&mut self, world: &World) -> bool {
        let view = self.rows.view(world.store.row);
        let is_clean = world.instance.coming == [false; SLOTS]
            && world.instance.runs.iter().all(|run| run.pieces().is_none());
        let has_ended = view.state.is_final()
            && view.tries().all(|(_, attempt)| attempt.is_swept)
            && world.nodes.iter().all(|node| node.unit != Unit::Open);
        // Here the model's bounds end.
        let is_beyond = usize::from(world.placements) == SLOTS
            && !view.state.is_final()
            && view.tries().all(|(_, attempt)| attempt.is_swept);
        is_clean && (has_ended || is_beyond)
    }

    fn stuck(&self) -> Property {
        Property::NothingStays
    }
}

/// What only memory has is gone.
fn stop(node: &mut Node, known: Known) {
    if known == Known::ByRow {
        node.children = [Child::None; SLOTS];
    }
    (node.is_up, node.is_paused, node.is_late, node.is_gated) = (false, false, true, false);
    node.tasks = [Task::Idle; SLOTS];
}

/// The same state after something was done, once with and once without its answer, if that may be lost.
pub(crate) fn answered(
    border: &Border,
    world: &World,
    next: &mut Next,
    step: impl Fn(Answer) -> Step,
    done: impl Fn(&mut World, Answer),
) {
    for (answer, fails) in [(Answer::Comes, false), (Answer::IsLost, true)] {
        if fails && !border.may(world, Fault::LostAnswer) {
            continue;
        }
        let mut after = *world;
        after.faults_left -= u8::from(fails);
        done(&mut after, answer);
        next.push((step(answer), after));
    }
}
