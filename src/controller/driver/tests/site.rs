//! A control node in a directory of the test's own. The test starts and kills the node's processes, lets time pass, and
//! submits, cancels and looks as a client.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

use super::fabric::{Fabric, FakeChildren, FakeMesh, OWN};
use super::{options, seconds};
use crate::controller::core::{InstanceName, JobId, JobState, NodeState};
use crate::controller::driver::JobDriver;
use crate::controller::options::{ControllerOptions, Discovery};
use crate::controller::projects::ProjectCache;
use crate::controller::service::Service;
use crate::controller::store::{self, InstanceRecord, JobRecord, Store};
use crate::rpc::UnitReport;
use crate::rpc::operation::{Operation, OperationRefusal};
use crate::rpc::request::SubmitRequest;
use crate::wire::{NodeId, ServiceName};
use crate::work::signing::{Signer, Verifier};
use crate::work::{Caller, Dialer, Leftovers, Options, Registry, StreamDialing, StreamFailure};

/// The longest time that a wait may take by the real clock.
const DEADLINE: Duration = Duration::from_secs(60);
/// How often nodes advertise themselves.
const ADVERTISED_EVERY: Duration = Duration::from_secs(30);

pub(super) struct Site {
    pub(super) fabric: Arc<Fabric>,
    pub(super) options: ControllerOptions,
    directory: tempfile::TempDir,
    process: Option<Process>,
    since_advertised: Cell<Duration>,
}

/// A process of the control node.
struct Process {
    runtime: Runtime,
    /// Keeps a blocking task waiting until dropped, because the paused clock advances by itself when the runtime is
    /// idle.
    _still: mpsc::Sender<()>,
    driver: Arc<JobDriver>,
    registry: Registry,
    service: Service,
}

struct Nowhere(NodeId);

impl Dialer for Nowhere {
    fn dial(&self, node: NodeId, _service: ServiceName, _tls: Option<String>) -> StreamDialing {
        Box::pin(async move { Err(StreamFailure::Unreachable(format!("no route to node {node}"))) })
    }

    fn knows_profile(&self, _name: &str) -> bool {
        true
    }

    fn node_id(&self) -> &NodeId {
        &self.0
    }
}

impl Site {
    /// A control node and these execution nodes, all ready.
    pub(super) fn ready(nodes: &[&str]) -> Self {
        let site = Self::started(Fabric::new(nodes, true), options(Discovery::Enabled));
        let all = nodes.len() + 1;
        site.until("all nodes to be ready", || {
            site.instances().iter().filter(|one| one.instance.node_state == NodeState::Ready).count() == all
        });
        site
    }

