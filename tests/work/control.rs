//! A mesh in memory: engines by node name, each behind a control service that knows the commands for remote
//! units only. Links can be cut and nodes stopped.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};

use meshd::rpc::follow::{ANSWER, KEEPS_PIECES};
use meshd::rpc::request::SubmitRequest;
use meshd::stream::Peer;
use meshd::wire::{NodeId, ServiceName};
use meshd::work::{
    self, Caller, Dialed, Dialer, Origin, Outcome, Registry, Started, StreamDialing, StreamFailure,
    UnitReport, UnitSubmission, WorkError, follow,
};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, DuplexStream, ReadHalf, WriteHalf};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;

use crate::harness::node;
use crate::turns::{Strict, Turns};

pub(crate) struct Mesh {
    own: Weak<Self>,
    name: NodeId,
    state: Mutex<State>,
    /// Whether no node answers, as if all routes were lost, and whether the dialers know that.
    lost: watch::Sender<(bool, bool)>,
    in_vain: Notify,
    /// Nodes create units, but do not answer yet.
    slow: watch::Sender<bool>,
    /// Grows with each route that is found again.
    ways: watch::Sender<u64>,
    turns: Arc<Turns>,
}

struct State {
    nodes: BTreeMap<String, Registry>,
    links: Vec<AbortHandle>,
    peer: Peer,
    stalled: bool,
    denies: bool,
    pieces: Pieces,
    /// The starts that nodes were asked for, and whether the payload was to come in pieces.
    starts: Vec<bool>,
    /// Where the next connection breaks.
    breaks: Option<Place>,
    /// With it all nodes are gone.
    breaks_all: bool,
}

/// What nodes say of payloads in pieces. None of them can put one together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pieces {
    /// As a version that does not know them.
    Unknown,
    /// They say that they keep pieces.
    Promised,
    /// They refuse every payload, as if it were pieces that do not fit.
    Refused,
}

/// Where a connection that starts a unit can break.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    BeforeTheLine,
    BeforeThePayload,
    BeforeTheStart,
    BeforeTheFirstFrame,
    AfterTheFirstFrame,
}

impl Mesh {
    pub(crate) fn new(name: &str) -> Arc<Self> {
        Arc::new_cyclic(|own| Self {
            own: own.clone(),
            name: node(name),
            state: Mutex::new(State {
                nodes: BTreeMap::new(),
                links: Vec::new(),
                peer: Peer::Meshd,
                stalled: false,
                denies: false,
                pieces: Pieces::Unknown,
                starts: Vec::new(),
                breaks: None,
                breaks_all: false,
            }),
            lost: watch::Sender::default(),
            in_vain: Notify::new(),
            slow: watch::Sender::default(),
            ways: watch::Sender::default(),
            turns: Arc::default(),
        })
    }

    /// The same mesh without any nodes. The old one has none any more either.
    pub(crate) fn renewed(&self) -> Arc<Self> {
        self.state.lock().unwrap().nodes.clear();
        self.cut();
        Self::new(self.name.as_str())
    }

    pub(crate) fn set(&self, name: &str, registry: Registry) {
        self.state.lock().unwrap().nodes.insert(name.into(), registry);
    }

    pub(crate) fn take_down(&self, name: &str) {
        self.state.lock().unwrap().nodes.remove(name).unwrap();
        self.cut();
    }

    pub(crate) fn cut(&self) {
        self.state.lock().unwrap().links.drain(..).for_each(|link| link.abort());
    }

    /// Nodes accept submissions and then fall silent.
    pub(crate) fn stall(&self, stalled: bool) {
        self.state.lock().unwrap().stalled = stalled;
    }

    /// Nodes create units, but answer only when they are no longer slow.
    pub(crate) fn slow(&self, slow: bool) {
        self.slow.send_replace(slow);
    }

    /// All routes were lost for a moment, and connections did not notice.
    pub(crate) fn flap(&self) {
        self.ways.send_modify(|ways| *ways += 1);
    }

    /// From now on no node answers; `known` says whether the routes are gone, too.
    pub(crate) fn lose(&self, known: bool) {
        self.lost.send_replace((true, known));
    }

    /// Completes once somebody waits for an answer that will not arrive.
    pub(crate) async fn dialled_in_vain(&self) {
        self.in_vain.notified().await;
    }

    /// Nodes agree to cancel, do not, and say that everything runs.
    pub(crate) fn deny(&self) {
        self.state.lock().unwrap().denies = true;
    }

