//! Reads a worker's output, which passes unchanged: statuses, events, stats per host, and where its zip is.
//!
//! The reader knows up to where lines and zips are whole, so that a lost attempt's output can be cut there and the next
//! attempt's output appended.

use serde_json::json;

use super::failures::{FailureReport, Failures, TaskFailure};
use super::line::RunnerLine;
use super::scan::{Piece, Scanner};
use super::stats::{self, Recap};
use super::tail::Tail;
use super::zip::StoredZip;
use crate::controller::core::{ChildEnd, Evidence, FinalStatus, readable};

/// Longer lines are not read.
pub(super) const LONGEST_LINE: usize = 4 << 20;
const LONGEST_STATUS: usize = 32;
const LONGEST_EXPLANATION: usize = 1_000;
const STATS: &str = "playbook_on_stats";

/// The output of one attempt, as far as it has come.
#[derive(Debug)]
pub struct WorkerOutput {
    scanner: Scanner,
    /// The position that [`WorkerOutput::whole`] returns.
    whole: u64,
    /// The zip that is coming, and the last one that is whole.
    coming: Option<StoredZip>,
    zip: Option<StoredZip>,
    events: u64,
    last_status: Option<String>,
    final_status: Option<FinalStatus>,
    explanation: Option<String>,
    recap: Option<Recap>,
    failures: Failures,
    has_ended: bool,
    /// A zip was interrupted, or a line is not the runner's: `ansible-runner process` reads nothing after that.
    is_damaged: bool,
    other: Tail,
    /// Whether the playbook itself has sent an event, and what was printed before that.
    has_begun: bool,
    before: Tail,
}

impl Default for WorkerOutput {
    fn default() -> Self {
        Self {
            scanner: Scanner::new(LONGEST_LINE),
            whole: 0,
            coming: None,
            zip: None,
            events: 0,
            last_status: None,
            final_status: None,
            explanation: None,
            recap: None,
            failures: Failures::default(),
            has_ended: false,
            is_damaged: false,
            other: Tail::default(),
            has_begun: false,
            before: Tail::default(),
        }
    }
}

impl WorkerOutput {
    /// Reads the next bytes.
    pub fn push(&mut self, mut bytes: &[u8]) {
        while let Some(piece) = self.scanner.next(&mut bytes) {
            match piece {
                Piece::Line(line) => {
                    let seen = Meaning::of(line);
                    if seen.is_none() && !line.is_empty() {
                        self.other.push(line);
                    }
                    let length = line.len() as u64 + 1;
                    self.on_line(seen, length);
                }
                Piece::LongLine => self.on_whole(),
                Piece::Zip(_) => {}
                Piece::ZipEnd => {
                    self.zip = self.coming;
                    self.on_whole();
                }
                Piece::BadZip => self.is_damaged = true,
            }
        }
    }

    /// No more bytes come.
    pub fn finish(&mut self) {
        let unfinished = self.scanner.unfinished();
        if !unfinished.is_empty() {
            self.other.push(unfinished);
        }
    }

    /// Takes the line of that length that was just read.
    fn on_line(&mut self, seen: Option<Meaning>, length: u64) {
        match seen {
            Some(Meaning::Status(status, explanation)) => {
                if let Some(status) = FinalStatus::from_name(&status) {
                    self.final_status = Some(status);
                    self.explanation = explanation;
                }
                self.last_status = Some(status);
            }
            Some(Meaning::Zip(bytes)) => {
                self.scanner.begin_zip(bytes);
                self.coming = Some(StoredZip { start: self.scanner.position(), length: bytes });
                return;
            }
            Some(Meaning::End) => {
                self.has_ended = true;
                return;
            }
            Some(Meaning::Event(recap)) => {
                (self.events, self.has_begun) = (self.events + 1, true);
                if let Some(recap) = recap {
                    self.failures.close(&recap);
                    self.recap = Some(recap);
                }
            }
            Some(Meaning::Failure(failure)) => {
                (self.events, self.has_begun) = (self.events + 1, true);
                self.failures.add(failure, self.scanner.position() - length);
            }
            Some(Meaning::Print(text)) => {
                self.events += 1;
                if !self.has_begun && !text.is_empty() {
                    self.before.push(text.as_bytes());
                }
            }
            Some(Meaning::Nothing) => {}
            None => self.is_damaged = true,
        }
        self.on_whole();
    }

