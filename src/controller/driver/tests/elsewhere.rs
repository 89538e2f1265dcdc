//! A simulation of another control node of the same install. It gives the payload and the output of a job as the test
//! wants, and drives a job in the store.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream};

use super::*;
use crate::controller::core::{
    AttemptNo, ChildId, Driven, Evidence, Fence, FinalStatus, GroupName, JobId, JobKind, LeaseTimes, Level,
};
use crate::controller::driver::measure::Measure;
use crate::controller::store::{
    Figures, HeldOutput, InstanceRecord, InstanceRegistry, Observed, Submission, Terms,
};
use crate::wire::NodeId;
use crate::work::{Dialed, Dialer, StreamDialing, StreamFailure};

pub(super) const OTHER: &str = "c2";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answers {
    /// It cannot be reached.
    Never,
    /// It has nothing of the job.
    Missing,
    /// It sends its bytes and ends the stream.
    Whole,
    /// It sends its bytes, and then neither more nor an end.
    Stalling,
    /// It sends a byte every twenty seconds and then ends the stream.
    Slowly,
}

#[derive(Debug)]
pub(super) struct Says {
    pub(super) answers: Answers,
    /// What it has of each attempt.
    pub(super) attempts: Vec<Vec<u8>>,
    /// How many bytes of the last attempt it claims to have.
    pub(super) size: u64,
}

/// The connection to the other control node.
pub(super) struct Elsewhere(Arc<Mutex<Says>>);

impl Elsewhere {
    /// Lets the control node reach the other one.
    pub(super) fn open(site: &Site) -> Self {
        let says = Arc::new(Mutex::new(Says { answers: Answers::Never, attempts: Vec::new(), size: 0 }));
        site.service().open_peers(Arc::new(Self(says.clone())));
        let certs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("certs");
        site.use_keys(&certs.join("work.key"), &certs.join("work.pub"));
        Self(says)
    }

    pub(super) fn says(&self, answers: Answers, bytes: &[u8], size: usize) {
        *self.0.lock() = Says { answers, attempts: vec![bytes.to_vec()], size: size as u64 };
    }

    /// The other control node has these attempts in whole.
    pub(super) fn has(&self, attempts: &[&str]) {
        let size = attempts.last().map_or(0, |last| last.len() as u64);
        let attempts = attempts.iter().map(|output| output.as_bytes().to_vec()).collect();
        *self.0.lock() = Says { answers: Answers::Whole, attempts, size };
    }
}

impl Dialer for Elsewhere {
    fn dial(&self, node: NodeId, _service: ServiceName, _tls: Option<String>) -> StreamDialing {
        assert_eq!(node.as_str(), OTHER);
        if self.0.lock().answers == Answers::Never {
            return Box::pin(async { Err(StreamFailure::Unreachable("no route".into())) });
        }
        let (ours, theirs) = tokio::io::duplex(1 << 10);
        tokio::spawn(answer(self.0.clone(), theirs));
        Box::pin(async move { Ok(Dialed { stream: Box::new(ours), peer: crate::stream::Peer::Meshd }) })
    }

    fn knows_profile(&self, _name: &str) -> bool {
        true
    }

    fn node_id(&self) -> &NodeId {
        unreachable!("nobody asks who it is")
    }
}