    pub(crate) fn set_pieces(&self, pieces: Pieces) {
        self.state.lock().unwrap().pieces = pieces;
    }

    /// The starts that nodes were asked for, and whether the payload was to come in pieces.
    pub(crate) fn starts(&self) -> Vec<bool> {
        self.state.lock().unwrap().starts.clone()
    }

    pub(crate) fn pretend_go(&self, go: bool) {
        self.state.lock().unwrap().peer = if go { Peer::Receptor } else { Peer::Meshd };
    }

    /// The next connection that gets there breaks.
    pub(crate) fn break_at(&self, place: Place) {
        self.state.lock().unwrap().breaks = Some(place);
    }

    /// The same, and then no node can be reached until it is set again.
    pub(crate) fn break_all_at(&self, place: Place) {
        self.state.lock().unwrap().breaks_all = true;
        self.break_at(place);
    }

    /// Whether a connection is still to break.
    pub(crate) fn is_to_break(&self) -> bool {
        self.state.lock().unwrap().breaks.is_some()
    }

    /// The turns that requests to the other nodes take.
    pub(crate) fn turns(&self) -> &Turns {
        &self.turns
    }

    fn here(&self, place: Place) -> Result<(), WorkError> {
        let mut state = self.state.lock().unwrap();
        match state.breaks.take_if(|breaks| *breaks == place) {
            Some(_) => {
                if std::mem::take(&mut state.breaks_all) {
                    state.nodes.clear();
                }
                Err(WorkError::Connection(io::ErrorKind::ConnectionReset.into()))
            }
            None => Ok(()),
        }
    }
}

impl Dialer for Mesh {
    fn dial(&self, node: NodeId, service: ServiceName, _: Option<String>) -> StreamDialing {
        assert_eq!(service, ServiceName::CONTROL);
        let mut state = self.state.lock().unwrap();
        let Some(registry) = state.nodes.get(node.as_str()).cloned() else {
            return Box::pin(async move { Err(StreamFailure::Unreachable(format!("no route to {node}"))) });
        };
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        if self.lost.borrow().0 {
            let silent = async move {
                std::future::pending::<()>().await;
                drop(theirs);
            };
            state.links.push(tokio::spawn(silent).abort_handle());
            self.in_vain.notify_one();
            let peer = state.peer;
            return Box::pin(async move { Ok(Dialed { stream: Box::new(ours), peer }) });
        }
        let State { peer, stalled, denies, .. } = *state;
        let (slow, mesh) = (self.slow.subscribe(), self.own.clone());
        let mode =
            Mode { caller: self.name.clone(), go: peer == Peer::Receptor, stalled, denies, slow, mesh };
        let task = tokio::spawn(async move { drop(serve(theirs, node, registry, mode).await) });
        state.links.push(task.abort_handle());
        let ours = Strict::new(ours, task.abort_handle(), self.turns.clone());
        Box::pin(async move { Ok(Dialed { stream: Box::new(ours), peer }) })
    }

    fn knows_profile(&self, _name: &str) -> bool {
        false
    }

    fn appears(&self, _node: NodeId) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let mut ways = self.ways.subscribe();
        Box::pin(async move { drop(ways.changed().await) })
    }

    fn disappears(&self, _node: NodeId) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let mut lost = self.lost.subscribe();
        Box::pin(async move { drop(lost.wait_for(|(_, known)| *known).await) })
    }

    fn node_id(&self) -> &NodeId {
        &self.name
    }
}

type Reader = BufReader<ReadHalf<DuplexStream>>;
type Writer = WriteHalf<DuplexStream>;

/// The behaviour of a node.
struct Mode {
    caller: NodeId,
    go: bool,
    stalled: bool,
    denies: bool,
    slow: watch::Receiver<bool>,
    mesh: Weak<Mesh>,
}

impl Mode {
    fn caller(&self) -> Caller {
        let origin = Origin::Mesh { node: self.caller.hash(), certified: false };
        Caller { origin, ..Caller::default() }
    }

    /// What a node says of pieces when it is asked for a start.
    fn pieces(&self, are_asked: bool) -> Result<&'static str, WorkError> {
        let Some(mesh) = self.mesh.upgrade() else { return Ok("") };
        let mut state = mesh.state.lock().unwrap();
        state.starts.push(are_asked);
        match state.pieces {
            Pieces::Refused => {
                Err(WorkError::NotStarted("cannot put the payload together: it is another one".into()))
            }
            _ if are_asked => Err(WorkError::NotStarted(
                "submit parameters must all be strings and payloadpieces is not".into(),
            )),
            Pieces::Promised => Ok(KEEPS_PIECES),
            Pieces::Unknown => Ok(""),
        }
    }

    fn here(&self, place: Place) -> Result<(), WorkError> {
        self.mesh.upgrade().map_or(Ok(()), |mesh| mesh.here(place))
    }
}

