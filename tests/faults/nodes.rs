//! The two nodes, `near` and `far`, as processes of the real binary, and the link between them: far dials
//! near through a relay of this test, which can cut it. Owns their directories and ends every process.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use serde_json::Value;

use crate::port::free_port;
use crate::process::Process;

/// Nothing takes this long unless it hangs.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    Near,
    Far,
}

impl Which {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Near => "near",
            Self::Far => "far",
        }
    }
}

pub(crate) struct Nodes {
    dir: tempfile::TempDir,
    near: Process,
    far: Process,
    links: Arc<Mutex<Vec<TcpStream>>>,
    /// The number of jobs so far.
    jobs: AtomicU32,
}

impl Nodes {
    pub(crate) fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let target = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let relay = TcpListener::bind("127.0.0.1:0").unwrap();
        let links = Arc::new(Mutex::new(Vec::new()));
        let address = relay.local_addr().unwrap();
        write_config(
            dir.path(),
            Which::Near,
            &format!("- tcp-listener: {{bindaddr: 127.0.0.1, port: {}}}\n", target.port()),
        );
        write_config(dir.path(), Which::Far, &format!("- tcp-peer: {{address: '{address}'}}\n"));
        let held = links.clone();
        // The thread ends with the test's process.
        std::thread::spawn(move || serve_relay(&relay, target, &held));
        let (near, far) = (spawn(dir.path(), Which::Near), spawn(dir.path(), Which::Far));
        let nodes = Self { near, far, dir, links, jobs: AtomicU32::new(0) };
        nodes.await_recovery();
        nodes
    }

    fn child(&mut self, which: Which) -> &mut Process {
        match which {
            Which::Near => &mut self.near,
            Which::Far => &mut self.far,
        }
    }

    pub(crate) fn units(&self, which: Which) -> PathBuf {
        self.dir.path().join(which.name()).join(which.name())
    }

    /// The path for the records of the next job's command.
    pub(crate) fn new_diary(&self) -> PathBuf {
        let number = self.jobs.fetch_add(1, Ordering::Relaxed);
        self.dir.path().join(format!("job{number}"))
    }

    /// Ends a node, by SIGKILL or cleanly, and restarts it at once.
    pub(crate) fn restart(&mut self, which: Which, hard: bool) {
        println!("  restart {} {}", which.name(), if hard { "after kill -9" } else { "after SIGTERM" });
        let pid = self.child(which).id();
        signal(pid, if hard { Signal::KILL } else { Signal::TERM });
        self.child(which).wait().unwrap();
        let child = spawn(self.dir.path(), which);
        *self.child(which) = child;
        drop(self.connect(which));
    }

    pub(crate) fn cut(&self) {
        println!("  cut the link");
        for link in self.links.lock().unwrap().drain(..) {
            let _ = link.shutdown(Shutdown::Both);
        }
    }

    pub(crate) fn pause(&mut self, which: Which, time: Duration) {
        println!("  stop {} for {time:?}", which.name());
        let pid = self.child(which).id();
        signal(pid, Signal::STOP);
        std::thread::sleep(time);
        signal(pid, Signal::CONT);
    }

    /// Kills the spawner.
    pub(crate) fn kill_spawner(&mut self, which: Which) {
        println!("  kill the spawner of {}", which.name());
        let parent = self.child(which).id();
        for pid in children(parent) {
            signal(pid, Signal::KILL);
        }
    }

    /// A connection that has received its greeting, as soon as the node accepts one.
    pub(crate) fn connect(&self, which: Which) -> BufReader<UnixStream> {
        let deadline = Instant::now() + LIMIT;
        loop {
            if let Some(stream) = self.try_connect(which) {
                return stream;
            }
            assert!(Instant::now() < deadline, "{} does not answer", which.name());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn try_connect(&self, which: Which) -> Option<BufReader<UnixStream>> {
        self.address(which).try_connect()
    }

    /// The address of a node.
    pub(crate) fn address(&self, which: Which) -> Address {
        Address(self.dir.path().join(format!("{}.sock", which.name())))
    }

    /// The answer to one command line; an error becomes a JSON string.
    pub(crate) fn ask(&self, which: Which, line: &str) -> Value {
        let mut stream = self.connect(which);
        stream.get_mut().write_all(format!("{line}\n").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_line(&mut answer).unwrap();
        serde_json::from_str(&answer).unwrap_or_else(|_| Value::from(answer.trim()))
    }

    /// Waits until both nodes answer and have routes to each other.
    pub(crate) fn await_recovery(&self) {
        let deadline = Instant::now() + LIMIT;
        for (which, other) in [(Which::Near, Which::Far), (Which::Far, Which::Near)] {
            while self.ask(which, "status")["RoutingTable"][other.name()].is_null() {
                assert!(Instant::now() < deadline, "the nodes do not find each other");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }

    /// Checks that neither node has a unit, or a file or process of one.
    pub(crate) fn assert_nothing_is_left(&self) {
        for which in [Which::Near, Which::Far] {
            let deadline = Instant::now() + LIMIT;
            loop {
                let left = self.left(which);
                if left.is_empty() {
                    break;
                }
                assert!(Instant::now() < deadline, "left on {}: {left:?}", which.name());
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }

    fn left(&self, which: Which) -> Vec<String> {
        let units = self.units(which);
        let mut left = processes_of(&units);
        for entry in std::fs::read_dir(&units).unwrap().flatten() {
            let id = entry.file_name().to_string_lossy().into_owned();
            // The node's own files.
            if [".epoch", ".lock", ".store-id"].contains(&&*id) {
                continue;
            }
            if [".run", ".kept"].contains(&&*id) {
                let private = std::fs::read_dir(entry.path()).unwrap().flatten();
                left.extend(private.map(|one| format!("{id}/{}", one.file_name().display())));
                continue;
            }
            let status = std::fs::read_to_string(entry.path().join("status")).unwrap_or_default();
            // Its submission was cut before the ID arrived, so nobody can release it.
            let orphan =
                ["Error reading input data", "Pending at restart"].iter().any(|sign| status.contains(sign));
            if orphan {
                self.ask(which, &format!("work release {id}"));
            } else {
                left.push(format!("{id}: {status}"));
            }
        }
        left
    }
}

/// A node's control socket.
pub(crate) struct Address(PathBuf);

impl Address {
    pub(crate) fn try_connect(&self) -> Option<BufReader<UnixStream>> {
        let stream = UnixStream::connect(&self.0).ok()?;
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        (stream.read_line(&mut line).ok()? > 0).then_some(stream)
    }

    pub(crate) fn try_ask(&self, line: &str) -> Option<Value> {
        let mut stream = self.try_connect()?;
        stream.get_mut().write_all(format!("{line}\n").as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_line(&mut answer).ok()?;
        serde_json::from_str(&answer).ok()
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for child in [&mut self.near, &mut self.far] {
            let _ = child.kill();
            let _ = child.wait();
        }
        for which in [Which::Near, Which::Far] {
            if std::thread::panicking() {
                let log = std::fs::read_to_string(self.dir.path().join(format!("{}.log", which.name())));
                let log = log.unwrap_or_default();
                let tail: Vec<&str> = log.lines().rev().take(40).collect();
                println!("the log of {}, newest first:\n{}", which.name(), tail.join("\n"));
            }
            for process in processes_of(&self.units(which)) {
                signal(process.parse().unwrap(), Signal::KILL);
            }
        }
    }
}

pub(crate) fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

fn children(parent: u32) -> Vec<u32> {
    let text = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
    let of_threads = std::fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
    let all =
        of_threads.map(|task| std::fs::read_to_string(task.path().join("children")).unwrap_or_default());
    let mut found: Vec<u32> = all
        .chain([text])
        .flat_map(|text| text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// The processes, except zombies, whose environment names a unit below that directory.
fn processes_of(units: &Path) -> Vec<String> {
    let mark = format!("MESHD_UNIT_DIR={}/", units.display());
    let names = std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned());
    names
        .filter(|pid| pid.parse::<u32>().is_ok())
        .filter(|pid| {
            std::fs::read(format!("/proc/{pid}/environ"))
                .is_ok_and(|environment| String::from_utf8_lossy(&environment).contains(&mark))
        })
        .collect()
}

fn write_config(dir: &Path, which: Which, link: &str) {
    let (name, dir_text) = (which.name(), dir.display());
    let text = format!(
        "- node: {{id: {name}, datadir: {dir_text}/{name}}}\n- log-level: info\n{link}\
         - control-service: {{service: control, filename: {dir_text}/{name}.sock}}\n\
         - work-command: {{worktype: sh, command: sh, params: -c, allowruntimeparams: true, cancelgrace: 300ms}}\n"
    );
    std::fs::write(dir.join(format!("{name}.yml")), text).unwrap();
}

fn spawn(dir: &Path, which: Which) -> Process {
    let log = std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(dir.join(format!("{}.log", which.name())))
        .unwrap();
    let config = dir.join(format!("{}.yml", which.name()));
    Process::start(Command::new(env!("CARGO_BIN_EXE_meshd")).arg("--config").arg(config), log)
}

fn serve_relay(relay: &TcpListener, target: std::net::SocketAddr, links: &Mutex<Vec<TcpStream>>) {
    for stream in relay.incoming().flatten() {
        let Ok(onward) = TcpStream::connect(target) else { continue };
        links.lock().unwrap().extend([stream.try_clone().unwrap(), onward.try_clone().unwrap()]);
        for (mut from, mut to) in
            [(stream.try_clone().unwrap(), onward.try_clone().unwrap()), (onward, stream)]
        {
            std::thread::spawn(move || {
                let mut buffer = vec![0; 64 * 1024];
                while let Ok(length @ 1..) = from.read(&mut buffer) {
                    if to.write_all(&buffer[..length]).is_err() {
                        break;
                    }
                }
                let _ = to.shutdown(Shutdown::Both);
                let _ = from.shutdown(Shutdown::Both);
            });
        }
    }
}
