//! Guarantees about units that have no other place: concurrent requests for a unit, what is left of one, the
//! standard input of its command, and types that change while units wait.

use meshd::work::limits::Limits;
use meshd::work::{Caller, CommandType, Outcome, State, WorkError};
use rustix::process::Signal;

use crate::harness::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_storm_of_requests_for_the_same_units_gets_only_expected_answers() {
    let engine = Engine::with(|options| options.cancel_grace = std::time::Duration::from_millis(100)).await;
    let mut ids = Vec::new();
    for script in ["exec sleep 1000", "echo short", "exit 3"].iter().cycle().take(12) {
        ids.push(run(&engine.registry, script).await);
    }
    let mut storm = tokio::task::JoinSet::new();
    for asker in 0..96_usize {
        let (registry, id) = (engine.registry.clone(), ids[asker % ids.len()].clone());
        storm.spawn(async move {
            let answer = match asker / ids_per_verb() % 5 {
                0 => within(registry.cancel(&id, &me())).await.map(drop),
                1 => within(registry.release(&id, false, &me())).await.map(drop),
                2 => registry.status(&id).await.map(drop),
                3 => registry.list(None).await.map(drop),
                _ => match registry.results(&id, 0, &me()).await {
                    Ok(mut stream) => loop {
                        match within(stream.next()).await {
                            Ok(Some(_)) => {}
                            Ok(None) => break Ok(()),
                            // The unit was released while it was being read.
                            Err(WorkError::StdoutTruncated { .. }) => break Ok(()),
                            Err(error) => break Err(error),
                        }
                    },
                    Err(error) => Err(error),
                },
            };
            match answer {
                Ok(()) | Err(WorkError::Released { .. }) => {}
                Err(error) => panic!("{asker} about {id}: {error}"),
            }
        });
    }
    while let Some(done) = within(storm.join_next()).await {
        done.unwrap();
    }
    for id in &ids {
        assert_eq!(within(engine.registry.release(id, true, &me())).await.unwrap(), Outcome::Done);
    }
    assert_eq!(directories_in(&engine.dir("")), 0);
}

const fn ids_per_verb() -> usize {
    12
}

#[tokio::test]
async fn processes_that_outlive_a_command_delay_nobody_and_end_with_the_release() {
    let engine = Engine::new().await;
    let gate = engine.temp.path().join("gate");
    // Both processes hold the output open. One has left the process group, so nobody kills it.
    let script = format!(
        "(sleep 1000 & echo $!); setsid sh -c 'echo $$; echo x >{}; exec sleep 1000' & while [ ! -e {0} ]; do sleep 0.01; done; echo done",
        gate.display()
    );
    let id = run(&engine.registry, &script).await;
    let output = String::from_utf8(collect(&engine.registry, &id, 0).await).unwrap();
    let report = finished(&engine.registry, &id).await;
    assert_eq!((report.detail.as_str(), report.stdout_size), ("exit status 0", output.len() as u64));
    assert!(output.ends_with("done\n"), "{output}");
    let pids: Vec<u32> = output.lines().filter_map(|line| line.parse().ok()).collect();
    assert!(pids.len() == 2 && pids.iter().all(|&pid| lives(pid)), "{output}");
    assert_eq!(within(engine.registry.release(&id, false, &me())).await.unwrap(), Outcome::Done);
    assert!(!lives(pids[0]), "what stayed in the group ends with the unit");
    assert!(lives(pids[1]), "what left the group does not");
    signal(pids[1], Signal::KILL);
}

#[tokio::test]
async fn standard_input_is_a_file_that_can_be_read_again() {
    let engine = Engine::new().await;
    let script = "test -f /dev/stdin && echo file; cat; cat /proc/self/fd/0";
    let quoted = shlex::try_quote(script).unwrap().into_owned();
    let id = run_as(&engine.registry, request("n1", "sh", &quoted), b"payload\n").await;
    assert_eq!(collect(&engine.registry, &id, 0).await, b"file\npayload\npayload\n");
}

#[tokio::test]
async fn secrets_reach_no_argument_no_answer_and_no_needless_file() {
    let engine = Engine::new().await;
    let mut submit = request("n1", "sh", "'tr \"\\0\" \" \" </proc/$$/cmdline; env; exec sleep 1000'");
    submit.params.insert("secret_word".into(), "xyzzy".into());
    let id = run_as(&engine.registry, submit, b"").await;
    let report = until(&engine.registry, &id, |report| report.stdout_size > 0).await;
    eventually("the status is on disk", || {
        std::fs::read_to_string(engine.dir(&id).join("status")).unwrap().contains("Running")
    })
    .await;
    assert!(!serde_json::to_string(&report).unwrap().contains("xyzzy"));
    for file in ["status", "stdin", "stdout", "runner"] {
        let text = std::fs::read_to_string(engine.dir(&id).join(file)).unwrap();
        assert!(!text.contains("xyzzy"), "{file}: {text}");
    }
    within(engine.registry.cancel(&id, &me())).await.unwrap();
}