async fn serve(stream: DuplexStream, name: NodeId, registry: Registry, mut mode: Mode) -> io::Result<()> {
    let (reader, mut writer) = tokio::io::split(stream);
    let mut reader = BufReader::new(reader);
    writer.write_all(format!("Receptor Control, node {name}\n").as_bytes()).await?;
    let mut line = String::new();
    while reader.read_line(&mut line).await? > 0 {
        let command: Value = serde_json::from_str(&line).unwrap_or_else(|_| words(&line));
        match answer(&command, &registry, &mut reader, &mut writer, &mut mode).await {
            Ok(None) => break,
            Ok(Some(text)) => writer.write_all(format!("{text}\n").as_bytes()).await?,
            Err(WorkError::Connection(error)) => return Err(error),
            Err(error) => {
                writer.write_all(format!("ERROR: {error}\n").as_bytes()).await?;
                if ["submit", "start"].contains(&command["subcommand"].as_str().unwrap()) {
                    break;
                }
            }
        }
        line.clear();
    }
    writer.shutdown().await
}

fn words(line: &str) -> Value {
    let words: Vec<&str> = line.split_whitespace().collect();
    serde_json::json!({"command": words[0], "subcommand": words[1], "unitid": words.get(2)})
}

async fn answer(
    command: &Value,
    registry: &Registry,
    reader: &mut Reader,
    writer: &mut Writer,
    mode: &mut Mode,
) -> Result<Option<String>, WorkError> {
    assert_eq!(command["command"], "work");
    let id = command["unitid"].as_str().unwrap_or_default();
    let start = command["startpos"].as_u64().unwrap_or_default();
    let signature = command["signature"].as_str().map(str::to_owned);
    let caller = Caller { signature, ..Caller::default() };
    let told = |outcome: Outcome, done: &str, pending: &str| match outcome {
        Outcome::Done => serde_json::json!({done: id}).to_string(),
        Outcome::Pending => serde_json::json!({pending: id}).to_string(),
    };
    match command["subcommand"].as_str().unwrap() {
        "submit" => submit(command, registry, reader, writer, mode).await.map(Some),
        "start" if !mode.go => start_at_once(command, registry, reader, writer, mode).await.map(|()| None),
        "list" => Ok(Some(listed(registry, mode.go).await?)),
        "status" if mode.denies => {
            let report = UnitReport { state: work::State::Running, ..registry.status(id).await? };
            Ok(Some(serde_json::to_string(&report).unwrap()))
        }
        "cancel" if mode.denies => Ok(Some(told(Outcome::Done, "cancelled", ""))),
        "status" => {
            let report = registry.status(id).await?;
            Ok(Some(serde_json::to_string(&report).unwrap()))
        }
        "cancel" => registry.cancel(id, &caller).await.map(|o| Some(told(o, "cancelled", "cancel pending"))),
        "release" => {
            let caller = Caller { signature: caller.signature, ..mode.caller() };
            registry.release(id, false, &caller).await.map(|o| Some(told(o, "released", "release pending")))
        }
        "disclaim" if !mode.go => {
            let kind = command["worktype"].as_str().unwrap();
            let report = registry.disclaim(id, kind, &caller).await?;
            let promise = serde_json::json!({ "disclaimed": id });
            Ok(Some(report.map_or(promise, |report| serde_json::to_value(report).unwrap()).to_string()))
        }
        "follow" if !mode.go => {
            let frames = follow::Frames::open(registry, id, start, &caller).await?;
            tokio::select! {
                told = tell(id, frames, writer, || Ok(())) => told.map(|()| None),
                _gone = reader.read_u8() => Ok(None),
            }
        }
        "results" => {
            let mut results = registry.results(id, start, &caller).await?;
            let line = format!("Streaming results for work unit {id}\n");
            writer.write_all(line.as_bytes()).await.map_err(WorkError::Connection)?;
            while let Some(chunk) = results.next().await? {
                writer.write_all(&chunk).await.map_err(WorkError::Connection)?;
            }
            Ok(None)
        }
        _ => Err(WorkError::NotStarted("bad command".into())),
    }
}

