use proptest::prelude::*;

use super::cursor::{self, FILE_SIZE, RECORD};
use super::*;

/// A container's log as a kubelet keeps it: the current file, and the final size of stdout.
#[derive(Debug, Clone, Default)]
struct Kubelet {
    /// What the file holds, lines or pieces of long ones, with their timestamps.
    file: Vec<(i128, String)>,
    truth: String,
}

impl Kubelet {
    fn print(&mut self, nanos: i128, text: &str) {
        self.file.push((nanos, text.to_owned()));
        self.truth.push_str(text);
    }

    fn rotate(&mut self) {
        self.file.clear();
    }

    /// The output of a stream requested from `since`: timestamps stand where a line begins, and what is older is left out
    /// piece by piece.
    fn serve(&self, since: Option<Timestamp>) -> Vec<u8> {
        let from = since.map_or(i128::MIN, Timestamp::as_nanosecond);
        let (mut stream, mut is_line) = (String::new(), true);
        for (nanos, text) in &self.file {
            if *nanos >= from {
                let stamp = if is_line { stamp(*nanos) + " " } else { String::new() };
                stream.push_str(&(stamp + text));
            }
            is_line = text.ends_with('\n');
        }
        stream.into_bytes()
    }
}

fn stamp(nanos: i128) -> String {
    format!("{:.9}", Timestamp::from_nanosecond(nanos).unwrap())
}

/// Stdout as the driver writes it: bytes that are there already are compared.
#[derive(Debug, Default)]
struct Stdout(Vec<u8>);

impl Stdout {
    fn take(&mut self, reader: &mut LogReader, bytes: &[u8]) -> Result<Took, Lost> {
        let mut out = Vec::new();
        let took = reader.read(bytes, &mut out)?;
        self.put(reader, took, &out)?;
        Ok(took)
    }

    /// The stream has ended.
    fn end(&mut self, reader: &mut LogReader, end: StreamEnd) -> Result<(), Lost> {
        if end == StreamEnd::InOrder {
            let mut out = Vec::new();
            let took = reader.read_held(&mut out)?;
            self.put(reader, took, &out)?;
        }
        reader.close(end);
        Ok(())
    }

    fn put(&mut self, reader: &LogReader, took: Took, out: &[u8]) -> Result<(), Lost> {
        let existing = &self.0[took.at as usize..];
        let fresh = new_part(existing, out).ok_or(reader.lost())?;
        self.0.extend_from_slice(fresh);
        assert_eq!(reader.size(), self.0.len() as u64);
        Ok(())
    }

    fn text(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap()
    }
}

/// Reads a whole stream.
fn stream(
    reader: &mut LogReader,
    stdout: &mut Stdout,
    kubelet: &Kubelet,
    end: StreamEnd,
) -> Result<(), Lost> {
    let bytes = kubelet.serve(reader.since());
    reader.open();
    stdout.take(reader, &bytes)?;
    stdout.end(reader, end)
}

const SECOND: i128 = 1_000_000_000;

fn three_equal() -> Kubelet {
    let mut kubelet = Kubelet::default();
    kubelet.print(SECOND + 1, "first\n");
    for text in ["a\n", "b\n", "c\n"] {
        kubelet.print(2 * SECOND - 1, text);
    }
    kubelet
}

#[test]
fn a_cut_at_every_byte_loses_and_repeats_nothing() {
    let mut kubelet = three_equal();
    kubelet.print(2 * SECOND, "long ");
    kubelet.file.last_mut().unwrap().1.push_str(&"x".repeat(300));
    kubelet.truth.push_str(&"x".repeat(300));
    let whole = kubelet.serve(None);
    for cut in 0..=whole.len() {
        let (mut reader, mut stdout) = (LogReader::new(), Stdout::default());
        reader.open();
        stdout.take(&mut reader, &whole[..cut]).unwrap();
        reader.close(StreamEnd::Broken);
        stream(&mut reader, &mut stdout, &kubelet, StreamEnd::InOrder).unwrap();
        assert_eq!(stdout.text(), kubelet.truth, "cut at {cut}");
    }
}

