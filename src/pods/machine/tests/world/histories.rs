//! Random histories of a cluster with one unit, in which any message may be late, lost or repeated, and the daemon may be
//! killed at any moment. The rules at [`World::check`] always hold; once everything works again the unit ends, and its
//! release leaves no pod.

use proptest::prelude::*;

use super::*;

fn kind() -> impl Strategy<Value = Kind> {
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), (0..5).prop_map(|n| n == 0));
    (flags, proptest::option::weighted(0.3, 1_u64..20)).prop_map(|(flags, pending_timeout)| {
        let (has_stdin, delete_pod_on_restart, may_read_events, adopts) = flags;
        Kind { has_stdin, delete_pod_on_restart, may_read_events, adopts, pending_timeout }
    })
}

#[derive(Debug, Clone)]
enum Step {
    Answer(usize, Fate),
    Wake,
    /// The worker makes progress.
    Progress,
    Print,
    Watch,
    Bring(usize),
    EndStream(StreamEnd),
    Attach(bool),
    Cancel,
    Release,
    Kill(Fate),
    /// The server executes a request that the daemon sent before it was killed.
    Land,
    DeleteOutside,
}

fn step() -> impl Strategy<Value = Step> {
    let fate = || prop_oneof![4 => Just(Fate::Served), 1 => Just(Fate::AnswerLost), 1 => Just(Fate::NeverCame), 1 => Just(Fate::Busy)];
    prop_oneof![
        10 => (0_usize..3, fate()).prop_map(|(which, fate)| Step::Answer(which, fate)),
        3 => Just(Step::Wake),
        4 => Just(Step::Progress),
        3 => Just(Step::Print),
        6 => Just(Step::Watch),
        5 => (1_usize..90).prop_map(Step::Bring),
        2 => Just(Step::EndStream(StreamEnd::InOrder)),
        1 => Just(Step::EndStream(StreamEnd::Broken)),
        4 => prop_oneof![5 => Just(true), 1 => Just(false)].prop_map(Step::Attach),
        1 => prop_oneof![6 => Just(Step::Watch), 1 => Just(Step::Cancel), 1 => Just(Step::Release)],
        1 => prop_oneof![2 => Just(Step::Land), 1 => fate().prop_map(Step::Kill), 1 => Just(Step::DeleteOutside)],
    ]
}

impl World {
    fn run(&mut self, step: &Step) {
        match step {
            Step::Answer(which, fate) if !self.asked.is_empty() => {
                let request = self.asked.remove(which % self.asked.len());
                self.answer(request, *fate);
            }
            Step::Answer(..) => {}
            Step::Wake => self.wake(),
            Step::Progress => self.progress(),
            Step::Print => self.print(),
            Step::Watch => self.watch(),
            Step::Bring(bytes) => self.bring(*bytes),
            Step::EndStream(end) => self.end_stream(*end),
            Step::Attach(goes_well) => self.go_on_attach(*goes_well),
            Step::Cancel => self.unit.handle_cancel(self.now),
            Step::Release => self.release(),
            Step::Kill(fate) => self.kill(*fate),
            Step::Land => self.land(),
            Step::DeleteOutside => self.pods.iter_mut().for_each(delete),
        }
        self.drain();
    }

    /// Everything works from here on.
    fn settle(&mut self) {
        for _ in 0..400 {
            while !self.asked.is_empty() {
                self.run(&Step::Answer(0, Fate::Served));
            }
            for step in [
                Step::Attach(true),
                Step::Attach(true),
                Step::Watch,
                Step::Bring(usize::MAX / 2),
                Step::Progress,
                Step::Watch,
                Step::EndStream(StreamEnd::InOrder),
            ] {
                self.run(&step);
            }
            if self.asked.is_empty() {
                self.run(&Step::Wake);
            }
            if self.asked.is_empty() && self.unit.is_idle() {
                self.land();
                return;
            }
        }
        panic!("{:?} {} never ends", self.unit.state(), self.unit.detail());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]
    #[test]
    fn every_history_comes_to_its_end_and_leaves_no_pod(
        kind in kind(),
        steps in proptest::collection::vec(step(), 0..80),
    ) {
        let mut world = World::new(kind);
        for step in &steps {
            world.run(step);
        }
        world.settle();
        prop_assert!(world.unit.state().is_final());
        if !world.is_released {
            world.run(&Step::Release);
            world.settle();
        }
        prop_assert_eq!(world.released, Some(true));
        // A pod that was refused, or never found, is not ours to delete.
        let was_taken = !kind.adopts || !world.recorded.record.pod_uid.is_empty();
        prop_assert!(!was_taken || world.pods.iter().all(|pod| pod.is_gone), "a pod was left behind");
        let outside = steps.iter().any(|step| matches!(step, Step::DeleteOutside | Step::Kill(Fate::AnswerLost)));
        prop_assert!(outside || world.created.values().all(|times| *times == 1), "{:?}", world.created);
    }
}