async fn answer(says: Arc<Mutex<Says>>, stream: DuplexStream) {
    let mut stream = BufReader::new(stream);
    let mut asked = String::new();
    stream.read_line(&mut asked).await.unwrap();
    let asked = serde_json::from_str::<Value>(&asked).unwrap();
    let (line, bytes, answers) = {
        let Says { answers, attempts, size } = &*says.lock();
        let latest = attempts.len();
        let lengths = attempts.iter().scan(0, |end, one| Some(std::mem::replace(end, *end + one.len())));
        let starts: BTreeMap<usize, usize> = lengths.enumerate().map(|(at, start)| (at + 1, start)).collect();
        let before = starts.get(&latest).copied().unwrap_or(0) as u64;
        let (known, size) = match asked["attempt"].as_u64().map(|attempt| usize::try_from(attempt).unwrap()) {
            None => (Some(attempts.concat()).filter(|_| latest > 0), before + *size),
            Some(attempt) if attempt == latest => (attempts.last().cloned(), *size),
            Some(attempt) => {
                let known = attempts.get(attempt - 1).cloned();
                let size = known.as_ref().map_or(0, Vec::len);
                (known, size as u64)
            }
        };
        match (answers, known) {
            (Answers::Missing, _) | (_, None) => {
                (json!({"refused": "it is not here", "missing": true}), Vec::new(), Answers::Missing)
            }
            (_, Some(bytes)) => {
                let from = usize::try_from(asked["from"].as_u64().unwrap()).unwrap().min(bytes.len());
                let line =
                    json!({"size": size, "attempt": latest, "starts": starts.iter().collect::<Vec<_>>()});
                (line, bytes[from..].to_vec(), *answers)
            }
        }
    };
    // The asker may have hung up.
    let _sent = stream.write_all(format!("{line}\n").as_bytes()).await;
    if answers == Answers::Slowly {
        for byte in bytes {
            tokio::time::sleep(seconds(20)).await;
            let _sent = stream.write_all(&[byte]).await;
        }
        return;
    }
    let _sent = stream.write_all(&bytes).await;
    if answers == Answers::Stalling {
        std::future::pending().await
    }
}

/// A submission to the other control node, with this key.
pub(super) fn submission(key: &str) -> Submission {
    Submission {
        node: OTHER.into(),
        unit: "theirs".into(),
        key: Some(key.into()),
        kind: JobKind::Job,
        name: String::new(),
        priority: 0,
        header: r#"{"controller": 1}"#.into(),
        terms: Terms { groups: vec![(GroupName::default_group(), Level::Default)], ..Terms::default() },
        labels: Default::default(),
        impact: 1,
        hosts: None,
        forks: 1,
        launched_by: "unix:0".into(),
        is_admin: true,
        exclusive: Vec::new(),
        needs: Vec::new(),
        groups: BTreeSet::new(),
        is_cancelled: false,
    }
}

/// The lease of the other control node, with which it drives jobs in the store.
pub(super) struct Owner<'a> {
    site: &'a Site,
    fence: Fence,
}

impl<'a> Owner<'a> {
    /// Starts the other control node, which sees the same nodes as this one.
    pub(super) fn start(site: &'a Site) -> Self {
        let store = &site.driver().store;
        let fence = site.run(async {
            let add = |registry: &mut InstanceRegistry, now| {
                let mut record = InstanceRecord::register(OTHER.into(), NodeType::Control, true, now);
                let own = registry.instance_mut(&OWN.into())?.instance.clone();
                record.instance.node_state = NodeState::Ready;
                record.instance.health_due = None;
                (record.instance.capacities, record.instance.signs) = (own.capacities, own.signs);
                registry.add_instance(record).map(drop)
            };
            store.change_registry(None, add).await.unwrap();
            store.start_owner(OTHER.into(), LeaseTimes::default(), OnLoss::TakeOver).await.unwrap()
        });
        let this = Self { site, fence };
        this.beat();
        this
    }

    pub(super) fn beat(&self) {
        let instances = self.site.instances();
        let seen = |one: &InstanceRecord| Observed {
            instance: one.instance.name.clone(),
            reachable: true,
            again: true,
        };
        let seen = instances.iter().map(seen).collect();
        let beat = self.site.driver().store.heartbeat(self.fence.clone(), LeaseTimes::default(), seen);
        self.site.run(beat).unwrap();
        self.site.settle();
    }

    /// The other control node has found this one to be lost, and takes over its jobs.
    pub(super) fn take_over(&self) {
        let store = &self.site.driver().store;
        self.site.run(async {
            let lost = store.leases().await.unwrap().into_iter().find(|lease| lease.node.as_str() == OWN);
            store.take_over(self.fence.clone(), lost.unwrap(), OnLoss::TakeOver).await.unwrap();
        });
    }

