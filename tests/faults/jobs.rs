//! Jobs and the model: the expected output and end of a job, the faults that hit it, and so what may be
//! found. Some jobs have a reader that follows the output from the start, across all faults, and counts every
//! byte.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use rand::RngExt as _;
use rand::rngs::SmallRng;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::nodes::{LIMIT, Nodes, Which, signal};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Here,
    There,
}

impl Place {
    pub(crate) fn random(rng: &mut SmallRng) -> Self {
        if rng.random_bool(0.4) { Self::Here } else { Self::There }
    }

    fn node(self) -> &'static str {
        match self {
            Self::Here => "near",
            Self::There => "far",
        }
    }
}

/// The behaviour of a job: the number of lines that it writes, how long it takes for them, and its exit code.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    lines: u32,
    /// Seconds, slept in three pieces between the lines.
    pause: f32,
    code: i32,
    /// Bytes of payload, which it copies before the lines.
    payload: usize,
}

impl Shape {
    pub(crate) fn random(rng: &mut SmallRng) -> Self {
        Self {
            lines: [0, 1, 30, 5_000, 60_000][rng.random_range(0..5)],
            pause: [0.0, 0.0, 0.05, 0.2][rng.random_range(0..4)],
            code: [0, 0, 0, 7][rng.random_range(0..4)],
            payload: [0, 10, 100_000, 2_000_000][rng.random_range(0..4)],
        }
    }

    /// It records its start and end in files outside the nodes' directories.
    fn script(&self, diary: &Path) -> String {
        let (Self { lines, pause, code, .. }, diary) = (self, diary.display());
        let piece = lines / 3;
        let last = lines - 2 * piece;
        format!(
            "echo >>{diary}.runs; cat; sleep {pause}; seq {piece}; sleep {pause}; seq {piece}; sleep {pause}; \
             seq {last}; date +%s.%N >{diary}.end; exit {code}"
        )
    }

    fn payload(&self) -> Vec<u8> {
        (0..self.payload as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
    }

    fn output(&self) -> Vec<u8> {
        let piece = self.lines / 3;
        let mut all = self.payload();
        for count in [piece, piece, self.lines - 2 * piece] {
            (1..=count).for_each(|n| all.extend_from_slice(format!("{n}\n").as_bytes()));
        }
        all
    }
}

pub(crate) struct Job {
    id: String,
    shape: Shape,
    place: Place,
    /// Faults that may keep it from its own end.
    harmed: Vec<&'static str>,
    reader: Option<JoinHandle<Vec<u8>>>,
    end: Option<Value>,
    /// The paths of the command's records, without extensions.
    diary: PathBuf,
}

impl Job {
    /// Creates a unit that waits for its payload; returns its ID.
    fn create(nodes: &Nodes, place: Place, params: &str) -> (BufReader<UnixStream>, String) {
        let mut stream = nodes.connect(Which::Near);
        let line = json!({"command": "work", "subcommand": "submit", "node": place.node(), "worktype": "sh", "params": params});
        stream.get_mut().write_all(format!("{line}\n").as_bytes()).unwrap();
        let mut created = String::new();
        stream.read_line(&mut created).unwrap();
        let id = created.split_whitespace().nth(5).unwrap().trim_end_matches('.').to_owned();
        (stream, id)
    }

    /// Submits a job; `meanwhile` runs in the middle of its payload.
    pub(crate) fn submit(
        nodes: &mut Nodes,
        shape: Shape,
        place: Place,
        followed: bool,
        meanwhile: impl FnOnce(&mut Nodes),
    ) -> Self {
        let diary = nodes.new_diary();
        let (mut stream, id) = Self::create(nodes, place, &format!("'{}'", shape.script(&diary)));
        let payload = shape.payload();
        let (begun, rest) = payload.split_at(payload.len() / 2);
        stream.get_mut().write_all(begun).unwrap();
        meanwhile(nodes);
        stream.get_mut().write_all(rest).unwrap();
        stream.get_mut().shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_line(&mut answer).unwrap();
        assert!(answer.contains("Job S"), "{answer}");
        let reader = followed.then(|| follow(nodes, id.clone()));
        Self { id, shape, place, harmed: Vec::new(), reader, end: None, diary }
    }

