//! The task of one unit: it owns the unit's [`Machine`], does what that asks for, in order, and feeds it what comes of
//! it. A status is durable before anything after it is done; meanwhile the log is read on. Decides nothing.
//!
//! - `stdout`: the files that output goes to. `commands`: what clients ask for. `tcp`: pods that connect to this node.

mod commands;
mod stdout;
mod tcp;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures_util::StreamExt as _;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};

use self::commands::Waiting;
pub use self::commands::{Command, Commands, Removed};
use self::stdout::{StdoutFile, Stored, Storing};
use self::tcp::TcpPeer;
use super::api::{AttachError, LogStream, PodName, StdinStream};
use super::api_error::ApiError;
use super::cluster::Cluster;
use super::log::StreamEnd;
use super::log::cursor::Cursor;
use super::machine::{
    ApiRequest, AttachNews, Machine, MachineOutput, PodRecord, Recorded, StatusChange, StreamId, UnitSettings,
};
use super::pod::Template;
use super::pod_status::PodSeen;
use super::watch::{Subscription, WatchNews};
use crate::work::unit::State;

/// The unit that a driver works for.
pub trait Unit: Send + Sync + 'static {
    /// Its directory, with `stdin` in it.
    fn dir(&self) -> PathBuf;

    /// Makes a status durable and shows it, however long that takes.
    fn record(&self, change: StatusChange, stdout_size: u64) -> Recording;
}

/// A status on its way to the disk.
pub type Recording = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What a driver is started with.
pub struct Job {
    /// The unit.
    pub unit: Arc<dyn Unit>,
    /// Where its pod is.
    pub cluster: Arc<Cluster>,
    /// The pod; none for one that somebody else made, and where only a deletion is left to do.
    pub template: Option<Template>,
    /// The address that its pod connects to, if it is to.
    pub listen_at: Option<IpAddr>,
    /// What does not change while it lives.
    pub settings: UnitSettings,
    /// Where it stands.
    pub begin: Begin,
}

/// Where a unit stands when its driver starts.
pub enum Begin {
    /// It was just submitted.
    Submitted(PodRecord),
    /// An earlier driver, or daemon, left it so.
    Left(State, String, PodRecord),
}

impl Begin {
    fn record(&self) -> &PodRecord {
        match self {
            Self::Submitted(record) | Self::Left(_, _, record) => record,
        }
    }
}

/// Starts a driver; it ends when nothing of its unit needs one.
pub fn start(job: Job) -> Commands {
    let (commands, inbox) = commands::channel();
    tokio::spawn(async move {
        let (unit, record) = (job.unit.clone(), job.begin.record().clone());
        match Driver::new(job, inbox).await {
            Ok(driver) => driver.run().await,
            Err(error) => {
                let detail = format!("Error opening stdout file: {error}");
                unit.record(StatusChange { state: State::Failed, detail, record }, 0).await;
            }
        }
    });
    commands
}

/// What comes of a request.
enum News {
    Created(Result<Value, ApiError>),
    Got(Result<Value, ApiError>),
    /// The pod was looked at because the watch has lost it.
    LookedAt(Result<Value, ApiError>),
    Attached(u32, Result<Box<dyn StdinStream>, ApiError>),
    StdinEnded(u32, Result<(), AttachError>),
    LogOpened(StreamId, Result<LogStream, ApiError>),
    Event(Result<Option<String>, ApiError>),
    Deleted(Result<(), ApiError>),
}

struct Driver {
    machine: Machine,
    unit: Arc<dyn Unit>,
    cluster: Arc<Cluster>,
    template: Option<Template>,
    /// What is recorded of its pod.
    pod: PodRecord,
    stdout: StdoutFile,
    /// Requests that are not answered yet; dropped with the driver.
    requests: JoinSet<News>,
    watch: Option<Subscription>,
    is_watching: bool,
    /// The streams that are open, one of which is read.
    logs: BTreeMap<StreamId, LogStream>,
    opening: BTreeMap<StreamId, AbortHandle>,
    attach: Attach,
    tcp: Option<TcpPeer>,
    recording: Option<Recording>,
    storing: Option<Storing>,
    syncing: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    inbox: mpsc::UnboundedReceiver<Command>,
    waiting: Waiting,
}

/// The attach stream.
#[derive(Default)]
struct Attach {
    /// Counts streams, so that an earlier one's news are known as such.
    number: u32,
    task: Option<AbortHandle>,
    stream: Option<Box<dyn StdinStream>>,
    /// Says when all was sent.
    sent: Option<oneshot::Receiver<()>>,
}

