//! Units on another node: two engines that reach each other through memory, with links that can be cut, and a
//! control service that can behave like a Go node, which does not support follow.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use meshd::controller::children::RegistryChildren;
use meshd::controller::core::{ChildEnd, InstanceName, Known};
use meshd::controller::driver::world::{ChildInput, ChildNews, ChildRequest, Children as _};
use meshd::rpc::OutputBound;
use meshd::rpc::request::SubmitRequest;
use meshd::work::signing::{Signer, Verifier};
use meshd::work::{Caller, Leftovers, Options, Origin, Outcome, Registry, Started, State, WorkError};

use crate::control::{Mesh, Pieces};
use crate::harness::*;
use crate::inherited_pods::end_of;

pub(crate) struct Pair {
    pub mesh: Arc<Mesh>,
    pub near: Registry,
    pub far: Registry,
    pub temp: Scratch,
}

impl Pair {
    pub(crate) async fn new() -> Self {
        Self::with(|_| {}).await
    }

    /// Opens the near engine with other options.
    pub(crate) async fn with(change: impl FnOnce(&mut Options)) -> Self {
        let temp = Scratch::new();
        let mesh = Mesh::new("n1");
        let mut near = options(temp.path().join("near"), "n1");
        change(&mut near);
        let near = Registry::open(near, mesh.clone()).await.unwrap();
        let far = Registry::open(options(temp.path().join("far"), "n2"), mesh.clone()).await.unwrap();
        mesh.set("n2", far.clone());
        Self { mesh, near, far, temp }
    }

    /// The near daemon ends and another one takes over.
    pub(crate) async fn restart_near(self) -> Self {
        let Self { mesh, near, far, temp } = self;
        drop(near);
        let mesh = mesh.renewed();
        let near = Registry::open(options(temp.path().join("near"), "n1"), mesh.clone()).await.unwrap();
        Self { mesh, near, far, temp }
    }

    pub(crate) async fn run(&self, script: &str) -> String {
        run_as(&self.near, sh(script), b"").await
    }

    /// The unit's ID on the far node.
    pub(crate) async fn far_id(&self, id: &str) -> String {
        let known = |report: &meshd::work::UnitReport| report.extra_data["RemoteStarted"] == true;
        until(&self.near, id, known).await.extra_data["RemoteUnitID"].as_str().unwrap().to_owned()
    }
}

pub(crate) fn sh(script: &str) -> SubmitRequest {
    request("n2", "sh", &shlex::try_quote(script).unwrap())
}

pub(crate) async fn starts(registry: &Registry, request: SubmitRequest) -> (String, Started) {
    let submission = registry.submit(request, me()).await.unwrap();
    let id = submission.id().to_string();
    (id, within(submission.finish()).await.unwrap())
}

#[tokio::test]
async fn a_remote_job_delivers_its_output_and_its_end() {
    for go in [false, true] {
        let pair = Pair::new().await;
        pair.mesh.pretend_go(go);
        let (id, started) = starts(&pair.near, sh("echo out; exit 4")).await;
        assert_eq!(started, Started::Started);
        assert_eq!(collect(&pair.near, &id, 0).await, b"out\n");
        let report = finished(&pair.near, &id).await;
        assert_eq!(
            (report.state, report.detail.as_str(), report.stdout_size),
            (State::Failed, "exit status 4", 4)
        );
        let far = pair.far_id(&id).await;
        assert_eq!(within(pair.near.release(&id, false, &me())).await.unwrap(), Outcome::Done);
        let error = pair.far.status(&far).await.unwrap_err().to_string();
        assert!(error.starts_with(&format!("unknown work unit {far}: it was released ")), "{error}");
        assert!(pair.near.list(None).await.unwrap().is_empty());
    }
}

#[tokio::test]
async fn fifty_megabytes_go_there_and_back() {
    for go in [false, true] {
        let pair = Pair::new().await;
        pair.mesh.pretend_go(go);
        let payload = bytes(50_000_000);
        let id = run_as(&pair.near, request("n2", "cat", ""), &payload).await;
        assert!(collect(&pair.near, &id, 0).await == payload);
        assert_eq!(finished(&pair.near, &id).await.state, State::Succeeded);
    }
}

