//! Jobs from submission to release, as all kinds of clients see them.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use meshd_machine as machine;
use rand::RngExt as _;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::client::Client;
use super::groups::Group;
use super::habits::{self, Habit};
use super::history::{Note, Text, digest};
use super::output::{END, Output, letters};
use super::world::{World, seen};

/// The number for the state of a unit that does not exist.
const GONE: u64 = 99;

/// Who decides where the job runs.
#[derive(Clone)]
pub(super) enum Kind {
    /// The client, which names the node.
    Plain {
        /// The node.
        on: String,
    },
    /// A controller.
    Placed(Placed),
}

/// What a submission tells a controller about a job.
#[derive(Clone)]
pub(super) struct Placed {
    pub(super) words: Vec<String>,
    /// How often it may be tried again.
    pub(super) retries: usize,
    /// Whether it may be tried again even while it may still run somewhere.
    pub(super) unconfirmed: bool,
    priority: i64,
    forks: u64,
    pub(super) group: Group,
    /// The job that must succeed first, if any.
    need: Option<Box<Job>>,
    /// Whether the controller was told of this need.
    is_told: Rc<Cell<bool>>,
}

impl Placed {
    /// The capacity that it takes of a node while it runs: its forks, by default 5, and one more (the contract's 4).
    pub(super) fn impact(&self) -> u64 {
        1 + if self.forks == 0 { 5 } else { self.forks }
    }

    /// The job that must succeed first, if the controller knows.
    pub(super) fn need(&self) -> Option<&Job> {
        self.need.as_deref().filter(|_| self.is_told.get())
    }
}

/// What a job does, and what is known of it so far.
#[derive(Clone)]
pub(super) struct Job {
    pub(super) tag: String,
    pub(super) kind: Kind,
    /// The index and the name of the node to which it is submitted.
    pub(super) by: usize,
    pub(super) submitted_by: String,
    /// How its client behaves.
    habit: Habit,
    /// The share of the payload that a first client sends before it goes away; the next client sends all of it.
    half: Option<f64>,
    /// Its playbook fails.
    pub(super) fails: bool,
    /// Its process ends without writing the playbook's status.
    pub(super) dies: bool,
    /// Its number, once a controller has given it one.
    number: Rc<Cell<Option<i64>>>,
    lines: u64,
    /// The bytes of each line.
    width: usize,
    /// The bytes of the payload's zip.
    packed: usize,
    millis: u64,
    begins: Duration,
    /// When it is cancelled, if it is.
    cancel: Option<Duration>,
    /// The text that its last reader got.
    text: Rc<RefCell<Option<Text>>>,
    pub(super) stands: Rc<RefCell<String>>,
}

impl Job {
    pub(super) fn new(world: &World, number: usize, earlier: &[Self]) -> Self {
        let executions: Vec<usize> = world.executions().collect();
        let (by, kind) = if world.chance(0.4) {
            let on = world.choose(&executions).unwrap();
            (world.choose(&[0, world.controls, on]).unwrap(), Kind::Plain { on: world.names[on].clone() })
        } else {
            let controlled: Vec<Self> =
                earlier.iter().filter(|job| matches!(job.kind, Kind::Placed(_))).cloned().collect();
            let by = world.choose(&(0..world.controls).collect::<Vec<_>>()).unwrap();
            let need =
                world.choose(&controlled).filter(|need| need.by == by && world.chance(0.2)).map(Box::new);
            let words = if world.chance(0.3) {
                vec![world.choose(&["red", "blue"]).unwrap().to_owned()]
            } else {
                Vec::new()
            };
            let retries = world.choose(&[0, 0, 1, 2]).unwrap();
            let unconfirmed = retries > 0 && world.chance(0.3);
            let priority = world.choose(&[0, 0, 0, 5, -5]).unwrap();
            let group = Group::choose(world);
            // The last number is more than any node has.
            let all: &[u64] = if group == Group::Narrow { &[0, 1, 5, 12] } else { &[0, 1, 5, 12, 20] };
            let forks = world.choose(all).unwrap();
            (
                by,
                Kind::Placed(Placed {
                    words,
                    retries,
                    unconfirmed,
                    priority,
                    forks,
                    group,
                    need,
                    is_told: Rc::default(),
                }),
            )
        };
        let is_pod = matches!(&kind, Kind::Placed(placed) if placed.group == Group::Pods);
        let (lines, width) = if is_pod { small(world) } else { size(world) };
        Self {
            tag: format!("j{number}"),
            fails: matches!(kind, Kind::Placed(_)) && world.chance(0.1),
            dies: matches!(kind, Kind::Placed(_)) && world.chance(0.1),
            kind,
            by,
            submitted_by: world.names[by].clone(),
            habit: Habit::choose(world),
            half: world.chance(0.1).then(|| world.rng.borrow_mut().random_range(0.0..1.0)),
            number: Rc::default(),
            lines,
            width,
            packed: if world.chance(0.05) { 3 * world.choose(&[1, 300_000, 2_000_000]).unwrap() } else { 0 },
            millis: world.choose(&[0, 10, 300, 3000, 30_000, 120_000]).unwrap(),
            begins: world.millis(0..120_000),
            cancel: world.chance(0.25).then(|| world.millis(0..20_000)),
            text: Rc::default(),
            stands: Rc::new(RefCell::new("not submitted".to_owned())),
        }
    }