impl Driver {
    async fn new(job: Job, inbox: mpsc::UnboundedReceiver<Command>) -> std::io::Result<Self> {
        let Job { unit, cluster, mut template, listen_at, settings, begin } = job;
        let dir = unit.dir();
        let opened = tokio::task::spawn_blocking(move || StdoutFile::open(&dir, stdout::boot()));
        let (stdout, cursor) = opened.await.map_err(std::io::Error::other)??;
        let mut tcp = None;
        let mut problem = None;
        if let (Some(address), Some(template)) = (listen_at, &mut template) {
            match TcpPeer::listen(address).await {
                Ok((peer, port)) => {
                    problem = template
                        .connects_to(&address.to_string(), port)
                        .err()
                        .map(|error| format!("Error creating pod: {error}"));
                    tcp = Some(peer);
                }
                Err(error) => problem = Some(error),
            }
        }
        let (machine, pod) = start_machine(settings, begin, &stdout, cursor);
        let mut driver = Self {
            machine,
            unit,
            cluster,
            template,
            pod,
            stdout,
            requests: JoinSet::new(),
            watch: None,
            is_watching: false,
            logs: BTreeMap::new(),
            opening: BTreeMap::new(),
            attach: Attach::default(),
            tcp,
            recording: None,
            storing: None,
            syncing: None,
            inbox,
            waiting: Waiting::default(),
        };
        if let Some(problem) = problem {
            driver.machine.handle_failure(now(), problem);
        }
        Ok(driver)
    }

    async fn run(mut self) {
        loop {
            self.act();
            if self.is_over() {
                match self.inbox.try_recv() {
                    Ok(command) => self.obey(command),
                    Err(_) => return self.close().await,
                }
                continue;
            }
            let timeout = self.machine.poll_timeout().map(|(at, _)| at);
            let sync_at = self.stdout.sync_at().filter(|_| self.syncing.is_none());
            let has_room = self.storing.is_none();
            tokio::select! {
                () = finished(&mut self.recording) => {}
                stored = finished(&mut self.storing) => self.on_stored(stored),
                () = finished(&mut self.syncing) => {}
                Some(news) = self.requests.join_next() => {
                    // One that was aborted has no news.
                    if let Ok(news) = news {
                        self.on_news(news);
                    }
                }
                news = next_news(&mut self.watch) => self.on_watched(news),
                () = sent(&mut self.attach.sent) => self.on_sent(),
                (stream, piece) = next_piece(&self.machine, &mut self.logs, has_room) => {
                    self.on_piece(stream, piece);
                }
                event = tcp::next(&mut self.tcp, self.machine.pod(), has_room) => {
                    self.on_tcp(event);
                }
                Some(command) = self.inbox.recv() => self.obey(command),
                () = until(timeout) => self.machine.handle_timeout(now()),
                () = until(sync_at.map(tokio::time::Instant::into_std)) => {
                    self.syncing = Some(self.stdout.sync());
                }
            }
        }
    }

    /// Nothing is left to do, and nobody waits for an answer.
    fn is_over(&self) -> bool {
        let is_busy = self.recording.is_some() || self.storing.is_some() || self.syncing.is_some();
        !is_busy && self.waiting.is_empty() && (self.waiting.is_released || self.machine.is_idle())
    }

    async fn close(mut self) {
        self.inbox.close();
        self.requests.shutdown().await;
    }

    /// Does what the machine asks for, up to a status, which has to be durable first.
    fn act(&mut self) {
        // What a status says of stdout has to be there.
        while self.recording.is_none() && self.storing.is_none() {
            let Some(output) = self.machine.poll_output() else {
                self.waiting.answer_cancels();
                return;
            };
            match output {
                MachineOutput::Status(change) => self.record(change),
                MachineOutput::Request(request) => self.ask(request),
                MachineOutput::ReleasePending(why) => self.waiting.answer_releases(&Removed::Pending(why)),
                MachineOutput::Released { is_gone } => {
                    self.waiting.is_released = true;
                    self.waiting.answer_releases(&Removed::Done { is_gone });
                }
            }
        }
    }

    fn record(&mut self, change: StatusChange) {
        self.pod = change.record.clone();
        let size = self.stdout_size();
        let recorded = self.unit.clone();
        let synced = change.state.is_final().then(|| self.stdout.sync());
        self.recording = Some(Box::pin(async move {
            if let Some(synced) = synced {
                synced.await;
            }
            recorded.record(change, size).await;
        }));
    }

    fn stdout_size(&self) -> u64 {
        match &self.tcp {
            Some(_) => self.stdout.size(),
            None => self.machine.stdout_size(),
        }
    }

    fn pod_name(&self) -> PodName {
        PodName { namespace: self.pod.namespace.clone(), name: self.pod.pod_name.clone() }
    }