/// Types that limit how many units the shell may run at once, if the shell type exists.
fn types(shell: Option<Option<u32>>) -> Vec<CommandType> {
    let shell = shell.map(|max_units| CommandType {
        params: "-c".into(),
        allow_runtime_params: true,
        limits: Limits { max_units, ..Limits::default() },
        ..CommandType::new("sh", "sh")
    });
    shell.into_iter().chain([CommandType::new("cat", "cat")]).collect()
}

#[tokio::test]
async fn units_that_wait_follow_a_change_of_their_type() {
    let engine = Engine::with(|options| options.work_types = types(Some(Some(1)))).await;
    let registry = &engine.registry;
    let first = run(registry, "exec sleep 1000").await;
    let second = run(registry, "exec sleep 1000").await;
    let third = run(registry, "exec sleep 1000").await;
    assert_eq!(registry.status(&second).await.unwrap().state, State::Pending);
    registry.set_work_types(types(Some(Some(2)))).unwrap();
    running(registry, &second).await;
    assert_eq!(
        registry.status(&third).await.unwrap().state,
        State::Pending,
        "in order, and no more than that"
    );
    registry.set_work_types(types(Some(None))).unwrap();
    running(registry, &third).await;
    // Units that started without a limit count once there is one.
    registry.set_work_types(types(Some(Some(3)))).unwrap();
    let fourth = run(registry, "exit 0").await;
    assert_eq!(registry.status(&fourth).await.unwrap().state, State::Pending);
    registry.set_work_types(types(None)).unwrap();
    let report = finished(registry, &fourth).await;
    assert_eq!(report.state, State::Failed);
    assert!(report.detail.contains("unknown work type sh: it is no longer in"), "{}", report.detail);
    for id in [first, second, third] {
        assert_eq!(within(registry.cancel(&id, &me())).await.unwrap(), Outcome::Done);
    }
}

#[tokio::test]
async fn a_unit_keeps_requiring_signatures_without_its_type() {
    let mut engine = Engine::new().await;
    let id = run_as(&engine.registry, request("localhost", "signed", ""), b"secret").await;
    finished(&engine.registry, &id).await;
    for _ in 0..2 {
        engine.registry.set_work_types(types(None)).unwrap();
        let stranger = Caller::default();
        let refused = [
            engine.registry.results(&id, 0, &stranger).await.map(drop).unwrap_err().to_string(),
            engine.registry.cancel(&id, &stranger).await.unwrap_err().to_string(),
            engine.registry.release(&id, false, &stranger).await.unwrap_err().to_string(),
        ];
        for error in refused {
            assert_eq!(error, "could not verify signature: signature is empty");
        }
        engine = engine.restart().await;
    }
    assert_eq!(engine.registry.release(&id, false, &me()).await.unwrap(), Outcome::Done);
}

#[tokio::test]
async fn a_type_removed_during_a_payload_fails_its_unit() {
    let engine = Engine::new().await;
    let submission = engine.registry.submit(request("n1", "sh", "true"), me()).await.unwrap();
    let id = submission.id().to_string();
    engine.registry.set_work_types(types(None)).unwrap();
    assert!(matches!(submission.finish().await, Err(WorkError::UnknownType(_))));
    assert_eq!(finished(&engine.registry, &id).await.state, State::Failed);
}

#[tokio::test]
async fn a_unit_of_an_unknown_type_can_be_cancelled_and_released() {
    let engine = Engine::new().await;
    let line =
        r#"{"State":1,"Detail":"Pod Running","StdoutSize":0,"WorkType":"kube","ExtraData":{"PodName":"p"}}"#;
    std::fs::create_dir(engine.dir("foreign0")).unwrap();
    std::fs::write(engine.dir("foreign0").join("status"), line).unwrap();
    let engine = engine.restart().await;
    assert_eq!(engine.registry.status("foreign0").await.unwrap().state, State::Running);
    assert_eq!(within(engine.registry.cancel("foreign0", &me())).await.unwrap(), Outcome::Done);
    assert_eq!(engine.registry.status("foreign0").await.unwrap().state, State::Canceled);
    assert_eq!(within(engine.registry.release("foreign0", false, &me())).await.unwrap(), Outcome::Done);
}

#[tokio::test]
async fn a_unit_directory_of_somebody_else_is_left_alone() {
    use std::os::unix::fs::PermissionsExt;
    let engine = Engine::new().await;
    let line = r#"{"State":2,"Detail":"exit status 0","StdoutSize":0,"WorkType":"sh","ExtraData":null}"#;
    for id in ["good0000", "foreign0", "open0000"] {
        std::fs::create_dir(engine.dir(id)).unwrap();
        std::fs::write(engine.dir(id).join("status"), line).unwrap();
    }
    std::fs::set_permissions(engine.dir("open0000"), std::fs::Permissions::from_mode(0o777)).unwrap();
    std::os::unix::fs::symlink(engine.dir("good0000"), engine.dir("linked00")).unwrap();
    if std::os::unix::fs::chown(engine.dir("foreign0"), Some(12345), None).is_err() {
        eprintln!("SKIPPED: giving a directory away needs root");
        return;
    }
    let engine = engine.restart().await;
    let ids: Vec<String> =
        engine.registry.list(None).await.unwrap().keys().map(ToString::to_string).collect();
    assert_eq!(ids, ["good0000"]);
}