    /// Begins a payload, either short or long enough to be streamed already, and disconnects.
    pub(crate) fn submit_half(nodes: &Nodes, place: Place, rng: &mut SmallRng) {
        let length = [4, 600_000][rng.random_range(0..2)];
        println!("  half a payload, {length} bytes");
        let (mut stream, id) = Self::create(nodes, place, "cat");
        stream.get_mut().write_all(&vec![b'h'; length]).unwrap();
        drop(stream);
        nodes.ask(Which::Near, &format!("work release {id}"));
    }

    /// The unit that runs the command, and its node.
    fn unit(&self, nodes: &Nodes) -> Option<(Which, String)> {
        match self.place {
            Place::Here => Some((Which::Near, self.id.clone())),
            Place::There => {
                let status = nodes.ask(Which::Near, &format!("work status {}", self.id));
                let id = status["ExtraData"]["RemoteUnitID"].as_str().filter(|id| !id.is_empty())?;
                Some((Which::Far, id.to_owned()))
            }
        }
    }

    pub(crate) fn kill_runner(&mut self, nodes: &Nodes) {
        let Some((which, id)) = self.unit(nodes) else { return };
        let text = std::fs::read_to_string(nodes.units(which).join(&id).join("runner")).unwrap_or_default();
        let Some(pid) = serde_json::from_str::<Value>(&text).ok().and_then(|runner| runner["pid"].as_u64())
        else {
            return;
        };
        println!("  kill the runner of {}", self.id);
        self.harmed.push("runner killed");
        if is_runner(pid) {
            signal(pid as u32, Signal::KILL);
        }
    }

    pub(crate) fn kill_command(&mut self, nodes: &Nodes) {
        let Some((which, id)) = self.unit(nodes) else { return };
        let status = nodes.ask(which, &format!("work status {id}"));
        let pid =
            status["Detail"].as_str().and_then(|detail| detail.strip_prefix("Running: PID ")?.parse().ok());
        let Some(pid) = pid else { return };
        println!("  kill the command of {}", self.id);
        self.harmed.push("command killed");
        let mark = format!("MESHD_UNIT_DIR={}", nodes.units(which).join(&id).display());
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        if String::from_utf8_lossy(&environment).contains(&mark) {
            signal(pid, Signal::KILL);
        }
    }

    pub(crate) fn cancel(&mut self, nodes: &Nodes, times: u32) {
        println!("  cancel {} {times} times", self.id);
        self.harmed.push("cancelled");
        for _ in 0..times {
            let answer = nodes.ask(Which::Near, &format!("work cancel {}", self.id));
            assert!(answer.get("cancelled").or(answer.get("cancel pending")).is_some(), "{answer}");
        }
    }

    /// Whether its end was seen.
    pub(crate) fn is_final(&self) -> bool {
        self.end.is_some()
    }

    /// Checks whether it is final; if so, how long ago the nodes had recovered and its command had ended.
    pub(crate) fn look(&mut self, nodes: &Nodes, recovered: SystemTime) -> Duration {
        let status = nodes.ask(Which::Near, &format!("work status {}", self.id));
        if status["State"].as_u64().is_none_or(|state| state < 2) {
            return Duration::ZERO;
        }
        let since = self.own_end().map_or(recovered, |end| end.max(recovered));
        let late = since.elapsed().unwrap_or_default();
        if late > Duration::from_secs(1) {
            println!("  {} was final only {late:?} after recovery and its own end: {status}", self.id);
        }
        self.end = Some(status);
        late
    }

    /// Its state, for a failure message.
    pub(crate) fn told(&self, nodes: &Nodes) -> String {
        let ask = |which, id: &str| nodes.ask(which, &format!("work status {id}"));
        let status = ask(Which::Near, &self.id);
        let there = status["ExtraData"]["RemoteUnitID"].as_str().map(|id| ask(Which::Far, id));
        format!("{} {:?} {:?} {:?} {status}, there {there:?}", self.id, self.place, self.shape, self.harmed)
    }

    /// When its command ended by itself, if it did.
    fn own_end(&self) -> Option<SystemTime> {
        let noted = std::fs::read_to_string(self.diary.with_extension("end")).ok()?;
        Some(SystemTime::UNIX_EPOCH + Duration::from_secs_f64(noted.trim().parse().ok()?))
    }

