//! A lone node `alpha` with the work types `echo` (returns its payload) and `hold` (returns it, then runs until
//! cancelled), and clients that never wait without a limit.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{
    AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, DuplexStream,
};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::control::channel::ClientStream;
use crate::control::peer::ClientPeer;
use crate::control::session;
use crate::control::stop::Stop;
use crate::control::{
    Context, LineBudget, LogLevels, Observer, ProcessLife, Reload, ReloadError, Server, ServerLimits,
};
use crate::node::{NodeHandle, NodeOptions};
use crate::service::LinkTests;
use crate::stream::Streams;
use crate::wire::{NodeId, ServiceName};
use crate::work::{
    Caller, CallerName, CommandType, Dialer, Options, Origin, Registry, StreamDialing, StreamFailure,
};

/// Nothing here takes this long unless it hangs.
pub(super) const DEADLINE: Duration = Duration::from_secs(20);

/// Gives every reload the same answer, and keeps the units' directory while the context lives.
struct Scripted {
    result: Result<(), ReloadError>,
    data: tempfile::TempDir,
}

impl Drop for Scripted {
    fn drop(&mut self) {
        crate::work::kill_all_units(&self.data.path().join("data/alpha"));
    }
}

impl Reload for Scripted {
    fn reload(&self) -> Pin<Box<dyn Future<Output = Result<(), ReloadError>> + Send + '_>> {
        Box::pin(async { self.result.clone() })
    }
}

/// Finds nothing wrong.
struct Well;

impl crate::control::Examine for Well {
    fn examine(
        &self,
    ) -> Pin<Box<dyn Future<Output = Vec<crate::rpc::report::finding::Finding>> + Send + '_>> {
        Box::pin(async { Vec::new() })
    }

    fn tls_client(&self) -> Pin<Box<dyn Future<Output = Option<String>> + Send + '_>> {
        Box::pin(async { None })
    }
}

/// Knows only the level `info`.
struct OneLevel;

impl LogLevels for OneLevel {
    fn level(&self) -> &'static str {
        "info"
    }

    fn set_level(&self, name: &str) -> Result<(), String> {
        if name == "info" { Ok(()) } else { Err(format!("{name:?} is not a log level")) }
    }
}

pub(super) async fn context() -> Context {
    reloading(Ok(())).await
}

pub(super) async fn reloading(result: Result<(), ReloadError>) -> Context {
    let id = NodeId::new("alpha").expect("a valid ID");
    let (node, _stopped) = NodeHandle::start(NodeOptions::new(id.clone()));
    let data = tempfile::tempdir().expect("room for a directory");
    let script = |name: &str, script: &str| CommandType {
        params: format!("-c '{script}'"),
        allow_runtime_params: true,
        ..CommandType::new(name, "sh")
    };
    let options = Options {
        data_dir: data.path().join("data"),
        node_id: id.clone(),
        work_types: vec![script("echo", "cat"), script("hold", "cat; exec sleep 600")],
        runner_exe: runner(),
        cancel_grace: Duration::from_secs(10),
        signer: None,
        verifier: None,
        kubernetes: Default::default(),
        is_child: None,
        payload_cache: None,
    };
    let work = Registry::open(options, Arc::new(Alone(id))).await.expect("a work engine");
    let streams = Streams::new(node.clone());
    let link_tests =
        LinkTests::start(streams.clone(), CancellationToken::new()).await.expect("a node that runs");
    let reload = Arc::new(Scripted { result, data });
    let log = Arc::new(OneLevel);
    Context {
        controller: None,
        observer: Observer::new(
            node.clone(),
            Default::default(),
            "1.2.3",
            work.clone(),
            ProcessLife::begin(),
            None,
        ),
        node,
        streams,
        tls: Default::default(),
        work,
        reload,
        log,
        doctor: Arc::new(Well),
        link_tests,
        lines: LineBudget::default(),
    }
}

/// The daemon's binary, which runs jobs; cargo puts it next to the tests' directory.
fn runner() -> PathBuf {
    let tests = std::env::current_exe().expect("a path of our own");
    let binary = tests.parent().and_then(Path::parent).expect("a build directory").join("meshd");
    assert!(binary.exists(), "{} is missing: build it with `cargo build --bin meshd`", binary.display());
    binary
}

/// A node that reaches no other.
struct Alone(NodeId);

impl Dialer for Alone {
    fn dial(&self, node: NodeId, _service: ServiceName, _tls: Option<String>) -> StreamDialing {
        Box::pin(async move { Err(StreamFailure::Unreachable(format!("no route to node {node}"))) })
    }
    fn knows_profile(&self, _name: &str) -> bool {
        false
    }

    fn node_id(&self) -> &NodeId {
        &self.0
    }
}

/// The client's end of a connection.
pub(super) struct Client<S>(pub(super) BufReader<S>);

