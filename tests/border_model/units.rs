//! What units of the job show: at its owner, and at the other control node.

use super::border::{Border, Next};
use super::rows::View;
use super::rules::{Compare, End, Fault, Flush, Mismatch, Property, Release};
use super::step::Step;
use super::world::{Bytes, Child, Unit, World};

impl Border {
    /// Whether it is not known to whoever takes the job over that a child was released.
    pub(crate) fn is_noted_late(&self) -> bool {
        self.rules.release == Release::ThenNoted
    }

    /// Whether who takes the job over makes a unit for its output.
    pub(crate) fn needs_unit(&self, view: &View) -> bool {
        view.current()
            .is_some_and(|(_, attempt)| attempt.is_open || (attempt.is_unread && self.is_noted_late()))
    }

    pub(crate) fn units(&mut self, world: &World, at: usize, next: &mut Next) {
        let view = self.rows.view(world.store.row);
        if at == 1 && world.nodes[at].unit == Unit::None && world.reaches_store(at) {
            let mut after = *world;
            after.nodes[at].unit = Unit::Open;
            next.push((Step::Submit, after));
        }
        if world.nodes[at].unit != Unit::Open || !world.acts(at) {
            return;
        }
        self.copy(world, at, &view, next);
        if world.reaches_store(at) && view.state.is_final() {
            match self.rules.end {
                End::Complete => self.show_complete(world, at, next),
                End::Patience => self.show_sometime(world, at, &view, next),
            }
            self.show_without_child(world, at, &view, next);
        }
    }

    fn is_complete(&self, copy: Bytes, stored: Bytes) -> bool {
        match self.rules.compare {
            Compare::Hash => copy == stored,
            Compare::Length => copy.length() == stored.length(),
        }
    }

    fn copy(&mut self, world: &World, at: usize, view: &View, next: &mut Next) {
        let other = 1 - at;
        if !world.reach_each_other() || world.nodes[other].unit == Unit::None {
            return;
        }
        let (own, there) = (world.nodes[at].copy, world.nodes[other].copy);
        let mut after = *world;
        let output = world.store.output.filter(|_| self.rules.end == End::Complete);
        match output {
            // From any holder of a complete copy.
            Some(stored) => {
                if self.is_complete(own, stored) || !world.store.complete[other] {
                    return;
                }
                if self.rules.mismatch == Mismatch::Anew && !own.is_prefix_of(stored) {
                    (after.nodes[at].copy, after.nodes[at].flushed) = Default::default();
                    next.push((Step::CopyAnew(at), after));
                } else if after.nodes[at].copy.pull(there) {
                    next.push((Step::Copy(at), after));
                }
            }
            // From the owner.
            None => {
                if view.is_owned_by(other) && after.nodes[at].copy.pull(there) {
                    next.push((Step::Copy(at), after));
                }
            }
        }
    }

    fn show_complete(&mut self, world: &World, at: usize, next: &mut Next) {
        if world.store.output.is_some_and(|stored| !self.is_complete(world.nodes[at].copy, stored)) {
            return;
        }
        let mut after = *world;
        if world.store.output.is_some() {
            self.hold(&mut after, at);
        }
        next.push((Step::Show(at), self.shown(after, at)));
    }

    /// The store is told that a copy is complete.
    pub(crate) fn hold(&self, world: &mut World, at: usize) {
        world.store.complete[at] = true;
        if self.rules.flush == Flush::Before && self.scope.has(Fault::PowerCut) {
            world.nodes[at].flushed = world.nodes[at].copy;
        }
    }

    /// The rules of before.
    fn show_sometime(&mut self, world: &World, at: usize, view: &View, next: &mut Next) {
        let (node, other) = (&world.nodes[at], &world.nodes[1 - at]);
        let current = view.current().map(|(_, attempt)| attempt);
        let is_unread = current.is_some_and(|attempt| attempt.is_unread);
        if view.owner.is_none() || view.is_owned_by(at) {
            let child = current.map_or(Child::None, |attempt| node.children[attempt.slot]);
            let is_read = world.store.output.is_none_or(|whole| node.copy == whole);
            if !is_unread || (child != Child::None && is_read) {
                next.push((Step::Show(at), self.shown(*world, at)));
            }
        } else if !is_unread {
            let mut more = node.copy;
            if !world.reach_each_other() {
                next.push((Step::GiveUp(at), self.shown(*world, at)));
            } else if other.unit == Unit::None || !more.pull(other.copy) {
                next.push((Step::Show(at), self.shown(*world, at)));
            }
        }
    }

    /// The rules of before: an owner that has no child, and that the instance does not give one, has waited for nothing.
    fn show_without_child(&self, world: &World, at: usize, view: &View, next: &mut Next) {
        let Some((_, attempt)) = view.current().filter(|(_, attempt)| attempt.is_unread) else { return };
        let (child, run) = (world.nodes[at].children[attempt.slot], world.instance.runs[attempt.slot]);
        let is_there = world.reaches_instance(at) && run.pieces().is_some();
        if self.is_noted_late() && view.is_owned_by(at) && child == Child::None && !is_there {
            next.push((Step::ShowWithoutChild(at), self.shown(*world, at)));
        }
    }

    /// What shows Succeeded has all of the output.
    pub(crate) fn check_copy(&self, world: &mut World, at: usize) {
        let view = self.rows.view(world.store.row);
        let shows = matches!(world.nodes[at].unit, Unit::Ended(state) if state.is_success());
        if shows && world.store.output != Some(world.nodes[at].copy) {
            let is_here = view.is_owned_by(at);
            world.note(if is_here { Property::WholeAtOwner } else { Property::WholeElsewhere });
        }
    }

    /// A unit shows the end of the row.
    fn shown(&self, mut world: World, at: usize) -> World {
        let view = self.rows.view(world.store.row);
        world.nodes[at].unit = Unit::Ended(view.state);
        self.check_copy(&mut world, at);
        if world.end != Some(view.state) {
            world.note(Property::OneEnd);
        }
        world
    }
}
