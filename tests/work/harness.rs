//! Shared by the tests: an engine in a temporary directory, and helpers that submit, collect and wait.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use meshd::rpc::request::SubmitRequest;
use meshd::wire::{NodeId, ServiceName};
use meshd::work::{
    Caller, CommandType, Dialer, Options, Registry, State, StreamDialing, StreamFailure, UnitReport,
    UnitSubmission,
};
use rustix::process::{Pid, Signal};
use tempfile::TempDir;

/// The longest wait for anything.
pub(crate) use crate::until::LIMIT;

/// A dialer without any node.
pub(crate) struct Nowhere(pub NodeId);

impl Dialer for Nowhere {
    fn dial(&self, node: NodeId, _: ServiceName, _: Option<String>) -> StreamDialing {
        Box::pin(async move { Err(StreamFailure::Unreachable(format!("no route to {node}"))) })
    }

    fn knows_profile(&self, _name: &str) -> bool {
        false
    }

    fn node_id(&self) -> &NodeId {
        &self.0
    }
}

pub(crate) fn node(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

pub(crate) fn me() -> Caller {
    Caller::local()
}

pub(crate) fn options(data_dir: PathBuf, name: &str) -> Options {
    let kind = |name: &str, command: &str, params: &str| CommandType {
        params: params.into(),
        allow_runtime_params: true,
        ..CommandType::new(name, command)
    };
    let fixed = CommandType { allow_runtime_params: false, ..kind("fixed", "echo", "fixed") };
    let signed = CommandType { verify_signature: true, ..kind("signed", "cat", "") };
    Options {
        data_dir,
        node_id: node(name),
        work_types: vec![
            kind("sh", "sh", "-c"),
            kind("cat", "cat", ""),
            kind("nothing", "/nonexistent/program", ""),
            fixed,
            signed,
        ],
        runner_exe: env!("CARGO_BIN_EXE_meshd").into(),
        cancel_grace: Duration::from_secs(10),
        signer: None,
        verifier: None,
        kubernetes: BTreeMap::new(),
        is_child: None,
        payload_cache: None,
    }
}

/// A temporary directory; when dropped, it kills the processes of all units in it.
pub(crate) struct Scratch(TempDir);

impl Scratch {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let runners: Vec<u32> = runners_below(self.path(), 4);
        for &runner in &runners {
            signal(runner, Signal::TERM);
        }
        let deadline = std::time::Instant::now() + LIMIT;
        while runners.iter().any(|&runner| is_runner(runner)) && std::time::Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// How many directories are in a directory: units, and the remains of some, their private directories included.
pub(crate) fn directories_in(dir: &Path) -> usize {
    let entries = std::fs::read_dir(dir).unwrap().flatten();
    let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let of_private = |name: &std::ffi::OsStr| name == ".run" || name == ".kept";
    directories
        .map(|entry| if of_private(&entry.file_name()) { directories_in(&entry.path()) } else { 1 })
        .sum()
}

/// The live runners of units in and below a directory.
fn runners_below(dir: &Path, depth: u32) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if depth > 0 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(runners_below(&entry.path(), depth - 1));
        } else if entry.file_name() == "runner" {
            let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
            let pid = serde_json::from_str::<serde_json::Value>(&text).ok().and_then(|v| v["pid"].as_u64());
            found.extend(pid.and_then(|pid| u32::try_from(pid).ok()).filter(|&pid| is_runner(pid)));
        }
    }
    found
}

fn is_runner(pid: u32) -> bool {
    let arguments = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    lives(pid) && arguments.contains("__work-spawner")
}

pub(crate) fn signal(pid: u32, signal: Signal) {
    let _ = rustix::process::kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), signal);
}

/// A file system of 2 MiB, unmounted when dropped.
pub(crate) struct Tmpfs(PathBuf);