#[tokio::test]
async fn cut_links_neither_lose_nor_repeat_a_byte() {
    for go in [false, true] {
        let pair = Pair::new().await;
        pair.mesh.pretend_go(go);
        let fifo = pair.temp.path().join("fifo");
        let script = format!(
            "mkfifo {0}1 {0}2 {0}3; for i in 1 2 3; do echo $i; read x <{0}$i; done; seq 100000",
            fifo.display()
        );
        let id = pair.run(&script).await;
        let mut stream = pair.near.results(&id, 0, &me()).await.unwrap();
        let mut all = Vec::new();
        for round in 1..=3 {
            while !all.ends_with(format!("{round}\n").as_bytes()) {
                all.extend_from_slice(&within(stream.next()).await.unwrap().unwrap());
            }
            pair.mesh.cut();
            let fifo = format!("{}{round}", fifo.display());
            tokio::task::spawn_blocking(move || std::fs::write(fifo, "x\n").unwrap()).await.unwrap();
        }
        while let Some(chunk) = within(stream.next()).await.unwrap() {
            all.extend_from_slice(&chunk);
        }
        let wanted: String = [1, 2, 3].into_iter().chain(1..=100_000).map(|n| format!("{n}\n")).collect();
        assert!(all == wanted.as_bytes(), "{} of {}", all.len(), wanted.len());
        assert_eq!(finished(&pair.near, &id).await.state, State::Succeeded);
    }
}

#[tokio::test]
async fn a_node_that_is_away_gets_the_job_later() {
    let pair = Pair::new().await;
    pair.mesh.take_down("n2");
    let (id, started) = starts(&pair.near, sh("echo late")).await;
    assert_eq!(started, Started::Submitted);
    let report = pair.near.status(&id).await.unwrap();
    assert_eq!(report.state, State::Pending);
    assert!(report.detail.contains("Waiting for node n2"), "{}", report.detail);
    let pair = pair.restart_near().await;
    assert_eq!(pair.near.status(&id).await.unwrap().state, State::Pending);
    pair.mesh.set("n2", pair.far.clone());
    assert_eq!(collect(&pair.near, &id, 0).await, b"late\n");
}

#[tokio::test]
async fn a_running_job_is_followed_after_a_restart() {
    let pair = Pair::new().await;
    let fifo = pair.temp.path().join("fifo");
    let id = pair.run(&format!("mkfifo {0}; echo one; read x <{0}; echo two", fifo.display())).await;
    until(&pair.near, &id, |report| report.stdout_size == 4).await;
    let pair = pair.restart_near().await;
    pair.mesh.set("n2", pair.far.clone());
    std::fs::write(&fifo, "x\n").unwrap();
    assert_eq!(collect(&pair.near, &id, 0).await, b"one\ntwo\n");
    assert_eq!(pair.far.list(None).await.unwrap().len(), 1);
}

#[tokio::test]
async fn cancel_reaches_the_other_node() {
    for go in [false, true] {
        let pair = Pair::new().await;
        pair.mesh.pretend_go(go);
        let id = pair.run("echo x; exec sleep 1000").await;
        let far = pair.far_id(&id).await;
        let mut stream = pair.near.results(&id, 0, &me()).await.unwrap();
        assert_eq!(within(stream.next()).await.unwrap().unwrap(), "x\n");
        assert_eq!(within(pair.near.cancel(&id, &me())).await.unwrap(), Outcome::Done);
        assert_eq!(pair.far.status(&far).await.unwrap().detail, "Canceled");
        assert_eq!(finished(&pair.near, &id).await.state, State::Canceled);
        assert_eq!(within(stream.next()).await.unwrap(), None);
    }
}

#[tokio::test]
async fn a_release_does_not_wait_for_an_answer_without_a_route() {
    let pair = Pair::new().await;
    let id = pair.run("exec sleep 1000").await;
    pair.far_id(&id).await;
    pair.mesh.lose(false);
    let (near, unit) = (pair.near.clone(), id.clone());
    let release = tokio::spawn(async move { near.release(&unit, false, &me()).await });
    pair.mesh.dialled_in_vain().await;
    pair.mesh.lose(true);
    // Well below the time for which it waits for a node that is there.
    let released = tokio::time::timeout(std::time::Duration::from_secs(8), release).await;
    assert_eq!(released.expect("an answer in time").unwrap().unwrap(), Outcome::Pending);
}

