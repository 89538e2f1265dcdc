//! Units that start on another node in one exchange: connections that break at each step of it, refusals, signatures,
//! and starts that come late.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use meshd::rpc::request::SubmitRequest;
use meshd::stream::Peer;
use meshd::wire::{NodeId, ServiceName};
use meshd::work::signing::{Signer, Verifier};
use meshd::work::{
    Caller, CommandType, Dialed, Dialer, Origin, Outcome, Registry, Started, State, StreamDialing,
    UnitReport, WorkError,
};
use tokio::io::AsyncWriteExt;

use crate::control::Place;
use crate::harness::*;
use crate::remote::{Pair, sh, starts};

const PLACES: [Place; 5] = [
    Place::BeforeTheLine,
    Place::BeforeThePayload,
    Place::BeforeTheStart,
    Place::BeforeTheFirstFrame,
    Place::AfterTheFirstFrame,
];

pub(crate) async fn signing() -> Pair {
    let certs = Path::new(env!("CARGO_MANIFEST_DIR")).join("certs");
    let signer = Signer::open(&certs.join("work.key"), Duration::from_secs(60)).unwrap();
    let pair = Pair::with(|options| options.signer = Some(Arc::new(signer))).await;
    let verifier = Verifier::open(&certs.join("work.pub"), node("n2")).unwrap();
    pair.far.set_verifier(Some(Arc::new(verifier)));
    pair
}

#[tokio::test]
async fn a_connection_that_breaks_at_any_step_neither_loses_a_unit_nor_runs_it_twice() {
    for (place, signed) in PLACES.into_iter().flat_map(|place| [(place, false), (place, true)]) {
        let pair = signing().await;
        pair.mesh.break_at(place);
        let payload = bytes(300_000);
        let runs = pair.temp.path().join("runs");
        let request = match signed {
            true => SubmitRequest { sign_work: true, ..request("n2", "signed", "") },
            false => sh(&format!("echo >>{}; cat", runs.display())),
        };
        let id = run_as(&pair.near, request, &payload).await;
        assert!(collect(&pair.near, &id, 0).await == payload, "{place:?} signed: {signed}");
        assert_eq!(finished(&pair.near, &id).await.state, State::Succeeded);
        assert!(!pair.mesh.is_to_break(), "{place:?}");
        assert_eq!(pair.far.list(None).await.unwrap().len(), 1, "{place:?}");
        assert!(signed || std::fs::read(&runs).unwrap() == b"\n", "{place:?}: it ran once");
    }
}

#[tokio::test]
async fn a_near_daemon_that_ends_at_any_step_goes_on_with_the_same_unit() {
    for place in PLACES {
        let pair = Pair::new().await;
        pair.mesh.break_at(place);
        let runs = pair.temp.path().join("runs");
        let submission =
            pair.near.submit(sh(&format!("echo >>{}; cat", runs.display())), me()).await.unwrap();
        let id = submission.id().to_string();
        let finish = tokio::spawn(submission.finish());
        eventually("it breaks", || !pair.mesh.is_to_break()).await;
        finish.abort();
        let pair = pair.restart_near().await;
        pair.mesh.set("n2", pair.far.clone());
        assert_eq!(finished(&pair.near, &id).await.state, State::Succeeded, "{place:?}");
        assert_eq!(std::fs::read(&runs).unwrap(), b"\n", "{place:?}: it ran once");
        assert_eq!(pair.far.list(None).await.unwrap().len(), 1, "{place:?}");
    }
}

#[tokio::test]
async fn a_go_node_is_asked_step_by_step() {
    let pair = Pair::new().await;
    pair.mesh.pretend_go(true);
    // A start in one exchange would fail here, so none may be sent.
    PLACES.into_iter().for_each(|place| pair.mesh.break_at(place));
    let (id, started) = starts(&pair.near, sh("echo x")).await;
    assert_eq!(started, Started::Started);
    assert_eq!(collect(&pair.near, &id, 0).await, b"x\n");
    assert!(pair.mesh.is_to_break());
}

#[tokio::test]
async fn what_the_other_node_refuses_leaves_nothing_there_and_its_id_is_forgotten() {
    let pair = signing().await;
    let signed = |kind: &str| SubmitRequest { sign_work: true, ..request("n2", kind, "") };
    for (request, cause) in [
        (request("n2", "none", ""), "unknown work type none"),
        (request("n2", "nothing", ""), "/nonexistent/program"),
        (signed("cat"), "work type did not expect a signature"),
        (request("n2", "signed", ""), "could not verify signature: signature is empty"),
    ] {
        let submission = pair.near.submit(request, me()).await.unwrap();
        let id = submission.id().to_string();
        let error = within(submission.finish()).await.unwrap_err().to_string();
        assert!(error.starts_with("error from remote: ") && error.contains(cause), "{error}");
        let report = finished(&pair.near, &id).await;
        assert_eq!(
            (report.state, &report.extra_data["RemoteUnitID"]),
            (State::Failed, &"".into()),
            "{error}"
        );
        assert!(pair.far.list(None).await.unwrap().is_empty(), "{error}");
    }
}

