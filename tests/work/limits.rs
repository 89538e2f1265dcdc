//! Limits of work types: output, time, number of units, environment, retention; and types of Python plugins.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use meshd::rpc::OutputBound;
use meshd::work::limits::{Limits, MaxStdout, WhenFull};
use meshd::work::{Options, Outcome, PythonPlugin, State};

use crate::harness::*;

/// An engine whose shell type has these limits.
async fn bounded(limits: Limits) -> Engine {
    Engine::with(move |options| set(options, limits)).await
}

fn set(options: &mut Options, limits: Limits) {
    let shell = options.work_types.iter_mut().find(|kind| kind.name == "sh").unwrap();
    shell.limits = limits;
}

fn output(bytes: u64, when_full: WhenFull) -> Limits {
    Limits { max_stdout: Some(MaxStdout { bytes, when_full }), ..Limits::default() }
}

#[tokio::test]
async fn too_much_output_does_what_the_type_says() {
    let script = "seq 100000; echo err >&2; exit 3";
    let all: String = (1..=100_000).map(|n| format!("{n}\n")).chain(["err\n".to_owned()]).collect();
    let over = all.len() - 1000;
    for (when_full, wanted, detail) in [
        (WhenFull::Fail, &all[..1000], "Killed: it wrote more than 1000 bytes (maxstdout)".to_owned()),
        (
            WhenFull::Stop,
            &all[..1000],
            format!("exit status 3 (the last {over} bytes of its output were discarded (maxstdout))"),
        ),
        (
            WhenFull::TruncateHead,
            &all[over..],
            format!("exit status 3 (the first {over} bytes of its output were discarded (maxstdout))"),
        ),
    ] {
        let engine = bounded(output(1000, when_full)).await;
        let id = run(&engine.registry, script).await;
        assert_eq!(collect(&engine.registry, &id, 0).await, wanted.as_bytes(), "{when_full:?}");
        let report = finished(&engine.registry, &id).await;
        assert_eq!((report.state, report.detail, report.stdout_size), (State::Failed, detail, 1000));
        // Exactly the limit is not too much.
        let id = run(&engine.registry, "printf %01000d 7").await;
        assert_eq!(collect(&engine.registry, &id, 0).await.len(), 1000);
        assert_eq!(finished(&engine.registry, &id).await.detail, "exit status 0");
    }
}

