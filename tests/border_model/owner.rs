//! What a control node does about the attempts of the job, as the owner that it is, or still takes itself for.

use meshd::controller::core::{Duty, Progress};

use super::border::{Border, Next, answered};
use super::rows::{Change, Try, View};
use super::rules::{Fault, Known, Send, Unknown};
use super::step::{Answer, Step};
use super::world::{Child, Run, SLOTS, Task, Unit, World};

impl Border {
    pub(crate) fn attempts(&mut self, world: &World, at: usize, next: &mut Next) {
        if !world.acts(at) {
            return;
        }
        let view = self.rows.view(world.store.row);
        for slot in 0..SLOTS {
            self.send(world, at, slot, &view, next);
            self.ask(world, at, slot, next);
            self.store_answer(world, at, slot, &view, next);
        }
        for (n, attempt) in view.tries() {
            self.read(world, at, (n, attempt), &view, next);
            if world.drives(at, &view) {
                self.prepare(world, at, (n, attempt), next);
                self.conclude_without_promise(world, at, (n, attempt), next);
                self.doubt(world, at, (n, attempt), next);
                self.follow(world, at, (n, attempt), &view, next);
                self.release_child(world, at, (n, attempt), &view, next);
            }
        }
    }

    /// The last look at the store before a unit is sent.
    fn prepare(&mut self, world: &World, at: usize, (n, attempt): (usize, Try), next: &mut Next) {
        let (child, task) = (world.nodes[at].children[attempt.slot], world.nodes[at].tasks[attempt.slot]);
        let is_own = attempt.sender == at && child == Child::None && task == Task::Idle;
        // A former process of it has sent it.
        let is_repeated = self.rules.unknown == Unknown::Nothing && world.store.sent[attempt.slot];
        match attempt.duty {
            Duty::Send if is_own && !is_repeated => {
                let is_noted = self.rules.unknown == Unknown::Nothing && self.rules.send == Send::AfterWrite;
                answered(
                    self,
                    world,
                    next,
                    |answer| Step::Prepare(at, n, answer),
                    |world, answer| {
                        world.store.sent[attempt.slot] |= is_noted;
                        if answer == Answer::Comes {
                            world.nodes[at].tasks[attempt.slot] = Task::Sends;
                        }
                    },
                );
            }
            // It was not sent from here, as far as is known here.
            Duty::Cancel
                if is_own
                    && attempt.progress == Progress::Placed
                    && self.rules.unknown == Unknown::Believed =>
            {
                let mut after = *world;
                after.nodes[at].tasks[attempt.slot] = Task::Denied;
                next.push((Step::NeverSent(at, n), after));
            }
            _ => {}
        }
    }

    /// What a Go node does not know may still come to it: only what the store says can be relied on, or an operator.
    fn conclude_without_promise(
        &mut self,
        world: &World,
        at: usize,
        (n, attempt): (usize, Try),
        next: &mut Next,
    ) {
        let slot = attempt.slot;
        if self.rules.unknown != Unknown::Nothing || !attempt.is_open {
            return;
        }
        let is_own = attempt.sender == at && attempt.duty == Duty::Send;
        let node = &world.nodes[at];
        if !world.store.sent[slot]
            && !is_own
            && (node.children[slot], node.tasks[slot]) == (Child::None, Task::Idle)
        {
            let mut after = *world;
            after.nodes[at].tasks[slot] = Task::Denied;
            next.push((Step::NeverSent(at, n), after));
        }
        // Another one sent it, or this one has lost what it knew of it.
        let is_asked_for =
            attempt.sender != at || attempt.progress == Progress::Running || self.rules.known == Known::ByRow;
        let is_missing = world.store.sent[slot]
            && world.reaches_instance(at)
            && world.instance.runs[slot].pieces().is_none();
        if is_missing
            && is_asked_for
            && (node.children[slot], node.tasks[slot]) == (Child::None, Task::Idle)
            && matches!(attempt.progress, Progress::Placed | Progress::Running)
        {
            let mut after = *world;
            self.write(&mut after, Change::Missing(world.pen(at), n));
            next.push((Step::Miss(at, n), after));
        }
        let may_come = world
            .nodes
            .iter()
            .any(|node| !node.is_up || node.is_paused || node.is_late || node.tasks[slot] == Task::Sends);
        if is_missing && !may_come && !world.instance.coming[slot] {
            let mut after = *world;
            let is_lost = attempt.progress == Progress::Lost;
            self.write(&mut after, if is_lost { Change::ConfirmLost(n) } else { Change::DeclareDead });
            for node in &mut after.nodes {
                node.children[slot] = Child::None;
            }
            next.push((Step::ConfirmLost, after));
        }
    }

