//! Long payloads for another node, streamed while they are still being submitted: when their bytes arrive on
//! the far node, and what happens when the payload breaks off, the node is away, links break or the daemon
//! ends.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use meshd::rpc::request::SubmitRequest;
use meshd::work::signing::Signer;
use meshd::work::{Outcome, Registry, Started, State, UnitSubmission, WorkError};

use crate::control::Mesh;
use crate::harness::*;
use crate::remote::{Pair, sh};

/// A part of a payload, several times the size of one write.
const PART: usize = 500_000;

/// Begins a unit whose command copies its payload.
async fn begin(pair: &Pair, payload: &[u8]) -> (String, UnitSubmission) {
    let mut submission = pair.near.submit(request("n2", "cat", ""), me()).await.unwrap();
    submission.write(payload).await.unwrap();
    (submission.id().to_string(), submission)
}

/// Bytes of payload on the far node, in its only unit's directory.
fn arrived(pair: &Pair) -> u64 {
    let units = std::fs::read_dir(pair.temp.path().join("far/n2")).unwrap().flatten();
    let payloads = units.filter_map(|unit| unit.path().join("stdin").metadata().ok());
    payloads.map(|payload| payload.len()).sum()
}

/// Waits until that much of a payload has arrived, except for what a node writes with the next piece.
async fn arrives(pair: &Pair, length: usize) {
    eventually("it has arrived", || arrived(pair) + 128 * 1024 > length as u64).await;
}

/// The unit's ID on the far node, once it is known.
async fn far_id(pair: &Pair, id: &str) -> String {
    let report = until(&pair.near, id, |report| report.extra_data["RemoteUnitID"] != "").await;
    report.extra_data["RemoteUnitID"].as_str().unwrap().to_owned()
}

/// The path of a unit's status on the far node.
fn far_status(pair: &Pair, far_id: &str) -> PathBuf {
    pair.temp.path().join("far/n2").join(far_id).join("status")
}

/// When a unit's directory was created.
fn made_at(unit: &Path) -> Option<std::time::SystemTime> {
    unit.metadata().and_then(|found| found.created()).ok()
}

/// The number of units on the far node.
fn made(pair: &Pair) -> usize {
    directories_in(&pair.temp.path().join("far/n2"))
}

/// A unit with a payload of two parts, of which one has arrived.
async fn half_way(go: bool) -> (Pair, Vec<u8>, String, UnitSubmission) {
    let pair = Pair::new().await;
    pair.mesh.pretend_go(go);
    let payload = bytes(2 * PART);
    let (id, submission) = begin(&pair, &payload[..PART]).await;
    arrives(&pair, PART).await;
    (pair, payload, id, submission)
}

#[tokio::test]
async fn a_payload_arrives_before_it_has_ended() {
    for go in [false, true] {
        let (pair, payload, id, mut submission) = half_way(go).await;
        let report = pair.near.status(&id).await.unwrap();
        assert_eq!((report.state, report.detail.as_str()), (State::Pending, "Waiting for Input Data"));
        submission.write(&payload[PART..]).await.unwrap();
        arrives(&pair, 2 * PART).await;
        assert_eq!(within(submission.finish()).await.unwrap(), Started::Started);
        assert!(collect(&pair.near, &id, 0).await == payload);
        assert_eq!(finished(&pair.near, &id).await.state, State::Succeeded);
        assert_eq!(pair.far.list(None).await.unwrap().len(), 1);
    }
}