#[test]
fn a_kill_at_every_byte_goes_on_where_stdout_ended() {
    let mut kubelet = three_equal();
    kubelet.print(2 * SECOND + 5, "last piece without an end");
    let whole = kubelet.serve(None);
    for cut in 0..=whole.len() {
        let (mut reader, mut stdout) = (LogReader::new(), Stdout::default());
        reader.open();
        let mut records = vec![Cursor::default()];
        for byte in &whole[..cut] {
            stdout.take(&mut reader, std::slice::from_ref(byte)).unwrap();
            records.push(reader.cursor().clone());
        }
        // The record of the last write may be missing.
        for record in records.iter().rev().take(3) {
            let mut file = record.encode(7).to_vec();
            file.resize(FILE_SIZE, 0);
            let found = cursor::find(&file, 7, stdout.0.len() as u64);
            assert!(!found.truncate);
            let mut reader = LogReader::resume(found.cursor, stdout.0.len() as u64);
            let mut stdout = Stdout(stdout.0.clone());
            stream(&mut reader, &mut stdout, &kubelet, StreamEnd::InOrder).unwrap();
            assert_eq!(stdout.text(), kubelet.truth, "killed at {cut}");
        }
    }
}

#[test]
fn after_a_power_loss_only_synced_output_counts() {
    let kubelet = three_equal();
    let (mut reader, mut stdout) = (LogReader::new(), Stdout::default());
    reader.open();
    stdout.take(&mut reader, &kubelet.serve(None)[..46]).unwrap();
    let synced = reader.cursor().clone();
    assert!(synced.size() > 0);
    stdout.take(&mut reader, &kubelet.serve(None)[46..]).unwrap();
    let mut file = reader.cursor().encode(7).to_vec();
    file.extend_from_slice(&synced.encode(7));
    assert_eq!(file.len(), 2 * RECORD);
    // Data that was not synced came back as zeros.
    stdout.0[synced.size() as usize..].fill(0);
    let found = cursor::find(&file, 8, stdout.0.len() as u64);
    assert!(found.truncate);
    stdout.0.truncate(found.cursor.size() as usize);
    let mut reader = LogReader::resume(found.cursor, stdout.0.len() as u64);
    stream(&mut reader, &mut stdout, &kubelet, StreamEnd::InOrder).unwrap();
    assert_eq!(stdout.text(), kubelet.truth);
}

#[test]
fn a_rotation_while_nobody_follows_is_noticed() {
    let mut kubelet = three_equal();
    let (mut reader, mut stdout) = (LogReader::new(), Stdout::default());
    stream(&mut reader, &mut stdout, &kubelet, StreamEnd::Broken).unwrap();
    kubelet.print(3 * SECOND, "lost\n");
    kubelet.rotate();
    kubelet.print(4 * SECOND, "found\n");
    let lost = stream(&mut reader, &mut stdout, &kubelet, StreamEnd::InOrder).unwrap_err();
    assert_eq!(
        lost.to_string(),
        "the log was rotated while it could not be followed: lines after 1970-01-01T00:00:01.999999999Z may be missing"
    );
    assert_eq!(stdout.text(), "first\na\nb\nc\n");
}

#[test]
fn a_rotation_that_ends_the_stream_in_order_loses_nothing() {
    let mut kubelet = three_equal();
    let (mut reader, mut stdout) = (LogReader::new(), Stdout::default());
    stream(&mut reader, &mut stdout, &kubelet, StreamEnd::InOrder).unwrap();
    kubelet.rotate();
    // Even in the same nanosecond.
    kubelet.print(2 * SECOND - 1, "d\n");
    kubelet.print(4 * SECOND, "e\n");
    stream(&mut reader, &mut stdout, &kubelet, StreamEnd::InOrder).unwrap();
    assert_eq!(stdout.text(), kubelet.truth);
}

#[test]
fn an_end_that_does_not_bring_the_last_line_is_not_the_end() {
    let mut kubelet = three_equal();
    let (mut reader, mut stdout) = (LogReader::new(), Stdout::default());
    stream(&mut reader, &mut stdout, &kubelet, StreamEnd::Broken).unwrap();
    reader.open();
    let bytes = kubelet.serve(reader.since());
    stdout.take(&mut reader, &bytes).unwrap();
    assert_eq!(reader.complete(), Ok(()));
    reader.close(StreamEnd::Broken);
    kubelet.rotate();
    reader.open();
    assert!(reader.complete().is_err());
}

#[test]
fn kubelet_messages_are_no_output() {
    let mut kubelet = three_equal();
    let (mut reader, mut stdout) = (LogReader::new(), Stdout::default());
    let messages =
        ["failed to create fsnotify watcher: too many open files\n", "unable to retrieve logs for abc"];
    for (before, message) in [kubelet.serve(None), Vec::new()].iter().zip(messages) {
        reader.open();
        stdout.take(&mut reader, &[before, message.as_bytes()].concat()).unwrap();
        assert_eq!(reader.close(StreamEnd::InOrder).as_deref(), Some(message.trim()));
    }
    kubelet.print(9 * SECOND, "on\n");
    stream(&mut reader, &mut stdout, &kubelet, StreamEnd::InOrder).unwrap();
    assert_eq!(stdout.text(), kubelet.truth);
}

