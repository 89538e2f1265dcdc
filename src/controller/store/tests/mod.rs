//! One suite against both databases: every test in `both!` runs on SQLite and on PostgreSQL.

mod clock;
mod copies;
mod documents;
mod ended;
mod jobs;
mod lists;
mod measure;
mod on_postgres;
mod on_sqlite;
mod outputs;
mod owners;
mod projects;
mod races;
mod recaps;
mod registry;
mod server;
mod upgrades;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::*;
use crate::controller::core::{
    Capacities, Evidence, Group, GroupName, Instance, Job, JobId, JobKind, JobState, LeaseTimes, Level,
    NodeState, NodeType, Offer, OnLoss, Patience, Policy, Progress, Retry,
};
use crate::controller::core::{ChildEnd, FinalStatus};
use crate::controller::header::Dependency;
use crate::controller::stream::{HostStats, Recap, RecapCounts};

/// Runs tests on both databases.
macro_rules! both {
    ($($test:ident),* $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $test() {
                super::$test(crate::controller::store::tests::Site::sqlite()).await;
            })*
        }

        mod postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $test() {
                let Some(site) = crate::controller::store::tests::Site::postgres().await else { return };
                super::$test(site).await;
            })*
        }
    };
}
use both;

/// A database of one test, which stores open.
struct Site {
    options: Options,
    _directory: Option<tempfile::TempDir>,
}

impl Site {
    fn sqlite() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let options = Options::Sqlite(directory.path().join("store.db"));
        Self { options, _directory: Some(directory) }
    }

    /// `None` if PostgreSQL is not installed.
    async fn postgres() -> Option<Self> {
        let server = server::get()?;
        let url = server.new_database().await;
        let options = Options::parse(&url, None, Path::new("")).unwrap();
        Some(Self { options, _directory: None })
    }

    fn path(&self) -> &Path {
        match &self.options {
            Options::Sqlite(path) => path,
            Options::Postgres(_) => panic!("it is PostgreSQL"),
        }
    }

    async fn open(&self) -> Store {
        Store::open(&self.options, &"c1".into()).await.unwrap()
    }

    /// A store with control nodes c1 and c2 and execution nodes e1 and e2 of capacity 20, all ready, and c1's fence.
    async fn ready(&self) -> (Store, Fence) {
        let store = self.open().await;
        register(&store, &[("c1", NodeType::Control), ("c2", NodeType::Control)]).await;
        register(&store, &[("e1", NodeType::Execution), ("e2", NodeType::Execution)]).await;
        let fence = start(&store, "c1").await;
        start(&store, "c2").await;
        (store, fence)
    }
}

async fn register(store: &Store, nodes: &'static [(&'static str, NodeType)]) {
    let add = move |registry: &mut InstanceRegistry, now| {
        for (name, node_type) in nodes {
            let name = InstanceName::from(*name);
            let mut record = InstanceRecord::register(name.clone(), *node_type, true, now);
            record.instance.node_state = NodeState::Ready;
            record.instance.capacities = Capacities { cpu: 20, mem: 20 };
            record.instance.offer = Offer { runner: true, secure: false, tls: false };
            record.instance.health_due = None;
            registry.add_instance(record)?;
        }
        Ok(())
    };
    store.change_registry(None, add).await.unwrap();
}

/// Starts a control node that sees all nodes.
async fn start(store: &Store, node: &str) -> Fence {
    let fence = store.start_owner(node.into(), LeaseTimes::default(), OnLoss::TakeOver).await.unwrap();
    beat(store, &fence, &["c1", "c2", "e1", "e2"]).await;
    fence
}

async fn beat(store: &Store, fence: &Fence, nodes: &[&str]) {
    let seen = |node: &&str| Observed { instance: (*node).into(), reachable: true, again: true };
    let seen = nodes.iter().map(seen).collect();
    store.heartbeat(fence.clone(), LeaseTimes::default(), seen).await.unwrap();
}

/// Takes over from a control node, as if it had done nothing for long enough.
async fn take_over(store: &Store, by: &Fence, node: &str, on_loss: OnLoss) {
    let leases = store.leases().await.unwrap();
    let lost = leases.into_iter().find(|lease| lease.node.as_str() == node).unwrap();
    store.take_over(by.clone(), lost, on_loss).await.unwrap();
}

/// Figures of an attempt of which nothing was counted.
fn figures_of(attempt: u32) -> Figures {
    let attempt = crate::controller::core::AttemptNo(attempt);
    Figures { attempt, events: 0, output_bytes: 0, rc: None, revision: None, recap: None, failure: None }
}

fn submission(unit: &str) -> Submission {
    let groups = vec![(GroupName::default_group(), Level::Default)];
    Submission {
        node: "c1".into(),
        unit: unit.into(),
        key: None,
        kind: JobKind::Job,
        name: format!("job of {unit}"),
        priority: 0,
        header: r#"{"controller": 1}"#.into(),
        terms: Terms { groups, ..Terms::default() },
        labels: BTreeMap::new(),
        impact: 6,
        hosts: None,
        forks: 5,
        launched_by: "unix:0".into(),
        is_admin: true,
        exclusive: Vec::new(),
        needs: Vec::new(),
        groups: BTreeSet::new(),
        is_cancelled: false,
    }
}

async fn submit(store: &Store, unit: &str) -> JobId {
    store.submit(submission(unit), 1000).await.unwrap().id()
}

async fn place(store: &Store, by: &Fence) -> Vec<JobId> {
    let passed = store.pass(by.clone(), PassLimits::default()).await.unwrap();
    assert!(!passed.elsewhere);
    passed.placed.into_iter().map(|(job, _)| job).collect()
}

/// Drives the latest attempt of a job.
async fn accept(store: &Store, by: &Fence, id: JobId) -> Result<Job, Error> {
    let n = store.job(id).await.unwrap().current().unwrap().n;
    store.drive(by.clone(), id, move |driven, now| driven.on_accepted(n, now)).await.map(|now| now.job)
}

async fn end(store: &Store, by: &Fence, id: JobId, status: FinalStatus) -> Result<Job, Error> {
    let n = store.job(id).await.unwrap().current().unwrap().n;
    let evidence = evidence(status);
    store
        .drive(by.clone(), id, move |driven, now| driven.on_ended(n, &evidence, now))
        .await
        .map(|now| now.job)
}

async fn sweep(store: &Store, by: &Fence, id: JobId) {
    let n = store.job(id).await.unwrap().current().unwrap().n;
    store.drive(by.clone(), id, move |driven, _| driven.on_swept(n)).await.unwrap();
}

fn evidence(status: FinalStatus) -> Evidence {
    Evidence { status: Some(status), has_end: true, ..Evidence::of_unit(ChildEnd::Succeeded, String::new()) }
}

fn audit(op: &str) -> Audit {
    Audit { who: "unix:0".into(), op: op.into(), target: "it".into() }
}

/// Runs a statement of a test.
async fn sql(store: &Store, statement: &'static str) {
    store.write(move |sql| sql.execute(statement, &[])).await.unwrap();
}

/// The number in the only column of the only row.
async fn number(store: &Store, query: &'static str) -> i64 {
    store.read(move |sql| sql.query(query, &[])?.remove(0).take()).await.unwrap()
}