#[tokio::test]
async fn a_payload_that_breaks_off_runs_nowhere_and_leaves_nothing() {
    // The client reports an error, is killed, or is a meshd node that will return.
    for (way, go) in [(0, false), (0, true), (1, false), (1, true), (2, false), (2, true)] {
        let pair = Pair::new().await;
        pair.mesh.pretend_go(go);
        let ran = pair.temp.path().join("ran");
        let mut submission = pair.near.submit(sh(&format!("touch {}", ran.display())), me()).await.unwrap();
        let id = submission.id().to_string();
        submission.write(&bytes(PART)).await.unwrap();
        arrives(&pair, PART).await;
        match way {
            0 => submission.abort("enough".into()).await,
            1 => drop(submission),
            _ => submission.discard("enough".into()).await,
        }
        if way == 2 {
            assert!(pair.near.list(None).await.unwrap().is_empty());
        } else {
            let report = finished(&pair.near, &id).await;
            assert!(report.detail.starts_with("Error reading input data: "), "{}", report.detail);
            until(&pair.near, &id, |report| report.extra_data["RemoteUnitID"] == "").await;
        }
        emptied(&pair.far).await;
        assert!(!ran.exists());
    }
}

#[tokio::test]
async fn links_that_break_during_a_payload_change_nothing() {
    let pair = Pair::new().await;
    let payload = bytes(3 * PART);
    let (id, mut submission) = begin(&pair, &payload[..PART]).await;
    for part in 1..3 {
        arrives(&pair, part * PART).await;
        let unit = far_status(&pair, &far_id(&pair, &id).await);
        let unit = unit.parent().unwrap();
        let before = made_at(unit);
        pair.mesh.cut();
        // The far node creates the unit again although the client has sent no more.
        eventually("the far node creates it again", || made_at(unit).is_some_and(|at| Some(at) != before))
            .await;
        submission.write(&payload[part * PART..(part + 1) * PART]).await.unwrap();
    }
    within(submission.finish()).await.unwrap();
    assert!(collect(&pair.near, &id, 0).await == payload);
    eventually("one unit is left on the far node", || made(&pair) == 1).await;
}

#[tokio::test]
async fn a_node_that_is_away_is_tried_when_the_payload_has_ended() {
    let pair = Pair::new().await;
    pair.mesh.take_down("n2");
    let payload = bytes(2 * PART);
    let (id, mut submission) = begin(&pair, &payload[..PART]).await;
    let waiting = until(&pair.near, &id, |report| report.detail.contains("Waiting for node n2")).await;
    assert_eq!(waiting.state, State::Pending);
    submission.write(&payload[PART..]).await.unwrap();
    pair.mesh.set("n2", pair.far.clone());
    assert_eq!(within(submission.finish()).await.unwrap(), Started::Started);
    assert!(collect(&pair.near, &id, 0).await == payload);

    pair.mesh.take_down("n2");
    let (id, submission) = begin(&pair, &payload).await;
    until(&pair.near, &id, |report| report.detail.contains("Waiting for node n2")).await;
    assert_eq!(within(submission.finish()).await.unwrap(), Started::Submitted);
    until(&pair.near, &id, |report| report.detail.contains("Waiting for node n2")).await;
    // The end of the payload is stored now, so a restart knows it too.
    let pair = pair.restart_near().await;
    pair.mesh.set("n2", pair.far.clone());
    assert!(collect(&pair.near, &id, 0).await == payload);
}

#[tokio::test]
async fn a_daemon_that_ends_during_a_payload_fails_the_unit_on_both_nodes() {
    let (pair, _, id, submission) = half_way(false).await;
    // Like a process that is killed.
    std::mem::forget(submission);
    let pair = pair.restart_near().await;
    let report = finished(&pair.near, &id).await;
    assert!(report.detail.starts_with("Pending at restart"), "{}", report.detail);
    pair.mesh.set("n2", pair.far.clone());
    emptied(&pair.far).await;
}

#[tokio::test]
async fn a_unit_starts_only_after_its_payload_is_durable_here() {
    let pair = Pair::new().await;
    let units: PathBuf = pair.temp.path().join("near/n1");
    let mut submission =
        pair.near.submit(sh(&format!("cat {}/*/status", units.display())), me()).await.unwrap();
    let id = submission.id().to_string();
    submission.write(&bytes(PART)).await.unwrap();
    arrives(&pair, PART).await;
    within(submission.finish()).await.unwrap();
    let status = collect(&pair.near, &id, 0).await;
    let status: serde_json::Value = serde_json::from_slice(&status).unwrap();
    assert_eq!((&status["State"], &status["Detail"]), (&0.into(), &"Starting Worker".into()));
    assert_ne!(status["ExtraData"]["RemoteUnitID"], "");
}

