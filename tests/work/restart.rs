//! A daemon ends and the next one resumes its units.

use meshd::rpc::request::SubmitRequest;
use meshd::work::{Caller, Outcome, State};

use crate::harness::*;

#[tokio::test]
async fn a_running_job_outlives_the_daemon() {
    let engine = Engine::new().await;
    let fifo = engine.temp.path().join("fifo");
    let script = format!("mkfifo {0}; echo one; read x <{0}; echo $x; exit 3", fifo.display());
    let id = run(&engine.registry, &script).await;
    let mut stream = engine.registry.results(&id, 0, &me()).await.unwrap();
    assert_eq!(within(stream.next()).await.unwrap().unwrap(), "one\n");
    drop(stream);
    let engine = engine.restart().await;
    assert_eq!(engine.registry.status(&id).await.unwrap().state, State::Running);
    std::fs::write(&fifo, "two\n").unwrap();
    assert_eq!(collect(&engine.registry, &id, 0).await, b"one\ntwo\n");
    let report = finished(&engine.registry, &id).await;
    assert_eq!((report.state, report.detail.as_str()), (State::Failed, "exit status 3"));
    let engine = engine.restart().await;
    assert_eq!(engine.registry.status(&id).await.unwrap(), report);
}

#[tokio::test]
async fn a_job_taken_up_again_can_be_cancelled() {
    let engine = Engine::new().await;
    let id = run(&engine.registry, "exec sleep 1000").await;
    let report = running(&engine.registry, &id).await;
    let command: u32 = report.detail.strip_prefix("Running: PID ").unwrap().parse().unwrap();
    let engine = engine.restart().await;
    assert!(lives(command));
    assert_eq!(within(engine.registry.cancel(&id, &me())).await.unwrap(), Outcome::Done);
    assert!(!lives(command));
    assert_eq!(engine.registry.status(&id).await.unwrap().state, State::Canceled);
}

#[tokio::test]
async fn units_that_had_not_started_fail_at_a_restart() {
    let engine = Engine::new().await;
    let submission = engine.registry.submit(request("n1", "cat", ""), me()).await.unwrap();
    let id = submission.id().to_string();
    std::mem::forget(submission);
    let engine = engine.restart().await;
    let report = finished(&engine.registry, &id).await;
    assert_eq!(report.state, State::Failed);
    assert!(report.detail.starts_with("Pending at restart"), "{}", report.detail);
}