#[test]
fn the_rest_of_a_line_that_began_before_the_requested_second_is_skipped() {
    let mut kubelet = Kubelet::default();
    kubelet.print(2 * SECOND - 1, "a long line, ");
    kubelet.print(2 * SECOND, "and its rest\n");
    kubelet.print(2 * SECOND + 1, "next\n");
    let (mut reader, mut stdout) = (LogReader::new(), Stdout::default());
    stream(&mut reader, &mut stdout, &kubelet, StreamEnd::Broken).unwrap();
    assert!(kubelet.serve(reader.since()).starts_with(b"and its rest\n"));
    kubelet.print(3 * SECOND, "more\n");
    stream(&mut reader, &mut stdout, &kubelet, StreamEnd::InOrder).unwrap();
    assert_eq!(stdout.text(), kubelet.truth);
}

#[test]
fn lines_of_any_length_come_whole_in_pieces_of_a_kubelet() {
    const PIECE: usize = 16 * 1024;
    for length in [1, 2, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE, 5 * PIECE - 2, 1 << 20] {
        for end in ["", "\n"] {
            let mut kubelet = Kubelet::default();
            kubelet.print(SECOND, "before\n");
            let text = ('a'..='z').cycle().take(length).collect::<String>() + end;
            for (at, piece) in text.as_bytes().chunks(PIECE).enumerate() {
                kubelet.print(2 * SECOND + at as i128, std::str::from_utf8(piece).unwrap());
            }
            let whole = kubelet.serve(None);
            for cut in (0..whole.len()).step_by(PIECE / 2 + 7).chain([40, 70, whole.len()]) {
                let (mut reader, mut stdout) = (LogReader::new(), Stdout::default());
                reader.open();
                stdout.take(&mut reader, &whole[..cut.min(whole.len())]).unwrap();
                reader.close(StreamEnd::Broken);
                stream(&mut reader, &mut stdout, &kubelet, StreamEnd::InOrder).unwrap();
                assert!(stdout.text() == kubelet.truth, "{length} bytes, cut at {cut}");
            }
        }
    }
}

/// A log that was rotated within a line while a stream followed it, which ended in order with the first file.
fn rotated_within_a_line() -> (LogReader, Stdout, Kubelet) {
    let mut kubelet = three_equal();
    kubelet.print(3 * SECOND, "aaaaaaaa");
    let (mut reader, mut stdout) = (LogReader::new(), Stdout::default());
    stream(&mut reader, &mut stdout, &kubelet, StreamEnd::InOrder).unwrap();
    kubelet.rotate();
    kubelet.print(3 * SECOND + 5, "aaaa");
    kubelet.print(4 * SECOND, "aab\n");
    (reader, stdout, kubelet)
}

#[test]
fn a_line_goes_on_in_the_next_file() {
    let (mut reader, mut stdout, mut kubelet) = rotated_within_a_line();
    stream(&mut reader, &mut stdout, &kubelet, StreamEnd::Broken).unwrap();
    assert_eq!(stdout.text(), kubelet.truth);
    // A later stream can repeat the second part only.
    kubelet.print(5 * SECOND, "next\n");
    stream(&mut reader, &mut stdout, &kubelet, StreamEnd::InOrder).unwrap();
    assert_eq!(stdout.text(), kubelet.truth);
}

#[test]
fn a_cut_line_that_no_stream_repeats_is_missed() {
    let (mut reader, mut stdout, kubelet) = rotated_within_a_line();
    let text = stdout.text().to_owned();
    reader.note_gap();
    assert!(stream(&mut reader, &mut stdout, &kubelet, StreamEnd::InOrder).is_err());
    assert_eq!(stdout.text(), text);
    // Neither is the first line of a log, of which nothing is known but its beginning.
    let (mut reader, mut stdout) = (LogReader::new(), Stdout::default());
    reader.open();
    stdout.take(&mut reader, format!("{} aaaa", stamp(SECOND)).as_bytes()).unwrap();
    reader.close(StreamEnd::Broken);
    assert!(stream(&mut reader, &mut stdout, &kubelet, StreamEnd::InOrder).is_err());
    assert_eq!(stdout.text(), "aaaa");
}

/// A log that was rotated within its last line, which a following stream delivered to the end.
fn followed_across_a_rotation() -> (LogReader, Stdout, Kubelet) {
    let mut kubelet = three_equal();
    kubelet.print(3 * SECOND, &"x".repeat(9_000));
    let begin = kubelet.file.len();
    kubelet.print(3 * SECOND + 5, &("y".repeat(4_199) + "z"));
    kubelet.print(4 * SECOND, "the end\n");
    let (mut reader, mut stdout) = (LogReader::new(), Stdout::default());
    reader.open();
    stdout.take(&mut reader, &kubelet.serve(None)).unwrap();
    kubelet.file.drain(..begin);
    (reader, stdout, kubelet)
}