impl Tmpfs {
    /// Mounts one; `None`, with a message, if that is not permitted.
    pub(crate) fn mount(at: &Path) -> Option<Self> {
        std::fs::create_dir_all(at).unwrap();
        let arguments = ["-t", "tmpfs", "-o", "size=2m,mode=0700", "tmpfs"];
        let done = std::process::Command::new("mount").args(arguments).arg(at).output().ok()?;
        if !done.status.success() {
            eprintln!("SKIPPED: mounting a small tmpfs needs root");
            return None;
        }
        Some(Self(at.to_owned()))
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        // Lazily: the engine may still hold descriptors.
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// A lease on a file: until it is dropped, opening the file blocks or fails with EWOULDBLOCK.
pub(crate) struct Lease(std::process::Child);

impl Lease {
    pub(crate) fn take(path: &Path) -> Self {
        const HOLD: &str = "
import fcntl, os, signal, sys, time
signal.signal(signal.SIGIO, signal.SIG_IGN)
file = os.open(sys.argv[1], os.O_RDONLY)
while True:
    try:
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        break
    except OSError:
        time.sleep(0.01)
print('held', flush=True)
sys.stdin.read()
";
        let mut holder = std::process::Command::new("python3")
            .args(["-c", HOLD])
            .arg(path)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("tests need python3");
        let mut held = [0; 4];
        io::Read::read_exact(holder.stdout.as_mut().unwrap(), &mut held).unwrap();
        Self(holder)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _ended = self.0.wait();
    }
}

/// An engine and its directory.
pub(crate) struct Engine {
    pub registry: Registry,
    pub temp: Scratch,
}

impl Engine {
    pub(crate) async fn new() -> Self {
        Self::with(|_| {}).await
    }

    pub(crate) async fn with(change: impl FnOnce(&mut Options)) -> Self {
        let temp = Scratch::new();
        let mut options = options(temp.path().join("data"), "n1");
        change(&mut options);
        Self { registry: open(options).await, temp }
    }

    /// Drops the engine as a daemon's end does, and starts another one in the same directory.
    pub(crate) async fn restart(self) -> Self {
        let Self { registry, temp } = self;
        drop(registry);
        let registry = open(options(temp.path().join("data"), "n1")).await;
        Self { registry, temp }
    }

    pub(crate) fn dir(&self, id: &str) -> PathBuf {
        self.temp.path().join("data/n1").join(id)
    }
}

pub(crate) async fn open(options: Options) -> Registry {
    let dialer = Arc::new(Nowhere(options.node_id.clone()));
    Registry::open(options, dialer).await.unwrap()
}

pub(crate) fn request(node: &str, work_type: &str, params: &str) -> SubmitRequest {
    let params = match params {
        "" => BTreeMap::new(),
        params => BTreeMap::from([("params".to_owned(), params.to_owned())]),
    };
    SubmitRequest { node: node.into(), work_type: work_type.into(), params, ..SubmitRequest::default() }
}

/// Submits a shell script with its payload, and returns the unit's ID.
pub(crate) async fn run(registry: &Registry, script: &str) -> String {
    let quoted = shlex::try_quote(script).unwrap().into_owned();
    run_as(registry, request("localhost", "sh", &quoted), b"").await
}

pub(crate) async fn run_as(registry: &Registry, request: SubmitRequest, payload: &[u8]) -> String {
    let mut submission: UnitSubmission = registry.submit(request, me()).await.unwrap();
    let id = submission.id().to_string();
    submission.write(payload).await.unwrap();
    submission.finish().await.unwrap();
    id
}

/// Reads a unit's output to its end.
pub(crate) async fn collect(registry: &Registry, id: &str, start: u64) -> Vec<u8> {
    let mut stream = registry.results(id, start, &me()).await.unwrap();
    let mut all = Vec::new();
    while let Some(chunk) = within(stream.next()).await.unwrap() {
        assert!(!chunk.is_empty() && chunk.len() <= 256 * 1024);
        all.extend_from_slice(&chunk);
    }
    all
}

/// Waits for a unit to be final.
pub(crate) async fn finished(registry: &Registry, id: &str) -> UnitReport {
    until(registry, id, |report| report.state.is_final()).await
}

pub(crate) async fn running(registry: &Registry, id: &str) -> UnitReport {
    until(registry, id, |report| report.state == State::Running).await
}

pub(crate) async fn until(registry: &Registry, id: &str, wanted: impl Fn(&UnitReport) -> bool) -> UnitReport {
    within(async {
        loop {
            let report = registry.status(id).await.unwrap();
            if wanted(&report) {
                return report;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await
}

pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future).await.expect("nothing happened within the limit")
}

/// Waits until an engine has no units.
pub(crate) async fn emptied(registry: &Registry) {
    within(async {
        while !registry.list(None).await.unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

/// A payload without repetitions.
pub(crate) fn bytes(length: usize) -> Vec<u8> {
    (0..length as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

/// Waits for a condition outside the engine.
pub(crate) async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    assert!(tokio::time::timeout(LIMIT, wait).await.is_ok(), "never happened: {what}");
}

/// Whether a process exists and is no zombie.
pub(crate) fn lives(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat[stat.rfind(')').unwrap()..].starts_with(") Z"))
}