/// All units. A Go node shows no parameters of those that have ended.
async fn listed(registry: &Registry, go: bool) -> Result<String, WorkError> {
    let mut units = serde_json::to_value(registry.list(None).await?).unwrap();
    for unit in units.as_object_mut().unwrap().values_mut() {
        if go && unit["State"].as_u64() > Some(1) {
            unit["ExtraData"] = Value::Null;
        }
    }
    Ok(units.to_string())
}

/// Sends the frames of a unit. `between` is called after the first one.
async fn tell(
    id: &str,
    mut frames: follow::Frames,
    writer: &mut Writer,
    between: impl Fn() -> Result<(), WorkError>,
) -> Result<(), WorkError> {
    writer.write_all(format!("{ANSWER}{id}\n").as_bytes()).await.map_err(WorkError::Connection)?;
    while let Some(frame) = frames.next().await? {
        frame.write(writer).await.map_err(WorkError::Connection)?;
        between()?;
    }
    Ok(())
}

/// What a submission asks for, and who asks.
fn asked(command: &Value, mode: &Mode) -> (SubmitRequest, Caller) {
    let mut params: BTreeMap<String, String> = serde_json::from_value(command.clone()).unwrap();
    let mut take = |name: &str| params.remove(name).unwrap();
    let (node, work_type) = (take("node"), take("worktype"));
    for fixed in ["command", "subcommand", "tlsclient"] {
        take(fixed);
    }
    // A Go node of 1.4 does not know the parameter, and chooses the ID itself.
    let unit_id = params.remove("workUnitID").filter(|_| !mode.go);
    let signature = params.remove("signature");
    let caller = Caller { signature, ..mode.caller() };
    let at_once = command["subcommand"] == "start";
    (SubmitRequest { node, work_type, params, unit_id, at_once, ..SubmitRequest::default() }, caller)
}

async fn start_at_once(
    command: &Value,
    registry: &Registry,
    reader: &mut Reader,
    writer: &mut Writer,
    mode: &mut Mode,
) -> Result<(), WorkError> {
    mode.here(Place::BeforeTheLine)?;
    let promise = mode.pieces(command["payloadpieces"] == true)?;
    let (request, mut caller) = asked(command, mode);
    let tokens = caller.signature.take();
    let mut tokens = tokens.iter().flat_map(|both| both.split(' ')).map(str::to_owned);
    let (submitter, follower) = (tokens.next(), tokens.next());
    let submitter = Caller { signature: submitter, ..caller.clone() };
    let mut submission = registry.submit(request, submitter).await?;
    let id = submission.id().to_string();
    let follower = Caller { signature: follower, ..caller };
    let ready = async {
        let frames = follow::Frames::open(registry, &id, 0, &follower).await?;
        mode.here(Place::BeforeThePayload)?;
        drop(mode.slow.wait_for(|slow| !slow).await);
        if mode.stalled {
            std::future::pending::<()>().await;
        }
        take_payload(reader, &mut submission).await?;
        mode.here(Place::BeforeTheStart)?;
        Ok(frames)
    };
    let frames = match ready.await {
        Ok(frames) => frames,
        Err(error) => {
            submission.discard("it broke".into()).await;
            return Err(error);
        }
    };
    submission.finish_or_discard().await?;
    mode.here(Place::BeforeTheFirstFrame)?;
    tell(&format!("{id}{promise}"), frames, writer, || mode.here(Place::AfterTheFirstFrame)).await
}

async fn take_payload(reader: &mut Reader, submission: &mut UnitSubmission) -> Result<(), WorkError> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match reader.read(&mut buffer).await.map_err(WorkError::Connection)? {
            0 => return Ok(()),
            length => submission.write(&buffer[..length]).await?,
        }
    }
}

async fn submit(
    command: &Value,
    registry: &Registry,
    reader: &mut Reader,
    writer: &mut Writer,
    mode: &mut Mode,
) -> Result<String, WorkError> {
    let (submit, caller) = asked(command, mode);
    let mut submission = registry.submit(submit, caller).await?;
    let id = submission.id().to_string();
    drop(mode.slow.wait_for(|slow| !slow).await);
    let line = format!("Work unit created with ID {id}. Send stdin data and EOF.\n");
    writer.write_all(line.as_bytes()).await.map_err(WorkError::Connection)?;
    if mode.stalled {
        std::future::pending::<()>().await;
    }
    take_payload(reader, &mut submission).await?;
    let result = match submission.finish().await? {
        Started::Started => "Job Started",
        Started::Submitted => "Job Submitted",
    };
    Ok(serde_json::json!({"unitid": id, "result": result}).to_string())
}
