//! The things that a unit keeps from others on its node: its private directory and its payload.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use meshd::work::limits::Limits;
use meshd::work::{CommandType, Outcome, State};
use rustix::process::Signal;

use crate::harness::*;

fn run_dir(engine: &Engine, id: &str) -> PathBuf {
    engine.dir(".run").join(id)
}

fn is_empty(path: &Path) -> bool {
    std::fs::read_dir(path).unwrap().next().is_none()
}

/// Starts a unit that fills its private directory and then ends in this way.
async fn fill(engine: &Engine, end: &str) -> String {
    let script = format!(
        "test $MESHD_RUN_DIR = ${{MESHD_RUN_DIR}} && mkdir -p $MESHD_RUN_DIR/env/deep && echo secret >$MESHD_RUN_DIR/env/passwords && echo there; {end}"
    );
    let id = run(&engine.registry, &script).await;
    until(&engine.registry, &id, |report| report.stdout_size > 0).await;
    id
}

#[tokio::test]
async fn a_private_directory_is_gone_however_its_unit_ended() {
    let engine = Engine::new().await;
    for end in ["exit 0", "exit 3", "kill -KILL $$", "exec sleep 1000", "exec sleep 1001"] {
        let id = fill(&engine, end).await;
        match end {
            "exec sleep 1000" => drop(within(engine.registry.cancel(&id, &me())).await.unwrap()),
            "exec sleep 1001" => {
                let passwords = run_dir(&engine, &id).join("env/passwords");
                assert!(passwords.exists());
                let mode = std::fs::metadata(run_dir(&engine, &id)).unwrap().mode();
                assert_eq!(mode & 0o7777, 0o700);
                let report = running(&engine.registry, &id).await;
                signal(report.extra_data["Pid"].as_u64().unwrap() as u32, Signal::KILL);
            }
            _ => {}
        }
        finished(&engine.registry, &id).await;
        eventually("the directory to be gone", || is_empty(&engine.dir(".run"))).await;
        assert_eq!(collect(&engine.registry, &id, 0).await, b"there\n");
    }
}

#[tokio::test]
async fn a_directory_that_is_to_be_kept_goes_with_the_release() {
    let engine = Engine::new().await;
    let id = run(&engine.registry, "echo kept >${MESHD_KEPT_DIR}/file; echo $MESHD_RUN_DIR").await;
    assert_eq!(finished(&engine.registry, &id).await.state, State::Succeeded);
    let kept = engine.dir(".kept").join(&id);
    let told = String::from_utf8(collect(&engine.registry, &id, 0).await).unwrap();
    assert_eq!(Path::new(told.trim_end()), kept);
    let engine = engine.restart().await;
    assert_eq!(std::fs::read_to_string(kept.join("file")).unwrap(), "kept\n");
    assert_eq!(within(engine.registry.release(&id, false, &me())).await.unwrap(), Outcome::Done);
    eventually("the directory to be gone", || is_empty(&engine.dir(".kept"))).await;
}

#[tokio::test]
async fn what_ended_while_no_daemon_ran_leaves_nothing() {
    let engine = Engine::new().await;
    let id = fill(&engine, "exec sleep 1000").await;
    let report = running(&engine.registry, &id).await;
    let Engine { registry, temp } = engine;
    drop(registry);
    signal(report.extra_data["Pid"].as_u64().unwrap() as u32, Signal::KILL);
    // The directory of a unit that is unknown by now.
    std::fs::create_dir(temp.path().join("data/n1/.run/unknown1")).unwrap();
    let registry = open(options(temp.path().join("data"), "n1")).await;
    assert_eq!(finished(&registry, &id).await.state, State::Failed);
    eventually("the directories to be gone", || is_empty(&temp.path().join("data/n1/.run"))).await;
}

#[tokio::test]
async fn a_payload_goes_once_its_command_has_read_it_or_ended() {
    let engine = Engine::new().await;
    for (script, is_read) in
        [("cat >/dev/null; echo read; exec sleep 1000", true), ("echo unread; exec sleep 1000", false)]
    {
        let quoted = shlex::try_quote(script).unwrap().into_owned();
        let id = run_as(&engine.registry, request("n1", "sh", &quoted), b"secret").await;
        until(&engine.registry, &id, |report| report.stdout_size > 0).await;
        let payload = engine.dir(&id).join("stdin");
        if is_read {
            eventually("the payload to be gone", || !payload.exists()).await;
        }
        assert_eq!(payload.exists(), !is_read);
        within(engine.registry.cancel(&id, &me())).await.unwrap();
        assert!(!payload.exists(), "{script}");
    }
}

#[tokio::test]
async fn jobs_of_another_user_reach_their_own_directory_and_nothing_else() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("SKIPPED: becoming another user needs root");
    }
    let limits = Limits { user: Some("nobody".into()), ..Limits::default() };
    let engine = Engine::with(|options| {
        options.work_types.push(CommandType {
            params: "-c".into(),
            allow_runtime_params: true,
            limits,
            ..CommandType::new("apart", "sh")
        });
    })
    .await;
    std::fs::set_permissions(engine.temp.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let other = run_as(&engine.registry, request("n1", "sh", "'echo out; exec sleep 1000'"), b"secret").await;
    until(&engine.registry, &other, |report| report.stdout_size > 0).await;
    let theirs =
        [engine.dir(&other).join("stdin"), engine.dir(&other).join("stdout"), run_dir(&engine, &other)];
    let looks = theirs.map(|path| format!("cat {0} && echo reached; ls {0} && echo reached", path.display()));
    let script = format!(
        "cd $MESHD_RUN_DIR && id -un && echo mine >file && cat file && stat -c '%U %a' .; {}; cat",
        looks.join("; ")
    );
    let quoted = shlex::try_quote(&script).unwrap().into_owned();
    let id = run_as(&engine.registry, request("n1", "apart", &quoted), b"own payload\n").await;
    assert_eq!(finished(&engine.registry, &id).await.state, State::Succeeded);
    let output = String::from_utf8(collect(&engine.registry, &id, 0).await).unwrap();
    assert!(
        output.starts_with("nobody\nmine\nnobody 700\n") && output.ends_with("own payload\n"),
        "{output}"
    );
    assert!(!output.contains("reached") && output.matches("Permission denied").count() == 6, "{output}");
    eventually("the directory to be gone", || !run_dir(&engine, &id).exists()).await;
    within(engine.registry.cancel(&other, &me())).await.unwrap();
}