#[tokio::test]
async fn a_refusal_is_reported_when_the_payload_has_ended() {
    let pair = Pair::new().await;
    let mut submission = pair.near.submit(request("n2", "none", ""), me()).await.unwrap();
    let id = submission.id().to_string();
    submission.write(&bytes(PART)).await.unwrap();
    let report = finished(&pair.near, &id).await;
    assert!(report.detail.contains("unknown work type none"), "{}", report.detail);
    submission.write(&bytes(PART)).await.unwrap();
    let error = within(submission.finish()).await.unwrap_err();
    assert_eq!(error.to_string(), "error from remote: unknown work type none");
}

#[tokio::test]
async fn a_unit_can_be_cancelled_released_or_expire_during_its_payload() {
    for way in 0..4 {
        let pair = Pair::new().await;
        let ttl = (way == 3).then(|| "300ms".to_owned());
        let mut submission =
            pair.near.submit(SubmitRequest { ttl, ..request("n2", "cat", "") }, me()).await.unwrap();
        let id = submission.id().to_string();
        submission.write(&bytes(PART)).await.unwrap();
        if way < 3 {
            arrives(&pair, PART).await;
        }
        match way {
            0 => assert_eq!(within(pair.near.cancel(&id, &me())).await.unwrap(), Outcome::Done),
            1 | 2 => {
                assert_eq!(within(pair.near.release(&id, way == 2, &me())).await.unwrap(), Outcome::Done);
            }
            _ => {
                let report = finished(&pair.near, &id).await;
                assert!(report.detail.starts_with("Work unit expired on "), "{}", report.detail);
            }
        }
        emptied(&pair.far).await;
        submission.write(&bytes(PART)).await.unwrap();
        assert!(matches!(within(submission.finish()).await, Err(WorkError::EndedEarly(_))), "{way}");
        emptied(&pair.far).await;
        assert_eq!(pair.near.list(None).await.unwrap().len(), if way == 0 || way == 3 { 1 } else { 0 });
    }
}

#[tokio::test]
async fn a_signed_payload_is_sent_when_it_is_complete() {
    let key = Path::new(env!("CARGO_MANIFEST_DIR")).join("certs/work.key");
    let signer = Arc::new(Signer::open(&key, Duration::from_secs(60)).unwrap());
    let pair = Pair::with(|options| options.signer = Some(signer.clone())).await;
    // No node answers: an attempt leaves its mark.
    let mut signed =
        pair.near.submit(SubmitRequest { sign_work: true, ..request("n3", "cat", "") }, me()).await.unwrap();
    let id = signed.id().to_string();
    signed.write(&bytes(PART)).await.unwrap();
    let (_, other) = begin(&pair, &bytes(PART)).await;
    arrives(&pair, PART).await;
    drop(other);
    assert_eq!(pair.near.status(&id).await.unwrap().detail, "Waiting for Input Data");
    assert_eq!(within(signed.finish()).await.unwrap(), Started::Submitted);
    until(&pair.near, &id, |report| report.detail.contains("no route to n3")).await;
}

