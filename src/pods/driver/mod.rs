//! The task of one unit. It owns the unit's [`Machine`], does in order what the machine asks for, and feeds it the
//! results. A status is durable before the machine's next request is carried out; meanwhile the log is read on. Decides
//! nothing.
//!
//! - `requests`: the requests to the API server, and their results. `stdin`: the attach stream.
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

use self::commands::WaitingClients;
pub use self::commands::{Commands, PodCommand, PodRemoved};
use self::requests::ApiNews;
use self::stdin::{Attach, sent};
use self::stdout::{StdoutFile, Stored, Storing};
use self::tcp::PodTcpPeer;
use super::api::{LogStream, PodName};
use super::cluster::Cluster;
use super::log::cursor::Cursor;
use super::log::{StreamEnd, Took};
use super::machine::{Machine, MachineOutput, PodRecord, Recorded, StatusChange, StreamId, UnitSettings};
use super::pod::Template;
use super::watch::{PodSubscription, WatchNews};
use crate::rpc::UnitState as State;

/// The unit that a driver works for.
pub trait Unit: Send + Sync + 'static {
    /// Its directory, with `stdin` in it.
    fn dir(&self) -> PathBuf;

    /// Returns once its pod may be made and deleted.
    fn may_act(&self) -> Permit;

    /// Returns once its payload may be sent to its pod. From then on the payload may run.
    fn may_send(&self) -> Permit;

    /// Makes a status durable and shows it, however long that takes.
    fn record(&self, change: StatusChange, stdout_size: u64) -> Recording;
}

/// A status on its way to the disk.
pub type Recording = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Waits for leave to do something in a cluster.
pub type Permit = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What a driver is started with.
pub struct PodRun {
    /// The unit.
    pub unit: Arc<dyn Unit>,
    /// Where its pod is.
    pub cluster: Arc<Cluster>,
    /// The pod to make. None if somebody else made it, or if only its deletion is left to do.
    pub template: Option<Template>,
    /// The address that its pod connects to, if it uses TCP.
    pub listen_at: Option<IpAddr>,
    /// What does not change while the unit lives.
    pub settings: UnitSettings,
    /// Where the unit stands.
    pub begin: Begin,
}

/// Where a unit stands when its driver starts.
pub enum Begin {
    /// It was just submitted.
    Submitted(PodRecord),
    /// An earlier driver or daemon left it in this state.
    Left(State, String, PodRecord),
}

impl Begin {
    fn record(&self) -> &PodRecord {
        match self {
            Self::Submitted(record) | Self::Left(_, _, record) => record,
        }
    }
}

/// Starts a driver, which ends when its unit needs none.
pub fn start(run: PodRun) -> Commands {
    let (commands, inbox) = commands::channel();
    tokio::spawn(async move {
        let (unit, record) = (run.unit.clone(), run.begin.record().clone());
        match PodDriver::new(run, inbox).await {
            // Boxed, because each future that the driver is moved into would reserve its size again.
            Ok(driver) => Box::new(driver).run().await,
            Err(error) => {
                let detail = format!("Error opening stdout file: {error}");
                unit.record(StatusChange { state: State::Failed, detail, record }, 0).await;
            }
        }
    });
    commands
}

struct PodDriver {
    machine: Machine,
    unit: Arc<dyn Unit>,
    cluster: Arc<Cluster>,
    template: Option<Template>,
    pod: PodRecord,
    stdout: StdoutFile,
    /// Requests that are not answered yet; dropped with the driver.
    requests: JoinSet<ApiNews>,
    watch: Option<PodSubscription>,
    is_watching: bool,
    /// The open streams. Only one at a time is read.
    logs: BTreeMap<StreamId, LogStream>,
    opening: BTreeMap<StreamId, AbortHandle>,
    attach: Attach,
    tcp: Option<PodTcpPeer>,
    recording: Option<Recording>,
    storing: Option<Storing>,
    syncing: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    inbox: mpsc::UnboundedReceiver<PodCommand>,
    waiting: WaitingClients,
    /// Nobody wants the pod any more: a create that waits for leave is dropped.
    is_unwanted: watch::Sender<bool>,
    /// The pod is deleted without waiting for leave.
    is_forced: bool,
}

impl PodDriver {
    async fn new(run: PodRun, inbox: mpsc::UnboundedReceiver<PodCommand>) -> std::io::Result<Self> {
        let PodRun { unit, cluster, mut template, listen_at, settings, begin } = run;
        let dir = unit.dir();
        let opened = tokio::task::spawn_blocking(move || StdoutFile::open(&dir, stdout::boot()));
        let (stdout, cursor) = opened.await.map_err(std::io::Error::other)??;
        let mut tcp = None;
        let mut problem = None;
        if let (Some(address), Some(template)) = (listen_at, &mut template) {
            match PodTcpPeer::listen(address).await {
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
            waiting: WaitingClients::default(),
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
                    // An aborted request has no news.
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

    /// Does what the machine asks for, up to the next status, which has to be durable before the rest.
    fn act(&mut self) {
        // The output that a status counts has to be stored before it.
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
                    tracing::warn!(%unit, pod = self.pod.pod_name, why, "a unit is waiting for its API server");
                }
                MachineOutput::ReleasePending(why) => self.waiting.answer_releases(&PodRemoved::Pending(why)),
                MachineOutput::Released { is_gone } => {
                    self.waiting.is_released = true;
                    self.waiting.answer_releases(&PodRemoved::Done { is_gone });
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
            // A stream that has ended says so again once this is stored.
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

/// Waits for the future in `slot`, if there is one, then empties the slot.
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

async fn next_news(watch: &mut Option<PodSubscription>) -> WatchNews {
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
