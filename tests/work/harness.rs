//! What the tests share: an engine in a temporary directory, and ways to submit, collect and wait.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use meshd::wire::{NodeId, ServiceName};
use meshd::work::{
    Caller, CommandType, Dialer, Dialing, Options, Registry, State, Submission, Submit, UnitReport,
};
use tempfile::TempDir;

/// Longest wait for anything.
pub const LIMIT: Duration = Duration::from_secs(30);

/// A dialer to nowhere.
pub struct Nowhere(pub NodeId);

impl Dialer for Nowhere {
    fn dial(&self, node: NodeId, _: ServiceName, _: Option<String>) -> Dialing {
        Box::pin(async move { Err(io::Error::other(format!("no route to {node}"))) })
    }

    fn node_id(&self) -> &NodeId {
        &self.0
    }
}

pub fn node(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

pub fn me() -> Caller {
    Caller { local: true, signature: None }
}

pub fn options(data_dir: PathBuf, name: &str) -> Options {
    let kind = |name: &str, command: &str, params: &str| CommandType {
        name: name.into(),
        command: command.into(),
        params: params.into(),
        allow_runtime_params: true,
        verify_signature: false,
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
    }
}

/// An engine with its directory.
pub struct Engine {
    pub registry: Registry,
    pub temp: TempDir,
}

impl Engine {
    pub async fn new() -> Self {
        Self::with(|_| {}).await
    }

    pub async fn with(change: impl FnOnce(&mut Options)) -> Self {
        let temp = tempfile::tempdir().unwrap();
        let mut options = options(temp.path().join("data"), "n1");
        change(&mut options);
        Self { registry: open(options).await, temp }
    }

    /// Gives the engine up as a daemon's end does, and starts another on the same directory.
    pub async fn restart(self) -> Self {
        let Self { registry, temp } = self;
        drop(registry);
        let registry = open(options(temp.path().join("data"), "n1")).await;
        Self { registry, temp }
    }

    pub fn dir(&self, id: &str) -> PathBuf {
        self.temp.path().join("data/n1").join(id)
    }
}

pub async fn open(options: Options) -> Registry {
    let dialer = Arc::new(Nowhere(options.node_id.clone()));
    Registry::open(options, dialer).await.unwrap()
}

pub fn request(node: &str, work_type: &str, params: &str) -> Submit {
    let params = match params {
        "" => BTreeMap::new(),
        params => BTreeMap::from([("params".to_owned(), params.to_owned())]),
    };
    Submit { node: node.into(), work_type: work_type.into(), params, caller: me(), ..Submit::default() }
}

/// Submits a shell script, payload included, and gives the unit's ID.
pub async fn run(registry: &Registry, script: &str) -> String {
    let quoted = shlex::try_quote(script).unwrap().into_owned();
    run_as(registry, request("localhost", "sh", &quoted), b"").await
}

pub async fn run_as(registry: &Registry, request: Submit, payload: &[u8]) -> String {
    let mut submission: Submission = registry.submit(request).await.unwrap();
    let id = submission.id().to_string();
    submission.write(payload).await.unwrap();
    submission.finish().await.unwrap();
    id
}

/// Reads a unit's output to its end.
pub async fn collect(registry: &Registry, id: &str, start: u64) -> Vec<u8> {
    let mut stream = registry.results(id, start, &me()).await.unwrap();
    let mut all = Vec::new();
    while let Some(chunk) = within(stream.next()).await.unwrap() {
        assert!(!chunk.is_empty() && chunk.len() <= 256 * 1024);
        all.extend_from_slice(&chunk);
    }
    all
}

/// Waits for a unit to be final.
pub async fn finished(registry: &Registry, id: &str) -> UnitReport {
    until(registry, id, |report| report.state.is_final()).await
}

pub async fn running(registry: &Registry, id: &str) -> UnitReport {
    until(registry, id, |report| report.state == State::Running).await
}

pub async fn until(registry: &Registry, id: &str, wanted: impl Fn(&UnitReport) -> bool) -> UnitReport {
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

pub async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future).await.expect("nothing happened within the limit")
}

/// Waits for a condition outside the engine.
pub async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    assert!(tokio::time::timeout(LIMIT, wait).await.is_ok(), "never happened: {what}");
}

/// Whether a process is there and no zombie.
pub fn lives(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat[stat.rfind(')').unwrap()..].starts_with(") Z"))
}
