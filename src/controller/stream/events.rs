//! Picks events out of what a worker wrote, as it wrote them. It keeps one line at most, and skips those that are too
//! long to be read.

use serde::Deserialize;

use super::line::RunnerLine;
use super::output::LONGEST_LINE;
use super::scan::{Piece, Scanner};

/// What a task did on a host when it failed there.
const FAILED: [&str; 3] = ["runner_on_failed", "runner_on_unreachable", "runner_item_on_failed"];

/// Which events are wanted, and the reading of a stream so far.
#[derive(Debug)]
pub struct EventFilter {
    from: u64,
    host: Option<String>,
    failed: bool,
    scanner: Scanner,
}

impl EventFilter {
    /// Events whose counter is `from` or more; with `host` those of a task on it, with `failed` only failures.
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
    let is_failure = || line.event.as_deref().is_some_and(|event| FAILED.contains(&event));
    let is_on = |host: &str| {
        let data = line.event_data.and_then(|data| serde_json::from_str::<Data>(data.get()).ok());
        data.is_some_and(|data| data.host.as_deref() == Some(host))
    };
    line.is_event()
        && line.event.is_some()
        && line.counter.is_some_and(|counter| counter >= from)
        && (!failed || is_failure())
        && host.is_none_or(is_on)
}
