//! Picks events out of a worker's output, unchanged. The reader keeps one line at most, and skips lines that are too
//! long.

use serde::Deserialize;

use super::line::RunnerLine;
use super::output::LONGEST_LINE;
use super::scan::{Piece, Scanner};

/// Which events are wanted, and the reading of a stream so far.
#[derive(Debug)]
pub struct EventReader {
    from: u64,
    host: Option<String>,
    failed: bool,
    scanner: Scanner,
}

impl EventReader {
    /// Wants events whose counter is `from` or more: with `host` only those of tasks on it, with `failed` only
    /// failures.
    pub fn new(from: u64, host: Option<String>, failed: bool) -> Self {
        Self { from, host, failed, scanner: Scanner::new(LONGEST_LINE) }
    }

    /// Reads the next bytes, and returns the lines of the events in them.
    pub fn push(&mut self, mut bytes: &[u8]) -> Vec<u8> {
        let mut found = Vec::new();
        loop {
            let zip = match self.scanner.next(&mut bytes) {
                None => return found,
                Some(Piece::Line(line)) => match RunnerLine::parse(line) {
                    Some(RunnerLine { status: None, zipfile: Some(zip), .. }) => zip,
                    Some(read) => {
                        if wanted(&read, self.from, self.host.as_deref(), self.failed) {
                            found.extend_from_slice(line);
                            found.push(b'\n');
                        }
                        continue;
                    }
                    None => continue,
                },
                Some(Piece::LongLine | Piece::Zip(_) | Piece::ZipEnd | Piece::BadZip) => continue,
            };
            self.scanner.begin_zip(zip);
        }
    }
}

fn wanted(line: &RunnerLine<'_>, from: u64, host: Option<&str>, failed: bool) -> bool {
    #[derive(Deserialize)]
    struct Data {
        host: Option<String>,
    }
    let is_on = |host: &str| {
        let data = line.event_data.and_then(|data| serde_json::from_str::<Data>(data.get()).ok());
        data.is_some_and(|data| data.host.as_deref() == Some(host))
    };
    line.is_event()
        && line.event.is_some()
        && line.counter.is_some_and(|counter| counter >= from)
        && (!failed || line.is_failure())
        && host.is_none_or(is_on)
}