    fn ask(&mut self, request: ApiRequest) {
        let (api, pod) = (self.cluster.api.clone(), self.pod_name());
        match request {
            ApiRequest::Watch => {
                self.is_watching = true;
                self.follow();
            }
            ApiRequest::Create(name) => {
                self.follow();
                let Some(template) = &self.template else { return };
                let answer = self.cluster.create(template.namespace(), &template.named(&name));
                self.requests.spawn(async move { News::Created(answer.await) });
            }
            ApiRequest::GetPod => {
                let answer = api.get(&pod);
                self.requests.spawn(async move { News::Got(answer.await) });
            }
            ApiRequest::Attach => {
                self.attach.number += 1;
                let (number, answer) = (self.attach.number, api.attach(&pod));
                let task = self.requests.spawn(async move { News::Attached(number, answer.await) });
                self.attach.task = Some(task);
            }
            ApiRequest::SendStdin => self.send_stdin(),
            ApiRequest::CloseAttach => self.close_attach(),
            ApiRequest::OpenLog { stream, since, follow } => {
                let answer = api.open_log(&pod, since, follow);
                let task = self.requests.spawn(async move { News::LogOpened(stream, answer.await) });
                self.opening.insert(stream, task);
            }
            ApiRequest::CloseLog(stream) => {
                self.logs.remove(&stream);
                if let Some(task) = self.opening.remove(&stream) {
                    task.abort();
                }
            }
            ApiRequest::GetEvents if !self.cluster.may_read_events() => {
                self.machine.handle_event(now(), None)
            }
            ApiRequest::GetEvents => {
                let answer = api.last_event(&pod.namespace, &self.pod.pod_uid);
                self.requests.spawn(async move { News::Event(answer.await) });
            }
            ApiRequest::Delete(uid) => {
                let answer = api.delete(&pod, &uid);
                self.requests.spawn(async move { News::Deleted(answer.await) });
            }
        }
    }

    /// Follows the pod under its present name.
    fn follow(&mut self) {
        let is_followed = self.watch.as_ref().is_some_and(|watch| watch.name() == self.pod.pod_name);
        if self.is_watching && !is_followed {
            self.watch = Some(self.cluster.follow(&self.pod_name(), !self.pod.adopted));
        }
    }

    fn send_stdin(&mut self) {
        let Some(stream) = self.attach.stream.take() else { return };
        let (sent, is_sent) = oneshot::channel();
        let (number, path) = (self.attach.number, self.unit.dir().join("stdin"));
        let task =
            self.requests.spawn(async move { News::StdinEnded(number, send(stream, &path, sent).await) });
        self.attach.task = Some(task);
        self.attach.sent = Some(is_sent);
    }

    fn close_attach(&mut self) {
        // An earlier stream's number is nobody's any more.
        let number = self.attach.number + 1;
        if let Some(task) = std::mem::take(&mut self.attach).task {
            task.abort();
        }
        self.attach.number = number;
    }

    fn on_sent(&mut self) {
        self.attach.sent = None;
        self.machine.handle_attach(now(), AttachNews::Sent);
    }

    fn on_news(&mut self, news: News) {
        let now = now();
        match news {
            News::Created(answer) => self.machine.handle_created(now, seen(answer)),
            News::Got(answer) => self.machine.handle_pod(now, seen(answer)),
            News::LookedAt(answer) => self.on_looked_at(answer),
            News::Attached(number, _) | News::StdinEnded(number, _) if number != self.attach.number => {}
            News::Attached(_, Ok(stream)) => {
                self.attach.stream = Some(stream);
                self.machine.handle_attach(now, AttachNews::Opened);
            }
            News::Attached(_, Err(error)) => self.machine.handle_attach(now, AttachNews::Refused(error)),
            News::StdinEnded(_, outcome) => {
                if self.attach.sent.take().is_some_and(|mut sent| sent.try_recv().is_ok()) {
                    self.machine.handle_attach(now, AttachNews::Sent);
                }
                self.machine.handle_attach(now, attach_news(outcome));
            }
            News::LogOpened(stream, answer) => {
                if self.opening.remove(&stream).is_none() {
                    return;
                }
                let (opened, answer) = match answer {
                    Ok(opened) => (Some(opened), Ok(())),
                    Err(error) => (None, Err(error)),
                };
                self.machine.handle_log_opened(now, stream, answer);
                if let Some(opened) = opened.filter(|_| self.machine.wants_log(stream)) {
                    self.logs.insert(stream, opened);
                }
            }
            News::Event(answer) => {
                if matches!(answer, Err(ApiError::Forbidden(_))) {
                    self.cluster.note_events_refused();
                }
                self.machine.handle_event(now, answer.ok().flatten().as_deref());
            }
            News::Deleted(answer) => self.machine.handle_deleted(now, answer),
        }
    }

