//! The pods of a cluster: what they are, what their workers read and write, and how they end.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use jiff::Timestamp;
use meshd_machine::{self as machine, Host};
use rand::rngs::SmallRng;
use rand::seq::IteratorRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::command::history::{History, Note, digest};
use crate::command::output::Task;

/// Time until a pod's worker runs, and until a deleted pod is gone, in milliseconds.
const STARTS: std::ops::Range<u64> = 0..4000;
const ENDS: std::ops::Range<u64> = 0..2000;

/// The pods of a cluster. Tasks that wait for a change of a pod subscribe to `changed`.
pub(super) struct Pods {
    host: Host,
    all: RefCell<BTreeMap<String, Pod>>,
    events: RefCell<Vec<Value>>,
    /// The earliest moment from which the cluster still knows events.
    known: Cell<usize>,
    made: Cell<u32>,
    changed: watch::Sender<()>,
    rng: RefCell<SmallRng>,
    history: History,
}

struct Pod {
    object: Value,
    stdin: Vec<u8>,
    stream: Stream,
    is_deleted: bool,
    /// The lines that its worker has written.
    log: Vec<Line>,
    /// The last line, which has no end yet.
    rest: Vec<u8>,
}

/// A line of a log, with the time of its end.
pub(super) type Line = (Timestamp, Vec<u8>);

/// The stream that a worker reads, which is the first that is attached.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stream {
    Awaited,
    Open,
    Closed,
}

/// A worker that has begun with a job: the job's name, and its process.
type Run = Cell<Option<(String, machine::Process)>>;

impl Pods {
    pub(super) fn new(host: Host, seed: u64, history: History) -> Rc<Self> {
        Rc::new(Self {
            host,
            all: RefCell::default(),
            events: RefCell::default(),
            known: Cell::default(),
            made: Cell::default(),
            changed: watch::Sender::new(()),
            rng: RefCell::new(SmallRng::seed_from_u64(seed)),
            history,
        })
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.all.borrow().keys().cloned().collect()
    }

