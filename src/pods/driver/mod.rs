//! The task of one unit: it owns the unit's [`Machine`], does what that asks for, in order, and feeds it what comes of
//! it. A status is durable before anything after it is done; meanwhile the log is read on. Decides nothing.
//!
//! - `requests`: what the API server is asked, and what comes of it. `stdin`: the attach stream.
//! - `stdout`: the files that output goes to. `commands`: what clients ask for. `tcp`: pods that connect to this node.

mod commands;
mod requests;
mod stdin;
mod stdout;
mod tcp;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};

use self::commands::Waiting;
pub use self::commands::{Command, Commands, Removed};
use self::requests::ApiNews;
use self::stdin::{Attach, sent};
use self::stdout::{StdoutFile, Stored, Storing};
use self::tcp::TcpPeer;
use super::api::{LogStream, PodName};
use super::cluster::Cluster;
use super::log::cursor::Cursor;
use super::log::{StreamEnd, Took};
use super::machine::{Machine, MachineOutput, PodRecord, Recorded, StatusChange, StreamId, UnitSettings};
use super::pod::Template;
use super::watch::{Subscription, WatchNews};
use crate::rpc::UnitState as State;

/// The unit that a driver works for.
pub trait Unit: Send + Sync + 'static {
    /// Its directory, with `stdin` in it.
    fn dir(&self) -> PathBuf;

    /// Returns once its pod may be made and deleted.
    fn may_act(&self) -> Permit;

    /// Returns once its payload may be sent to its pod, from when on it may run.
    fn may_send(&self) -> Permit;

    /// Makes a status durable and shows it, however long that takes.
    fn record(&self, change: StatusChange, stdout_size: u64) -> Recording;
}

/// A status on its way to the disk.
pub type Recording = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The leave to do something in a cluster.
pub type Permit = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What a driver is started with.
pub struct PodRun {
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
pub fn start(run: PodRun) -> Commands {
    let (commands, inbox) = commands::channel();
    tokio::spawn(async move {
        let (unit, record) = (run.unit.clone(), run.begin.record().clone());
        match Driver::new(run, inbox).await {
            // Boxed, as each task that it is moved into has a copy of it otherwise.
            Ok(driver) => Box::new(driver).run().await,
            Err(error) => {
                let detail = format!("Error opening stdout file: {error}");
                unit.record(StatusChange { state: State::Failed, detail, record }, 0).await;
            }
        }
    });
    commands
}

struct Driver {
    machine: Machine,
    unit: Arc<dyn Unit>,
    cluster: Arc<Cluster>,
    template: Option<Template>,
    pod: PodRecord,
    stdout: StdoutFile,
    /// Requests that are not answered yet; dropped with the driver.
    requests: JoinSet<ApiNews>,
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
    /// Nobody wants its pod any more: what has waited for leave to make it makes none.
    is_unwanted: watch::Sender<bool>,
    /// Its pod is deleted without leave.
    is_forced: bool,
}

impl Driver {
    async fn new(run: PodRun, inbox: mpsc::UnboundedReceiver<Command>) -> std::io::Result<Self> {
        let PodRun { unit, cluster, mut template, listen_at, settings, begin } = run;
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
            is_unwanted: watch::Sender::new(false),
            is_forced: false,
        };
        if let Some(problem) = problem {
            driver.machine.handle_failure(now(), problem);
        }
        Ok(driver)
    }

    async fn run(mut self: Box<Self>) {
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
        let is_done = self.waiting.is_released || self.waiting.is_forgotten() || self.machine.is_idle();
        !is_busy && self.waiting.is_empty() && is_done
    }

    async fn close(mut self: Box<Self>) {
        self.inbox.close();
        self.requests.shutdown().await;
    }

    /// Does what the machine asks for, up to a status, which has to be durable first.
    fn act(&mut self) {
        // What a status says of stdout has to be there.
        while self.recording.is_none() && self.storing.is_none() && !self.waiting.is_forgotten() {
            let Some(output) = self.machine.poll_output() else {
                self.waiting.answer_cancels();
                return;
            };
            match output {
                MachineOutput::Status(change) => self.record(change),
                MachineOutput::Request(request) => self.ask(request),
                MachineOutput::Waits(why) => {
                    let dir = self.unit.dir();
                    let unit = dir.file_name().unwrap_or_default().display();
                    tracing::warn!(%unit, pod = self.pod.pod_name, why, "a unit waits for its API server");
                }
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

    fn on_piece(&mut self, stream: StreamId, piece: Option<std::io::Result<Bytes>>) {
        let (now, mut out) = (now(), Vec::new());
        let (took, end) = match piece {
            Some(Ok(bytes)) => (self.machine.handle_log(now, stream, &bytes, &mut out), None),
            None => (self.machine.handle_log_held(now, stream, &mut out), Some(StreamEnd::InOrder)),
            Some(Err(_)) => (Took::default(), Some(StreamEnd::Broken)),
        };
        if !out.is_empty() {
            // If it was the end, the stream says so again once this is stored.
            self.storing = Some(self.stdout.store(took.at, out, self.machine.cursor()));
        } else if let Some(end) = end {
            self.logs.remove(&stream);
            self.machine.handle_log_ended(now, stream, end);
        }
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
