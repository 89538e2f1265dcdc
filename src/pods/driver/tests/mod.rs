//! Units against a scripted API server, over real sockets. The labels B1 to B22 are rows of the table in
//! docs/kubernetes.md; here are those that need a connection. The machine's own tests cover its decisions.

mod reaching;
#[allow(dead_code, reason = "`tests/work` uses the rest")]
mod server;

use std::time::Duration;

use parking_lot::Mutex;
use serde_json::json;
use tempfile::TempDir;
use tokio::sync::{oneshot, watch};

use self::server::{Fault, Server};
use super::*;
use crate::pods::api::connect::CredentialSource;
use crate::pods::api::{HttpApi, ProvenServers};
use crate::pods::extra::KubeExtra;
use crate::pods::name::Owner;
use crate::pods::options::StreamMethod;

/// A unit's directory, and the statuses recorded of it.
struct Files {
    dir: TempDir,
    last: watch::Sender<Option<StatusChange>>,
    said: Mutex<Vec<(State, String)>>,
}

impl Unit for Files {
    fn dir(&self) -> PathBuf {
        self.dir.path().to_owned()
    }

    fn may_act(&self) -> Permit {
        Box::pin(std::future::ready(()))
    }

    fn may_send(&self) -> Permit {
        self.may_act()
    }

    fn record(&self, change: StatusChange, stdout_size: u64) -> Recording {
        if change.state.is_final() {
            assert_eq!(stdout_size, self.stdout().len() as u64, "{change:?}");
        }
        self.said.lock().push((change.state, change.detail.clone()));
        self.last.send_replace(Some(change));
        Box::pin(std::future::ready(()))
    }
}

impl Files {
    fn new(stdin: &[u8]) -> Arc<Self> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("stdin"), stdin).unwrap();
        Arc::new(Self { dir, last: watch::Sender::new(None), said: Mutex::default() })
    }

    fn stdout(&self) -> Vec<u8> {
        std::fs::read(self.dir.path().join("stdout")).unwrap_or_default()
    }

    async fn until(&self, is_so: impl Fn(&StatusChange) -> bool) -> StatusChange {
        let mut last = self.last.subscribe();
        let waits = last.wait_for(|last| last.as_ref().is_some_and(&is_so));
        match tokio::time::timeout(Duration::from_secs(60), waits).await {
            Ok(last) => last.unwrap().clone().unwrap(),
            Err(_) => panic!("it never comes to that: {:#?}", self.said.lock()),
        }
    }

    async fn end(&self) -> (State, String) {
        let last = self.until(|last| last.state.is_final()).await;
        (last.state, last.detail)
    }
}

/// A unit with a driver.
struct Rig {
    server: Server,
    cluster: Arc<Cluster>,
    files: Arc<Files>,
    commands: Commands,
    task: AbortHandle,
}

fn owner() -> Owner {
    Owner::new("n1", "abcd1234", "store")
}

fn settings(files: &Files) -> UnitSettings {
    UnitSettings {
        owner: owner(),
        prefix: "w-".into(),
        method: StreamMethod::Logger,
        has_stdin: files.dir.path().join("stdin").metadata().unwrap().len() > 0,
        max_stdout: None,
        pending_until: None,
        api_outage: Duration::from_secs(1800),
        first_pause: Duration::from_millis(10),
        quota_retry: false,
        delete_pod_on_restart: false,
        may_read_events: false,
        name: None,
        seed: rand::random(),
    }
}

async fn cluster(server: &Server) -> Arc<Cluster> {
    let credential = CredentialSource::Kubeconfig(server.kubeconfig());
    let (api, namespace) = HttpApi::new(&credential, None, &ProvenServers::default()).await.unwrap();
    Cluster::new(Arc::new(api), namespace, "store".into())
}

async fn drive(cluster: &Arc<Cluster>, files: &Arc<Files>, begin: Begin) -> (Commands, AbortHandle) {
    let extra = KubeExtra { image: "i".into(), kube_namespace: "ns".into(), ..KubeExtra::default() };
    let template = Template::new("w", &extra, None, &owner()).unwrap();
    let settings = settings(files);
    let (unit, cluster) = (files.clone(), cluster.clone());
    let run = PodRun { unit, cluster, template: Some(template), listen_at: None, settings, begin };
    let (commands, inbox) = commands::channel();
    let driver = PodDriver::new(run, inbox).await.unwrap();
    (commands, tokio::spawn(Box::new(driver).run()).abort_handle())
}