    fn on_watched(&mut self, news: WatchNews) {
        let now = now();
        match news {
            WatchNews::Applied(pod) => self.machine.handle_watched(now, pod),
            WatchNews::Deleted(pod) => self.machine.handle_watched_gone(now, pod),
            // The list may be older than the pod, so the pod itself is asked for.
            WatchNews::Absent if self.machine.pod().is_some() => {
                let answer = self.cluster.api.get(&self.pod_name());
                self.requests.spawn(async move { News::LookedAt(answer.await) });
            }
            WatchNews::Absent => {}
            WatchNews::ServerIsBack => self.machine.handle_server_is_back(now),
            WatchNews::Refused(error) => {
                let text =
                    format!("Error getting pod {}/{}. Error: {error}", self.pod.namespace, self.pod.pod_name);
                self.machine.handle_failure(now, text);
            }
        }
    }

    fn on_looked_at(&mut self, answer: Result<Value, ApiError>) {
        match (answer, self.machine.pod().cloned()) {
            (Ok(pod), _) => self.machine.handle_watched(now(), PodSeen::read(&pod)),
            (Err(ApiError::NotFound(_)), Some(pod)) => self.machine.handle_watched_gone(now(), pod),
            // The next list tells.
            (Err(_), _) => {}
        }
    }

    fn on_piece(&mut self, stream: StreamId, piece: Option<std::io::Result<Bytes>>) {
        let now = now();
        let end = match piece {
            Some(Ok(bytes)) => {
                let mut out = Vec::new();
                let took = self.machine.handle_log(now, stream, &bytes, &mut out);
                if !out.is_empty() {
                    self.storing = Some(self.stdout.store(took.at, out, self.machine.cursor()));
                }
                return;
            }
            Some(Err(_)) => StreamEnd::Broken,
            None => StreamEnd::InOrder,
        };
        self.logs.remove(&stream);
        self.machine.handle_log_ended(now, stream, end);
    }

    fn on_stored(&mut self, stored: Stored) {
        match stored {
            Stored::Written => {}
            Stored::Differs => self.machine.handle_stdout_differs(now()),
        }
    }
}

fn start_machine(
    settings: UnitSettings,
    begin: Begin,
    stdout: &StdoutFile,
    cursor: Cursor,
) -> (Machine, PodRecord) {
    match begin {
        Begin::Submitted(pod) => (Machine::start(settings, pod.clone()), pod),
        Begin::Left(state, detail, pod) => {
            let stdout_size = stdout.size();
            let recorded = Recorded { state, detail, record: pod.clone(), cursor, stdout_size };
            (Machine::restart(settings, recorded, now()), pod)
        }
    }
}

/// The clock, which a test may have stopped.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

fn seen(answer: Result<Value, ApiError>) -> Result<PodSeen, ApiError> {
    answer.map(|pod| PodSeen::read(&pod))
}

fn attach_news(outcome: Result<(), AttachError>) -> AttachNews {
    match outcome {
        Ok(()) => AttachNews::Succeeded,
        Err(AttachError::NeverAttached(message)) => {
            AttachNews::Refused(ApiError::Busy { message, retry_after: None })
        }
        Err(AttachError::Broken(cause)) => AttachNews::Failed(cause),
    }
}

async fn send(
    stream: Box<dyn StdinStream>,
    path: &Path,
    sent: oneshot::Sender<()>,
) -> Result<(), AttachError> {
    let payload = tokio::fs::File::open(path).await;
    let payload =
        payload.map_err(|error| AttachError::Broken(format!("Error opening stdin file: {error}")))?;
    stream.send(payload, sent).await
}

/// Waits for something that may be under way, and takes it away then.
async fn finished<F: Future + Unpin>(slot: &mut Option<F>) -> F::Output {
    match slot {
        Some(work) => {
            let done = work.await;
            *slot = None;
            done
        }
        None => std::future::pending().await,
    }
}

async fn sent(slot: &mut Option<oneshot::Receiver<()>>) {
    // A sender that was dropped has failed, which its stream's end says.
    if finished(slot).await.is_err() {
        std::future::pending().await
    }
}

async fn next_news(watch: &mut Option<Subscription>) -> WatchNews {
    match watch {
        Some(watch) => watch.next().await,
        None => std::future::pending().await,
    }
}

/// The next piece of the stream that the machine reads.
async fn next_piece(
    machine: &Machine,
    logs: &mut BTreeMap<StreamId, LogStream>,
    has_room: bool,
) -> (StreamId, Option<std::io::Result<Bytes>>) {
    match logs.iter_mut().find(|(stream, _)| has_room && machine.wants_log(**stream)) {
        Some((stream, log)) => (*stream, log.next().await),
        None => std::future::pending().await,
    }
}

async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment.into()).await,
        None => std::future::pending().await,
    }
}