#[tokio::test]
async fn a_repetition_that_is_refused_for_a_new_reason_ends_nothing_that_runs() {
    for (place, is_there) in [(Place::BeforeTheFirstFrame, true), (Place::BeforeTheStart, false)] {
        let pair = Pair::new().await;
        pair.mesh.break_all_at(place);
        let go = pair.temp.path().join("go");
        let script = format!("echo begun; while [ ! -e {} ]; do sleep 0.05; done", go.display());
        let submission = pair.near.submit(sh(&script), me()).await.unwrap();
        let id = submission.id().to_string();
        tokio::spawn(submission.finish());
        eventually("it breaks", || !pair.mesh.is_to_break()).await;
        // The answer was lost, and meanwhile the type wants signatures.
        let types = options(pair.temp.path().join("far"), "n2").work_types;
        let signed = |kind: &CommandType| CommandType { verify_signature: true, ..kind.clone() };
        pair.far.set_work_types(types.iter().map(signed).collect()).unwrap();
        pair.mesh.set("n2", pair.far.clone());
        let is_told =
            |report: &UnitReport| report.extra_data["RemoteStarted"] == true || report.state.is_final();
        let told = until(&pair.near, &id, is_told).await;
        assert_eq!(told.state.is_final(), !is_there, "{place:?}: {}", told.detail);
        assert_eq!(told.detail.contains("signature is empty"), !is_there, "{place:?}: {}", told.detail);
        // Only callers whom the type permits may see its output.
        pair.far.set_work_types(types).unwrap();
        std::fs::write(go, "").unwrap();
        let state = if is_there { State::Succeeded } else { State::Failed };
        assert_eq!(finished(&pair.near, &id).await.state, state, "{place:?}");
        assert_eq!(pair.far.list(None).await.unwrap().len(), usize::from(is_there), "{place:?}");
    }
}

fn sender(name: &str) -> Caller {
    Caller { origin: Origin::Mesh { node: node(name).hash(), certified: false }, ..Caller::default() }
}

/// What a node answers to a submission that it gets from another one.
async fn submitted(registry: &Registry, unit: &str, at_once: bool, by: &str) -> Result<(), WorkError> {
    let asked =
        SubmitRequest { unit_id: Some(unit.to_owned()), at_once, ..request("localhost", "sh", "true") };
    registry.submit(asked, sender(by)).await?.finish().await.map(drop)
}

#[tokio::test]
async fn a_start_that_comes_after_its_release_is_refused() {
    let Engine { registry, temp: _temp } = Engine::new().await;
    // It was never here, because its release has overtaken it.
    let unknown = within(registry.release("early123", false, &sender("n2"))).await;
    assert!(matches!(unknown, Err(WorkError::UnknownUnit(_))), "{unknown:?}");
    let late = submitted(&registry, "early123", true, "n2").await;
    assert!(matches!(late, Err(WorkError::Released { .. })), "{late:?}");
    assert!(registry.list(None).await.unwrap().is_empty());
    // Only n2 has withdrawn it. In steps, n2 may still submit it, because such an exchange ends with its connection.
    submitted(&registry, "early123", true, "n3").await.unwrap();
    within(registry.release("early123", true, &sender("n3"))).await.unwrap();
    submitted(&registry, "early123", false, "n2").await.unwrap();
    within(registry.release("early123", true, &sender("n2"))).await.unwrap();
    // It was here and was released while a repetition was on its way.
    let late = submitted(&registry, "early123", true, "n2").await;
    assert!(matches!(late, Err(WorkError::Released { .. })), "{late:?}");
}

#[tokio::test]
async fn a_release_that_meets_a_repeated_start_leaves_nothing() {
    let Engine { registry, temp: _temp } = Engine::new().await;
    for (first, unit) in [(true, "twice123"), (false, "twice456")] {
        let asked = SubmitRequest {
            unit_id: Some(unit.into()),
            at_once: true,
            ..request("localhost", "sh", "'sleep 1000'")
        };
        // Its connection is lost, but nobody has noticed that yet.
        let _half = registry.submit(asked.clone(), sender("n2")).await.unwrap();
        let again = async { registry.submit(asked, sender("n2")).await?.finish().await.map(drop) };
        let by = sender("n2");
        let release = registry.release(unit, false, &by);
        let released = match first {
            true => within(async { tokio::join!(again, release).1 }).await,
            false => within(async { tokio::join!(release, again).0 }).await,
        };
        assert_eq!(released.unwrap(), Outcome::Done);
        assert!(registry.list(None).await.unwrap().is_empty(), "the repetition was first: {first}");
    }
}