fn submitted() -> Begin {
    Begin::Submitted(PodRecord { namespace: "ns".into(), ..PodRecord::default() })
}

impl Rig {
    async fn start(server: Server, stdin: &[u8]) -> Self {
        let (cluster, files) = (cluster(&server).await, Files::new(stdin));
        let (commands, task) = drive(&cluster, &files, submitted()).await;
        Self { server, cluster, files, commands, task }
    }

    async fn release(&self) -> PodRemoved {
        self.release_and(false).await
    }

    async fn release_and(&self, waits: bool) -> PodRemoved {
        let (answer, answered) = oneshot::channel();
        let give_up = Instant::now() + Duration::from_secs(600);
        self.commands.send(PodCommand::Release { force: false, give_up, waits, answer }).unwrap();
        answered.await.unwrap()
    }

    /// Kills the daemon and starts it again.
    async fn kill(&mut self) {
        self.task.abort();
        let left = self.files.last.borrow().clone().unwrap();
        let begin = Begin::Left(left.state, left.detail, left.record);
        (self.commands, self.task) = drive(&self.cluster, &self.files, begin).await;
    }
}

fn lines(lines: std::ops::Range<u32>) -> String {
    lines.map(|line| format!("line {line}\n")).collect()
}

#[tokio::test]
async fn a_job_from_its_submission_to_its_release() {
    let stdin: Vec<u8> = (0..300_000_u32).map(|n| n as u8).collect();
    let rig = Rig::start(Server::start().await, &stdin).await;
    let pod = rig.server.pod().await;
    rig.server.run(&pod);
    rig.server.until("stdin", |world| world.stdin.get(&pod).is_some_and(|got| *got == stdin)).await;
    rig.files.until(|last| last.state == State::Running).await;
    rig.server.print(&pod, 0..5);
    rig.server.end(&pod, 0);
    assert_eq!(rig.files.end().await, (State::Succeeded, "Finished".into()));
    assert_eq!(rig.files.stdout(), lines(0..5).as_bytes());
    let last = rig.files.last.borrow().clone().unwrap().record;
    assert_eq!((last.exit_code, last.pod_name.as_str(), last.pod_uid.as_str()), (Some(0), &*pod, "u1"));
    let (cluster, begin) = (&rig.cluster, Begin::Left(State::Succeeded, "Finished".into(), last));
    let (commands, _) = drive(cluster, &rig.files, begin).await;
    let rig = Rig { commands, ..rig };
    assert_eq!(rig.release().await, PodRemoved::Done { is_gone: true });
    rig.server.change(|world| {
        assert!(world.pods.is_empty());
        let of_unit: Vec<_> = world
            .requests
            .iter()
            .filter(|request| request.contains("/pods") && !request.contains("labelSelector"))
            .collect();
        assert!(of_unit.len() <= 6, "{of_unit:#?}");
    });
}

#[tokio::test]
async fn who_waits_for_a_release_hears_only_of_its_end() {
    let rig = Rig::start(Server::start().await, b"").await;
    rig.server.pod().await;
    for _ in 0..2 {
        rig.server.fault("DELETE", Fault::Refuse(503, "it is busy"));
    }
    assert!(matches!(rig.release().await, PodRemoved::Pending(_)));
    assert_eq!(rig.release_and(true).await, PodRemoved::Done { is_gone: true });
    rig.server.change(|world| assert!(world.pods.is_empty()));
}

/// B1, B2.
#[tokio::test]
async fn a_log_that_is_cut_at_any_byte_comes_whole() {
    let server = Server::start().await;
    server.change(|world| (world.cuts_first_stream, world.runs_at_once) = (true, true));
    let cluster = cluster(&server).await;
    let mut units = Vec::new();
    // More units than five lines have bytes, so that some unit's stream is cut at each byte.
    for _ in 0..170 {
        let files = Files::new(b"");
        let (commands, _) = drive(&cluster, &files, submitted()).await;
        units.push((files, commands));
    }
    for (files, _) in &units {
        files.until(|last| last.state == State::Running).await;
    }
    let pods: Vec<String> = server.change(|world| world.pods.keys().cloned().collect());
    for pod in &pods {
        server.print(pod, 0..5);
    }
    for pod in &pods {
        server.print(pod, 5..7);
        server.end(pod, 3);
    }
    for (files, _) in &units {
        assert_eq!(files.end().await, (State::Succeeded, "Finished".into()));
        assert_eq!(String::from_utf8(files.stdout()).unwrap(), lines(0..7));
    }
    assert_eq!(server.change(|world| world.cuts), 170);
}

