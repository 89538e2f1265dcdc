//! Lines of node processes with generated configurations.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command as Program;
use std::thread;
use std::time::{Duration, Instant};

use assert_cmd::Command;
use serde_json::{Value, json};

use crate::process::Process;

/// How long a mesh may take to converge: a Go node that was refused at first waits 5 s.
const CONVERGENCE: Duration = Duration::from_secs(60);

/// How long a job may take.
const JOB: Duration = Duration::from_secs(180);

/// Megabytes of a job in each direction: LINKS_MB, or the given default.
pub(crate) fn megabytes(default: usize) -> usize {
    std::env::var("LINKS_MB").map_or(default, |text| text.parse().expect("LINKS_MB is a number"))
}

/// A node, ended when dropped.
pub(crate) struct Node {
    id: String,
    _process: Process,
    dir: PathBuf,
}

impl Drop for Node {
    fn drop(&mut self) {
        if thread::panicking() {
            let log = fs::read_to_string(self.dir.join("log")).unwrap_or_default();
            let from = log.len().saturating_sub(3_000);
            eprintln!("---- log of {}:\n{}", self.id, String::from_utf8_lossy(&log.as_bytes()[from..]));
        }
    }
}

/// A program and the directives of its node, apart from those that every node has.
pub(crate) struct Plan<'a> {
    pub program: &'a Path,
    pub id: &'a str,
    pub directives: Vec<Value>,
}

impl Node {
    pub(crate) fn start(root: &Path, plan: Plan<'_>) -> Self {
        let Plan { program, id, mut directives } = plan;
        let dir = root.join(id);
        fs::create_dir(&dir).unwrap();
        directives.extend([
            json!({"node": {"id": id, "datadir": dir.join("data")}}),
            json!({"log-level": "info"}),
            json!({"control-service": {"service": "control", "filename": dir.join("s")}}),
            json!({"work-command": {"worktype": "cat", "command": "cat"}}),
        ]);
        fs::write(dir.join("c.yml"), Value::from(directives).to_string()).unwrap();
        let log = fs::File::create(dir.join("log")).unwrap();
        let process = Process::start(Program::new(program).arg("--config").arg(dir.join("c.yml")), log);
        Self { id: id.to_owned(), _process: process, dir }
    }

    fn meshctl(&self, args: &[&str]) -> Command {
        let mut command = Command::cargo_bin("meshctl").unwrap();
        command.env_clear().arg("--socket").arg(self.dir.join("s")).args(args).timeout(JOB);
        command
    }

    /// Waits until this node has a route to the other one. The services of that node may take a minute more
    /// to spread among Go nodes, which only send their own services to newcomers.
    pub(crate) fn wait_for(&self, other: &str) {
        let deadline = Instant::now() + CONVERGENCE;
        loop {
            let output = self.meshctl(&["--json", "status"]).output().unwrap();
            let status: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
            if status["RoutingTable"].get(other).is_some() {
                return;
            }
            assert!(Instant::now() < deadline, "{} never knew {other}: {status}", self.id);
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Sends that many bytes to the other node and back; returns the time.
    pub(crate) fn echo(&self, other: &str, bytes: usize) -> Duration {
        let payload: Vec<u8> =
            (0..bytes).map(|n| ((n as u32).wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let start = Instant::now();
        let args = ["work", "submit", "cat", "--node", other, "-p", "-", "-f", "--rm"];
        let output = self.meshctl(&args).write_stdin(payload.clone()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(output.stdout == payload, "{} bytes came back of {bytes}", output.stdout.len());
        start.elapsed()
    }
}

/// A kind of link, as both implementations configure it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    Tcp,
    Udp,
    Ws,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Tcp, Self::Udp, Self::Ws];

    pub(crate) fn listener(self, port: u16) -> Value {
        let options = json!({"port": port, "bindaddr": "127.0.0.1"});
        match self {
            Self::Tcp => json!({"tcp-listener": options}),
            Self::Udp => json!({"udp-listener": options}),
            Self::Ws => json!({"ws-listener": options}),
        }
    }

    pub(crate) fn peer(self, port: u16) -> Value {
        let address = format!("127.0.0.1:{port}");
        match self {
            Self::Tcp => json!({"tcp-peer": {"address": address}}),
            Self::Udp => json!({"udp-peer": {"address": address}}),
            Self::Ws => json!({"ws-peer": {"address": format!("ws://{address}/")}}),
        }
    }
}