    pub(crate) fn check_and_release(mut self, nodes: &Nodes) {
        let status = self.end.take().unwrap();
        let wanted = self.shape.output();
        let output = read_all(nodes, &self.id);
        let context = format!("{} {:?} {:?} {:?} {status}", self.id, self.place, self.shape, self.harmed);
        assert_eq!(status["StdoutSize"].as_u64().unwrap(), output.len() as u64, "{context}");
        assert!(
            wanted.starts_with(&output),
            "{} bytes that are not the output's beginning: {context}",
            output.len()
        );
        let runs = std::fs::read(self.diary.with_extension("runs")).map_or(0, |noted| noted.len());
        assert!(runs <= 1, "its command was started {runs} times: {context}");
        let (state, code) = if self.shape.code == 0 { (2, "exit status 0") } else { (3, "exit status 7") };
        let own_end = status["State"] == state && status["Detail"] == code;
        if self.harmed.is_empty() || own_end {
            assert!(own_end, "{context}");
            assert_eq!(output.len(), wanted.len(), "{context}");
        } else {
            let failed = status["State"] == 3 || status["State"] == 4 && self.harmed.contains(&"cancelled");
            assert!(failed, "{context}");
        }
        if let Some(reader) = self.reader.take() {
            let read = reader.join().unwrap();
            // Killing the shell leaves its last child, which may keep writing for a moment. A following
            // reader may receive that output before the end is known.
            let survivor = self.harmed.contains(&"command killed") && read.starts_with(&output);
            let same = read == output || survivor && wanted.starts_with(&read);
            assert!(same, "the reader saw something else, {} bytes: {context}", read.len());
        }
        let again = nodes.ask(Which::Near, &format!("work status {}", self.id));
        // The other node's part may still be being cleaned up.
        for field in ["State", "Detail", "StdoutSize"] {
            assert_eq!(again[field], status[field], "a final status has changed: {status} {again}");
        }
        let answer = nodes.ask(Which::Near, &format!("work release {}", self.id));
        assert!(answer.get("released").or(answer.get("release pending")).is_some(), "{answer} {context}");
    }
}

fn is_runner(pid: u64) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|text| text.contains("__work-spawner"))
}

fn read_all(nodes: &Nodes, id: &str) -> Vec<u8> {
    let mut stream = nodes.connect(Which::Near);
    let mut output = Vec::new();
    let ended = read_from(&mut stream, id, &mut output);
    assert!(ended, "results of {id} are refused");
    output
}

/// Reads results until the connection ends; returns whether the node sent any.
fn read_from(stream: &mut (impl BufRead + AsStream), id: &str, output: &mut Vec<u8>) -> bool {
    let line = format!("work results {id} {}\n", output.len());
    let mut answer = String::new();
    if stream.as_stream().write_all(line.as_bytes()).is_err() || stream.read_line(&mut answer).is_err() {
        return false;
    }
    if !answer.starts_with("Streaming results") {
        return false;
    }
    let _cut = stream.read_to_end(output);
    true
}

trait AsStream {
    fn as_stream(&mut self) -> &mut std::os::unix::net::UnixStream;
}

impl AsStream for std::io::BufReader<std::os::unix::net::UnixStream> {
    fn as_stream(&mut self) -> &mut std::os::unix::net::UnixStream {
        self.get_mut()
    }
}

/// Follows a unit from its first byte until it is final and everything is read.
fn follow(nodes: &Nodes, id: String) -> JoinHandle<Vec<u8>> {
    let node = nodes.address(Which::Near);
    std::thread::spawn(move || {
        let deadline = Instant::now() + 2 * LIMIT;
        let mut output = Vec::new();
        while Instant::now() < deadline {
            if let Some(mut stream) = node.try_connect() {
                read_from(&mut stream, &id, &mut output);
            }
            let status = node.try_ask(&format!("work status {id}")).unwrap_or_default();
            let ended = status["State"].as_u64().is_some_and(|state| state >= 2);
            if ended && status["StdoutSize"].as_u64().is_some_and(|size| size <= output.len() as u64) {
                return output;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("the reader of {id} never came to an end; it has {} bytes", output.len());
    })
}