#[tokio::test]
async fn a_stranger_with_the_runner_s_number_is_left_alone() {
    let engine = Engine::new().await;
    let id = "strange0";
    let dir = engine.dir(id);
    std::fs::create_dir(&dir).unwrap();
    let own = std::process::id();
    let status = format!(
        r#"{{"State":1,"Detail":"Running: PID {own}","StdoutSize":0,"WorkType":"sh","ExtraData":{{"Pid":{own},"Params":""}}}}"#
    );
    std::fs::write(dir.join("status"), status).unwrap();
    std::fs::write(dir.join("runner"), format!(r#"{{"pid":{own},"start":1,"boot":"another"}}"#)).unwrap();
    let engine = engine.restart().await;
    let report = finished(&engine.registry, id).await;
    assert_eq!(report.state, State::Failed);
    engine.registry.cancel(id, &me()).await.unwrap();
    assert_eq!(engine.registry.release(id, false, &me()).await.unwrap(), Outcome::Done);
}

/// Creates the directory of a unit whose runner is gone, with this output and this final status.
fn left_behind(engine: &Engine, id: &str, boot: &str, output: &str, end: &str) {
    let dir = engine.dir(id);
    std::fs::create_dir(&dir).unwrap();
    let running = r#"{"State":1,"Detail":"Running: PID 4","StdoutSize":0,"WorkType":"sh","ExtraData":{"Pid":3,"Params":""}}"#;
    // An unused process ID.
    let runner = format!(r#"{{"pid":4194304,"start":1,"boot":"{boot}"}}"#);
    for (name, content) in [("status", running), ("runner", &*runner), ("stdout", output), ("end", end)] {
        std::fs::write(dir.join(name), content).unwrap();
    }
}

#[tokio::test]
async fn a_final_status_written_while_no_daemon_ran_counts() {
    let engine = Engine::new().await;
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let boot = boot.trim();
    let end = r#"{"State":2,"Detail":"exit status 0","StdoutSize":4,"WorkType":"sh","ExtraData":null}"#;
    for (id, boot, output, end) in [
        ("heard000", boot, "four", end),
        // After a power loss, only complete files are accepted.
        ("power000", "another", "four", end),
        ("short000", "another", "fo", end),
        ("torn0000", boot, "four", &end[..end.len() / 2]),
        (
            "early000",
            boot,
            "four",
            r#"{"State":1,"Detail":"","StdoutSize":4,"WorkType":"sh","ExtraData":null}"#,
        ),
    ] {
        left_behind(&engine, id, boot, output, end);
    }
    let mut engine = engine.restart().await;
    // A unit that was accepted once stays accepted.
    for _ in 0..2 {
        for (id, state) in [
            ("heard000", State::Succeeded),
            ("power000", State::Succeeded),
            ("short000", State::Failed),
            ("torn0000", State::Failed),
            ("early000", State::Failed),
        ] {
            let report = finished(&engine.registry, id).await;
            assert_eq!(report.state, state, "{id}: {report:?}");
        }
        assert_eq!(collect(&engine.registry, "heard000", 0).await, b"four");
        engine = engine.restart().await;
    }
}

#[tokio::test]
async fn a_unit_whose_turn_had_come_does_not_start_again_after_a_power_loss() {
    let engine = Engine::new().await;
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let (this, before) = (format!("7 {}", boot.trim()), "8 another".to_owned());
    for (id, queued) in [("waiting0", "6".to_owned()), ("turn0000", this), ("before00", before)] {
        let dir = engine.dir(id);
        std::fs::create_dir(&dir).unwrap();
        let status = r#"{"State":0,"Detail":"Waiting","StdoutSize":0,"WorkType":"sh","ExtraData":{"Pid":0,"Params":"-c 'echo ran'"}}"#;
        for (name, content) in [("status", status), ("stdin", ""), ("queued", &queued)] {
            std::fs::write(dir.join(name), content).unwrap();
        }
    }
    let engine = engine.restart().await;
    for (id, state, output) in [
        ("waiting0", State::Succeeded, &b"ran\n"[..]),
        ("turn0000", State::Succeeded, b"ran\n"),
        ("before00", State::Failed, b""),
    ] {
        let report = finished(&engine.registry, id).await;
        assert_eq!(report.state, state, "{id}: {report:?}");
        assert_eq!(collect(&engine.registry, id, 0).await, output, "{id}");
    }
}

#[tokio::test]
async fn damage_harms_one_unit_only() {
    let engine = Engine::new().await;
    let good = run(&engine.registry, "echo good").await;
    finished(&engine.registry, &good).await;
    for (id, content) in
        [("empty000", ""), ("garbage0", "{\"State\":77}"), ("10.0.0.1-abcdEFGH", "{\"State\":2}")]
    {
        std::fs::create_dir(engine.dir(id)).unwrap();
        std::fs::write(engine.dir(id).join("status"), content).unwrap();
    }
    let engine = engine.restart().await;
    assert_eq!(collect(&engine.registry, &good, 0).await, b"good\n");
    for id in ["empty000", "garbage0"] {
        let report = engine.registry.status(id).await.unwrap();
        assert_eq!(report.state, State::Failed);
        assert!(report.detail.contains("status file is damaged"), "{}", report.detail);
    }
    assert_eq!(engine.registry.status("10.0.0.1-abcdEFGH").await.unwrap().state, State::Succeeded);
}

#[tokio::test]
async fn ten_thousand_finished_units_are_listed_at_once() {
    let engine = Engine::new().await;
    let line = r#"{"State":2,"Detail":"exit status 0","StdoutSize":3,"WorkType":"sh","ExtraData":null}"#;
    for number in 0..10_000 {
        let dir = engine.dir(&format!("u{number:07}"));
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join("status"), line).unwrap();
    }
    let begin = std::time::Instant::now();
    let engine = engine.restart().await;
    assert_eq!(engine.registry.list(None).await.unwrap().len(), 10_000);
    println!("10,000 units listed {:?} after start", begin.elapsed());
}

#[tokio::test]
async fn a_unit_that_was_disclaimed_is_refused_over_restarts() {
    let engine = Engine::new().await;
    let (unit, other) = ("c000000abn7a1r00000001", "c000000abn7a1r00000002");
    let asked = |unit: &str| SubmitRequest { unit_id: Some(unit.to_owned()), ..request("n1", "sh", "true") };
    let stranger = Caller::default();
    for (unit, work_type, why) in [
        ("n1abcdefgh", "sh", "work disclaim is only for the units of jobs, and n1abcdefgh is not one"),
        (
            "c000000abn/",
            "sh",
            "workUnitID \"c000000abn/\" cannot be a unit ID: letters and digits only, at most 200",
        ),
        (unit, "nosuch", "unknown work type nosuch"),
        (unit, "signed", "could not verify signature: signature is empty"),
    ] {
        let refused = engine.registry.disclaim(unit, work_type, &stranger).await.unwrap_err();
        assert_eq!(refused.to_string(), why);
    }
    run_as(&engine.registry, asked(other), b"").await;
    let report = engine.registry.disclaim(other, "sh", &stranger).await.unwrap().unwrap();
    assert_eq!(report.work_type, "sh", "it is there, and nothing is promised");
    for _ in 0..2 {
        assert_eq!(engine.registry.disclaim(unit, "sh", &stranger).await.unwrap(), None);
    }
    // A unit that was here has run, however long ago, so the caller who got the promise must not run it elsewhere.
    let gone = "c000000abn7a1r00000003";
    run_as(&engine.registry, asked(gone), b"").await;
    engine.registry.release(gone, false, &me()).await.unwrap();
    assert_eq!(engine.registry.disclaim(gone, "sh", &stranger).await.unwrap(), None);
    let engine = engine.restart().await;
    let submitted = engine.registry.submit(asked(gone), me()).await.map(drop).unwrap_err().to_string();
    for refused in [submitted, engine.registry.status(gone).await.unwrap_err().to_string()] {
        assert!(refused.starts_with(&format!("unknown work unit {gone}: it was released ")), "{refused}");
    }
    let refused = engine.registry.submit(asked(unit), me()).await.unwrap_err();
    assert_eq!(
        refused.to_string(),
        format!(
            "work unit {unit} was disclaimed: this node has promised not to run it, so that it may run elsewhere"
        )
    );
    engine.registry.status(unit).await.unwrap_err();
    engine.registry.status(other).await.unwrap();
}