    pub(super) fn started(fabric: Arc<Fabric>, options: ControllerOptions) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let since_advertised = Cell::new(Duration::ZERO);
        let mut site = Self { fabric, options, directory, process: None, since_advertised };
        site.boot();
        site
    }

    /// The control node starts.
    pub(super) fn boot(&mut self) {
        self.boot_while(async |_| ());
    }

    /// The control node starts, and `meanwhile` runs while it takes up its units.
    pub(super) fn boot_while<T>(&mut self, meanwhile: impl AsyncFnOnce(&JobDriver) -> T) -> T {
        assert!(self.process.is_none());
        // One thread keeps time still; the other does the work on files in the order of the requests.
        let mut runtime = Builder::new_current_thread();
        let runtime = runtime.enable_all().start_paused(true).max_blocking_threads(2).build().unwrap();
        let (still, never) = mpsc::channel::<()>();
        runtime.spawn_blocking(move || never.recv());
        let id = NodeId::new(OWN).unwrap();
        let mut work = Options::new(self.directory.path().to_owned(), id.clone(), Vec::new()).unwrap();
        work.cancel_grace = Duration::ZERO;
        let store = store::Options::Sqlite(self.directory.path().join("store.db"));
        let mesh = FakeMesh(self.fabric.clone());
        let name = InstanceName::from(OWN);
        let (driver, registry, service, result) = runtime.block_on(async {
            let registry = Registry::open(work, Arc::new(Nowhere(id))).await.unwrap();
            let store = open(&store, &name).await;
            let children = FakeChildren { fabric: self.fabric.clone(), registry: registry.clone() };
            let (mesh, children) = (Arc::new(mesh), Arc::new(children));
            let settings = Arc::new(ArcSwap::from_pointee(self.options.clone()));
            let projects = ProjectCache::new(self.directory.path().join("projects"));
            let driver = JobDriver::start(name, store, settings, mesh, children, projects).await.unwrap();
            let (result, service) =
                tokio::join!(meanwhile(&driver), Service::serve(driver.clone(), &registry));
            (driver, registry, service, result)
        });
        self.process = Some(Process { runtime, _still: still, driver, registry, service });
        self.fabric.set_up(true);
        self.fabric.advertise();
        result
    }

    /// The control node is killed: nothing that it was about to do is done.
    pub(super) fn kill(&mut self) {
        self.fabric.set_up(false);
        let Process { runtime, _still, driver, registry, service } = self.process.take().unwrap();
        drop(_still);
        runtime.shutdown_timeout(DEADLINE);
        drop((driver, registry, service));
        self.fabric.forget_elsewhere();
    }

    /// An operator's operation.
    pub(super) fn operate(&self, operation: Value) -> Value {
        let done = self.ask(operation).unwrap_or_else(|refused| panic!("{}: {refused}", refused.code));
        self.settle();
        done
    }

    /// Like [`Self::operate`], but the operation may be refused.
    pub(super) fn ask(&self, operation: Value) -> Result<Value, OperationRefusal> {
        let operation = Operation::parse(operation.as_object().unwrap().clone())?;
        let (answer, stream) = self.run(self.process().service.operate(operation, &Caller::local()))?;
        assert!(stream.is_none(), "{answer:?} is followed by a stream");
        Ok(json!(answer))
    }

    /// An operator declares a node dead.
    pub(super) fn declare_dead(&self, node: &str) {
        self.operate(json!({"op": "instance.remove", "name": node, "dead": true}));
    }

    /// The controller gets the changed options.
    pub(super) fn set_options(&self) {
        self.driver().base.settings.store(Arc::new(self.options.clone()));
        self.driver().on_settings();
    }

    pub(super) fn driver(&self) -> &Arc<JobDriver> {
        &self.process().driver
    }

    pub(super) fn registry(&self) -> &Registry {
        &self.process().registry
    }

    /// Somebody else changes rows of the store, unnoticed by the driver.
    pub(super) fn sql(&self, statement: &str) {
        let store = rusqlite::Connection::open(self.directory.path().join("store.db")).unwrap();
        store.execute_batch(statement).unwrap();
    }

    /// Replaces the store with this older copy. No process may be running.
    pub(super) fn restore(&self, older: &Path) {
        let store = self.directory.path().join("store.db");
        for file in ["store.db-wal", "store.db-shm"] {
            drop(std::fs::remove_file(store.with_file_name(file)));
        }
        std::fs::copy(older, store).unwrap();
    }

    pub(super) fn service(&self) -> &Service {
        &self.process().service
    }

    /// Signs and verifies with these keys from now on.
    pub(super) fn use_keys(&self, private: &Path, public: &Path) {
        let (registry, id) = (&self.process().registry, NodeId::new(OWN).unwrap());
        registry.set_signer(Some(Arc::new(Signer::open(private, seconds(60)).unwrap())));
        registry.set_verifier(Some(Arc::new(Verifier::open(public, id).unwrap())));
    }

    fn process(&self) -> &Process {
        self.process.as_ref().expect("the control node runs")
    }

    /// Runs something while time stands still.
    pub(super) fn run<T>(&self, work: impl Future<Output = T>) -> T {
        self.process().runtime.block_on(work)
    }

    /// Lets everything happen that is possible now.
    pub(super) fn settle(&self) {
        let store = self.driver().store.clone();
        self.run(async {
            // As many rounds as the driver's look at everything has steps.
            for _ in 0..8 {
                for _ in 0..20 {
                    tokio::task::yield_now().await;
                }
                // Each call returns after the requests queued before it: writes, reads, and work on files.
                store.remove_drained().await.unwrap();
                store.now().await.unwrap();
                tokio::task::spawn_blocking(|| ()).await.unwrap();
            }
        });
    }

    /// Waits for something while time stands still.
    pub(super) fn settle_until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < DEADLINE, "waited for {what}");
            self.settle();
        }
        self.settle();
    }

    fn advance(&self, step: Duration) {
        self.run(tokio::time::advance(step));
        let since = self.since_advertised.get() + step;
        self.since_advertised.set(since);
        if since >= ADVERTISED_EVERY {
            self.since_advertised.set(Duration::ZERO);
            self.fabric.advertise();
        }
        self.settle();
    }

    /// Lets this much time pass.
    pub(super) fn pass(&self, span: Duration) {
        self.settle();
        let mut left = span;
        while !left.is_zero() {
            let step = left.min(seconds(5));
            self.go(step);
            left -= step;
        }
    }

    /// Moves time by one step, and a little more after a long one, because the driver pauses before it looks again.
    fn go(&self, step: Duration) -> Duration {
        const PAUSE: Duration = Duration::from_millis(10);
        self.advance(step);
        if step <= PAUSE * 2 {
            return step;
        }
        (0..4).for_each(|_| self.advance(PAUSE));
        step + PAUSE * 4
    }

    /// Lets time pass until something is so. Returns how much passed.
    pub(super) fn until(&self, what: &str, mut is_so: impl FnMut() -> bool) -> Duration {
        let (begun, mut passed) = (Instant::now(), Duration::ZERO);
        self.settle();
        while !is_so() {
            assert!(begun.elapsed() < DEADLINE, "waited for {what} for {passed:?}: {:#?}", self.jobs());
            let step = match passed.as_secs() {
                0..2 => Duration::from_millis(20),
                2..60 => Duration::from_millis(500),
                _ => seconds(5),
            };
            passed += self.go(step);
        }
        passed
    }

    /// Like [`Self::until`], but no noticeable time may pass.
    pub(super) fn soon(&self, what: &str, is_so: impl FnMut() -> bool) {
        let passed = self.until(what, is_so);
        assert!(passed <= seconds(1), "{what} took {passed:?}");
    }

    /// Submits a payload. Returns the job's unit.
    pub(super) fn submit_bytes(&self, payload: &[u8]) -> Result<String, String> {
        let registry = self.process().registry.clone();
        self.run(async {
            let request = SubmitRequest {
                node: OWN.into(),
                work_type: "controller".into(),
                ..SubmitRequest::default()
            };
            let mut submission =
                registry.submit(request, Caller::local()).await.map_err(|e| e.to_string())?;
            let unit = submission.id().to_string();
            if let Err(error) = submission.write(payload).await {
                submission.discard(error.to_string()).await;
                return Err(error.to_string());
            }
            submission.finish().await.map(|_| unit).map_err(|error| error.to_string())
        })
    }

    /// Submits a job with this header, which may have no keys.
    pub(super) fn submit(&self, header: Value) -> (String, JobId) {
        let unit = self.submit_bytes(&stream(header)).unwrap();
        let job = self.unit(&unit).unwrap().extra_data["JobID"].as_i64().unwrap();
        (unit, JobId(job))
    }

    pub(super) fn unit(&self, unit: &str) -> Option<UnitReport> {
        self.run(self.process().registry.status(unit)).ok()
    }

    /// The units of jobs on this node, but not the children.
    pub(super) fn units(&self) -> Vec<String> {
        let listed = self.run(self.process().registry.list(None)).unwrap();
        listed.keys().map(ToString::to_string).collect()
    }

    /// What is in this node's directory.
    pub(super) fn on_disk(&self) -> BTreeSet<OsString> {
        let found = std::fs::read_dir(self.directory("")).unwrap();
        found.map(|entry| entry.unwrap().file_name()).collect()
    }

    pub(super) fn release_unit(&self, unit: &str) {
        self.run(self.process().registry.release_child(unit, Leftovers::Stay)).unwrap();
    }

    pub(super) fn cancel_unit(&self, unit: &str) {
        let registry = self.process().registry.clone();
        // Runs in a task, because the answer waits for the end, which does not come while time stands still.
        let (name, caller) = (unit.to_owned(), Caller::local());
        self.run(async { drop(tokio::spawn(async move { registry.cancel(&name, &caller).await })) });
        let job = JobId(self.unit(unit).unwrap().extra_data["JobID"].as_i64().unwrap());
        let begun = Instant::now();
        loop {
            let row = self.job(job).row;
            if row.cancel_requested || row.state.is_final() {
                return;
            }
            assert!(begun.elapsed() < DEADLINE, "the cancel is not saved: {row:?}");
            self.settle();
        }
    }

    pub(super) fn output(&self, unit: &str) -> Vec<u8> {
        std::fs::read(self.directory(unit).join("stdout")).unwrap_or_default()
    }

    pub(super) fn directory(&self, unit: &str) -> PathBuf {
        self.directory.path().join(OWN).join(unit)
    }

    pub(super) fn job(&self, id: JobId) -> JobRecord {
        self.run(self.driver().store.detail(id)).unwrap()
    }

    pub(super) fn state(&self, id: JobId) -> JobState {
        self.job(id).row.state
    }

    pub(super) fn explanation(&self, id: JobId) -> String {
        self.job(id).row.explanation
    }

    pub(super) fn jobs(&self) -> Vec<JobRecord> {
        let page = self.run(self.driver().store.list(Default::default(), 1000)).unwrap();
        page.jobs.iter().rev().map(|row| self.job(row.id)).collect()
    }

    pub(super) fn instances(&self) -> Vec<InstanceRecord> {
        self.run(self.driver().store.registry()).unwrap().instances
    }

    pub(super) fn instance(&self, name: &str) -> InstanceRecord {
        self.instances().into_iter().find(|one| one.instance.name.as_str() == name).unwrap()
    }

    pub(super) fn errors(&self, name: &str) -> Vec<String> {
        self.instance(name).instance.errors.iter().map(ToString::to_string).collect()
    }

    /// Waits until the unit of a job runs somewhere. Returns the unit.
    pub(super) fn running(&self, job: JobId) -> String {
        self.until("the job to run", || {
            self.fabric.running(job.0).is_some() && self.state(job) == JobState::Running
        });
        self.fabric.running(job.0).unwrap()
    }

    /// Waits until a job has ended and nothing more is expected from its attempts.
    pub(super) fn ended(&self, job: JobId) -> JobRecord {
        self.until("the job to end", || {
            let job = self.job(job);
            job.row.state.is_final() && job.job.attempts.iter().all(|attempt| attempt.swept)
        });
        self.job(job)
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if self.process.is_some() {
            self.kill();
        }
    }
}

/// Retries, because another test that is starting a process holds all open files until the process has started.
async fn open(options: &store::Options, node: &InstanceName) -> Store {
    let begun = Instant::now();
    loop {
        match Store::open(options, node).await {
            Err(store::Error::Held { .. }) if begun.elapsed() < DEADLINE => std::thread::yield_now(),
            opened => return opened.unwrap(),
        }
    }
}

/// A payload with this header.
pub(super) fn stream(mut header: Value) -> Vec<u8> {
    header["controller"] = json!(1);
    format!("{header}\n{}\n{}\n", json!({"kwargs": {"ident": "x"}}), json!({"eof": true})).into_bytes()
}