impl<S: AsyncRead + AsyncWrite + Unpin> Client<S> {
    /// Reads the greeting.
    pub(super) async fn greeted(stream: S) -> Self {
        let mut client = Self(BufReader::new(stream));
        assert_eq!(client.line().await, "Receptor Control, node alpha");
        client
    }

    pub(super) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let sent = timeout(DEADLINE, self.0.get_mut().write_all(bytes.as_ref())).await;
        sent.expect("the server reads").expect("the server is there");
    }

    pub(super) async fn shut(&mut self) {
        self.0.get_mut().shutdown().await.expect("the server is there");
    }

    /// The next line; empty at the end.
    pub(super) async fn line(&mut self) -> String {
        let mut line = String::new();
        timeout(DEADLINE, self.0.read_line(&mut line)).await.expect("an answer").expect("a line of text");
        line.trim_end_matches('\n').to_owned()
    }

    pub(super) async fn ask(&mut self, command: &str) -> String {
        self.send(format!("{command}\n")).await;
        self.line().await
    }

    pub(super) async fn ask_json(&mut self, command: &str) -> Value {
        let answer = self.ask(command).await;
        serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{command}: {error}: {answer}"))
    }

    /// Reads everything up to the end.
    pub(super) async fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        timeout(DEADLINE, self.0.read_to_end(&mut rest)).await.expect("an end").expect("a clean end");
        rest
    }

    /// Submits, with the payload directly after the line, and returns the unit's ID and the last line.
    pub(super) async fn submit(mut self, line: &str, payload: &[u8]) -> (String, String) {
        self.send([line.as_bytes(), b"\n", payload].concat()).await;
        self.shut().await;
        let created = self.line().await;
        let id = created.strip_prefix("Work unit created with ID ").unwrap_or_else(|| panic!("{created}"));
        let id = id.strip_suffix(". Send stdin data and EOF.").unwrap_or_else(|| panic!("{created}"));
        let result = self.line().await;
        assert_eq!(self.rest().await, b"", "nothing follows the result");
        (id.to_owned(), result)
    }
}

/// A session over a pipe in memory; it ends with its client.
pub(super) async fn session(context: &Context) -> Client<DuplexStream> {
    session_until(context, CancellationToken::new()).await
}

pub(super) async fn session_until(context: &Context, stop: CancellationToken) -> Client<DuplexStream> {
    session_over(context, stop, |far| Box::new(far)).await
}

/// A session whose end of the pipe goes through `wrap`.
pub(super) async fn session_over(
    context: &Context,
    stop: CancellationToken,
    wrap: impl FnOnce(DuplexStream) -> Box<dyn ClientStream>,
) -> Client<DuplexStream> {
    Client::greeted(ungreeted(context, stop, true, wrap)).await
}

/// A session whose greeting was not read yet.
pub(super) fn ungreeted(
    context: &Context,
    stop: CancellationToken,
    trusted: bool,
    wrap: impl FnOnce(DuplexStream) -> Box<dyn ClientStream>,
) -> DuplexStream {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let (context, link) = (context.clone(), wrap(far));
    tokio::spawn(async move {
        let peer = ClientPeer {
            caller: Caller::new(
                if trusted { Origin::Unix } else { Origin::Tcp },
                trusted,
                CallerName::Unknown,
            ),
            host: None,
            name: "test".to_owned(),
        };
        session::run(
            &context,
            link,
            &peer,
            &ServerLimits::default(),
            &Stop { commands: stop, ..Stop::default() },
        )
        .await;
    });
    near
}

/// A running service on a Unix socket in a directory of its own.
pub(super) struct Service {
    pub(super) path: PathBuf,
    _directory: tempfile::TempDir,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Service {
    pub(super) fn start(context: &Context, limits: ServerLimits) -> Self {
        let directory = tempfile::tempdir().expect("room for a directory");
        let path = directory.path().join("s");
        let mut server = Server::new(context.clone(), limits);
        server.listen_unix(&path, 0o600).expect("a free path");
        let stop = CancellationToken::new();
        let task = tokio::spawn(server.run(CancellationToken::new(), stop.clone()));
        Self { path, _directory: directory, stop, task }
    }

    pub(super) async fn connect(&self) -> Client<UnixStream> {
        Client::greeted(connect(&self.path).await).await
    }

    /// Stops the service, and expects it to end.
    pub(super) async fn stop(self) {
        self.stop.cancel();
        timeout(DEADLINE, self.task).await.expect("the service ends").expect("and does not panic");
        assert!(!self.path.exists(), "the socket file is removed");
    }
}

pub(super) async fn connect(path: &Path) -> UnixStream {
    UnixStream::connect(path).await.expect("somebody listens")
}

/// Repeats a command until the answer is the wanted one.
pub(super) async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut ask: impl FnMut() -> F) -> T {
    let asking = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::task::yield_now().await;
        }
    };
    timeout(DEADLINE, asking).await.unwrap_or_else(|_| panic!("never happened: {what}"))
}