/// B4, B5, B11.
#[tokio::test]
async fn an_end_says_nothing_while_the_worker_runs_and_others_words_are_no_output() {
    let server = Server::start().await;
    for _ in 0..3 {
        server.fault("/log", Fault::End);
    }
    server.fault("/log", Fault::Say("failed to create fsnotify watcher: too many open files"));
    let rig = Rig::start(server, b"").await;
    let pod = rig.server.pod().await;
    rig.server.run(&pod);
    rig.files.until(|last| last.detail.contains("fsnotify")).await;
    rig.server.print(&pod, 0..2);
    rig.server.end(&pod, 0);
    assert_eq!(rig.files.end().await.0, State::Succeeded);
    assert_eq!(rig.files.stdout(), lines(0..2).as_bytes());
}

/// B13, and credentials that may not use WebSockets.
#[tokio::test]
async fn stdin_comes_once_a_kubelet_is_ready_and_by_spdy_where_websockets_are_refused() {
    let server = Server::start().await;
    server.fault(
        "GET /api/v1/namespaces/ns/pods/w-",
        Fault::Refuse(500, "error dialing backend: tls: internal error"),
    );
    server.fault("attach", Fault::Refuse(403, "pods \"w\" is forbidden: cannot get resource pods/attach"));
    let stdin = vec![7; 200_000];
    let rig = Rig::start(server, &stdin).await;
    let pod = rig.server.pod().await;
    rig.server.run(&pod);
    rig.server.until("stdin", |world| world.stdin.get(&pod).is_some_and(|got| *got == stdin)).await;
    rig.files.until(|last| last.state == State::Running).await;
    rig.server.change(|world| {
        assert!(
            world.requests.iter().any(|request| request.starts_with("POST") && request.contains("attach"))
        );
    });
    rig.server.end(&pod, 0);
    assert_eq!(rig.files.end().await.0, State::Succeeded);
}

/// B3, B14.
#[tokio::test]
async fn answers_that_are_lost_late_or_refused_for_a_while_change_nothing() {
    let server = Server::start().await;
    server.fault("POST", Fault::LoseAnswer);
    server.fault("labelSelector", Fault::Refuse(503, "the server is currently unable to handle the request"));
    server.fault("watch=true", Fault::Refuse(429, "too many requests"));
    server.fault("/log", Fault::Hold);
    // An API server that has just started knows no roles yet.
    server.fault("/log", Fault::Refuse(403, "pods is forbidden: User cannot get resource pods/log"));
    server.fault("follow=false", Fault::Refuse(504, "timeout"));
    let rig = Rig::start(server, b"payload").await;
    let pod = rig.server.pod().await;
    rig.server.run(&pod);
    rig.server.until("stdin", |world| world.stdin.get(&pod).is_some_and(|got| got == b"payload")).await;
    rig.files.until(|last| last.state == State::Running).await;
    rig.server.print(&pod, 0..4);
    rig.server.change(|world| world.goes_on = true);
    rig.server.end(&pod, 0);
    assert_eq!(rig.files.end().await, (State::Succeeded, "Finished".into()));
    assert_eq!(rig.files.stdout(), lines(0..4).as_bytes());
    rig.server.change(|world| assert_eq!(world.pods.len(), 1, "one pod, however often it was asked for"));
}

/// B15.
#[tokio::test]
async fn a_quota_that_is_exceeded_is_told_in_the_servers_words() {
    const QUOTA: &str =
        "pods \"x\" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1";
    let server = Server::start().await;
    server.fault("POST", Fault::Refuse(403, QUOTA));
    let rig = Rig::start(server, b"").await;
    assert_eq!(rig.files.end().await, (State::Failed, format!("Error creating pod: {QUOTA}")));
}

#[tokio::test]
async fn a_server_whose_logs_may_end_early_gets_no_pod() {
    let server = Server::start().await;
    server.change(|world| world.version = "v1.24.7");
    let rig = Rig::start(server, b"").await;
    let (state, detail) = rig.files.end().await;
    assert_eq!(state, State::Failed);
    assert!(detail.starts_with("Error creating pod: the API server is Kubernetes v1.24.7"), "{detail}");
    rig.server.change(|world| assert!(world.pods.is_empty()));
}