    fn status(&self) -> &'static str {
        if self.fails { "failed" } else { "successful" }
    }

    /// The request that submits the job. It names the needed job if that has a number.
    fn request(&self, world: &World) -> String {
        let request = |node: &str, work_type: &str| json!({"command": "work", "subcommand": "submit", "node": node, "worktype": work_type});
        let placed = match &self.kind {
            Kind::Plain { on } if self.habit.speaks_in_words() => {
                return format!("work submit {on} ansible-runner");
            }
            Kind::Plain { on } => return request(on, "ansible-runner").to_string(),
            Kind::Placed(placed) => placed,
        };
        let mut header =
            json!({"controller": 1, "name": self.tag, "forks": placed.forks, "priority": placed.priority});
        if !placed.words.is_empty() {
            header["exclusive"] = json!(placed.words);
        }
        match placed.group {
            Group::Default => {}
            Group::Narrow => header["groups"] = json!({"launch": ["narrow"]}),
            Group::Pods => {
                header["groups"] = json!({"launch": ["pods"]});
                header["runner"] = json!({"image": "ee"});
            }
        }
        if placed.retries > 0 {
            header["retry"] =
                json!({"max": placed.retries, "on": ["lost", "error"], "unconfirmed": placed.unconfirmed});
        }
        if let Some(number) = placed.need.as_ref().and_then(|need| need.number.get()) {
            header["depends_on"] = json!([number]);
            placed.is_told.set(true);
        }
        let mut request = request(&world.names[self.by], "controller");
        request["header"] = header.to_string().into();
        request.to_string()
    }

    /// The payload that its command reads.
    pub(super) fn payload(&self) -> String {
        let kwargs = json!({"kwargs": {"tag": self.tag, "lines": self.lines, "width": self.width, "millis": self.millis, "status": self.status(), "dies": self.dies}});
        let packed = match self.packed {
            0 => String::new(),
            count => {
                let packed = letters(digest(self.tag.as_bytes()), count / 3 * 4);
                format!("{}\n{packed}", json!({"zipfile": count}))
            }
        };
        format!("{kwargs}\n{packed}{END}")
    }

    /// The output of a process of the job.
    pub(super) fn output(&self, pid: u32) -> Output {
        let (tag, status) = (self.tag.clone(), self.status().to_owned());
        Output { tag, lines: self.lines, width: self.width, status, dies: self.dies, pid }
    }

    /// A text that a reader got, which shares memory with the last reader's if it is the same.
    fn kept(&self, text: Vec<u8>) -> Text {
        let mut last = self.text.borrow_mut();
        match &*last {
            Some(last) if *last.0 == text => last.clone(),
            _ => last.insert(Text(Arc::new(text))).clone(),
        }
    }

    pub(super) fn stands(&self, what: impl Into<String>) {
        *self.stands.borrow_mut() = what.into();
    }
}

/// The number of lines and their width. Few jobs write much, because all output is read a few times.
fn size(world: &World) -> (u64, usize) {
    if world.chance(0.002) {
        return (1600, 64 << 10);
    }
    if world.chance(0.04) {
        return world.choose(&[(1000, 1000), (60, 50_000), (300, 65_536), (4, 5 << 20)]).unwrap();
    }
    small(world)
}

/// The same for pods, without long lines, because a kubelet cuts them.
fn small(world: &World) -> (u64, usize) {
    (world.choose(&[0, 1, 30, 30, 300, 3000]).unwrap(), 0)
}