    fn on_whole(&mut self) {
        if !self.has_ended && !self.is_damaged {
            self.whole = self.scanner.position();
        }
    }

    /// Bytes read so far.
    pub fn position(&self) -> u64 {
        self.scanner.position()
    }

    /// The position up to which lines and zips are whole and the runner's, without the end line.
    /// `ansible-runner process` also reads what is appended there.
    pub fn whole(&self) -> u64 {
        self.whole
    }

    /// Whether the end line has come.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Events, without signs of life.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// The name of the last status.
    pub fn last_status(&self) -> Option<&str> {
        self.last_status.as_deref()
    }

    /// What the last final status says of its cause.
    pub fn final_explanation(&self) -> Option<&str> {
        self.explanation.as_deref()
    }

    /// The last final status.
    pub fn final_status(&self) -> Option<FinalStatus> {
        self.final_status
    }

    /// What the playbook did on each host, once it has said so.
    pub fn recap(&self) -> Option<&Recap> {
        self.recap.as_ref()
    }

    /// What went wrong in the playbook, unless it was successful.
    pub fn failure(&self) -> Option<FailureReport> {
        let is_well = self.final_status == Some(FinalStatus::Successful);
        if is_well { None } else { self.failures.report() }
    }

    /// Forgets the recap, because somebody else keeps it from now on.
    pub fn forget_recap(&mut self) {
        self.recap = None;
    }

    /// The last zip that is whole: the runner's files, among them the exit code of the program that it ran.
    pub fn zip(&self) -> Option<StoredZip> {
        self.zip
    }

    /// What the job's end is judged from, once its unit has ended.
    pub fn evidence(&self, child: ChildEnd, detail: String) -> Evidence {
        Evidence {
            status: self.final_status,
            has_end: self.has_ended,
            job_explanation: self.explanation.clone(),
            child,
            detail,
            tail: self.other.text(),
            failure: self.failure().map(|failure| failure.line),
            before_playbook: Some(self.before.text()).filter(|text| !self.has_begun && !text.is_empty()),
        }
    }
}

/// The line that ends the output of a lost attempt, for its readers.
pub fn lost_line(explanation: &str) -> String {
    format!("{}\n", json!({"status": "error", "job_explanation": explanation}))
}

/// What a line says, in the order in which `ansible-runner process` looks at its keys.
enum Meaning {
    Status(String, Option<String>),
    Zip(u64),
    End,
    Event(Option<Recap>),
    Failure(TaskFailure),
    /// An event that only brings what was printed.
    Print(String),
    Nothing,
}

impl Meaning {
    /// `None` if the runner did not write it.
    fn of(line: &[u8]) -> Option<Self> {
        let line = RunnerLine::parse(line)?;
        Some(match line {
            RunnerLine { status: Some(status), job_explanation, .. } => {
                let explanation = job_explanation.map(|text| readable(&text, LONGEST_EXPLANATION));
                Self::Status(readable(&status, LONGEST_STATUS), explanation)
            }
            RunnerLine { zipfile: Some(bytes), .. } => Self::Zip(bytes),
            RunnerLine { eof: Some(_), .. } => Self::End,
            line if line.is_event() && !line.is_of_playbook() => {
                let text = line.stdout.and_then(|text| serde_json::from_str(text.get()).ok());
                Self::Print(text.unwrap_or_default())
            }
            line if line.is_event() => {
                let RunnerLine { event, event_data, .. } = line;
                let (event, data) = (event.unwrap_or_default(), event_data.map_or("", |data| data.get()));
                match TaskFailure::of(&event, data) {
                    Some(failure) => Self::Failure(failure),
                    None if event == STATS => Self::Event(stats::parse(data)),
                    None => Self::Event(None),
                }
            }
            RunnerLine { .. } => Self::Nothing,
        })
    }
}
