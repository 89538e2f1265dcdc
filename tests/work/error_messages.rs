//! The Detail of every fault that can be induced: it names the phase, the cause and the remedy.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use meshd::rpc::request::SubmitRequest;
use meshd::work::limits::{Limits, MaxStdout, WhenFull};
use meshd::work::{CommandType, Registry, State};
use rustix::process::Signal;

use crate::harness::*;
use crate::remote::{Pair, sh, starts};

/// An engine with types that cannot run, each for a different reason.
async fn engine() -> Engine {
    Engine::with(|options| {
        let script = options.data_dir.with_extension("not-executable");
        std::fs::write(&script, "#!/bin/sh\n").unwrap();
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o600)).unwrap();
        let mut add = |name: &str, command: &str, limits: Limits| {
            let kind = CommandType { allow_runtime_params: true, limits, ..CommandType::new(name, command) };
            options.work_types.push(kind);
        };
        let plain = Limits::default;
        add("absent", "no-such-program", plain());
        add("forbidden", script.to_str().unwrap(), plain());
        add("nowhere", "true", Limits { cwd: Some("/nonexistent".into()), ..plain() });
        add("stranger", "true", Limits { user: Some("no-such-user".into()), ..plain() });
        add("short", "sleep", Limits { timeout: Some(Duration::from_millis(50)), ..plain() });
        let bound = MaxStdout { bytes: 3, when_full: WhenFull::Fail };
        add("terse", "echo", Limits { max_stdout: Some(bound), ..plain() });
    })
    .await
}

/// Submits a request and returns the final Detail of the unit.
async fn detail_of(registry: &Registry, request: SubmitRequest) -> String {
    let submission = registry.submit(request, me()).await.unwrap();
    let id = submission.id().to_string();
    let _refused = within(submission.finish()).await;
    failed(registry, &id).await
}

async fn failed(registry: &Registry, id: &str) -> String {
    let report = finished(registry, id).await;
    assert_eq!(report.state, State::Failed, "{}", report.detail);
    report.detail
}

#[track_caller]
fn assert_names(detail: &str, parts: &[&str]) {
    for part in parts {
        assert!(detail.contains(part), "{part:?} is not in {detail:?}");
    }
}

#[tokio::test]
async fn units_that_do_not_start_are_explained() {
    let engine = engine().await;
    for (work_type, params, parts) in [
        ("nothing", "", ["Error starting worker", "/nonexistent/program: no such file", "install it"]),
        (
            "absent",
            "",
            ["Error starting worker", "\"no-such-program\": executable file not found", "install it"],
        ),
        ("forbidden", "", ["Error starting worker", "permission denied", "let the user"]),
        ("nowhere", "", ["Error starting worker", "/nonexistent (cwd) does not exist", "create it"]),
        ("stranger", "", ["Error starting worker", "no user no-such-user", "create that user"]),
        (
            "sh",
            "x".repeat(200_000).as_str(),
            ["Error starting worker", "rgument list too long", "as payload"],
        ),
    ] {
        assert_names(&detail_of(&engine.registry, request("n1", work_type, params)).await, &parts);
    }
    let submission = engine.registry.submit(request("n1", "cat", ""), me()).await.unwrap();
    let id = submission.id().to_string();
    drop(submission);
    let detail = failed(&engine.registry, &id).await;
    assert_names(&detail, &["Error reading input data", "the client went away", "submit the job again"]);
}

#[tokio::test]
async fn units_that_fail_are_explained() {
    let engine = engine().await;
    let registry = &engine.registry;
    assert_eq!(detail_of(registry, request("n1", "sh", "'exit 7'")).await, "exit status 7");
    let detail = detail_of(registry, request("n1", "sh", "'kill -9 $$'")).await;
    assert_names(&detail, &["signal: killed", "not by this node", "out-of-memory"]);
    let detail = detail_of(registry, request("n1", "short", "1000")).await;
    assert_names(&detail, &["Killed", "ran longer than 50ms", "(timeout)"]);
    let detail = detail_of(registry, request("n1", "terse", "many words")).await;
    assert_names(&detail, &["Killed", "more than 3 bytes", "(maxstdout)"]);
    for (number, parts) in [
        (Signal::TERM, ["Killed", "its runner was told to end", "submit the job again"]),
        (Signal::KILL, ["runner process ended without a result", "it was killed", "submit the job again"]),
    ] {
        let id = run(registry, "exec sleep 1000").await;
        let runner = running(registry, &id).await.extra_data["Pid"].as_u64().unwrap();
        signal(u32::try_from(runner).unwrap(), number);
        assert_names(&failed(registry, &id).await, &parts);
    }
}

#[tokio::test]
async fn units_ended_by_a_restart_are_explained() {
    let engine = Engine::new().await;
    let submission = engine.registry.submit(request("n1", "cat", ""), me()).await.unwrap();
    let pending = submission.id().to_string();
    std::mem::forget(submission);
    std::fs::create_dir(engine.dir("damaged0")).unwrap();
    std::fs::write(engine.dir("damaged0").join("status"), "{").unwrap();
    let engine = engine.restart().await;
    let detail = failed(&engine.registry, &pending).await;
    assert_names(&detail, &["Pending at restart", "the daemon ended", "submit it again"]);
    let detail = failed(&engine.registry, "damaged0").await;
    assert_names(&detail, &["Failed to restart", "status file is damaged", "submit the job again"]);
}

#[tokio::test]
async fn failures_on_the_way_to_another_node_are_explained() {
    let pair = Pair::new().await;
    let registry = &pair.near;
    let detail = detail_of(registry, request("n2", "none", "")).await;
    assert_names(&detail, &["Error starting worker", "unknown work type none", "add it on node n2"]);
    let detail = detail_of(registry, request("n2", "signed", "")).await;
    assert_names(&detail, &["Error starting worker", "signature is empty", "work-verification on node n2"]);
    let detail = detail_of(registry, request("n2", "fixed", "x")).await;
    assert_names(&detail, &["Error starting worker", "extra params", "node n2 refused the job"]);
    let detail =
        detail_of(registry, SubmitRequest { ttl: Some("2s".into()), ..request("n3", "sh", "true") }).await;
    // The obstacle is kept together with the final error.
    assert_names(&detail, &["Work unit expired on ", "Waiting for node n3", "no route to n3", "longer ttl"]);
    let (away, _) = starts(registry, request("n3", "sh", "true")).await;
    let waiting = registry.status(&away).await.unwrap();
    assert_names(&waiting.detail, &["Waiting for node n3", "no route to n3", "trying again"]);
    let id = pair.run("exec sleep 1000").await;
    let far = pair.far_id(&id).await;
    pair.mesh.take_down("n2");
    within(pair.far.release(&far, true, &me())).await.unwrap();
    pair.mesh.set("n2", pair.far.clone());
    let detail = failed(registry, &id).await;
    assert_names(
        &detail,
        &["Remote work unit is gone", "node n2 does not know it", "before submitting it again"],
    );
    let id = pair.run("kill -9 $$").await;
    assert_names(&failed(registry, &id).await, &["signal: killed", "out-of-memory"]);
    // The first final state stays.
    let (id, _) = starts(registry, sh("exit 3")).await;
    assert_eq!(failed(registry, &id).await, "exit status 3");
    within(registry.cancel(&id, &me())).await.unwrap();
    assert_eq!(failed(registry, &id).await, "exit status 3");
}
