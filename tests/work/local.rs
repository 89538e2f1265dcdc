//! Units that run on this node.

use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use meshd::rpc::request::SubmitRequest;
use meshd::work::{Caller, Leftovers, OpenError, Outcome, State, WorkError};
use rustix::process::{Pid, Signal};

use crate::harness::*;

fn kill(pid: u32) {
    signal(pid, Signal::KILL);
}

fn runner_of(report: &meshd::work::UnitReport) -> u32 {
    report.extra_data["Pid"].as_u64().unwrap() as u32
}

#[tokio::test]
async fn echo_arrives_and_the_files_are_as_a_go_node_keeps_them() {
    let engine = Engine::new().await;
    let id = run(&engine.registry, "echo out; echo err >&2").await;
    assert_eq!(collect(&engine.registry, &id, 0).await, b"out\nerr\n");
    let report = engine.registry.status(&id).await.unwrap();
    assert_eq!(
        (report.state, report.detail.as_str(), report.stdout_size),
        (State::Succeeded, "exit status 0", 8)
    );
    let file = std::fs::read_to_string(engine.dir(&id).join("status")).unwrap();
    let kept = "{\"State\":2,\"Detail\":\"exit status 0\",\"StdoutSize\":8,\"WorkType\":\"sh\",\"ExtraData\":null,\"ExitCode\":0,";
    assert!(file.starts_with(kept) && file.ends_with("}\n"), "{file}");
    let listed = engine.registry.list(None).await.unwrap();
    assert_eq!(listed.keys().map(|id| id.as_str()).collect::<Vec<_>>(), [id.as_str()]);
}

#[tokio::test]
async fn while_it_runs_the_status_names_both_processes() {
    let engine = Engine::new().await;
    let id = run(&engine.registry, "echo $$; exec sleep 1000").await;
    let report = running(&engine.registry, &id).await;
    let pid: u32 = report.detail.strip_prefix("Running: PID ").unwrap().parse().unwrap();
    assert!(lives(pid) && lives(runner_of(&report)));
    let mut stream = engine.registry.results(&id, 0, &me()).await.unwrap();
    assert_eq!(within(stream.next()).await.unwrap().unwrap(), format!("{pid}\n"));
    eventually("the file says the same", || {
        std::fs::read_to_string(engine.dir(&id).join("status")).unwrap().contains(&report.detail)
    })
    .await;
    assert_eq!(within(engine.registry.cancel(&id, &me())).await.unwrap(), Outcome::Done);
    assert!(!lives(pid));
    let report = engine.registry.status(&id).await.unwrap();
    assert_eq!((report.state, report.detail.as_str()), (State::Canceled, "Canceled"));
    // The stream of a cancelled unit ends, and a second cancel changes nothing.
    assert_eq!(within(stream.next()).await.unwrap(), None);
    assert_eq!(engine.registry.cancel(&id, &me()).await.unwrap(), Outcome::Done);
}

#[tokio::test]
async fn short_commands_lose_nothing() {
    let engine = Engine::new().await;
    for number in 0..50 {
        let id = run(&engine.registry, &format!("printf {number}; exit {number}")).await;
        assert_eq!(collect(&engine.registry, &id, 0).await, number.to_string().as_bytes());
        let report = finished(&engine.registry, &id).await;
        assert_eq!(report.detail, format!("exit status {number}"));
        assert_eq!(report.state == State::Succeeded, number == 0);
    }
}

#[tokio::test]
async fn a_signal_is_named() {
    let engine = Engine::new().await;
    let id = run(&engine.registry, "kill -9 $$").await;
    let detail = finished(&engine.registry, &id).await.detail;
    assert!(detail.starts_with("signal: killed ("), "{detail}");
    assert_eq!(collect(&engine.registry, &id, 0).await, b"");
}

#[tokio::test]
async fn fifty_megabytes_go_in_and_come_out_for_every_reader_from_any_offset() {
    let engine = Engine::new().await;
    let payload = bytes(50_000_000);
    let id = run_as(&engine.registry, request("localhost", "cat", ""), &payload).await;
    let (all, rest, none) = tokio::join!(
        collect(&engine.registry, &id, 0),
        collect(&engine.registry, &id, 12_345_678),
        collect(&engine.registry, &id, 50_000_001),
    );
    assert!(all == payload, "{} of {} bytes", all.len(), payload.len());
    assert!(rest == payload[12_345_678..]);
    assert!(none.is_empty());
    assert_eq!(engine.registry.status(&id).await.unwrap().stdout_size, 50_000_000);
}