/// Lives through a job from submission to release.
pub(super) async fn live(world: Rc<World>, job: Job) {
    sleep(job.begins).await;
    if let Kind::Placed(Placed { need: Some(need), .. }) = &job.kind {
        // A job that was never acknowledged gets no number, and then this job is submitted without the need.
        for _look in 0..100 {
            if need.number.get().is_none() {
                sleep(world.millis(500..2000)).await;
            }
        }
    }
    let Some(unit) = submit(&world, &job).await else { return };
    let cancel = job
        .cancel
        .map(|after| tokio::task::spawn_local(cancel(world.clone(), job.clone(), unit.clone(), after)));
    let reader = tokio::task::spawn_local(read(world.clone(), job.clone(), unit.clone()));
    job.stands("waits for its end");
    let mut held = None;
    let last = loop {
        if world.chance(0.1) {
            habits::go_away(&world, &job, &unit).await;
        }
        if let Some(status) = status(&world, &job, &unit, &mut held).await {
            if let (Kind::Placed(_), Some(number)) = (&job.kind, status["ExtraData"]["JobID"].as_i64()) {
                job.number.set(Some(number));
            }
            note_seen(&world, &job, &unit, &status);
            if status["State"].as_u64() >= Some(2) {
                break status;
            }
            job.stands(format!("waits for its end: {}", status["Detail"]));
        }
        sleep(world.millis(200..5000)).await;
    };
    job.stands(format!("has ended, is read: {}", last["Detail"]));
    reader.await.unwrap();
    if let Some(cancel) = cancel {
        job.stands("has ended, is cancelled");
        cancel.await.unwrap();
    }
    if job.habit.releases_early() {
        job.stands("is released early");
        release(&world, &job, &unit).await;
    }
    while !world.calm.get() {
        sleep(world.millis(1000..20_000)).await;
        if job.habit.releases_early() {
            continue;
        }
        let Some(status) = status(&world, &job, &unit, &mut None).await else { continue };
        note_seen(&world, &job, &unit, &status);
    }
    if let (Kind::Placed(_), Some(_)) = (&job.kind, job.number.get()) {
        job.stands("is looked up");
        let row = row(&world, &job, &unit).await;
        world.history.note(Note::Row { tag: job.tag.clone(), row });
    }
    if !job.habit.releases_early() {
        job.stands("is read again");
        read(world.clone(), job.clone(), unit.clone()).await;
        job.stands("is released");
        release(&world, &job, &unit).await;
    }
    job.stands("is released");
    habits::stays_away(&world, &job, &unit).await;
    job.stands("is released, done");
}

/// Submits the job. Returns its unit once the submission is answered.
async fn submit(world: &World, job: &Job) -> Option<String> {
    let (request, payload) = (job.request(world), job.payload());
    if let Some(half) = job.half {
        let part = (payload.len() as f64 * half) as usize;
        let sent = async {
            let mut client = world.client(job.by).await?;
            let unit = client.begin(&request).await?;
            client.send(&payload.as_bytes()[..part]).await?;
            Ok::<_, std::io::Error>(unit)
        };
        if let Ok(unit) = sent.await {
            world.history.tell(format!("{}: a client goes away after {part} bytes for {unit}", job.tag));
        }
    }
    for _attempt in 0..1000 {
        job.stands("is submitted");
        let answered = async {
            let mut client = world.client(job.by).await?;
            let unit = client.begin(&request).await?;
            client.send(payload.as_bytes()).await?;
            client.finish().await?;
            Ok::<_, std::io::Error>(unit)
        };
        match answered.await {
            Ok(unit) => {
                world.history.note(Note::Accepted {
                    tag: job.tag.clone(),
                    by: world.names[job.by].clone(),
                    unit: unit.clone(),
                });
                return Some(unit);
            }
            // Only after a refused connection it is submitted again: after other errors it may have been accepted.
            Err(error) if is_refused(&error) => sleep(world.millis(500..2000)).await,
            Err(error) => {
                world.history.tell(format!("{} is not acknowledged: {error}", job.tag));
                return None;
            }
        }
    }
    world.miss(format!("{} was never taken", job.tag));
    None
}

/// Whether nobody listened, so that the request was not read.
fn is_refused(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::ConnectionRefused | std::io::ErrorKind::NotFound)
}