#[tokio::test]
async fn cancel_and_release_wait_for_a_node_that_is_away() {
    let pair = Pair::new().await;
    let id = pair.run("exec sleep 1000").await;
    let far = pair.far_id(&id).await;
    pair.mesh.take_down("n2");
    assert_eq!(within(pair.near.cancel(&id, &me())).await.unwrap(), Outcome::Pending);
    assert_eq!(within(pair.near.release(&id, false, &me())).await.unwrap(), Outcome::Pending);
    // The release survives the daemon.
    let pair = pair.restart_near().await;
    assert_eq!(pair.near.status(&id).await.unwrap().extra_data["LocalReleased"], true);
    pair.mesh.set("n2", pair.far.clone());
    within(async {
        while pair.near.status(&id).await.is_ok() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(pair.far.status(&far).await.is_err());
}

#[tokio::test]
async fn force_frees_the_unit_here_in_any_case() {
    let pair = Pair::new().await;
    let id = pair.run("exec sleep 1000").await;
    let far = pair.far_id(&id).await;
    pair.mesh.take_down("n2");
    assert_eq!(within(pair.near.release(&id, true, &me())).await.unwrap(), Outcome::Done);
    assert!(pair.near.status(&id).await.is_err() && pair.near.list(None).await.unwrap().is_empty());
    // A request that the other node has not received survives the daemon, and is sent as soon as that node
    // can be reached.
    let pair = pair.restart_near().await;
    assert!(pair.near.list(None).await.unwrap().is_empty());
    pair.mesh.set("n2", pair.far.clone());
    within(async {
        while pair.far.status(&far).await.is_ok() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let units = pair.temp.path().join("near/n1");
    eventually("nothing is left", || directories_in(&units) == 0).await;
}

#[tokio::test]
async fn a_half_submitted_unit_is_cleaned_up_on_the_far_node() {
    let pair = Pair::new().await;
    pair.mesh.stall(true);
    let submission = pair.near.submit(sh("echo x"), me()).await.unwrap();
    let id = submission.id().to_string();
    let finish = tokio::spawn(submission.finish());
    until(&pair.near, &id, |report| report.extra_data["RemoteUnitID"] == id.as_str()).await;
    within(async {
        while pair.far.status(&id).await.is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
    })
    .await;
    assert_eq!(within(pair.near.cancel(&id, &me())).await.unwrap(), Outcome::Done);
    assert_eq!(pair.near.status(&id).await.unwrap().detail, "Locally Cancelled");
    assert_eq!(within(finish).await.unwrap().unwrap(), Started::Submitted);
    pair.mesh.stall(false);
    pair.mesh.cut();
    emptied(&pair.far).await;
    until(&pair.near, &id, |report| report.extra_data["RemoteUnitID"] == "").await;
    assert_eq!(within(pair.near.release(&id, false, &me())).await.unwrap(), Outcome::Done);
}

#[tokio::test]
async fn a_full_disk_here_delays_the_output_and_loses_nothing() {
    let temp = Scratch::new();
    let small = temp.path().join("small");
    let Some(mount) = Tmpfs::mount(&small) else { return };
    let mesh = Mesh::new("n1");
    let near = Registry::open(options(small.join("near"), "n1"), mesh.clone()).await.unwrap();
    let far = Registry::open(options(temp.path().join("far"), "n2"), mesh.clone()).await.unwrap();
    mesh.set("n2", far);
    let filler = small.join("filler");
    std::fs::write(&filler, vec![0; 1_500_000]).unwrap();
    let id = run_as(&near, sh("seq 200000"), b"").await;
    let full = until(&near, &id, |report| report.detail.contains("no space left")).await;
    assert!(!full.state.is_final());
    std::fs::remove_file(&filler).unwrap();
    let wanted: String = (1..=200_000).map(|n| format!("{n}\n")).collect();
    assert!(collect(&near, &id, 0).await == wanted.as_bytes());
    assert_eq!(finished(&near, &id).await.state, State::Succeeded);
    let file = small.join("near/n1").join(&id).join("status");
    eventually("the status is on disk", || {
        std::fs::read_to_string(&file).unwrap().starts_with("{\"State\":2")
    })
    .await;
    drop(mount);
}

#[tokio::test]
async fn a_unit_that_never_started_is_cancelled_and_released_at_once() {
    let pair = Pair::new().await;
    pair.mesh.take_down("n2");
    let (id, _) = starts(&pair.near, sh("echo x")).await;
    assert_eq!(within(pair.near.cancel(&id, &me())).await.unwrap(), Outcome::Done);
    let report = pair.near.status(&id).await.unwrap();
    assert_eq!((report.state, report.detail.as_str()), (State::Failed, "Locally Cancelled"));
    assert_eq!(collect(&pair.near, &id, 0).await, b"");
    assert_eq!(within(pair.near.release(&id, false, &me())).await.unwrap(), Outcome::Done);
}

#[tokio::test]
async fn a_unit_that_vanished_on_the_far_node_fails_here() {
    for go in [false, true] {
        let pair = Pair::new().await;
        pair.mesh.pretend_go(go);
        let id = pair.run("echo begun; exec sleep 1000").await;
        let far = pair.far_id(&id).await;
        until(&pair.near, &id, |report| report.stdout_size == 6).await;
        pair.mesh.take_down("n2");
        within(pair.far.release(&far, true, &me())).await.unwrap();
        pair.mesh.set("n2", pair.far.clone());
        let report = finished(&pair.near, &id).await;
        assert_eq!(report.state, State::Failed);
        assert!(report.detail.starts_with("Remote work unit is gone: node n2 "), "{}", report.detail);
        assert_eq!(report.stdout_size, 6);
        assert_eq!(collect(&pair.near, &id, 0).await, b"begun\n", "what has come stays");
        // Releasing a unit that the far node no longer has succeeds.
        assert_eq!(within(pair.near.release(&id, false, &me())).await.unwrap(), Outcome::Done);
    }
}

#[tokio::test]
async fn a_refusal_ends_the_unit_and_is_reported() {
    let pair = Pair::new().await;
    let submission = pair.near.submit(request("n2", "none", ""), me()).await.unwrap();
    let id = submission.id().to_string();
    let error = within(submission.finish()).await.unwrap_err();
    assert_eq!(error.to_string(), "error from remote: unknown work type none");
    let report = pair.near.status(&id).await.unwrap();
    assert!(
        report.detail.starts_with("Error starting worker: error from remote: unknown work type none ("),
        "{}",
        report.detail
    );
    assert_eq!(report.state, State::Failed);
}

/// The other node has said that it keeps pieces.
async fn promised() -> Pair {
    let pair = Pair::new().await;
    pair.mesh.set_pieces(Pieces::Promised);
    let id = pair.run("true").await;
    finished(&pair.near, &id).await;
    pair
}

#[tokio::test]
async fn a_node_that_does_not_take_pieces_any_more_gets_the_whole_payload() {
    let pair = promised().await;
    // An older version in its place.
    pair.mesh.set_pieces(Pieces::Unknown);
    let payload = vec![b'x'; 2 << 20];
    for starts in [&[false, true, false][..], &[false, true, false, false]] {
        let id = run_as(&pair.near, sh("wc -c"), &payload).await;
        assert_eq!(collect(&pair.near, &id, 0).await, format!("{}\n", payload.len()).into_bytes());
        finished(&pair.near, &id).await;
        assert_eq!(pair.mesh.starts(), starts, "once it is known, it is not tried again");
    }
}

#[tokio::test]
async fn a_node_that_refuses_the_whole_payload_as_well_is_not_asked_for_ever() {
    let pair = promised().await;
    pair.mesh.set_pieces(Pieces::Refused);
    let mut submission = pair.near.submit(sh("wc -c"), me()).await.unwrap();
    submission.write(&vec![b'x'; 2 << 20]).await.unwrap();
    let error = within(submission.finish()).await.unwrap_err().to_string();
    assert_eq!(error, "error from remote: cannot put the payload together: it is another one");
    assert_eq!(pair.mesh.starts(), [false, true, false]);
}

#[tokio::test]
async fn a_ttl_bounds_the_wait_for_the_start() {
    let pair = Pair::new().await;
    pair.mesh.take_down("n2");
    let (id, started) = starts(&pair.near, SubmitRequest { ttl: Some("2s".into()), ..sh("echo x") }).await;
    assert_eq!(started, Started::Submitted);
    let report = finished(&pair.near, &id).await;
    assert_eq!(report.state, State::Failed);
    assert!(report.detail.starts_with("Work unit expired on "), "{}", report.detail);
}

#[tokio::test]
async fn a_node_that_makes_no_private_directory_is_told_where_to_make_one() {
    let pair = Pair::new().await;
    for go in [false, true] {
        pair.mesh.pretend_go(go);
        let mut submit = sh("echo ${MESHD_RUN_DIR}");
        submit.params.insert("rundir".into(), "/srv/run".into());
        let id = run_as(&pair.near, submit, b"").await;
        let output = String::from_utf8(collect(&pair.near, &id, 0).await).unwrap();
        let made = pair.temp.path().join("far/n2/.run").join(&id);
        assert_eq!(output.trim_end(), if go { "/srv/run".to_owned() } else { made.display().to_string() });
    }
}

/// A few MB a second, without end.
const FLOOD: &str = "while :; do head -c 50000 /dev/zero; sleep 0.02; done";

fn bound(bytes: u64) -> OutputBound {
    OutputBound { bytes, setting: "joboutput".into() }
}

#[tokio::test]
async fn no_more_output_is_taken_than_a_unit_may_print_and_it_is_ended_there() {
    let most = 300_000;
    for (go, restarts) in [(false, false), (true, false), (false, true)] {
        let mut pair = Pair::new().await;
        pair.mesh.pretend_go(go);
        let submission = pair.near.submit_child(sh(FLOOD), bound(most)).await.unwrap();
        let id = submission.id().to_string();
        submission.finish().await.unwrap();
        let there = pair.far_id(&id).await;
        let file = pair.temp.path().join("near/n1").join(&id).join("stdout");
        if restarts {
            // The bound is stored from the first byte on, so it also holds for the next daemon that follows the unit.
            pair = pair.restart_near().await;
            pair.mesh.set("n2", pair.far.clone());
        }
        let report = finished(&pair.near, &id).await;
        assert_eq!(report.state, State::Failed);
        assert_eq!(report.detail, format!("Killed: it wrote more than {most} bytes (joboutput)"));
        assert_eq!((report.stdout_size, file.metadata().unwrap().len()), (most, most), "go: {go}");
        assert_eq!(
            pair.far.status(&there).await.unwrap().state,
            State::Canceled,
            "it has ended there before"
        );
        assert_eq!(collect(&pair.near, &id, 0).await.len() as u64, most, "what came is there to be read");
    }
}

#[tokio::test]
async fn a_node_that_agrees_to_end_a_unit_and_says_that_it_runs_is_not_believed_for_ever() {
    let pair = Pair::new().await;
    pair.mesh.deny();
    let submission = pair.near.submit_child(sh(FLOOD), bound(300_000)).await.unwrap();
    let id = submission.id().to_string();
    submission.finish().await.unwrap();
    let there = pair.far_id(&id).await;
    until(&pair.near, &id, |report| report.extra_data["Stopped"].is_string()).await;
    tokio::time::pause();
    let begun = tokio::time::Instant::now();
    let report = loop {
        let report = pair.near.status(&id).await.unwrap();
        if report.state.is_final() {
            break report;
        }
        assert!(begun.elapsed() < Duration::from_secs(3600), "{report:?}");
        tokio::time::sleep(Duration::from_secs(1)).await;
    };
    assert!(begun.elapsed() > Duration::from_secs(500), "it has its time to end: {:?}", begun.elapsed());
    tokio::time::resume();
    assert_eq!(report.state, State::Failed);
    assert_eq!(
        report.detail,
        "Killed: it wrote more than 300000 bytes (joboutput); n2 says that it still runs"
    );
    within(pair.far.cancel(&there, &me())).await.unwrap();
}

#[tokio::test]
async fn a_cancelled_unit_ends_though_its_node_says_for_ever_that_it_runs() {
    for go in [false, true] {
        let pair = Pair::new().await;
        pair.mesh.pretend_go(go);
        pair.mesh.deny();
        let submission = pair.near.submit_child(sh("echo one; exec sleep 1000"), bound(1000)).await.unwrap();
        let id = submission.id().to_string();
        submission.finish().await.unwrap();
        let there = pair.far_id(&id).await;
        until(&pair.near, &id, |report| report.stdout_size > 0).await;
        within(pair.near.cancel(&id, &me())).await.unwrap();
        tokio::time::pause();
        let begun = tokio::time::Instant::now();
        let report = loop {
            let report = pair.near.status(&id).await.unwrap();
            if report.state.is_final() {
                break report;
            }
            assert!(begun.elapsed() < Duration::from_secs(3600), "{report:?}");
            tokio::time::sleep(Duration::from_secs(1)).await;
        };
        assert!(begun.elapsed() > Duration::from_secs(500), "it has its time to end: {:?}", begun.elapsed());
        tokio::time::resume();
        assert_eq!(
            (report.state, report.detail.as_str()),
            (State::Canceled, "Canceled; n2 says that it still runs")
        );
        within(pair.far.cancel(&there, &me())).await.unwrap();
    }
}

#[tokio::test]
async fn a_unit_may_print_exactly_as_much_as_it_may_and_one_that_ended_with_more_has_failed() {
    for go in [false, true] {
        let pair = Pair::new().await;
        pair.mesh.pretend_go(go);
        for (bytes, state) in [(1000, State::Succeeded), (1001, State::Failed)] {
            let script = format!("printf %0{bytes}d 7");
            let submission = pair.near.submit_child(sh(&script), bound(1000)).await.unwrap();
            let id = submission.id().to_string();
            submission.finish().await.unwrap();
            let report = finished(&pair.near, &id).await;
            assert_eq!((report.state, report.stdout_size), (state, 1000), "{}", report.detail);
        }
    }
}

/// The child of a job, as its control node asks for it.
pub(crate) fn child(unit: &str) -> ChildRequest {
    ChildRequest {
        unit: unit.to_owned(),
        node: InstanceName::from("n2"),
        work_type: "sh".to_owned(),
        params: format!("--private-data-dir=/tmp/meshd_{unit} --delete"),
        run_dir: None,
        signed: false,
        tls: None,
        ttl: None,
        max_stdout: bound(1 << 20),
        far: None,
        pod: None,
    }
}

#[tokio::test]
async fn a_child_that_was_released_on_its_node_is_not_one_that_never_was_there() {
    let pair = Pair::new().await;
    let children = RegistryChildren(pair.near.clone());
    let (released, never) = ("c000000abn1a1r00000001", "c000000abn2a1r00000002");
    run_as(&pair.far, asked(released), b"").await;
    within(pair.far.release(released, false, &me())).await.unwrap();
    for (unit, wanted) in [(released, ChildEnd::Released), (never, ChildEnd::Unknown)] {
        children.adopt(child(unit)).await.unwrap();
        let mut stream = children.follow(unit.to_owned(), 0).await;
        match within(stream.next()).await {
            ChildNews::Ended { end, .. } => assert_eq!(end, wanted, "{unit}"),
            news => panic!("{unit}: {news:?}"),
        }
        let refused = refusal(&pair.far, unit).await;
        let is_right = match unit == released {
            true => matches!(refused, WorkError::Released { .. }),
            false => matches!(refused, WorkError::Disclaimed(_)),
        };
        assert!(is_right, "{unit} may run elsewhere by now: {refused}");
    }
}

#[tokio::test]
async fn a_promise_about_signed_work_is_asked_for_with_a_signature() {
    let certs = Path::new(env!("CARGO_MANIFEST_DIR")).join("certs");
    let signer = Signer::open(&certs.join("work.key"), Duration::from_secs(60)).unwrap();
    let pair = Pair::with(|options| options.signer = Some(Arc::new(signer))).await;
    let verifier = Verifier::open(&certs.join("work.pub"), node("n2")).unwrap();
    pair.far.set_verifier(Some(Arc::new(verifier)));
    let unit = "c000000abn1a1r00000001";
    let children = RegistryChildren(pair.near.clone());
    children.adopt(ChildRequest { work_type: "signed".into(), signed: true, ..child(unit) }).await.unwrap();
    let mut stream = children.follow(unit.to_owned(), 0).await;
    let end = within(stream.next()).await;
    assert!(matches!(end, ChildNews::Ended { end: ChildEnd::Unknown, .. }), "{end:?}");
}

#[tokio::test]
async fn a_submission_of_a_child_that_comes_after_its_release_is_refused() {
    let pair = Pair::new().await;
    let unit = "c000000abn1a1r00000001";
    let sender =
        || Caller { origin: Origin::Mesh { node: node("n1").hash(), certified: false }, ..Caller::default() };
    for _ in 0..2 {
        // A unit that never got its whole payload has not run, so it may be submitted again.
        let submission = pair.far.submit(asked(unit), sender()).await.unwrap();
        submission.discard("its connection broke".into()).await;
    }
    pair.far.submit(asked(unit), sender()).await.unwrap().finish().await.unwrap();
    within(pair.far.release(unit, false, &sender())).await.unwrap();
    let late = pair.far.submit(asked(unit), sender()).await;
    assert!(matches!(late, Err(WorkError::Released { .. })), "{late:?}");
}

#[tokio::test]
async fn a_child_that_is_sent_again_after_its_release_is_not_one_that_never_ran() {
    let pair = Pair::new().await;
    let children = RegistryChildren(pair.near.clone());
    let unit = "c000000abn1a1r00000001";
    run_as(&pair.far, asked(unit), b"").await;
    within(pair.far.release(unit, false, &me())).await.unwrap();
    assert!(children.send(child(unit), ChildInput::default()).await.unwrap());
    let mut stream = children.follow(unit.to_owned(), 0).await;
    let end = within(stream.next()).await;
    assert!(matches!(end, ChildNews::Ended { end: ChildEnd::Released, .. }), "{end:?}");
}

/// A submission under an ID that was chosen.
fn asked(unit: &str) -> SubmitRequest {
    SubmitRequest { unit_id: Some(unit.to_owned()), ..request("localhost", "sh", "true") }
}

/// The error of a node for a submission of a unit that it will not run any more, or ever.
async fn refusal(registry: &Registry, unit: &str) -> WorkError {
    registry.submit(asked(unit), me()).await.map(drop).unwrap_err()
}

#[tokio::test]
async fn a_child_that_a_go_node_does_not_have_is_looked_for_until_it_comes() {
    let pair = Pair::new().await;
    pair.mesh.pretend_go(true);
    let children = RegistryChildren(pair.near.clone());
    let unit = "c000000abn1a1r00000001";
    children.adopt(child(unit)).await.unwrap();
    let mut stream = children.follow(unit.to_owned(), 0).await;
    assert_eq!(within(stream.next()).await, ChildNews::Missing);
    let asked = SubmitRequest { unit_id: Some(unit.to_owned()), ..request("localhost", "sh", "'echo x'") };
    run_as(&pair.far, asked, b"").await;
    let mut news = within(stream.next()).await;
    if news == ChildNews::Accepted {
        news = within(stream.next()).await;
    }
    assert_eq!(news, ChildNews::Output("x\n".into()));
    assert!(matches!(within(stream.next()).await, ChildNews::Ended { end: ChildEnd::Succeeded, .. }));
}

#[tokio::test]
async fn what_another_control_node_sent_cannot_be_sent_again_once_it_is_released() {
    let pair = Pair::new().await;
    let children = RegistryChildren(pair.near.clone());
    let unit = "c000000abn1a1r00000001";
    run_as(&pair.far, asked(unit), b"").await;
    children.adopt(child(unit)).await.unwrap();
    assert_eq!(end_of(&children, unit).await.0, ChildEnd::Succeeded);
    assert!(within(children.release(unit.to_owned(), Leftovers::Stay)).await);
    assert_eq!(children.known(unit), Known::Unknown);
    let refused = refusal(&pair.far, unit).await;
    assert!(matches!(refused, WorkError::Released { .. }), "{refused}");
}

#[tokio::test]
async fn a_child_whose_payload_never_was_whole_is_one_that_never_was_there() {
    let pair = Pair::new().await;
    let children = RegistryChildren(pair.near.clone());
    for (unit, is_discarded, is_followed) in [
        ("c000000abn1a1r00000001", true, false),
        ("c000000abn2a1r00000002", true, true),
        ("c000000abn3a1r00000003", false, false),
        ("c000000abn4a1r00000004", false, true),
    ] {
        let mut submission = pair.far.submit(asked(unit), me()).await.unwrap();
        submission.write(b"half").await.unwrap();
        let mut reads = None;
        if is_followed {
            children.adopt(child(unit)).await.unwrap();
            reads = Some(children.follow(unit.to_owned(), 0).await);
            detailed(&children, unit, "Waiting for Input Data").await;
        }
        match is_discarded {
            true => submission.discard("its sender left".into()).await,
            false => submission.abort("its sender left".into()).await,
        }
        if !is_followed {
            children.adopt(child(unit)).await.unwrap();
        }
        drop(reads);
        assert_eq!(end_of(&children, unit).await.0, ChildEnd::Unknown, "{unit}");
        let refused = refusal(&pair.far, unit).await;
        assert!(matches!(refused, WorkError::Disclaimed(_)), "{refused}");
    }
}

#[tokio::test]
async fn a_child_that_waits_there_for_its_payload_is_followed_after_a_restart() {
    let pair = Pair::new().await;
    let unit = "c000000abn1a1r00000001";
    let asked = SubmitRequest { unit_id: Some(unit.to_owned()), ..request("localhost", "sh", "'echo x'") };
    let mut submission = pair.far.submit(asked, me()).await.unwrap();
    submission.write(b"half").await.unwrap();
    let children = RegistryChildren(pair.near.clone());
    children.adopt(child(unit)).await.unwrap();
    let _reads = children.follow(unit.to_owned(), 0).await;
    detailed(&children, unit, "Waiting for Input Data").await;
    drop(children);
    let pair = pair.restart_near().await;
    pair.mesh.set("n2", pair.far.clone());
    let children = RegistryChildren(pair.near.clone());
    children.adopt(child(unit)).await.unwrap();
    submission.finish().await.unwrap();
    assert_eq!(end_of(&children, unit).await.0, ChildEnd::Succeeded);
}

/// Waits until the Detail of a child is as given.
async fn detailed(children: &RegistryChildren, unit: &str, detail: &str) {
    eventually(detail, || children.detail(unit).is_some_and(|now| now == detail)).await;
}

#[tokio::test]
async fn a_child_that_is_withheld_before_the_controller_may_act_never_starts() {
    let pair = Pair::with(|options| options.is_child = Some(|unit| unit.as_str().starts_with('c'))).await;
    let asked = |unit: &str| SubmitRequest { unit_id: Some(unit.to_owned()), ..sh("echo x") };
    let (wanted, unwanted) = ("c000000abn1a1r00000001", "c000000abn2a1r00000002");
    for unit in [wanted, unwanted] {
        let submission = pair.near.submit(asked(unit), me()).await.unwrap();
        tokio::spawn(submission.finish());
        until(&pair.near, unit, |report| report.detail != "Waiting for Input Data").await;
    }
    within(pair.near.withhold_child(unwanted)).await.unwrap();
    within(pair.near.withhold_child("nobody12")).await.unwrap();
    pair.near.let_children_act(true);
    assert_eq!(finished(&pair.near, wanted).await.state, State::Succeeded);
    let report = finished(&pair.near, unwanted).await;
    assert_eq!((report.state, report.detail.as_str()), (State::Failed, "Locally Cancelled"));
    assert_eq!(pair.far.list(None).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_node_that_is_installed_again_before_its_answer_is_heard_gets_the_unit_again() {
    let Pair { mesh, near, far, temp } = Pair::new().await;
    mesh.stall(true);
    let submission = near.submit(sh("echo x"), me()).await.unwrap();
    let id = submission.id().to_string();
    tokio::spawn(submission.finish());
    within(async {
        while far.status(&id).await.is_err() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    mesh.take_down("n2");
    mesh.stall(false);
    drop(far);
    let far = Registry::open(options(temp.path().join("again"), "n2"), mesh.clone()).await.unwrap();
    mesh.set("n2", far.clone());
    assert_eq!(finished(&near, &id).await.state, State::Succeeded);
    assert_eq!(collect(&near, &id, 0).await, b"x\n");
    assert!(far.status(&id).await.is_ok(), "under the same ID");
}