#[tokio::test]
async fn output_is_followed_as_it_grows() {
    let engine = Engine::new().await;
    let fifo = engine.temp.path().join("fifo");
    let script = format!("mkfifo {0}; echo one; read x <{0}; echo $x", fifo.display());
    let id = run(&engine.registry, &script).await;
    let mut stream = engine.registry.results(&id, 0, &me()).await.unwrap();
    assert_eq!(within(stream.next()).await.unwrap().unwrap(), "one\n");
    std::fs::write(&fifo, "two\n").unwrap();
    assert_eq!(within(stream.next()).await.unwrap().unwrap(), "two\n");
    assert_eq!(within(stream.next()).await.unwrap(), None);
}

#[tokio::test]
async fn cancel_leaves_no_process_behind() {
    let engine = Engine::with(|options| options.cancel_grace = Duration::from_millis(200)).await;
    let pids = engine.temp.path().join("pids");
    // A process that ignores SIGINT, another one that also left the session, and orphans of both.
    let stubborn = format!(
        "trap '' INT; echo $$ >>{0}; (sh -c 'echo $$ >>{0}; sleep 1000' &); sleep 1000",
        pids.display()
    );
    let script = format!(
        "setsid sh -c \"{stubborn}\" & sh -c \"{stubborn}\"",
        stubborn = stubborn.replace('$', "\\$")
    );
    let id = run(&engine.registry, &script).await;
    let read = || -> Vec<u32> {
        std::fs::read_to_string(&pids)
            .unwrap_or_default()
            .lines()
            .filter_map(|pid| pid.parse().ok())
            .collect()
    };
    eventually("four processes", || read().len() == 4).await;
    assert!(read().iter().all(|&pid| lives(pid)));
    assert_eq!(within(engine.registry.cancel(&id, &me())).await.unwrap(), Outcome::Done);
    assert!(read().iter().all(|&pid| !lives(pid)), "{:?}", read());
    assert_eq!(engine.registry.status(&id).await.unwrap().detail, "Canceled");
}

#[tokio::test]
async fn a_runner_ended_by_somebody_else_reports_killed() {
    let engine = Engine::new().await;
    let id = run(&engine.registry, "exec sleep 1000").await;
    let report = running(&engine.registry, &id).await;
    let runner = Pid::from_raw(runner_of(&report) as i32).unwrap();
    rustix::process::kill_process(runner, Signal::TERM).unwrap();
    let report = finished(&engine.registry, &id).await;
    assert_eq!(report.state, State::Failed);
    assert!(report.detail.starts_with("Killed: its runner was told to end"), "{}", report.detail);
}

#[tokio::test]
async fn a_killed_runner_fails_its_unit_and_leaves_no_process() {
    let engine = Engine::new().await;
    let script = "(setsid sh -c 'echo $$; exec sleep 1000' &); (sh -c 'echo $$; exec sleep 1000' &); echo $$; exec sleep 1000";
    let id = run(&engine.registry, script).await;
    let report = running(&engine.registry, &id).await;
    let stdout = engine.dir(&id).join("stdout");
    eventually("three processes", || std::fs::read_to_string(&stdout).unwrap().lines().count() == 3).await;
    let output = std::fs::read_to_string(&stdout).unwrap();
    let pids: Vec<u32> = output.lines().map(|pid| pid.parse().unwrap()).collect();
    assert!(pids.iter().all(|&pid| lives(pid)));
    kill(runner_of(&report));
    let report = finished(&engine.registry, &id).await;
    assert_eq!(report.state, State::Failed);
    assert!(report.detail.contains("runner process ended without a result"), "{}", report.detail);
    assert!(report.detail.contains("processes of the job were killed after it"), "{}", report.detail);
    assert!(pids.iter().all(|&pid| !lives(pid)), "{pids:?}");
    assert_eq!(collect(&engine.registry, &id, 0).await, output.as_bytes());
}

/// The process IDs that a unit has written, one a line, once there are so many.
async fn written_pids(engine: &Engine, id: &str, count: usize) -> Vec<u32> {
    let stdout = engine.dir(id).join("stdout");
    let read = || std::fs::read_to_string(&stdout).unwrap_or_default();
    eventually("process IDs", || read().lines().count() == count).await;
    read().lines().map(|pid| pid.parse().unwrap()).collect()
}