    /// Sends a unit, for the first time or again if its answer did not come. It looks at no store.
    fn send(&mut self, world: &World, at: usize, slot: usize, view: &View, next: &mut Next) {
        let node = &world.nodes[at];
        let is_unwanted = world.drives(at, view)
            && view
                .of_slot(slot)
                .is_some_and(|attempt| !matches!(attempt.duty, Duty::Send | Duty::Follow | Duty::Ask));
        let is_due = match node.tasks[slot] {
            Task::Sends => true,
            Task::Idle => node.children[slot] == Child::Sent && !is_unwanted,
            Task::Asks | Task::Denied | Task::Released => false,
        };
        if !is_due || node.is_gated {
            return;
        }
        if world.reaches_instance(at) {
            let border = &*self;
            answered(
                border,
                world,
                next,
                |answer| Step::Send(at, slot, answer),
                |world, answer| {
                    let is_there = border.arrive(world, slot);
                    let node = &mut world.nodes[at];
                    (node.children[slot], node.tasks[slot]) = match (answer, is_there) {
                        (Answer::Comes, true) => (Child::Accepted, Task::Idle),
                        (Answer::Comes, false) => (Child::None, Task::Denied),
                        (Answer::IsLost | Answer::IsAwaited, _) => (Child::Sent, Task::Idle),
                    };
                },
            );
        }
        if self.may(world, Fault::Delay) && !world.instance.coming[slot] && world.reaches_instance(at) {
            let mut after = World { faults_left: world.faults_left - 1, ..*world };
            after.instance.coming[slot] = true;
            (after.nodes[at].children[slot], after.nodes[at].tasks[slot]) = (Child::Sent, Task::Idle);
            next.push((Step::Send(at, slot, Answer::IsAwaited), after));
        }
    }

    /// Asks the instance for a unit that this node has not sent, or that it sent and does not want any more.
    fn doubt(&mut self, world: &World, at: usize, (n, attempt): (usize, Try), next: &mut Next) {
        let slot = attempt.slot;
        let (child, task) = (world.nodes[at].children[slot], world.nodes[at].tasks[slot]);
        let is_known = world.instance.runs[slot].pieces().is_some();
        let is_due = match (attempt.duty, child) {
            (Duty::Send, Child::None) => attempt.sender != at || world.store.sent[slot],
            (Duty::Follow | Duty::Ask, Child::None) => true,
            (Duty::Cancel, Child::None) => true,
            // Before, its output was read from there.
            (Duty::Release, Child::None) => attempt.is_unread && is_known && self.is_noted_late(),
            (Duty::Cancel, Child::Sent) => !is_known,
            _ => false,
        };
        let may_conclude = is_known || self.rules.unknown != Unknown::Nothing;
        if is_due && may_conclude && task == Task::Idle && world.reaches_instance(at) {
            let mut after = *world;
            after.nodes[at].tasks[slot] = Task::Asks;
            next.push((Step::Doubt(at, n), after));
        }
    }

    /// It may have lost the job since it began to ask.
    fn ask(&mut self, world: &World, at: usize, slot: usize, next: &mut Next) {
        if world.nodes[at].tasks[slot] != Task::Asks || !world.reaches_instance(at) {
            return;
        }
        let is_known = world.instance.runs[slot].pieces().is_some();
        let promises = matches!(self.rules.unknown, Unknown::Promised | Unknown::PromisedInMemory);
        let believes = self.rules.unknown != Unknown::Nothing;
        answered(
            self,
            world,
            next,
            |answer| Step::Ask(at, slot, is_known, answer),
            |world, answer| {
                let node = &mut world.nodes[at];
                node.tasks[slot] = Task::Idle;
                match (is_known, answer) {
                    (true, Answer::Comes) => node.children[slot] = Child::Accepted,
                    (false, Answer::Comes) if believes => node.tasks[slot] = Task::Denied,
                    (_, _) => {}
                }
                world.instance.refused[slot] |= !is_known && promises;
            },
        );
    }

    /// Stores what the instance has said. A fenced writer forgets it.
    fn store_answer(&mut self, world: &World, at: usize, slot: usize, view: &View, next: &mut Next) {
        if !world.reaches_store(at) {
            return;
        }
        let Some((n, _)) = view.tries().find(|(_, attempt)| attempt.slot == slot) else { return };
        let mut after = *world;
        after.nodes[at].tasks[slot] = Task::Idle;
        let step = match world.nodes[at].tasks[slot] {
            Task::Denied => {
                if self.write(&mut after, Change::Unknown(world.pen(at), n)) {
                    after.nodes[at].children[slot] = Child::None;
                }
                Step::Conclude(at, n)
            }
            Task::Released => {
                if self.write(&mut after, Change::Swept(world.pen(at), n)) {
                    after.nodes[at].children[slot] = Child::None;
                }
                Step::Sweep(at, n)
            }
            // What it was about to send it sends, whatever the store says by now.
            Task::Sends | Task::Asks | Task::Idle => return,
        };
        next.push((step, after));
    }