    /// Subscribes to changes of pods.
    pub(super) fn news(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// The selected objects, and the present moment.
    pub(super) fn list(&self, is_selected: impl Fn(&Value) -> bool) -> (Vec<Value>, usize) {
        let all = self.all.borrow();
        let selected = all.values().map(|pod| &pod.object).filter(|object| is_selected(object));
        (selected.cloned().collect(), self.events.borrow().len())
    }

    /// The events since a moment, and the present moment; `None` if that moment is too old.
    pub(super) fn since(&self, moment: usize) -> Option<(Vec<Value>, usize)> {
        let events = self.events.borrow();
        (moment >= self.known.get()).then(|| (events[moment..].to_vec(), events.len()))
    }

    pub(super) fn forget_moments(&self) {
        self.known.set(self.events.borrow().len());
    }

    pub(super) fn get(&self, name: &str) -> Option<Value> {
        self.all.borrow().get(name).map(|pod| pod.object.clone())
    }

    /// Creates a pod; `None` if its name is taken.
    pub(super) fn create(self: &Rc<Self>, mut object: Value) -> Option<Value> {
        let name = object["metadata"]["name"].as_str()?.to_owned();
        if self.all.borrow().contains_key(&name) {
            return None;
        }
        self.made.set(self.made.get() + 1);
        object["metadata"]["uid"] = format!("u{}", self.made.get()).into();
        object["status"] = json!({"phase": "Pending"});
        let pod = Pod {
            object,
            stdin: Vec::new(),
            stream: Stream::Awaited,
            is_deleted: false,
            log: Vec::new(),
            rest: Vec::new(),
        };
        self.all.borrow_mut().insert(name.clone(), pod);
        self.tell("ADDED", &name);
        tokio::task::spawn_local(self.clone().live(name.clone()));
        self.get(&name)
    }

    /// Asks a pod to end. The pod exists until it has ended.
    pub(super) fn delete(&self, name: &str) {
        if let Some(pod) = self.all.borrow_mut().get_mut(name) {
            pod.is_deleted = true;
            pod.object["metadata"]["deletionTimestamp"] = Timestamp::now().to_string().into();
        }
        self.tell("MODIFIED", name);
    }

    pub(super) fn evict(&self) {
        let chosen = self.all.borrow().keys().choose(&mut *self.rng.borrow_mut()).cloned();
        if let Some(name) = chosen {
            self.history.tell(format!("somebody deletes {name}"));
            self.delete(&name);
        }
    }

    /// Attaches a stream. Returns false if the worker reads an earlier stream, or if there is no such pod.
    pub(super) fn attach(&self, name: &str) -> bool {
        let mut all = self.all.borrow_mut();
        let Some(pod) = all.get_mut(name).filter(|pod| pod.stream == Stream::Awaited) else { return false };
        pod.stream = Stream::Open;
        true
    }

    pub(super) fn take(&self, name: &str, bytes: &[u8]) {
        if let Some(pod) = self.all.borrow_mut().get_mut(name) {
            pod.stdin.extend_from_slice(bytes);
        }
    }

    /// Closes the stream. The worker cannot tell an end from a break.
    pub(super) fn close(&self, name: &str) {
        if let Some(pod) = self.all.borrow_mut().get_mut(name) {
            pod.stream = Stream::Closed;
        }
        self.changed.send_replace(());
    }

    /// The lines of a log from this number on, and whether the log has ended; `None` before the worker runs.
    pub(super) fn log(&self, name: &str, from: usize) -> Option<(Vec<Line>, bool)> {
        let all = self.all.borrow();
        let pod = all.get(name)?;
        let state = &pod.object["status"]["containerStatuses"][0]["state"];
        let has_ended = state["terminated"].is_object();
        (has_ended || state["running"].is_object()).then(|| (pod.log[from..].to_vec(), has_ended))
    }

    fn tell(&self, kind: &str, name: &str) {
        if let Some(pod) = self.all.borrow_mut().get_mut(name) {
            let mut events = self.events.borrow_mut();
            pod.object["metadata"]["resourceVersion"] = (events.len() + 1).to_string().into();
            events.push(json!({"type": kind, "object": pod.object}));
        }
        self.changed.send_replace(());
    }

    async fn until<T>(&self, mut found: impl FnMut() -> Option<T>) -> T {
        let mut news = self.news();
        loop {
            if let Some(found) = found() {
                return found;
            }
            news.changed().await.expect("the pods are there");
        }
    }

    fn millis(&self, range: std::ops::Range<u64>) -> Duration {
        Duration::from_millis(self.rng.borrow_mut().random_range(range))
    }

    /// The life of a pod.
    async fn live(self: Rc<Self>, name: String) {
        let is_deleted = || self.all.borrow()[&name].is_deleted.then_some(());
        let run = Run::default();
        let code = tokio::select! {
            code = self.work(&name, &run) => Some(code),
            () = self.until(is_deleted) => None,
        };
        if let Some(code) = code {
            let (phase, reason) = if code == 0 { ("Succeeded", "Completed") } else { ("Failed", "Error") };
            self.set_worker(&name, phase, &json!({"terminated": {"exitCode": code, "reason": reason}}));
        }
        self.until(is_deleted).await;
        sleep(self.millis(ENDS)).await;
        if let Some((tag, process)) = run.take() {
            self.history.note(Note::Killed { tag, pid: process.pid });
            process.end(137);
        }
        if code.is_none() {
            self.set_worker(&name, "Failed", &json!({"terminated": {"exitCode": 137, "reason": "Error"}}));
        }
        self.tell("DELETED", &name);
        self.all.borrow_mut().remove(&name);
        self.changed.send_replace(());
    }

    fn set_worker(&self, name: &str, phase: &str, state: &Value) {
        if let Some(pod) = self.all.borrow_mut().get_mut(name) {
            pod.object["status"] =
                json!({"phase": phase, "containerStatuses": [{"name": "worker", "state": state}]});
        }
        self.tell("MODIFIED", name);
    }

    /// Does the work of a pod's worker. Returns its exit code.
    async fn work(&self, name: &str, run: &Run) -> i32 {
        sleep(self.millis(STARTS)).await;
        self.set_worker(name, "Running", &json!({"running": {}}));
        let payload = self
            .until(|| {
                let all = self.all.borrow();
                (all[name].stream == Stream::Closed).then(|| all[name].stdin.clone())
            })
            .await;
        let process = machine::begin(self.host);
        let Some(task) = Task::whole(&payload, process.pid) else {
            process.end(1);
            return 1;
        };
        let (tag, pid) = (task.output.tag.clone(), process.pid);
        let label = |of: &str| {
            let all = self.all.borrow();
            all[name].object["metadata"]["labels"][of].as_str().unwrap_or_default().to_owned()
        };
        let (node, unit) = (label("meshd/node"), label("meshd/unit"));
        self.history.note(Note::Started { tag: tag.clone(), node, unit, pid, payload: digest(&payload) });
        run.set(Some((tag.clone(), process)));
        let pause = task.pause();
        for piece in task.output.pieces() {
            sleep(pause).await;
            self.write(name, &piece);
        }
        sleep(pause).await;
        let code = task.code();
        self.history.note(match code {
            0 => Note::Ended { tag, pid },
            _ => Note::Killed { tag, pid },
        });
        run.set(None);
        process.end(code);
        code
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        if let Some(pod) = self.all.borrow_mut().get_mut(name) {
            pod.rest.extend_from_slice(bytes);
            while let Some(end) = pod.rest.iter().position(|byte| *byte == b'\n') {
                let later = pod.rest.split_off(end + 1);
                pod.log.push((Timestamp::now(), std::mem::replace(&mut pod.rest, later)));
            }
        }
        self.changed.send_replace(());
    }
}