#[tokio::test]
async fn a_command_that_is_killed_leaves_no_process() {
    let engine = Engine::new().await;
    // Three processes that ignore SIGTERM: one in the process group, one that left it, and one that left the session.
    let stubborn = "echo $$; trap \"\" TERM; while :; do sleep 1000; done";
    let rest =
        format!("(sh -c '{stubborn}' &); (setsid sh -c '{stubborn}' &); (setsid -f sh -c '{stubborn}');");
    for (end, told) in [
        (
            "kill -KILL $$",
            "signal: killed (not by this node; look for an out-of-memory kill in the system's log)",
        ),
        // A shell goes on after the program that it ran.
        ("sh -c 'kill -KILL $$'; exit $?", "exit status 137"),
    ] {
        let go = engine.temp.path().join("go");
        let script = format!("{rest} while [ ! -e {} ]; do sleep 0.01; done; {end}", go.display());
        let id = run(&engine.registry, &script).await;
        let pids = written_pids(&engine, &id, 3).await;
        assert!(pids.iter().all(|&pid| lives(pid)));
        std::fs::write(&go, "").unwrap();
        let report = finished(&engine.registry, &id).await;
        assert_eq!((report.state, report.detail.as_str()), (State::Failed, told));
        assert!(pids.iter().all(|&pid| !lives(pid)), "{pids:?}");
        std::fs::remove_file(&go).unwrap();
    }
}

#[tokio::test]
async fn a_release_ends_what_a_unit_left_if_it_is_asked_to() {
    let engine = Engine::new().await;
    let mut left = Vec::new();
    for leftovers in [Leftovers::Stay, Leftovers::End] {
        let id = run(&engine.registry, "(setsid -f sh -c 'echo $$; exec sleep 1000' </dev/null)").await;
        finished(&engine.registry, &id).await;
        let pids = written_pids(&engine, &id, 1).await;
        assert!(lives(pids[0]), "it was put into the background");
        within(engine.registry.release_with(&id, false, leftovers, &me())).await.unwrap();
        left.push((leftovers, lives(pids[0])));
        kill(pids[0]);
    }
    assert_eq!(left, [(Leftovers::Stay, true), (Leftovers::End, false)]);
}

#[tokio::test]
async fn containers_and_logins_of_a_unit_that_is_killed_are_removed() {
    let scratch = Scratch::new();
    let (engine_log, podman) = (scratch.path().join("log"), scratch.path().join("podman"));
    let script = |text: String, path: &std::path::Path| {
        std::fs::write(path, text).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700)).unwrap();
    };
    script(
        format!("#!/bin/sh\n[ $1 = run ] && sleep 1000\necho \"$@\" >>{}\n", engine_log.display()),
        &podman,
    );
    // The container engine is looked for in the PATH of the node.
    let shell = scratch.path().join("meshd.sh");
    let directory = scratch.path().display();
    script(
        format!("#!/bin/sh\nPATH={directory}:$PATH exec {} \"$@\"\n", env!("CARGO_BIN_EXE_meshd")),
        &shell,
    );
    let engine = Engine::with(|options| options.runner_exe = shell.clone()).await;
    for (number, is_runner_killed) in [(1, false), (2, true)] {
        let name = format!("ansible_runner_registry_{}_{number}", std::process::id());
        let login = std::env::temp_dir().join(name);
        std::fs::create_dir(&login).unwrap();
        std::fs::set_permissions(&login, std::fs::Permissions::from_mode(0o700)).unwrap();
        std::fs::write(login.join("auth.json"), "secret").unwrap();
        let (program, auth) = (podman.display(), login.display());
        let run_it =
            format!("{program} run --rm --authfile={auth}/auth.json --name ansible_runner_{number} image");
        let id = run(&engine.registry, &format!("setsid {run_it} & echo $$; exec sleep 1000")).await;
        let pids = written_pids(&engine, &id, 1).await;
        let starts = || {
            lives(pids[0])
                && command_lines().iter().any(|line| line.contains(&format!("ansible_runner_{number}")))
        };
        eventually("the container to run", starts).await;
        let runner = runner_of(&running(&engine.registry, &id).await);
        kill(if is_runner_killed { runner } else { pids[0] });
        finished(&engine.registry, &id).await;
        // If the runner was killed, this process looks for the container engine, and has none.
        if !is_runner_killed {
            let removed = std::fs::read_to_string(&engine_log).unwrap();
            assert_eq!(removed.lines().last(), Some(format!("rm -f ansible_runner_{number}").as_str()));
        }
        assert!(!login.exists(), "the login is gone");
    }
}