#[tokio::test]
async fn a_node_that_restarts_during_a_payload_gets_all_of_it_again() {
    for go in [false, true] {
        let (pair, payload, id, mut submission) = half_way(go).await;
        pair.mesh.take_down("n2");
        let lost = far_status(&pair, &far_id(&pair, &id).await);
        eventually("the far node loses the connection", || {
            std::fs::read_to_string(&lost).unwrap().contains("Error reading input")
        })
        .await;
        let Pair { mesh, near, far, temp } = pair;
        drop(far);
        // As if the client had been killed.
        let mut status: serde_json::Value = serde_json::from_slice(&std::fs::read(&lost).unwrap()).unwrap();
        status["Detail"] = "Pending at restart".into();
        std::fs::write(&lost, format!("{status}\n")).unwrap();
        let far = Registry::open(options(temp.path().join("far"), "n2"), mesh.clone()).await.unwrap();
        mesh.set("n2", far.clone());
        submission.write(&payload[PART..]).await.unwrap();
        within(submission.finish()).await.unwrap();
        assert!(collect(&near, &id, 0).await == payload);
        assert_eq!(finished(&near, &id).await.state, State::Succeeded);
        assert_eq!(far.list(None).await.unwrap().len(), 1, "what the restart left is gone");
    }
}

#[tokio::test]
async fn a_full_disk_on_the_far_node_ends_the_unit_and_is_reported() {
    let temp = Scratch::new();
    let small = temp.path().join("small");
    let Some(mount) = Tmpfs::mount(&small) else { return };
    let mesh = Mesh::new("n1");
    let near = Registry::open(options(temp.path().join("near"), "n1"), mesh.clone()).await.unwrap();
    let far = Registry::open(options(small.join("far"), "n2"), mesh.clone()).await.unwrap();
    mesh.set("n2", far.clone());
    let mut submission = near.submit(request("n2", "cat", ""), me()).await.unwrap();
    let id = submission.id().to_string();
    submission.write(&bytes(8 * PART)).await.unwrap();
    // The unit ends while its client is still sending.
    let report = finished(&near, &id).await;
    let detail = report.detail;
    // If the machine is slow, the unit is sent again, and refused before its payload.
    let is_full = detail.contains("stdin") || detail.contains("no space left under the data directory");
    assert!(detail.contains("error from remote: ") && is_full, "{detail}");
    let error = within(submission.finish()).await.unwrap_err();
    assert!(error.to_string().starts_with("error from remote: "), "{error}");
    until(&near, &id, |report| report.extra_data["RemoteUnitID"] == "").await;
    emptied(&far).await;
    drop(mount);
}

#[tokio::test]
async fn a_remote_unit_is_not_forgotten_when_its_payload_breaks_off() {
    let pair = Pair::new().await;
    pair.mesh.pretend_go(true);
    pair.mesh.slow(true);
    let (id, submission) = begin(&pair, &bytes(PART)).await;
    eventually("it is made", || made(&pair) == 1).await;
    submission.abort("enough".into()).await;
    assert_eq!(finished(&pair.near, &id).await.state, State::Failed);
    pair.mesh.slow(false);
    emptied(&pair.far).await;
}

#[tokio::test]
async fn a_unit_whose_release_waits_for_its_node_does_not_start() {
    let (pair, _, id, submission) = half_way(false).await;
    pair.mesh.take_down("n2");
    assert_eq!(within(pair.near.release(&id, false, &me())).await.unwrap(), Outcome::Pending);
    assert!(matches!(within(submission.finish()).await, Err(WorkError::EndedEarly(_))));
    pair.mesh.set("n2", pair.far.clone());
    emptied(&pair.far).await;
    emptied(&pair.near).await;
}

#[tokio::test]
async fn of_two_attempts_to_create_a_remote_unit_one_counts() {
    let pair = Pair::new().await;
    pair.mesh.pretend_go(true);
    pair.mesh.slow(true);
    let payload = bytes(PART);
    let (id, submission) = begin(&pair, &payload).await;
    eventually("the first attempt waits", || made(&pair) == 1).await;
    pair.mesh.flap();
    eventually("so does the second", || made(&pair) == 2).await;
    pair.mesh.slow(false);
    within(submission.finish()).await.unwrap();
    assert!(collect(&pair.near, &id, 0).await == payload);
    assert_eq!(finished(&pair.near, &id).await.state, State::Succeeded);
    eventually("one is left", || made(&pair) == 1).await;
}
