//! meshd and Go nodes as processes, each in its own directory, and requests to them.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::process::Process;
pub(crate) use crate::until::{LIMIT, until};

/// Bytes without short repetitions.
pub(crate) fn pattern(size: usize) -> Vec<u8> {
    (0..size as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

/// A node, ended when dropped.
pub(crate) struct Node {
    process: Process,
    pub dir: tempfile::TempDir,
}

impl Node {
    /// A meshd node. Its configuration consists of a `node`, a control socket, `local-only` and `items`.
    pub(crate) fn start(id: &str, items: Value) -> Self {
        Self::run(Path::new(env!("CARGO_BIN_EXE_meshd")), id, json!({}), items)
    }

    /// The same, with more parameters in `node`.
    pub(crate) fn start_with(id: &str, node: Value, items: Value) -> Self {
        Self::run(Path::new(env!("CARGO_BIN_EXE_meshd")), id, node, items)
    }

    /// Any program that accepts receptor's configuration.
    pub(crate) fn run(program: &Path, id: &str, node: Value, items: Value) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("c.yml");
        fs::write(&config, configuration(dir.path(), id, node, items)).unwrap();
        Self::spawn(program, dir, &config)
    }

    /// The same, through a command that executes the program.
    pub(crate) fn run_by(command: Command, program: &Path, id: &str, items: Value) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("c.yml");
        fs::write(&config, configuration(dir.path(), id, json!({}), items)).unwrap();
        Self::spawn_by(command, program, dir, &config)
    }

    /// A node with the configuration `config`, a file or a directory; its control socket is `s` in `dir`.
    pub(crate) fn spawn(program: &Path, dir: tempfile::TempDir, config: &Path) -> Self {
        Self::spawn_by(Command::new(program), program, dir, config)
    }

    fn spawn_by(command: Command, program: &Path, dir: tempfile::TempDir, config: &Path) -> Self {
        let process = launch(command, dir.path(), config);
        let node = Self { process, dir };
        until("the node answers", || UnixStream::connect(node.socket()).ok());
        if program == Path::new(env!("CARGO_BIN_EXE_meshd")) {
            until("the node is ready", || node.log().contains("ready").then_some(()));
        }
        node
    }

    /// Kills the node with SIGKILL.
    pub(crate) fn kill(&mut self) {
        let _ended_already = self.process.kill();
        self.process.wait().unwrap();
    }

    /// Restarts a meshd node that has ended, in the same directory with a new log.
    pub(crate) fn start_again(&mut self) {
        let program = Command::new(env!("CARGO_BIN_EXE_meshd"));
        self.process = launch(program, self.dir.path(), &self.dir.path().join("c.yml"));
        until("the node is ready", || self.log().contains("ready").then_some(()));
    }

    pub(crate) fn pid(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.process)
    }

    /// Stops the node, and returns how long that took.
    pub(crate) fn stop(&mut self) -> Duration {
        let start = Instant::now();
        rustix::process::kill_process(self.pid(), rustix::process::Signal::TERM).unwrap();
        until("the node ends", || self.process.try_wait().unwrap());
        start.elapsed()
    }

    /// Waits at most that many seconds for the node to end by itself.
    pub(crate) fn end_within(&mut self, seconds: u64) -> std::process::ExitStatus {
        let deadline = Instant::now() + Duration::from_secs(seconds);
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "still there after {seconds} s: {}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Whether the node is still running.
    pub(crate) fn is_running(&mut self) -> bool {
        self.process.try_wait().unwrap().is_none()
    }

    /// Resident memory of the daemon, in bytes.
    pub(crate) fn rss(&self) -> usize {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    /// Writes a new configuration for the same node.
    pub(crate) fn configure(&self, id: &str, node: Value, items: Value) {
        fs::write(self.dir.path().join("c.yml"), configuration(self.dir.path(), id, node, items)).unwrap();
    }

    /// The raw answer to a command line.
    pub(crate) fn ask(&self, line: &str) -> String {
        self.try_ask(line).unwrap()
    }

    fn try_ask(&self, line: &str) -> std::io::Result<String> {
        self.try_converse(line).map(|(_, answer)| answer.trim_end().to_owned())
    }

    /// A client connection and the answer to its first command line.
    pub(crate) fn converse(&self, line: &str) -> (BufReader<UnixStream>, String) {
        self.try_converse(line).unwrap()
    }

    fn try_converse(&self, line: &str) -> std::io::Result<(BufReader<UnixStream>, String)> {
        let stream = UnixStream::connect(self.socket())?;
        stream.set_read_timeout(Some(LIMIT))?;
        let mut reader = BufReader::new(stream);
        let mut answer = String::new();
        reader.read_line(&mut answer)?;
        writeln!(reader.get_mut(), "{line}")?;
        answer.clear();
        reader.read_line(&mut answer)?;
        Ok((reader, answer))
    }

    /// Submits a unit with a payload; returns its ID and the last answer.
    pub(crate) fn submit(&self, request: Value, payload: &[u8]) -> (String, String) {
        let mut line = json!({"command": "work", "subcommand": "submit"});
        line.as_object_mut().unwrap().extend(request.as_object().unwrap().clone());
        let (mut client, created) = self.converse(&line.to_string());
        let id =
            created.split(' ').nth(5).unwrap_or_else(|| panic!("{created}")).trim_end_matches('.').to_owned();
        client.get_mut().write_all(payload).unwrap();
        client.get_mut().shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        client.read_line(&mut answer).unwrap();
        (id, answer)
    }

    pub(crate) fn ask_json(&self, line: &str) -> Value {
        let answer = self.ask(line);
        serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{line}: {answer}: {error}"))
    }

    pub(crate) fn reload(&self) -> Value {
        self.ask_json("reload")
    }

    /// Waits until the node has a route to another node and knows a service there.
    pub(crate) fn knows(&self, node: &str, service: &str) {
        until(&format!("{node}:{service} is known"), || {
            let status = self.ask_json("status");
            let offers = status["Advertisements"].as_array().cloned().unwrap_or_default();
            let offered = offers.iter().any(|ad| ad["NodeID"] == node && ad["Service"] == service);
            (offered && status["RoutingTable"].get(node).is_some()).then_some(())
        });
    }

    pub(crate) fn reaches(&self, node: &str) {
        until(&format!("{node} is in reach"), || {
            self.ask_json("status")["RoutingTable"].get(node).map(|_| ())
        });
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // SIGTERM lets the node stop the processes that it started; a node that does not react is killed.
        if self.process.try_wait().unwrap().is_none() {
            let _gone = rustix::process::kill_process(self.pid(), rustix::process::Signal::TERM);
        }
        let deadline = Instant::now() + Duration::from_secs(15);
        while self.process.try_wait().unwrap().is_none() {
            if Instant::now() > deadline {
                let _gone = self.process.kill();
            }
            thread::sleep(Duration::from_millis(5));
        }
        if thread::panicking() {
            eprintln!("--- log\n{}", self.log());
        }
    }
}

/// Starts a program with its log in a directory.
fn launch(mut command: Command, dir: &Path, config: &Path) -> Process {
    let log = fs::File::create(dir.join("log")).unwrap();
    let is_of = if config.is_dir() { "--config-dir" } else { "--config" };
    Process::start(command.arg(is_of).arg(config), log)
}

pub(crate) fn configuration(dir: &Path, id: &str, node: Value, items: Value) -> String {
    let mut parameters = json!({"id": id, "datadir": dir.join("data")});
    parameters.as_object_mut().unwrap().extend(node.as_object().unwrap().clone());
    let mut all = vec![
        json!({"node": parameters}),
        json!("local-only"),
        json!({"control-service": {"filename": dir.join("s")}}),
    ];
    all.extend(items.as_array().unwrap().clone());
    Value::Array(all).to_string()
}

/// Echoes everything that a client sent, once its input ends.
pub(crate) fn echo() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                let mut all = Vec::new();
                if stream.read_to_end(&mut all).is_ok() {
                    let _gone = stream.write_all(&all);
                }
            });
        }
    });
    port
}

/// Sends, half-closes, and returns the answer.
pub(crate) fn exchange(port: u16, sent: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let mut writer = stream.try_clone().unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            writer.write_all(sent).unwrap();
            writer.shutdown(std::net::Shutdown::Write).unwrap();
        });
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        all
    })
}