/// The command lines of all processes of podman.
fn command_lines() -> Vec<String> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = processes.filter_map(|process| std::fs::read(process.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    lines.filter(|line| line.contains("podman run")).filter(|line| line.starts_with("/bin/sh")).collect()
}

#[tokio::test]
async fn a_job_ignores_no_signal_that_its_daemon_was_started_with_ignored() {
    let scratch = Scratch::new();
    let shell = scratch.path().join("meshd.sh");
    let script =
        format!("#!/bin/sh\ntrap '' INT QUIT HUP TERM\nexec {} \"$@\"\n", env!("CARGO_BIN_EXE_meshd"));
    std::fs::write(&shell, script).unwrap();
    std::fs::set_permissions(&shell, std::fs::Permissions::from_mode(0o700)).unwrap();
    let engine = Engine::with(|options| options.runner_exe = shell.clone()).await;
    let id = run(&engine.registry, "exec grep SigIgn /proc/self/status").await;
    let line = String::from_utf8(collect(&engine.registry, &id, 0).await).unwrap();
    let ignored = u64::from_str_radix(line.trim_start_matches("SigIgn:").trim(), 16).unwrap();
    // 32 and 33 are the C library's own: no program can set them, and some shells pass them on ignored.
    let settable = !(0b11 << 31);
    assert_eq!(ignored & settable, 0, "{line}");
}

#[tokio::test]
async fn a_second_cancel_within_the_grace_changes_nothing() {
    let engine = Engine::with(|options| options.cancel_grace = Duration::from_secs(3)).await;
    let id = run(
        &engine.registry,
        // A shell that keeps looking at its signals cannot miss one.
        "trap 'echo asked' INT; trap '' TERM; echo $$; while :; do sleep 0.05; done",
    )
    .await;
    until(&engine.registry, &id, |report| report.stdout_size > 0).await;
    let caller = me();
    let (one, two) = tokio::join!(engine.registry.cancel(&id, &caller), async {
        let stdout = engine.dir(&id).join("stdout");
        eventually("asked", || std::fs::read_to_string(&stdout).unwrap().contains("asked")).await;
        engine.registry.cancel(&id, &caller).await
    });
    assert_eq!((one.unwrap(), two.unwrap()), (Outcome::Done, Outcome::Done));
    let report = engine.registry.status(&id).await.unwrap();
    assert_eq!((report.state, report.detail.as_str()), (State::Canceled, "Canceled"));
    let output = String::from_utf8(collect(&engine.registry, &id, 0).await).unwrap();
    assert!(!lives(output.lines().next().unwrap().parse().unwrap()));
}

#[tokio::test]
async fn release_deletes_and_is_remembered() {
    let engine = Engine::new().await;
    let id = run(&engine.registry, "exec sleep 1000").await;
    let report = running(&engine.registry, &id).await;
    let command: u32 = report.detail.strip_prefix("Running: PID ").unwrap().parse().unwrap();
    assert_eq!(within(engine.registry.release(&id, false, &me())).await.unwrap(), Outcome::Done);
    assert!(!lives(command) && !engine.dir(&id).exists());
    let error = engine.registry.status(&id).await.unwrap_err();
    let told = error.to_string();
    assert!(told.starts_with(&format!("unknown work unit {id}: it was released ")), "{told}");
    assert_eq!(engine.registry.cancel(&id, &me()).await.unwrap(), Outcome::Done);
    assert_eq!(engine.registry.release(&id, false, &me()).await.unwrap(), Outcome::Done);
    let error = engine.registry.release("never000", true, &me()).await.unwrap_err();
    assert_eq!(error.to_string(), "unknown work unit never000");
    assert!(engine.registry.list(None).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_command_that_cannot_start_says_why() {
    let engine = Engine::new().await;
    let submission = engine.registry.submit(request("localhost", "nothing", ""), me()).await.unwrap();
    let id = submission.id().to_string();
    let error = submission.finish().await.unwrap_err();
    assert!(
        error.to_string().starts_with("fork/exec /nonexistent/program: no such file or directory ("),
        "{error}"
    );
    let report = engine.registry.status(&id).await.unwrap();
    assert_eq!(report.state, State::Failed);
    assert_eq!(report.detail, format!("Error starting worker: {error}"));
    assert_eq!(collect(&engine.registry, &id, 0).await, b"");
}

#[tokio::test]
async fn impossible_requests_are_refused_and_leave_nothing() {
    let engine = Engine::new().await;
    let with = |change: fn(&mut SubmitRequest), work_type: &str, params: &str| {
        let mut request = request("n1", work_type, params);
        change(&mut request);
        request
    };
    for (request, text) in [
        (with(|_| {}, "none", ""), "unknown work type none"),
        (with(|_| {}, "remote", ""), "unknown work type remote"),
        (with(|_| {}, "fixed", "x"), "extra params provided but not allowed"),
        (with(|r| r.ttl = Some("1h".into()), "cat", ""), "ttl option is intended for remote work only"),
        (
            with(
                |r| {
                    r.node = "n2".into();
                    r.params.insert("Secret_x".into(), "y".into());
                },
                "cat",
                "",
            ),
            "cannot send secrets over a non-TLS connection",
        ),
        (
            with(
                |r| {
                    r.node = "n2".into();
                    r.sign_work = true;
                },
                "cat",
                "",
            ),
            "cannot sign work: signing key is empty",
        ),
        (
            with(
                |r| {
                    r.node = "n2".into();
                    r.ttl = Some("soon".into());
                },
                "cat",
                "",
            ),
            "ttl \"soon\" is not a duration: write for example 1.5h, 30m or 30m10s",
        ),
    ] {
        assert_eq!(engine.registry.submit(request, me()).await.unwrap_err().to_string(), text);
    }
    let signed = Caller { signature: Some("x".into()), ..me() };
    for (work_type, caller, text) in [
        ("cat", signed, "work type did not expect a signature"),
        ("signed", Caller::default(), "could not verify signature: signature is empty"),
    ] {
        let refused = engine.registry.submit(request("n1", work_type, ""), caller).await;
        assert_eq!(refused.unwrap_err().to_string(), text);
    }
    assert!(matches!(
        engine.registry.submit(request("n1", "sh", "'"), me()).await,
        Err(WorkError::BadQuoting(_))
    ));
    assert!(engine.registry.list(None).await.unwrap().is_empty());
    assert_eq!(directories_in(&engine.dir("")), 0);
}

#[tokio::test]
async fn a_payload_that_stops_half_way_fails_the_unit() {
    let engine = Engine::new().await;
    let mut submission = engine.registry.submit(request("n1", "cat", ""), me()).await.unwrap();
    let id = submission.id().to_string();
    assert_eq!(engine.registry.status(&id).await.unwrap().detail, "Waiting for Input Data");
    submission.write(b"half").await.unwrap();
    submission.abort("connection reset".into()).await;
    let report = engine.registry.status(&id).await.unwrap();
    assert_eq!(
        (report.state, report.detail.as_str()),
        (State::Failed, "Error reading input data: connection reset; submit the job again")
    );
    let submission = engine.registry.submit(request("n1", "cat", ""), me()).await.unwrap();
    let id = submission.id().to_string();
    drop(submission);
    assert_eq!(
        finished(&engine.registry, &id).await.detail,
        "Error reading input data: the client went away; submit the job again"
    );
    let submission = engine.registry.submit(request("n1", "cat", ""), me()).await.unwrap();
    let id = submission.id().to_string();
    engine.registry.cancel(&id, &me()).await.unwrap();
    assert!(matches!(submission.finish().await, Err(WorkError::EndedEarly(_))));
    assert_eq!(engine.registry.status(&id).await.unwrap().state, State::Canceled);
}

#[tokio::test]
async fn a_data_directory_of_somebody_else_is_refused() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("data");
    std::fs::create_dir(&dir).unwrap();
    if std::os::unix::fs::chown(&dir, Some(12345), None).is_err() {
        eprintln!("SKIPPED: giving a directory away needs root");
        return;
    }
    let dialer = std::sync::Arc::new(Nowhere(node("n1")));
    let error = meshd::work::Registry::open(options(dir, "n1"), dialer).await.unwrap_err();
    assert!(matches!(error, OpenError::ForeignOwner { owner: 12345, .. }), "{error}");
}

#[tokio::test]
async fn many_at_once_all_end() {
    let engine = Engine::new().await;
    let jobs: Vec<_> = (0..100)
        .map(|number| {
            let registry = engine.registry.clone();
            tokio::spawn(async move {
                let id = run(&registry, &format!("echo {number}")).await;
                let output = collect(&registry, &id, 0).await;
                registry.release(&id, false, &me()).await.unwrap();
                (number, output)
            })
        })
        .collect();
    for job in jobs {
        let (number, output) = within(job).await.unwrap();
        assert_eq!(output, format!("{number}\n").as_bytes());
    }
    assert_eq!(directories_in(&engine.dir("")), 0);
}

#[tokio::test]
async fn a_full_disk_is_reported_and_recovers() {
    let temp = Scratch::new();
    let small = temp.path().join("small");
    let Some(mount) = Tmpfs::mount(&small) else { return };
    let registry = open(options(small.join("data"), "n1")).await;
    let before = run(&registry, "echo before").await;
    finished(&registry, &before).await;
    let mut submission = registry.submit(request("n1", "cat", ""), me()).await.unwrap();
    let full = submission.id().to_string();
    let chunk = vec![7; 256 * 1024];
    let error = loop {
        match submission.write(&chunk).await {
            Ok(()) => {}
            Err(error) => break error,
        }
    };
    let is_full = |error: &WorkError| matches!(error, WorkError::NoSpace { .. } | WorkError::Reserve { .. });
    assert!(is_full(&error), "{error}");
    submission.abort(error.to_string()).await;
    let report = registry.status(&full).await.unwrap();
    assert!(report.detail.contains("no space left under the data directory"), "{}", report.detail);
    assert!(registry.submit(request("n1", "cat", ""), me()).await.is_err_and(|error| is_full(&error)));
    assert_eq!(collect(&registry, &before, 0).await, b"before\n");
    registry.release(&full, false, &me()).await.unwrap();
    let after = run(&registry, "echo after").await;
    assert_eq!(collect(&registry, &after, 0).await, b"after\n");
    assert_eq!(registry.list(None).await.unwrap().len(), 2);
    drop(mount);
}

#[tokio::test]
async fn a_dead_spawner_is_replaced_and_harms_no_job() {
    let engine = Engine::new().await;
    let id = run(&engine.registry, "echo $$; exec sleep 1000").await;
    let report = running(&engine.registry, &id).await;
    let runner = runner_of(&report);
    // The runner's parent is the spawner that forked it.
    let stat = std::fs::read_to_string(format!("/proc/{runner}/stat")).unwrap();
    let parent = stat[stat.rfind(')').unwrap() + 2..].split(' ').nth(1).unwrap().parse().unwrap();
    kill(parent);
    let next = run(&engine.registry, "echo next").await;
    assert_eq!(collect(&engine.registry, &next, 0).await, b"next\n");
    assert_eq!(engine.registry.status(&id).await.unwrap().state, State::Running);
    engine.registry.cancel(&id, &me()).await.unwrap();
    assert!(!lives(runner));
}

/// Prints figures with `--ignored --nocapture`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement"]
async fn how_long_an_echo_takes() {
    let engine = Engine::new().await;
    let mut times = Vec::new();
    for _ in 0..300 {
        let begin = std::time::Instant::now();
        let id = run(&engine.registry, "echo hello").await;
        assert_eq!(collect(&engine.registry, &id, 0).await, b"hello\n");
        times.push(begin.elapsed());
    }
    times.sort();
    println!("echo: median {:?}, p99 {:?}", times[150], times[297]);
    let begin = std::time::Instant::now();
    let jobs: Vec<_> = (0..16)
        .map(|_| {
            let registry = engine.registry.clone();
            tokio::spawn(async move {
                for _ in 0..100 {
                    let id = run(&registry, "echo hello").await;
                    assert_eq!(collect(&registry, &id, 0).await, b"hello\n");
                    registry.release(&id, false, &me()).await.unwrap();
                }
            })
        })
        .collect();
    for job in jobs {
        job.await.unwrap();
    }
    println!("{:.0} jobs/s", 1600.0 / begin.elapsed().as_secs_f64());
}
