//! What a command writes: a function of its job, of its process and of a place in it, so that nobody has to keep it. Outputs
//! can be 100 MB.

use std::io::{self, Write as _};

use base64::Engine as _;
use serde_json::{Value, json};

/// The pieces that follow the one that tells how the playbook ended.
const AFTER_VERDICT: u64 = 3;

/// All that a process of a job writes: what a runner of playbooks would. No two processes write the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Output {
    pub(super) tag: String,
    /// Events in it.
    pub(super) lines: u64,
    /// How much each of them brings, in bytes.
    pub(super) width: usize,
    /// How the playbook ends.
    pub(super) status: String,
    /// Its process ends without a word about that.
    pub(super) dies: bool,
    pub(super) pid: u32,
}

impl Output {
    /// What is written at a time.
    pub(super) fn pieces(&self) -> impl Iterator<Item = Vec<u8>> {
        (0..self.count()).map(|at| self.piece(at))
    }

    /// How many pieces there are.
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
                _ => line(json!({"eof": true})),
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

    /// Whether it begins with this.
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

    /// Whether it is this.
    pub(super) fn is(&self, text: &[u8]) -> bool {
        text.len() == self.length() && self.starts_with(text)
    }

    pub(super) fn length(&self) -> usize {
        self.pieces().map(|piece| piece.len()).sum()
    }

    /// How much of it tells how the playbook ended.
    pub(super) fn verdict(&self) -> usize {
        self.pieces().take((2 + self.lines + 1) as usize).map(|piece| piece.len()).sum()
    }
}

/// So many letters, which this number gives. They could be base64.
pub(super) fn letters(number: u64, count: usize) -> String {
    let (mut letters, mut state) = (Vec::with_capacity(count + 8), number);
    while letters.len() < count {
        state = (state ^ (state >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9).wrapping_add(1);
        // Of each byte four bits, and so one of the letters A to P.
        let eight = (state >> 4 & 0x0f0f_0f0f_0f0f_0f0f) + 0x4141_4141_4141_4141;
        letters.extend_from_slice(&eight.to_le_bytes());
    }
    letters.truncate(count);
    String::from_utf8(letters).unwrap()
}
