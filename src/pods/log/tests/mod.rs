//! Single cases of a log, with a simulated kubelet and stdout. `histories` plays random ones.

mod histories;

use super::cursor::{self, FILE_SIZE, RECORD};
use super::*;

/// A container's log as a kubelet keeps it: the current file, and everything that was printed.
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

    /// The output of a stream requested from `since`: only the first piece of a line has a timestamp, and pieces older
    /// than `since` are left out.
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
    fn take(&mut self, reader: &mut LogReader, bytes: &[u8]) -> Result<Took, LostLines> {
        let mut out = Vec::new();
        let took = reader.read(bytes, &mut out)?;
        self.put(reader, took, &out)?;
        Ok(took)
    }

    fn end(&mut self, reader: &mut LogReader, end: StreamEnd) -> Result<(), LostLines> {
        if end == StreamEnd::InOrder {
            let mut out = Vec::new();
            let took = reader.read_held(&mut out)?;
            self.put(reader, took, &out)?;
        }
        reader.close(end);
        Ok(())
    }

    fn put(&mut self, reader: &LogReader, took: Took, out: &[u8]) -> Result<(), LostLines> {
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
) -> Result<(), LostLines> {
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
    // Even if the next line has the same timestamp.
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
    // The same applies to a log's first line if only its beginning was read.
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
    // The rest also shows that nothing is missing, so a parked stream has nothing to add.
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
    // After a rotation, a new line with the same timestamp cannot be told from a line that the cursor has forgotten.
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

    // The other stream fails because the log was rotated; the parked one still has the lines in between.
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