    /// A job that was submitted to the other control node, with this key.
    pub(super) fn submit(&self, key: &str) -> JobId {
        self.submit_to(GroupName::default_group(), key)
    }

    /// Like [`Self::submit`], but for this group.
    pub(super) fn submit_to(&self, group: GroupName, key: &str) -> JobId {
        let mut submission = submission(key);
        submission.terms.groups = vec![(group, Level::Default)];
        let submitted = self.site.run(self.site.driver().store.submit(submission, 1000)).unwrap();
        self.site.settle();
        submitted.id()
    }

    /// Waits for the attempt of a job. Returns the attempt's unit.
    pub(super) fn placed(&self, job: JobId) -> String {
        self.site.soon("the job to be placed", || self.site.state(job) == JobState::Waiting);
        self.site.job(job).job.attempts[0].unit.to_string()
    }

    /// The other control node is about to send the attempt of a job. Returns the attempt's unit.
    pub(super) fn about_to_send(&self, job: JobId) -> String {
        let unit = self.placed(job);
        let store = &self.site.driver().store;
        let child = ChildId::parse(&unit).unwrap();
        self.site.run(store.before_sending(self.fence.clone(), child)).unwrap().unwrap();
        unit
    }

    /// The other control node's attempt of a job is accepted.
    pub(super) fn accept(&self, job: JobId) {
        self.about_to_send(job);
        let drive = self
            .site
            .driver()
            .store
            .drive(self.fence.clone(), job, |driven, now| driven.on_accepted(AttemptNo(1), now));
        self.site.run(drive).unwrap();
        self.site.settle();
    }

    /// A job of the other control node runs on e1. Returns the job and its child.
    pub(super) fn running(&self) -> (JobId, String) {
        let job = self.submit("theirs");
        let child = self.placed(job);
        self.site.fabric.run(&child, "e1");
        self.accept(job);
        (job, child)
    }

    /// A job succeeds with this output, which is complete on the other control node, and its child is released.
    pub(super) fn end(&self, job: JobId, output: &[u8]) {
        self.end_unreleased(job, output);
        self.sweep(job);
    }

    /// Like [`Self::end`], but the other control node is lost before it notes the release.
    pub(super) fn end_unreleased(&self, job: JobId, output: &[u8]) {
        let mut measured = Measure::default();
        measured.add(output);
        let held = Some(HeldOutput { unit: "theirs".into(), end: measured.end() });
        let (store, evidence) = (&self.site.driver().store, succeeded());
        let ended = move |driven: &mut Driven<'_>, now| driven.on_ended(AttemptNo(1), &evidence, now);
        let figures = Figures {
            attempt: AttemptNo(1),
            events: 0,
            output_bytes: output.len() as u64,
            rc: None,
            revision: None,
            recap: None,
            failure: None,
        };
        let fence = self.fence.clone();
        self.site.run(store.drive_to_end(fence, (job, AttemptNo(1)), Some(figures), held, ended)).unwrap();
        self.site.settle();
    }

    /// A job succeeds, and nothing is known of its output.
    pub(super) fn end_without_output(&self, job: JobId) {
        let (store, evidence) = (&self.site.driver().store, succeeded());
        let ended = move |driven: &mut Driven<'_>, now| driven.on_ended(AttemptNo(1), &evidence, now);
        self.site.run(store.drive(self.fence.clone(), job, ended)).unwrap();
        self.sweep(job);
    }

    fn sweep(&self, job: JobId) {
        let store = &self.site.driver().store;
        let swept = store.drive(self.fence.clone(), job, |driven, _| driven.on_swept(AttemptNo(1)));
        self.site.run(swept).unwrap();
        self.site.settle();
    }
}

fn succeeded() -> Evidence {
    let unit = Evidence::of_unit(ChildEnd::Succeeded, String::new());
    Evidence { status: Some(FinalStatus::Successful), has_end: true, ..unit }
}