#[tokio::test]
async fn stderr_is_kept_apart_under_the_same_bound_and_explains_a_failure() {
    for bound in [None, Some(MaxStdout { bytes: 1000, when_full: WhenFull::Stop })] {
        let limits = Limits { stderr_apart: true, max_stdout: bound, ..Limits::default() };
        let engine = bounded(limits).await;
        let registry = &engine.registry;
        let stderr = async |id: &str| {
            let mut stream = registry.stderr(id, 0, &me()).await.unwrap();
            let mut all = Vec::new();
            while let Some(chunk) = within(stream.next()).await.unwrap() {
                all.extend_from_slice(&chunk);
            }
            String::from_utf8(all).unwrap()
        };
        let id = run(registry, "echo out; echo one >&2; printf '\\033[2Jtwo\\n' >&2; exit 3").await;
        assert_eq!(collect(registry, &id, 0).await, b"out\n");
        let report = finished(registry, &id).await;
        assert_eq!(report.detail, "exit status 3 (its stderr ends: one / \u{fffd}[2Jtwo)");
        assert_eq!((report.stdout_size, stderr(&id).await.as_str()), (4, "one\n\u{1b}[2Jtwo\n"));
        let mode = std::fs::metadata(engine.dir(&id).join("stderr")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        // A success says nothing of it, and it is there while the unit runs.
        let id = run(registry, "echo warning >&2; read -r line; exit 0").await;
        assert_eq!(finished(registry, &id).await.detail, "exit status 0");
        assert_eq!(stderr(&id).await, "warning\n");
        let long = run(registry, "seq 1000 >&2; echo out").await;
        let report = finished(registry, &long).await;
        let all = 3893;
        match bound {
            None => assert_eq!((report.detail.as_str(), stderr(&long).await.len()), ("exit status 0", all)),
            Some(MaxStdout { bytes, .. }) => {
                let over = all as u64 - bytes;
                let told =
                    format!("exit status 0 (the last {over} bytes of its stderr were discarded (maxstdout))");
                assert_eq!((report.detail, stderr(&long).await.len() as u64), (told, bytes));
            }
        }
        assert_eq!(collect(registry, &long, 0).await, b"out\n");
    }
    let engine = Engine::new().await;
    let id = run(&engine.registry, "echo err >&2").await;
    assert_eq!(collect(&engine.registry, &id, 0).await, b"err\n");
    let refused = engine.registry.stderr(&id, 0, &me()).await.unwrap_err().to_string();
    assert!(refused.contains("stderr: separate"), "{refused}");
}

#[tokio::test]
async fn a_unit_of_ours_may_have_a_lower_bound_than_its_type() {
    for (of_type, own, wanted) in [
        (None, 1000, "Killed: it wrote more than 1000 bytes (joboutput)"),
        (Some((5000, WhenFull::Stop)), 1000, "Killed: it wrote more than 1000 bytes (joboutput)"),
        (Some((1000, WhenFull::Fail)), 5000, "Killed: it wrote more than 1000 bytes (maxstdout)"),
    ] {
        let limits = of_type.map_or_else(Limits::default, |(bytes, when_full)| output(bytes, when_full));
        let engine = bounded(limits).await;
        let bound = OutputBound { bytes: own, setting: "joboutput".into() };
        let asked = request("localhost", "sh", "'exec yes'");
        let submission = engine.registry.submit_child(asked, bound.clone()).await.unwrap();
        let id = submission.id().to_string();
        submission.finish().await.unwrap();
        let report = finished(&engine.registry, &id).await;
        assert_eq!((report.state, report.detail.as_str(), report.stdout_size), (State::Failed, wanted, 1000));
        assert_eq!(collect(&engine.registry, &id, 0).await, b"y\n".repeat(500));
    }
}

#[tokio::test]
async fn a_limited_job_can_be_cancelled_while_others_hold_its_output() {
    let engine = bounded(output(1 << 20, WhenFull::Stop)).await;
    let id = run(&engine.registry, "echo x; exec sleep 1000").await;
    until(&engine.registry, &id, |report| report.stdout_size == 2).await;
    assert_eq!(within(engine.registry.cancel(&id, &me())).await.unwrap(), Outcome::Done);
    assert_eq!(finished(&engine.registry, &id).await.detail, "Canceled");
    let id = run(&engine.registry, "(sleep 1000 & echo $!); echo done").await;
    let output = String::from_utf8(collect(&engine.registry, &id, 0).await).unwrap();
    assert!(output.ends_with("done\n"), "{output}");
    let child: u32 = output.lines().next().unwrap().parse().unwrap();
    signal(child, rustix::process::Signal::KILL);
}

#[tokio::test]
async fn a_job_that_takes_too_long_fails() {
    let limits = Limits { timeout: Some(Duration::from_secs(3)), ..Limits::default() };
    let engine = bounded(limits).await;
    let id = run(&engine.registry, "echo $$; exec sleep 1000").await;
    let report = finished(&engine.registry, &id).await;
    assert_eq!(
        (report.state, report.detail.as_str()),
        (State::Failed, "Killed: it ran longer than 3s (timeout)")
    );
    let pid = String::from_utf8(collect(&engine.registry, &id, 0).await).unwrap();
    assert!(!lives(pid.trim().parse().unwrap()));
}

#[tokio::test]
async fn units_beyond_the_limit_wait_in_order_and_across_a_restart() {
    let one = || Limits { max_units: Some(1), ..Limits::default() };
    let engine = bounded(one()).await;
    let log = engine.temp.path().join("log");
    let fifo = engine.temp.path().join("fifo");
    let script = |name: &str| format!("echo {name} >>{}", log.display());
    let first =
        run(&engine.registry, &format!("mkfifo {0}; read x <{0}; {1}", fifo.display(), script("first")))
            .await;
    let mut waiting = Vec::new();
    for name in ["second", "cancelled", "third", "fourth"] {
        waiting.push(run(&engine.registry, &script(name)).await);
        let report = engine.registry.status(waiting.last().unwrap()).await.unwrap();
        assert_eq!(
            (report.state, report.detail.as_str()),
            (State::Pending, "Queued: 1 units of its work type run already")
        );
    }
    assert_eq!(engine.registry.cancel(&waiting[1], &me()).await.unwrap(), Outcome::Done);
    let Engine { registry, temp } = engine;
    drop(registry);
    let mut options = options(temp.path().join("data"), "n1");
    set(&mut options, one());
    let registry = open(options).await;
    assert_eq!(registry.status(&first).await.unwrap().state, State::Running);
    assert_eq!(registry.status(&waiting[0]).await.unwrap().state, State::Pending);
    let writer = fifo.clone();
    tokio::task::spawn_blocking(move || std::fs::write(writer, "go\n").unwrap()).await.unwrap();
    for (id, state) in
        waiting.iter().zip([State::Succeeded, State::Canceled, State::Succeeded, State::Succeeded])
    {
        assert_eq!(finished(&registry, id).await.state, state);
    }
    assert_eq!(std::fs::read_to_string(&log).unwrap(), "first\nsecond\nthird\nfourth\n");
    // A place is free again.
    let last = run(&registry, "exit 0").await;
    assert_eq!(finished(&registry, &last).await.state, State::Succeeded);
    drop(registry);
}

#[tokio::test]
async fn environment_directory_and_user_are_those_of_the_type() {
    let temp = Scratch::new();
    std::fs::set_permissions(temp.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let root = rustix::process::geteuid().is_root();
    let mut limits = Limits { cwd: Some(temp.path().to_owned()), ..Limits::default() };
    limits.env.insert("GREETING".into(), "a b".into());
    limits.user = root.then(|| "nobody".to_owned());
    let engine = bounded(limits.clone()).await;
    let id = run(&engine.registry, "echo \"$GREETING\"; pwd; id -un; cat; echo $USER; id -G | wc -w").await;
    let output = String::from_utf8(collect(&engine.registry, &id, 0).await).unwrap();
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(lines[..2], ["a b", temp.path().to_str().unwrap()]);
    match root {
        true => assert_eq!(lines[2..], ["nobody", "nobody", "1"]),
        false => eprintln!("SKIPPED: becoming another user needs root"),
    }
    // The death of its runner also reaches a command of another user.
    let id = run(&engine.registry, "echo $$; exec sleep 1000").await;
    let report = running(&engine.registry, &id).await;
    let command: u32 = report.detail.strip_prefix("Running: PID ").unwrap().parse().unwrap();
    signal(u32::try_from(report.extra_data["Pid"].as_u64().unwrap()).unwrap(), rustix::process::Signal::KILL);
    finished(&engine.registry, &id).await;
    assert!(!lives(command));
    for (change, cause) in [
        (
            Limits { user: Some("no-such-user".into()), ..Limits::default() },
            "there is no user no-such-user on this system: create that user, or correct `user` of the work type",
        ),
        (
            Limits { cwd: Some("/nonexistent".into()), ..Limits::default() },
            "the working directory /nonexistent (cwd) does not exist: create it, or correct the work type",
        ),
    ] {
        let engine = bounded(change).await;
        let submission = engine.registry.submit(request("n1", "sh", "true"), me()).await.unwrap();
        assert_eq!(submission.finish().await.unwrap_err().to_string(), cause);
    }
}

#[tokio::test]
async fn finished_units_are_released_after_their_time() {
    let limits = Limits { release_after: Some(Duration::from_millis(200)), ..Limits::default() };
    let engine = bounded(limits).await;
    let running = run(&engine.registry, "exec sleep 1000").await;
    let short = run(&engine.registry, "exit 3").await;
    let kept = run_as(&engine.registry, request("n1", "cat", ""), b"").await;
    within(async {
        while engine.registry.status(&short).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
    assert!(!engine.dir(&short).exists());
    let ids = engine.registry.list(None).await.unwrap();
    assert!(ids.len() == 2 && ids.keys().all(|id| [&running, &kept].contains(&&id.to_string())));
}

/// Does to the files of a unit what `receptor-python-worker` does.
const WORKER: &str = r#"#!/bin/sh
echo "$1 $3"
cat "$2/stdin"
printf '{"State": %s, "Detail": "%s", "StdoutSize": 0, "WorkType": "py", "ExtraData": null}' $END >"$2/status"
"#;

#[tokio::test]
async fn a_python_plugin_reports_its_own_end() {
    for (end, state, detail) in [
        ("2 Complete", State::Succeeded, "Complete"),
        ("3 Broken", State::Failed, "Broken"),
        ("1 Running", State::Succeeded, "exit status 0"),
    ] {
        let engine = Engine::with(|options| {
            let config = serde_json::from_str(r#"{"a": [1, "x y"]}"#).unwrap();
            let plugin = PythonPlugin { plugin: "space".into(), function: "call".into(), config };
            let mut kind = meshd::work::CommandType::python("py", plugin);
            let bin = options.data_dir.parent().unwrap().join("bin");
            std::fs::create_dir(&bin).unwrap();
            std::fs::write(bin.join("receptor-python-worker"), WORKER).unwrap();
            std::fs::set_permissions(
                bin.join("receptor-python-worker"),
                std::fs::Permissions::from_mode(0o755),
            )
            .unwrap();
            kind.limits.env.insert("PATH".into(), format!("{}:/usr/bin:/bin", bin.display()));
            kind.limits.env.insert("END".into(), end.into());
            options.work_types.push(kind);
        })
        .await;
        let id = run_as(&engine.registry, request("n1", "py", ""), b"payload").await;
        let output = String::from_utf8(collect(&engine.registry, &id, 0).await).unwrap();
        assert_eq!(output, "space:call {\"a\":[1,\"x y\"],\"params\":\"\"}\npayload");
        let report = finished(&engine.registry, &id).await;
        assert_eq!(
            (report.state, report.detail.as_str(), report.stdout_size),
            (state, detail, output.len() as u64)
        );
    }
}

/// Where the kernel shows the control groups of this machine's units, if it has any.
fn groups() -> Option<std::path::PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let point = mounts.lines().find(|line| line.contains(" - cgroup2 "))?.split(' ').nth(4)?;
    let probe = std::path::Path::new(point).join(format!("meshd-probe-{}", std::process::id()));
    let usable = std::fs::create_dir(&probe).is_ok() && probe.join("cgroup.kill").exists();
    let _ = std::fs::remove_dir(probe);
    usable.then(|| point.into())
}

/// The control group of a process.
fn group_of(pid: u32) -> String {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    groups.lines().find_map(|line| line.strip_prefix("0::")).unwrap().to_owned()
}

#[tokio::test]
async fn a_unit_with_limits_has_a_group_that_ends_with_it() {
    let Some(groups) = groups() else {
        println!("nothing shown: no control group (cgroup v2) can be made here");
        return;
    };
    let engine = bounded(Limits { pids: Some(500), ..Limits::default() }).await;
    let pids = engine.temp.path().join("pids");
    // A process in the command's own session, and one that left the session and its parents.
    let script =
        format!("setsid sh -c 'sleep 1000 & echo $! >{0}'; echo $$ >>{0}; exec sleep 1000", pids.display());
    let both = || {
        let text = std::fs::read_to_string(&pids).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect::<Vec<u32>>()
    };
    for kill_the_runner in [false, true] {
        let _ = std::fs::remove_file(&pids);
        let id = run(&engine.registry, &script).await;
        eventually("both run", || both().len() == 2).await;
        let found = both();
        let group = group_of(found[0]);
        assert!(group.ends_with(&format!("meshd-units/n1.{id}")), "{group}");
        assert_eq!(group, group_of(found[1]));
        if kill_the_runner {
            let runner = std::fs::read_to_string(engine.dir(&id).join("runner")).unwrap();
            let runner: serde_json::Value = serde_json::from_str(&runner).unwrap();
            let runner = u32::try_from(runner["pid"].as_u64().unwrap()).unwrap();
            assert!(
                !group_of(runner).contains("meshd-units"),
                "what kills the group must not kill the runner"
            );
            signal(runner, rustix::process::Signal::KILL);
            assert_eq!(finished(&engine.registry, &id).await.state, State::Failed);
        } else {
            assert_eq!(within(engine.registry.cancel(&id, &me())).await.unwrap(), Outcome::Done);
        }
        assert!(found.iter().all(|&pid| !lives(pid)), "{found:?}");
        assert!(!groups.join(group.trim_start_matches('/')).exists());
    }
    // Processes that outlive the command live until the release.
    let _ = std::fs::remove_file(&pids);
    let id = run(&engine.registry, &format!("sleep 1000 >/dev/null & echo $! >{}", pids.display())).await;
    assert_eq!(finished(&engine.registry, &id).await.detail, "exit status 0");
    let left = both()[0];
    assert!(lives(left));
    assert_eq!(within(engine.registry.release(&id, false, &me())).await.unwrap(), Outcome::Done);
    eventually("nothing is left after a release", || !lives(left)).await;
}