/// Whether a node does not know the unit.
fn is_unknown(error: &std::io::Error) -> bool {
    error.to_string().contains("unknown work unit")
}

fn note_seen(world: &World, job: &Job, unit: &str, status: &Value) {
    if status["State"] != GONE {
        world.history.note(seen(&job.tag, unit, status));
    }
}

async fn status(world: &World, job: &Job, unit: &str, held: &mut Option<Client>) -> Option<Value> {
    match job.habit.ask(world, job.by, &format!("work status {unit}"), held).await {
        Ok(status) => Some(status),
        Err(error) if is_unknown(&error) => {
            world.history.note(Note::Gone { tag: job.tag.clone(), unit: unit.to_owned() });
            Some(json!({"State": GONE, "Detail": "gone"}))
        }
        Err(_) => None,
    }
}

/// The controller's row of the job, once it has ended there.
async fn row(world: &World, job: &Job, unit: &str) -> Value {
    let is_forgetful = world.history.has(|note| matches!(note, Note::Lost { .. }));
    loop {
        // After a loss the job may have a new number, and another job its old one.
        let shown = match is_forgetful && !job.habit.releases_early() {
            true => status(world, job, unit, &mut None).await,
            false => None,
        };
        let number = match shown {
            Some(status) => status["ExtraData"]["JobID"].as_i64().or(job.number.get()),
            None => job.number.get(),
        };
        let asked = json!({"command": "controller", "op": "job.get", "id": number}).to_string();
        match world.ask(job.by, &asked).await {
            Ok(mut answer)
                if answer["result"]["finished"].is_string() && answer["result"]["name"] == job.tag =>
            {
                return answer["result"].take();
            }
            Ok(answer)
                if is_forgetful && (answer["ok"] == true || answer["error"]["code"] == "not_found") =>
            {
                return json!({"state": "forgotten"});
            }
            Ok(answer) => job.stands(format!("is looked up: {answer}")),
            Err(error) => job.stands(format!("is looked up: {error}")),
        }
        sleep(world.millis(300..3000)).await;
    }
}

/// Reads the output to its end, over as many connections as this takes.
async fn read(world: Rc<World>, job: Job, unit: String) {
    let (since, mut text) = (machine::now(), Vec::new());
    loop {
        let done = match world.client(job.by).await {
            Ok(client) => job.habit.read(client, &unit, &mut text).await,
            Err(error) => Err(error),
        };
        if done.as_ref().is_err_and(is_unknown) {
            return;
        }
        // A node that stops ends the stream early, so the end counts only if the status agrees.
        if let Ok(true) = done
            && let Some(status) = status(&world, &job, &unit, &mut None).await
            && status["State"].as_u64() >= Some(2)
            && status["StdoutSize"].as_u64() <= Some(text.len() as u64)
        {
            break;
        }
        sleep(world.millis(100..3000)).await;
    }
    world.history.note(Note::Read { tag: job.tag.clone(), unit, since, text: job.kept(text) });
}

async fn cancel(world: Rc<World>, job: Job, unit: String, after: Duration) {
    sleep(after).await;
    loop {
        match world.ask(job.by, &format!("work cancel {unit}")).await {
            Ok(answer) => {
                world.history.tell(format!("cancel of {} answered: {answer}", job.tag));
                if answer.get("cancelled").is_some() {
                    world.history.note(Note::Cancelled { tag: job.tag.clone() });
                }
                return;
            }
            Err(error) if is_unknown(&error) => return,
            Err(_) => sleep(world.millis(300..3000)).await,
        }
    }
}

async fn release(world: &World, job: &Job, unit: &str) {
    if job.habit == (Habit::Awx { sweeps: true }) {
        habits::sweep(world, job, unit).await;
    } else {
        while !release_once(world, job, unit).await {
            sleep(world.millis(300..3000)).await;
        }
    }
    world.history.note(Note::Released { tag: job.tag.clone(), unit: unit.to_owned() });
}

/// Asks once for the release. Returns whether the unit is released.
pub(super) async fn release_once(world: &World, job: &Job, unit: &str) -> bool {
    match world.ask(job.by, &format!("work release {unit}")).await {
        Ok(answer) if answer.get("released").is_some() => return true,
        Ok(answer) => job.stands(format!("is released: {answer}")),
        Err(error) if is_unknown(&error) => return true,
        Err(error) => job.stands(format!("is released: {error}")),
    }
    false
}
