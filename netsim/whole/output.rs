//! The output of a command. It is computed from the job, the process and the position, because outputs of up to 100 MB
//! cannot be kept.

use std::io::{self, Write as _};

use std::time::Duration;

use base64::Engine as _;
use serde_json::{Value, json};

/// The number of pieces after the piece with the playbook's status.
const AFTER_VERDICT: u64 = 3;
/// The last line of a payload and of an output.
pub(super) const END: &str = "{\"eof\":true}\n";

/// All that a process of a job writes, in the form of ansible-runner. No two processes write the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Output {
    pub(super) tag: String,
    /// The number of events.
    pub(super) lines: u64,
    /// The bytes in each event.
    pub(super) width: usize,
    /// How the playbook ends.
    pub(super) status: String,
    /// The process ends without writing the playbook's status.
    pub(super) dies: bool,
    pub(super) pid: u32,
}

/// What a payload asks of a process.
pub(super) struct Task {
    pub(super) output: Output,
    /// The time for the whole output.
    takes: Duration,
}

impl Task {
    /// The task in this payload, if it asks for a playbook.
    pub(super) fn of(payload: &[u8], pid: u32) -> Option<Self> {
        let text = String::from_utf8_lossy(payload);
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let asked = lines.filter_map(|mut line| line.get_mut("kwargs").map(Value::take)).next()?;
        let output = Output {
            tag: asked["tag"].as_str().unwrap_or_default().to_owned(),
            lines: asked["lines"].as_u64().unwrap_or(3),
            width: asked["width"].as_u64().unwrap_or(0) as usize,
            status: asked["status"].as_str().unwrap_or("successful").to_owned(),
            dies: asked["dies"] == true,
            pid,
        };
        Some(Self { output, takes: Duration::from_millis(asked["millis"].as_u64().unwrap_or(0)) })
    }

    /// The same, but `None` if the payload was cut off.
    pub(super) fn whole(payload: &[u8], pid: u32) -> Option<Self> {
        Self::of(payload, pid).filter(|_| payload.ends_with(END.as_bytes()))
    }

    /// The pause before each piece, and after the last one.
    pub(super) fn pause(&self) -> Duration {
        self.takes / (self.output.count() as u32 + 1)
    }

    /// The exit code, unless the process is killed.
    pub(super) fn code(&self) -> i32 {
        i32::from(self.output.dies)
    }
}

impl Output {
    /// The pieces, each of which is written at once.
    pub(super) fn pieces(&self) -> impl Iterator<Item = Vec<u8>> {
        (0..self.count()).map(|at| self.piece(at))
    }

    /// The number of pieces.
    pub(super) fn count(&self) -> u64 {
        2 + self.lines + if self.dies { 0 } else { 1 + AFTER_VERDICT }
    }

    fn piece(&self, at: u64) -> Vec<u8> {
        let line = |value: Value| format!("{value}\n").into_bytes();
        let verdict = 2 + self.lines;
        match at {
            0 => line(json!({"status": "starting", "command": ["ansible-playbook"]})),
            1 => line(json!({"status": "running"})),
            _ if at < verdict => {
                let number = at - 1;
                let text = format!("{} {number}{}", self.tag, letters(self.seed() ^ number, self.width));
                let uuid = format!("u{number}");
                line(
                    json!({"counter": number, "uuid": uuid, "event": "verbose", "stdout": text, "event_data": {"run": self.pid}}),
                )
            }
            _ => match at - verdict {
                0 => line(json!({"status": self.status})),
                1 => line(json!({"zipfile": self.packed().len()})),
                2 => base64::engine::general_purpose::STANDARD.encode(self.packed()).into_bytes(),
                _ => END.as_bytes().to_vec(),
            },
        }
    }

    fn seed(&self) -> u64 {
        u64::from(self.pid) << 32
    }

    fn packed(&self) -> Vec<u8> {
        let mut packed = zip::ZipWriter::new(io::Cursor::new(Vec::new()));
        let plain = zip::write::SimpleFileOptions::default()
            .compression_method(zip::CompressionMethod::Stored)
            .last_modified_time(zip::DateTime::default());
        packed.start_file("rc", plain).unwrap();
        packed.write_all(if self.status == "successful" { b"0" } else { b"2" }).unwrap();
        packed.finish().unwrap().into_inner()
    }

    /// Whether the output begins with this text.
    pub(super) fn starts_with(&self, mut text: &[u8]) -> bool {
        for piece in self.pieces() {
            let (now, later) = text.split_at(piece.len().min(text.len()));
            if !piece.starts_with(now) {
                return false;
            }
            if later.is_empty() {
                return true;
            }
            text = later;
        }
        false
    }

    /// Whether the output is this text.
    pub(super) fn is(&self, text: &[u8]) -> bool {
        text.len() == self.length() && self.starts_with(text)
    }

    pub(super) fn length(&self) -> usize {
        self.pieces().map(|piece| piece.len()).sum()
    }

    /// The length of the output up to and including the playbook's status.
    pub(super) fn verdict(&self) -> usize {
        self.pieces().take((2 + self.lines + 1) as usize).map(|piece| piece.len()).sum()
    }
}

/// `count` letters that are computed from this number. They are valid base64.
pub(super) fn letters(number: u64, count: usize) -> String {
    let (mut letters, mut state) = (Vec::with_capacity(count + 8), number);
    while letters.len() < count {
        state = (state ^ (state >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9).wrapping_add(1);
        // Four bits of each byte give one of the letters A to P.
        let eight = (state >> 4 & 0x0f0f_0f0f_0f0f_0f0f) + 0x4141_4141_4141_4141;
        letters.extend_from_slice(&eight.to_le_bytes());
    }
    letters.truncate(count);
    String::from_utf8(letters).unwrap()
}
