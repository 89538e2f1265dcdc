//! Temporary faults must not end a unit: a file that cannot be read now, a runner that dies too early, a
//! power loss, a node that is away.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use meshd::rpc::request::SubmitRequest;
use meshd::work::{CommandType, Outcome, Registry, State, signing::Signer};
use rustix::process::Signal;

use crate::control::Mesh;
use crate::harness::*;
use crate::remote::Pair;

/// Creates a unit directory as a daemon may have left it.
fn leave(dir: &Path, status: &str) {
    std::fs::create_dir(dir).unwrap();
    std::fs::write(dir.join("status"), status).unwrap();
    std::fs::write(dir.join("stdin"), "").unwrap();
}

#[tokio::test]
async fn a_runner_that_cannot_be_inspected_now_is_not_dead() {
    let Engine { registry, temp } = Engine::new().await;
    let fifo = temp.path().join("fifo");
    let id = run(&registry, &format!("mkfifo {0}; echo one; read x <{0}; exit 3", fifo.display())).await;
    let dir = temp.path().join("data/n1").join(&id);
    eventually("the status says so", || {
        fifo.exists() && std::fs::read_to_string(dir.join("status")).unwrap().contains("Running: PID")
    })
    .await;
    drop(registry);
    // Like a lack of descriptors, for instance: the file exists but cannot be read.
    let lease = Lease::take(&dir.join("runner"));
    let registry = open(options(temp.path().join("data"), "n1")).await;
    assert_eq!(registry.status(&id).await.unwrap().state, State::Running);
    drop(lease);
    tokio::task::spawn_blocking(move || std::fs::write(fifo, "x\n").unwrap()).await.unwrap();
    assert_eq!(finished(&registry, &id).await.detail, "exit status 3");
}

#[tokio::test]
async fn a_runner_that_dies_before_it_answers_ends_its_unit() {
    let temp = Scratch::new();
    let program = temp.path().join("cat");
    assert!(std::process::Command::new("cp").arg("/bin/cat").arg(&program).status().unwrap().success());
    let held = CommandType::new("held", program.display().to_string());
    let engine = Engine::with(|options| options.work_types.push(held)).await;
    let submission = engine.registry.submit(request("localhost", "held", ""), me()).await.unwrap();
    let id = submission.id().to_string();
    let dir = engine.dir(&id);
    // The runner claims its unit, starts the command, and gets no further.
    let _lease = Lease::take(&program);
    let finish = tokio::spawn(submission.finish());
    eventually("the unit is claimed", || dir.join("runner").exists()).await;
    let runner = std::fs::read_to_string(dir.join("runner")).unwrap();
    let runner: serde_json::Value = serde_json::from_str(&runner).unwrap();
    signal(runner["pid"].as_u64().unwrap() as u32, Signal::KILL);
    let _told = within(finish).await.unwrap();
    let report = finished(&engine.registry, &id).await;
    assert_eq!(report.state, State::Failed);
    assert!(report.detail.contains("runner"), "{}", report.detail);
}

#[tokio::test]
async fn a_unit_ended_at_a_restart_cannot_be_started_later() {
    let engine = Engine::new().await;
    let status = r#"{"State":0,"Detail":"Starting Worker","StdoutSize":0,"WorkType":"cat","ExtraData":{"Pid":0,"Params":""}}"#;
    leave(&engine.dir("pending0"), status);
    // A claim that a power loss has damaged.
    leave(&engine.dir("damaged0"), status);
    std::fs::write(engine.dir("damaged0").join("runner"), "{").unwrap();
    let engine = engine.restart().await;
    for id in ["pending0", "damaged0"] {
        let report = finished(&engine.registry, id).await;
        assert!(report.detail.starts_with("Pending at restart"), "{}", report.detail);
    }
    // A runner that an earlier spawner still starts looks for this file first.
    assert!(engine.dir("pending0").join("runner").exists(), "the unit is claimed");
}

#[tokio::test]
async fn output_lost_in_a_power_loss_is_not_counted() {
    let engine = Engine::new().await;
    let id = run(&engine.registry, "echo abcdef").await;
    finished(&engine.registry, &id).await;
    let Engine { registry, temp } = engine;
    // Ends the daemon first, so that no log holds the unit.
    registry.close().await;
    drop(registry);
    let stdout = temp.path().join("data/n1").join(&id).join("stdout");
    std::fs::OpenOptions::new().write(true).open(stdout).unwrap().set_len(3).unwrap();
    let registry = open(options(temp.path().join("data"), "n1")).await;
    let report = registry.status(&id).await.unwrap();
    assert_eq!((report.state, report.stdout_size), (State::Succeeded, 3));
    assert!(report.detail.starts_with("exit status 0 (") && report.detail.contains("3 of 7 bytes"));
    assert_eq!(collect(&registry, &id, 0).await, b"abc");
}

