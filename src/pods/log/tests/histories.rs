//! Random histories of a log: what its container prints, rotations, streams that end or break off, and restarts.

use proptest::prelude::*;

use super::*;

/// An event of a log or its readers.
#[derive(Debug, Clone)]
enum Step {
    /// The container prints: time since the previous line in steps of 250 ms (0 and -1 ns often), length of
    /// the line.
    Print { later: i128, length: usize },
    /// The stream delivers this share of the log, in pieces of that size, and ends like this.
    Read { share: usize, piece: usize, end: StreamEnd },
    /// The log is rotated while a stream follows it, which then ends in order.
    RotateFollowed,
    /// The log is rotated within a long line while a stream follows it, which goes on in the new file. `rest` is the
    /// length of the rest.
    RotateWithin { rest: usize },
    /// The log is rotated while no stream is open.
    RotateAlone,
    /// The daemon is killed and restarts; the record of the last write may be missing.
    Restart { is_behind: bool },
}

fn step() -> impl Strategy<Value = Step> {
    let later =
        prop_oneof![3 => Just(0), 1 => Just(-1), 1 => Just(1), 3 => (0_i128..9).prop_map(|n| n * SECOND / 4)];
    let length = prop_oneof![3 => 0_usize..4, 2 => 0_usize..200, 1 => Just(2_000)];
    let end = prop_oneof![Just(StreamEnd::InOrder), Just(StreamEnd::Broken)];
    prop_oneof![
        6 => (later, length).prop_map(|(later, length)| Step::Print { later, length }),
        5 => (0_usize..=1000, 1_usize..300, end).prop_map(|(share, piece, end)| Step::Read { share, piece, end }),
        1 => Just(Step::RotateFollowed),
        1 => prop_oneof![Just(100), Just(4_200)].prop_map(|rest| Step::RotateWithin { rest }),
        1 => Just(Step::RotateAlone),
        1 => any::<bool>().prop_map(|is_behind| Step::Restart { is_behind }),
    ]
}

#[derive(Debug, Default)]
struct World {
    kubelet: Kubelet,
    now: i128,
    latest: i128,
    printed: usize,
    reader: LogReader,
    stdout: Stdout,
    before: Cursor,
    /// Bytes of stdout at the last rotation.
    rotated_at: Option<u64>,
    /// The log was rotated while nobody followed it, as far as the model knows.
    may_lose: bool,
}

impl World {
    fn run(&mut self, step: &Step) -> Result<(), LostLines> {
        match step {
            Step::Print { later, length } => {
                // A line stamped into the previous second is not served again once a later one was read.
                self.now += if self.now % SECOND > 0 { *later } else { (*later).max(0) };
                // Right after a rotation a line stamped backwards could not be distinguished from a repeated one.
                self.may_lose |=
                    self.now < self.latest && self.kubelet.file.iter().all(|line| line.0 < self.latest);
                self.latest = self.latest.max(self.now);
                self.printed += 1;
                // No two lines are equal, because otherwise nobody could tell which of them was rotated away.
                let text = format!("{}:{}\n", self.printed, "y".repeat(*length));
                self.kubelet.print(self.now, &text);
            }
            Step::Read { share, piece, end } => {
                let bytes = self.kubelet.serve(self.reader.since());
                // A stream that ends in order has delivered everything.
                let share = if *end == StreamEnd::InOrder { 1000 } else { *share };
                self.read(&bytes[..bytes.len() * share / 1000], *piece, *end)?;
            }
            Step::RotateFollowed => {
                let bytes = self.kubelet.serve(self.reader.since());
                self.read(&bytes, 100, StreamEnd::InOrder)?;
                self.kubelet.rotate();
                self.rotated_at = Some(self.stdout.0.len() as u64);
            }
            Step::RotateWithin { rest } => {
                self.now += SECOND;
                self.printed += 1;
                self.kubelet.print(self.now, &format!("{}:{}", self.printed, "x".repeat(5_000)));
                self.kubelet.print(self.now, &format!("{}:{}\n", self.printed, "z".repeat(*rest)));
                let bytes = self.kubelet.serve(self.reader.since());
                self.read(&bytes, 100, StreamEnd::InOrder)?;
                let before = self.kubelet.file.len() - 1;
                self.kubelet.file.drain(..before);
                // The rest has a later timestamp.
                self.now += 1;
                self.kubelet.file[0].0 = self.now;
                self.latest = self.latest.max(self.now);
                self.rotated_at = Some(self.stdout.0.len() as u64);
            }
            // If a log was never read, the reader cannot notice that its beginning is lost.
            Step::RotateAlone if !self.reader.has_anchor() => {}
            Step::RotateAlone => {
                self.reader.note_gap();
                self.may_lose = true;
                self.kubelet.rotate();
                // Later lines fall into a later second, as rotations are seconds apart.
                self.now += 2 * SECOND;
            }
            Step::Restart { is_behind } => {
                let record = if *is_behind { &self.before } else { self.reader.cursor() };
                let mut file = record.encode(7).to_vec();
                file.resize(FILE_SIZE, 0);
                let size = self.stdout.0.len() as u64;
                self.reader = LogReader::resume(cursor::find(&file, 7, size).cursor, size);
                self.before = self.reader.cursor().clone();
                self.note_break();
            }
        }
        Ok(())
    }

    /// If the last written line was rotated away, nobody can tell whether more lines are gone with it.
    fn note_break(&mut self) {
        self.may_lose |= self.rotated_at.is_some_and(|size| self.reader.cursor().size() <= size);
    }

    fn read(&mut self, bytes: &[u8], piece: usize, end: StreamEnd) -> Result<(), LostLines> {
        self.reader.open();
        for chunk in bytes.chunks(piece) {
            self.before = self.reader.cursor().clone();
            self.stdout.take(&mut self.reader, chunk)?;
        }
        self.stdout.end(&mut self.reader, end)?;
        if end == StreamEnd::Broken {
            self.note_break();
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]
    #[test]
    fn stdout_is_always_the_beginning_of_what_was_printed(steps in proptest::collection::vec(step(), 1..40)) {
        let mut world = World::default();
        let lost = steps.iter().find_map(|step| world.run(step).err());
        let truth = world.kubelet.truth.clone();
        prop_assert!(truth.starts_with(world.stdout.text()), "{:?} is not how {truth:?} begins", world.stdout.text());
        if lost.is_none() {
            let last = world.run(&Step::Read { share: 1000, piece: 64, end: StreamEnd::InOrder });
            if last.is_ok() && !world.may_lose {
                prop_assert_eq!(world.stdout.text(), truth);
            }
            prop_assert!(last.is_ok() || world.may_lose, "nothing was lost");
        } else {
            prop_assert!(world.may_lose, "nothing was lost");
        }
    }
}
