//! What a worker writes, in pieces that tests put together.

use std::io::{Cursor, Write as _};

use base64::Engine as _;
use serde_json::{Value, json};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

fn line(value: Value) -> Vec<u8> {
    format!("{value}\n").into_bytes()
}

pub(super) fn begun() -> Vec<u8> {
    [line(json!({"status": "starting", "command": ["ansible-playbook"]})), line(json!({"status": "running"}))]
        .concat()
}

/// Events from one counter to another, each followed by a keepalive.
pub(super) fn events(from: u64, to: u64) -> Vec<u8> {
    let event = |counter: u64| {
        let alive = line(json!({"event": "keepalive", "counter": 0, "uuid": 0}));
        [line(json!({"counter": counter, "uuid": format!("u{counter}"), "event": "verbose"})), alive].concat()
    };
    (from..=to).flat_map(event).collect()
}

/// The recap, as one more event.
pub(super) fn recap(counter: u64, ok: u64) -> Vec<u8> {
    let data = json!({"ok": {"web1": ok}, "changed": {"web1": 1}, "processed": {"web1": 1}});
    line(json!({"counter": counter, "uuid": "u", "event": "playbook_on_stats", "event_data": data}))
}

/// A task that failed on a host, and the recap.
pub(super) fn failed(counter: u64, task: &str) -> Vec<u8> {
    let res = json!({"msg": "non-zero return code", "rc": 1});
    let data = json!({"host": "web1", "task": task, "res": res});
    let recap = json!({"failures": {"web1": 1}, "processed": {"web1": 1, "web2": 1}});
    let event = |counter, name: &str, data: Value| {
        line(json!({"counter": counter, "uuid": "u", "event": name, "event_data": data}))
    };
    [event(counter, "runner_on_failed", data), event(counter + 1, "playbook_on_stats", recap)].concat()
}

pub(super) fn status(status: &str) -> Vec<u8> {
    line(json!({"status": status}))
}

/// A zip of this many bytes, and the end line.
pub(super) fn artifacts(bytes: usize) -> Vec<u8> {
    sent(&vec![7; bytes])
}

/// A zip of the runner's files, in which this many bytes of output precede the exit code, and the end line.
pub(super) fn exit_code(code: &str, bytes: usize) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    let stored = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
    for (name, content) in [("stdout", vec![7; bytes]), ("rc", code.as_bytes().to_vec())] {
        zip.start_file(name, stored).unwrap();
        zip.write_all(&content).unwrap();
    }
    sent(&zip.finish().unwrap().into_inner())
}

fn sent(zip: &[u8]) -> Vec<u8> {
    let body = base64::engine::general_purpose::STANDARD.encode(zip);
    [line(json!({"zipfile": zip.len()})), body.into_bytes(), line(json!({"eof": true}))].concat()
}

/// Everything that a worker writes.
pub(super) fn whole(lines: u64, end: &str) -> Vec<u8> {
    [begun(), events(1, lines), recap(lines + 1, lines), status(end), artifacts(500)].concat()
}

/// What `ansible-runner process` makes of a stream: its statuses, the counters of its events, and why it ended. It
/// stops at the end line, at the end of the stream, or at a line that is not JSON.
pub(super) fn process(mut stream: &[u8]) -> (Vec<String>, Vec<u64>, &'static str) {
    let (mut statuses, mut counters) = (Vec::new(), Vec::new());
    loop {
        let Some(end) = stream.iter().position(|byte| *byte == b'\n') else {
            return (statuses, counters, if stream.is_empty() { "empty" } else { "cut" });
        };
        let (text, rest) = stream.split_at(end + 1);
        let Ok(value) = serde_json::from_slice::<Value>(text) else { return (statuses, counters, "no JSON") };
        stream = rest;
        if let Some(status) = value["status"].as_str() {
            statuses.push(status.to_owned());
        } else if let Some(bytes) = value["zipfile"].as_u64() {
            let letters = (bytes as usize).div_ceil(3) * 4;
            let Some(rest) = stream.get(letters..) else { return (statuses, counters, "cut") };
            stream = rest;
        } else if value.get("eof").is_some() {
            return (statuses, counters, "eof");
        } else if value["event"] != "keepalive" {
            counters.extend(value["counter"].as_u64().filter(|counter| *counter > 0));
        }
    }
}