#[test]
fn the_rest_of_the_last_line_is_not_written_again() {
    for end in [StreamEnd::InOrder, StreamEnd::Broken] {
        let (mut reader, mut stdout, mut kubelet) = followed_across_a_rotation();
        reader.close(end);
        for next in ["", "next\n"] {
            kubelet.print(5 * SECOND, next);
            let bytes = kubelet.serve(reader.since());
            reader.open();
            for piece in bytes.chunks(700) {
                stdout.take(&mut reader, piece).unwrap();
            }
            assert_eq!(reader.complete(), Ok(()));
            reader.close(StreamEnd::InOrder);
            assert_eq!(stdout.text().len(), kubelet.truth.len(), "{end:?}, {next:?}");
            assert!(stdout.text() == kubelet.truth);
        }
    }
    // It shows as well that nothing is missing, so a parked stream has nothing to add.
    let (mut reader, mut stdout, kubelet) = followed_across_a_rotation();
    reader.park();
    let since = reader.since();
    reader.open();
    stdout.take(&mut reader, &kubelet.serve(since)).unwrap();
    assert_eq!(reader.complete(), Ok(()));
    assert_eq!(stdout.text(), kubelet.truth);
}

#[test]
fn a_new_file_that_does_not_begin_with_the_rest_of_the_last_line_goes_on_after_it() {
    let longer = "y".repeat(20_000);
    for next in ["another line, which is shorter\n", "end\n", "\n", &longer, "no end"] {
        let (mut reader, mut stdout, mut kubelet) = followed_across_a_rotation();
        reader.close(StreamEnd::InOrder);
        kubelet.rotate();
        kubelet.print(5 * SECOND, next);
        stream(&mut reader, &mut stdout, &kubelet, StreamEnd::InOrder).unwrap();
        assert_eq!(stdout.text().len(), kubelet.truth.len(), "{next:.20}");
        assert!(stdout.text() == kubelet.truth);
    }
}

#[test]
fn a_long_line_behind_a_longer_one_is_not_its_rest() {
    let mut kubelet = Kubelet::default();
    kubelet.print(SECOND, &format!("{}\n", "x".repeat(3 * HELD)));
    let (mut reader, mut stdout) = (LogReader::new(), Stdout::default());
    stream(&mut reader, &mut stdout, &kubelet, StreamEnd::InOrder).unwrap();
    kubelet.rotate();
    kubelet.print(2 * SECOND, &format!("{}\n", "y".repeat(2 * HELD)));
    stream(&mut reader, &mut stdout, &kubelet, StreamEnd::InOrder).unwrap();
    assert!(stdout.text() == kubelet.truth);
}

#[test]
fn a_line_that_was_cut_behind_the_last_one_does_not_hide_its_rest() {
    let (mut reader, mut stdout, mut kubelet) = followed_across_a_rotation();
    kubelet.print(5 * SECOND, "next");
    stdout.take(&mut reader, format!("{} ne", stamp(5 * SECOND)).as_bytes()).unwrap();
    reader.close(StreamEnd::Broken);
    stream(&mut reader, &mut stdout, &kubelet, StreamEnd::InOrder).unwrap();
    kubelet.print(6 * SECOND, " end\n");
    stream(&mut reader, &mut stdout, &kubelet, StreamEnd::InOrder).unwrap();
    assert_eq!(stdout.text().len(), kubelet.truth.len());
    assert!(stdout.text() == kubelet.truth);
}

#[test]
fn after_a_break_a_short_line_may_be_the_rest_of_one_that_is_missing() {
    let (mut reader, mut stdout, mut kubelet) = followed_across_a_rotation();
    let text = stdout.text().to_owned();
    reader.close(StreamEnd::Broken);
    kubelet.rotate();
    kubelet.print(5 * SECOND, &("y".repeat(50) + "zthe end\n"));
    assert!(stream(&mut reader, &mut stdout, &kubelet, StreamEnd::InOrder).is_err());
    assert!(stdout.text() == text);
}