    /// Output on its way to this node. Who drives the job by now does not matter to it.
    fn read(&mut self, world: &World, at: usize, (n, attempt): (usize, Try), view: &View, next: &mut Next) {
        let node = &world.nodes[at];
        let is_missing = world.store.output.is_some_and(|output| output != node.copy);
        let is_wanted = !view.state.is_final()
            || (self.is_noted_late() && is_missing && attempt.is_unread && world.drives(at, view));
        if !is_wanted
            || !attempt.is_current
            || node.unit != Unit::Open
            || node.children[attempt.slot] == Child::None
            || !world.reaches_instance(at)
        {
            return;
        }
        let there = world.instance.runs[attempt.slot].pieces();
        if there.zip(node.copy.part(n)).is_some_and(|(there, here)| here < there) {
            let mut after = *world;
            after.nodes[at].copy.push(n);
            after.nodes[at].children[attempt.slot] = Child::Accepted;
            next.push((Step::Read(at, n), after));
        }
    }

    /// Stores that an attempt runs, has ended or is lost, and cancels it.
    fn follow(&mut self, world: &World, at: usize, (n, attempt): (usize, Try), view: &View, next: &mut Next) {
        let (run, node) = (world.instance.runs[attempt.slot], &world.nodes[at]);
        let (has_child, pen) = (node.children[attempt.slot] != Child::None, world.pen(at));
        let counts = attempt.is_current && !view.state.is_final();
        let here = node.copy.part(n);
        if has_child && world.reaches_instance(at) {
            let is_news = matches!(attempt.progress, Progress::Placed | Progress::Lost);
            if matches!(run, Run::Running(_)) && is_news && counts {
                let mut after = *world;
                self.write(&mut after, Change::Accepted(pen, n));
                after.nodes[at].children[attempt.slot] = Child::Accepted;
                next.push((Step::Accept(at, n), after));
            }
            if matches!(run, Run::Running(_)) && attempt.duty == Duty::Cancel && !node.is_gated {
                let mut after = *world;
                after.instance.runs[attempt.slot] = Run::Cancelled(run.pieces().unwrap_or_default());
                next.push((Step::CancelRun(at, n), after));
            }
            let is_read = !counts || here == run.pieces();
            if run.is_over() && attempt.is_open && is_read {
                let mut after = *world;
                let told = run.pieces().is_some_and(|pieces| pieces >= self.scope.tells);
                self.write(&mut after, Change::Ended(pen, n, told, run == Run::Succeeded));
                self.store_output(&mut after, at, view);
                after.nodes[at].children[attempt.slot] = Child::Accepted;
                next.push((Step::End(at, n), after));
            }
        }
        let is_silent = !world.reaches_instance(0) && !world.reaches_instance(1);
        if is_silent && matches!(attempt.progress, Progress::Placed | Progress::Running) {
            let mut after = *world;
            let told = has_child && here.is_some_and(|here| here >= self.scope.tells);
            self.write(&mut after, Change::Lost(pen, n, told));
            if told {
                self.store_output(&mut after, at, view);
            }
            next.push((Step::Lose(at, n), after));
        }
    }

    /// The end of the job, if this was it, is stored with the output that this node has of it: nobody has another one.
    fn store_output(&self, world: &mut World, at: usize, before: &View) {
        if !before.state.is_final() && self.rows.view(world.store.row).state.is_final() {
            world.store.output = Some(world.nodes[at].copy);
            self.hold(world, at);
        }
    }

    fn release_child(
        &mut self,
        world: &World,
        at: usize,
        (n, attempt): (usize, Try),
        view: &View,
        next: &mut Next,
    ) {
        let node = &world.nodes[at];
        // Before, an end was shown first; now it is stored by then who has the output.
        let is_kept = !self.is_noted_late() || !view.state.is_final() || node.unit != Unit::Open;
        if attempt.duty != Duty::Release
            || node.tasks[attempt.slot] != Task::Idle
            || !is_kept
            || node.is_gated
            || !world.reaches_instance(at)
        {
            return;
        }
        let border = &*self;
        answered(
            border,
            world,
            next,
            |answer| Step::Release(at, n, answer),
            |world, answer| {
                border.release(world, attempt.slot, attempt.sender == at);
                if answer == Answer::Comes {
                    world.nodes[at].tasks[attempt.slot] = Task::Released;
                }
            },
        );
    }
}