/// B17, B21.
#[tokio::test]
async fn a_pod_whose_create_is_answered_after_the_cancel_is_deleted() {
    let server = Server::start().await;
    server.fault("POST", Fault::Hold);
    let rig = Rig::start(server, b"").await;
    rig.server
        .until("a create", |world| world.requests.iter().any(|request| request.starts_with("POST")))
        .await;
    let (answer, answered) = oneshot::channel();
    rig.commands.send(PodCommand::Cancel(answer)).unwrap();
    answered.await.unwrap();
    assert_eq!(rig.files.end().await, (State::Canceled, "Canceled".into()));
    rig.server.change(|world| world.goes_on = true);
    rig.server
        .until("the deletion", |world| world.requests.iter().any(|request| request.starts_with("DELETE")))
        .await;
    rig.server.until("no pod", |world| world.pods.is_empty()).await;
}

/// B9, B19.
#[tokio::test]
async fn a_daemon_that_is_killed_again_and_again_loses_nothing() {
    let mut rig = Rig::start(Server::start().await, b"payload").await;
    let pod = rig.server.pod().await;
    rig.server.run(&pod);
    rig.files.until(|last| last.state == State::Running).await;
    for line in 0..20 {
        rig.server.print(&pod, line..line + 1);
        let written = lines(0..line).into_bytes();
        while rig.files.stdout().len() < written.len() {
            tokio::task::yield_now().await;
        }
        rig.kill().await;
    }
    rig.server.end(&pod, 0);
    assert_eq!(rig.files.end().await, (State::Succeeded, "Finished".into()));
    assert_eq!(String::from_utf8(rig.files.stdout()).unwrap(), lines(0..20));
    rig.server.change(|world| assert_eq!(world.stdin[&pod], b"payload", "sent once"));
}

/// B12: a worker that ends before anybody could attach to it may have needed no stdin.
#[tokio::test]
async fn a_worker_that_is_faster_than_its_stdin_has_succeeded() {
    let server = Server::start().await;
    server.fault("/attach", Fault::Hold);
    let rig = Rig::start(server, b"payload").await;
    let pod = rig.server.pod().await;
    rig.server.run(&pod);
    rig.server.print(&pod, 0..1);
    rig.server.end(&pod, 0);
    assert_eq!(rig.files.end().await, (State::Succeeded, "Finished".into()));
    assert_eq!(rig.files.stdout(), lines(0..1).as_bytes());
    rig.server.change(|world| world.goes_on = true);
}

/// B22: another container, and thus the pod, goes on running.
#[tokio::test]
async fn only_the_workers_end_ends_a_unit() {
    let rig = Rig::start(Server::start().await, b"").await;
    let pod = rig.server.pod().await;
    rig.server.run(&pod);
    rig.server.print(&pod, 0..1);
    let ended = json!({"terminated": {"exitCode": 0, "reason": "Completed"}});
    rig.server.change(|world| {
        world.set_worker(&pod, "Running", ended);
        let sidecar = json!({"name": "sidecar", "ready": true, "state": {"running": {}}});
        world.pods.get_mut(&pod).unwrap()["status"]["containerStatuses"]
            .as_array_mut()
            .unwrap()
            .push(sidecar);
    });
    assert_eq!(rig.files.end().await, (State::Succeeded, "Finished".into()));
}

/// B7, B8.
#[tokio::test]
async fn what_a_pod_waits_for_is_told_within_a_moment() {
    let rig = Rig::start(Server::start().await, b"").await;
    let pod = rig.server.pod().await;
    let waiting = json!({"waiting": {"reason": "ErrImagePull", "message": "no such image"}});
    rig.server.change(|world| world.set_worker(&pod, "Pending", waiting));
    rig.files.until(|last| last.detail == "Pod created: ErrImagePull: no such image").await;
    let waiting = json!({"waiting": {"reason": "InvalidImageName", "message": "bad"}});
    rig.server.change(|world| world.set_worker(&pod, "Pending", waiting));
    let end =
        (State::Failed, "Error creating pod: container failed to start, InvalidImageName: bad".to_owned());
    assert_eq!(rig.files.end().await, end);
    rig.server.until("no pod", |world| world.pods.is_empty()).await;
}