#[test]
fn more_equal_stamps_than_the_cursor_keeps() {
    let mut kubelet = Kubelet::default();
    for line in 0..500 {
        kubelet.print(7, &format!("{line}\n"));
    }
    let whole = kubelet.serve(None);
    for cut in (0..whole.len()).step_by(97) {
        let (mut reader, mut stdout) = (LogReader::new(), Stdout::default());
        reader.open();
        stdout.take(&mut reader, &whole[..cut]).unwrap();
        reader.close(StreamEnd::Broken);
        stream(&mut reader, &mut stdout, &kubelet, StreamEnd::InOrder).unwrap();
        assert_eq!(stdout.text(), kubelet.truth, "cut at {cut}");
    }
    // If the log is rotated between them, equal lines cannot be told apart.
    let (mut reader, mut stdout) = (LogReader::new(), Stdout::default());
    stream(&mut reader, &mut stdout, &kubelet, StreamEnd::InOrder).unwrap();
    kubelet.rotate();
    kubelet.print(7, "another\n");
    kubelet.print(8, "later\n");
    assert!(stream(&mut reader, &mut stdout, &kubelet, StreamEnd::InOrder).is_err());
}

#[test]
fn long_repeated_lines_need_little_memory() {
    let mut kubelet = Kubelet::default();
    kubelet.print(7, &format!("{}\n", "x".repeat(3 * HELD)));
    let (mut reader, mut stdout) = (LogReader::new(), Stdout::default());
    stream(&mut reader, &mut stdout, &kubelet, StreamEnd::Broken).unwrap();
    kubelet.print(8, "next\n");
    let bytes = kubelet.serve(reader.since());
    reader.open();
    for chunk in bytes.chunks(4096) {
        stdout.take(&mut reader, chunk).unwrap();
        if let Some(LogStream { line: CurrentLine::Doubtful(_, held), .. }) = &reader.stream {
            assert!(held.as_ref().is_none_or(|held| held.len() <= HELD));
        }
    }
    assert_eq!(stdout.text(), kubelet.truth);
}

#[test]
fn another_stream_may_deliver_the_rest_sooner() {
    let mut kubelet = three_equal();
    let (mut reader, mut stdout) = (LogReader::new(), Stdout::default());
    reader.open();
    stdout.take(&mut reader, &kubelet.serve(None)).unwrap();
    kubelet.print(3 * SECOND, "rest\n");
    let late = format!("{} rest\n", stamp(3 * SECOND));
    // The other stream delivers the rest.
    reader.park();
    let since = reader.since();
    reader.open();
    stdout.take(&mut reader, &kubelet.serve(since)).unwrap();
    assert_eq!(reader.complete(), Ok(()));
    assert_eq!(stdout.text(), kubelet.truth);
    assert!(!reader.unpark(), "the one set aside is behind now");

    // The other stream fails, as the log was rotated: the parked one still has the lines in between.
    let mut stdout = Stdout::default();
    let mut reader = LogReader::new();
    reader.open();
    stdout.take(&mut reader, &three_equal().serve(None)).unwrap();
    reader.park();
    kubelet.rotate();
    kubelet.print(4 * SECOND, "new file\n");
    let since = reader.since();
    reader.open();
    assert!(stdout.take(&mut reader, &kubelet.serve(since)).is_err());
    assert!(reader.unpark());
    stdout.take(&mut reader, late.as_bytes()).unwrap();
    reader.close(StreamEnd::InOrder);
    stream(&mut reader, &mut stdout, &kubelet, StreamEnd::InOrder).unwrap();
    assert_eq!(stdout.text(), kubelet.truth);
}

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
    /// The log is rotated within a long line while a stream follows it, which goes on in the new file. The length of
    /// the rest.
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
    fn run(&mut self, step: &Step) -> Result<(), Lost> {
        match step {
            Step::Print { later, length } => {
                // A line stamped into the previous second is not served again once a later one was read.
                self.now += if self.now % SECOND > 0 { *later } else { (*later).max(0) };
                // Right after a rotation it could not be distinguished from a repeated one.
                self.may_lose |=
                    self.now < self.latest && self.kubelet.file.iter().all(|line| line.0 < self.latest);
                self.latest = self.latest.max(self.now);
                self.printed += 1;
                // No two lines are equal, otherwise nobody could tell which of them was rotated away.
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
                // It was stamped later.
                self.now += 1;
                self.kubelet.file[0].0 = self.now;
                self.latest = self.latest.max(self.now);
                self.rotated_at = Some(self.stdout.0.len() as u64);
            }
            // Nobody can tell how a log began that was never read.
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

    /// The last written line cannot be repeated, so nobody can tell whether more lines are gone with it.
    fn note_break(&mut self) {
        self.may_lose |= self.rotated_at.is_some_and(|size| self.reader.cursor().size() <= size);
    }

    fn read(&mut self, bytes: &[u8], piece: usize, end: StreamEnd) -> Result<(), Lost> {
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