#[tokio::test]
async fn an_id_that_a_client_uses_again_is_not_late() {
    let pair = Pair::new().await;
    for _ in 0..2 {
        let again = SubmitRequest { unit_id: Some("again123".into()), ..sh("echo x") };
        let id = run_as(&pair.near, again, b"").await;
        assert_eq!(collect(&pair.near, &id, 0).await, b"x\n");
        within(pair.near.release(&id, false, &me())).await.unwrap();
        assert!(pair.far.list(None).await.unwrap().is_empty());
    }
}

#[tokio::test]
async fn nor_is_one_of_which_a_daemon_that_ended_knew_that_it_was_released() {
    let again = || SubmitRequest { unit_id: Some("again123".into()), ..sh("echo x") };
    let pair = Pair::new().await;
    let id = run_as(&pair.near, again(), b"").await;
    finished(&pair.near, &id).await;
    within(pair.near.release(&id, false, &me())).await.unwrap();
    let pair = pair.restart_near().await;
    pair.mesh.set("n2", pair.far.clone());
    assert_eq!(starts(&pair.near, again()).await.1, Started::Started);
    assert_eq!(collect(&pair.near, &id, 0).await, b"x\n");
    // A released child of a job counts as run, so this daemon does not submit it in another way.
    let child = "c000000abn1a1r00000001";
    submitted(&pair.far, child, true, "n1").await.unwrap();
    within(pair.far.release(child, false, &me())).await.unwrap();
    let submission = pair.near.submit(SubmitRequest { unit_id: Some(child.into()), ..sh("true") }, me());
    let refused = within(submission.await.unwrap().finish()).await.unwrap_err().to_string();
    assert!(refused.contains(": it was released "), "{refused}");
}

#[tokio::test]
async fn a_unit_that_is_cancelled_before_the_answer_ends_there() {
    let pair = Pair::new().await;
    pair.mesh.stall(true);
    let submission = pair.near.submit(sh("exec sleep 1000"), me()).await.unwrap();
    let id = submission.id().to_string();
    tokio::spawn(submission.finish());
    until(&pair.near, &id, |report| report.extra_data["RemoteUnitID"] == id.as_str()).await;
    within(pair.near.release(&id, false, &me())).await.unwrap();
    pair.mesh.stall(false);
    pair.mesh.cut();
    emptied(&pair.far).await;
    assert!(pair.near.status(&id).await.is_err());
}

/// A node that says this after its greeting, whatever it is asked.
struct Says(NodeId, Vec<u8>);

impl Dialer for Says {
    fn dial(&self, node: NodeId, _: ServiceName, _: Option<String>) -> StreamDialing {
        let (ours, mut theirs) = tokio::io::duplex(64 * 1024);
        let said = [format!("Receptor Control, node {node}\n").as_bytes(), &self.1].concat();
        tokio::spawn(async move {
            let (mut asked, mut answers) = tokio::io::split(&mut theirs);
            let mut unread = tokio::io::sink();
            let _it_left = tokio::join!(tokio::io::copy(&mut asked, &mut unread), answers.write_all(&said));
        });
        Box::pin(async move { Ok(Dialed { stream: Box::new(ours), peer: Peer::Meshd }) })
    }

    fn knows_profile(&self, _name: &str) -> bool {
        false
    }

    fn node_id(&self) -> &NodeId {
        &self.0
    }
}

#[tokio::test]
async fn of_what_a_node_says_at_length_little_is_kept() {
    let long = "y".repeat(1_000_000);
    let report = format!(r#"{{"State": 2, "Detail": "{long}", "StdoutSize": 0}}"#);
    let frame = [b"Following work unit x\n\x01", &(report.len() as u32).to_be_bytes()[..], report.as_bytes()];
    for said in [format!("{long}\n").into_bytes(), format!("ERROR: {long}\n").into_bytes(), frame.concat()] {
        let temp = Scratch::new();
        let says = Arc::new(Says(node("n1"), said));
        let near = Registry::open(options(temp.path().to_owned(), "n1"), says).await.unwrap();
        let submission = near.submit(sh("true"), me()).await.unwrap();
        let id = submission.id().to_string();
        let _refused = within(submission.finish()).await;
        let report = until(&near, &id, |report| report.detail.contains("yyy")).await;
        assert!(report.detail.len() < 5000, "{} bytes", report.detail.len());
    }
}