#[tokio::test]
async fn a_follower_of_a_unit_that_lost_output_gets_what_there_is_and_the_end() {
    let pair = Pair::new().await;
    let fifo = pair.temp.path().join("fifo");
    let id = pair.run(&format!("mkfifo {0}; read x <{0}; echo abcdef", fifo.display())).await;
    let far = pair.far_id(&id).await;
    eventually("the job waits", || fifo.exists()).await;
    pair.mesh.take_down("n2");
    tokio::task::spawn_blocking(move || std::fs::write(fifo, "x\n").unwrap()).await.unwrap();
    finished(&pair.far, &far).await;
    let stdout = pair.temp.path().join("far/n2").join(&far).join("stdout");
    std::fs::OpenOptions::new().write(true).open(stdout).unwrap().set_len(3).unwrap();
    pair.mesh.set("n2", pair.far.clone());
    let report = finished(&pair.near, &id).await;
    assert_eq!((report.state, report.stdout_size), (State::Succeeded, 3));
    assert!(report.detail.contains("3 of 7 bytes"), "{}", report.detail);
    assert_eq!(collect(&pair.near, &id, 0).await, b"abc");
}

#[tokio::test]
async fn a_payload_is_hashed_before_the_node_is_dialled() {
    let temp = Scratch::new();
    let mesh = Mesh::new("n1");
    let mut options = options(temp.path().join("near"), "n1");
    let key = Path::new(env!("CARGO_MANIFEST_DIR")).join("certs/work.key");
    options.signer = Some(Arc::new(Signer::open(&key, Duration::from_secs(60)).unwrap()));
    let near = Registry::open(options, mesh.clone()).await.unwrap();
    // There is no route, so a start that begins by dialling would fail.
    let submission =
        near.submit(SubmitRequest { sign_work: true, ..request("n2", "cat", "") }, me()).await.unwrap();
    let id = submission.id().to_string();
    std::fs::remove_file(temp.path().join("near/n1").join(&id).join("stdin")).unwrap();
    within(submission.finish()).await.unwrap();
    let detail = near.status(&id).await.unwrap().detail;
    assert!(detail.contains("stdin"), "{detail}");
}

#[tokio::test]
async fn force_frees_a_unit_whose_directory_is_gone() {
    let pair = Pair::new().await;
    let id = pair.run("exec sleep 1000").await;
    pair.far_id(&id).await;
    pair.mesh.take_down("n2");
    let units = pair.temp.path().join("near/n1");
    std::fs::rename(units.join(&id), units.join(".away")).unwrap();
    assert_eq!(within(pair.near.release(&id, true, &me())).await.unwrap(), Outcome::Done);
    assert!(pair.near.list(None).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_detail_reports_an_unreachable_node_until_it_is_back() {
    let pair = Pair::new().await;
    let id = pair.run("exec sleep 1000").await;
    let begun = until(&pair.near, &id, |report| report.detail.starts_with("Running: PID ")).await.detail;
    pair.mesh.take_down("n2");
    let troubled = until(&pair.near, &id, |report| report.detail.contains("no route to n2")).await;
    assert_eq!(troubled.state, State::Running);
    assert!(troubled.detail.starts_with(&format!("{begun} (")), "{}", troubled.detail);
    pair.mesh.set("n2", pair.far.clone());
    until(&pair.near, &id, |report| report.detail == begun).await;
}

#[tokio::test]
async fn remains_of_an_unknown_unit_are_removed_after_a_crash() {
    let engine = Engine::new().await;
    let (half, foreign) = (engine.dir("half0000"), engine.dir("foreign0"));
    for dir in [&half, &foreign] {
        std::fs::create_dir(dir).unwrap();
        std::fs::write(dir.join("status.lock"), "").unwrap();
        std::fs::write(dir.join("stdin"), "").unwrap();
        std::fs::write(dir.join(".status.new"), "").unwrap();
    }
    std::fs::write(foreign.join("stdout"), "precious").unwrap();
    let engine = engine.restart().await;
    assert!(!half.exists() && foreign.exists());
    assert!(engine.registry.list(None).await.unwrap().is_empty());
}
