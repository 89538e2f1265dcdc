//! meshctl against a scripted node: the exact bytes that it sends, its output and its exit code.

use std::{
    fs,
    io::{Read, Write},
    path::Path,
};

use crate::fake_node::{FakeNode, Step, asked, greeted, hear, say};
use crate::{CREATED, STARTED, interrupt, meshctl, run, spawned};

const SUBMIT: &str = r#"{"command":"work","subcommand":"submit","node":"localhost","worktype":"sh"}"#;
const STATUS: &str = "work status abcd1234";
const RELEASE: &str = r#"{"command":"work","subcommand":"release","unitid":"abcd1234"}"#;

fn results(start: u64) -> Step {
    let unit = r#""unitid":"abcd1234""#;
    hear(&format!(
        r#"{{"command":"work","subcommand":"results",{unit},"startpos":{start},"endswithunit":true}}"#
    ))
}

fn streaming(start: u64, output: &str) -> Vec<Step> {
    greeted([results(start), say("Streaming results for work unit abcd1234\n"), say(output)])
}

fn state(number: u8, size: usize, detail: &str) -> Vec<Step> {
    let status = format!(r#"{{"State":{number},"Detail":"{detail}","StdoutSize":{size},"WorkType":"sh"}}"#);
    asked(STATUS, &status)
}

fn submitted(payload: &[u8]) -> Vec<Step> {
    greeted([hear(SUBMIT), say(CREATED), Step::HearRest(payload.to_vec()), say(STARTED)])
}

#[test]
fn ping_counts_and_exits_by_its_result() {
    let question = hear(r#"{"command":"ping","target":"beta"}"#);
    let good = say("{\"Success\":true,\"From\":\"beta\",\"Time\":1000,\"TimeStr\":\"1µs\"}\n");
    let bad = say("{\"Success\":false,\"Error\":\"timeout\"}\n");
    let script = greeted([question.clone(), good.clone(), question.clone(), bad]);
    let args = ["ping", "beta", "--count", "2", "--delay", "0"];
    let (code, out, err) = run(vec![script], &args, b"");
    assert_eq!(
        (code, out.as_str(), err.as_str()),
        (2, "Reply from beta in 1µs\n", "No reply from beta: timeout\n")
    );

    let (code, out, _) = run(vec![greeted([question, good])], &["--json", "ping", "beta", "--count=1"], b"");
    assert_eq!((code, out.starts_with("{\"Success\":true")), (0, true), "{out}");
}

#[test]
fn reload_has_receptorctls_exit_codes() {
    for (answer, expected) in [
        (r#"{"Success":true}"#, 0),
        (r#"{"Success":false,"Error":"changed ERRORCODE 3"}"#, 3),
        (r#"{"Success":false,"Error":"bad yaml ERRORCODE 4"}"#, 4),
        (r#"{"Success":false,"Error":"no file"}"#, 5),
    ] {
        let (code, _, err) = run(vec![asked("reload", answer)], &["reload"], b"");
        assert_eq!(code, expected, "{answer}: {err}");
    }
}

#[test]
fn a_payload_from_stdin_goes_out_byte_for_byte() {
    let payload: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    let (code, out, err) = run(vec![submitted(&payload)], &["work", "submit", "sh", "-p", "-"], &payload);
    assert_eq!((code, out.as_str(), err.as_str()), (0, "Result: Job Started\nUnit ID: abcd1234\n", ""));
}

#[test]
fn literal_empty_and_file_payloads() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("payload");
    fs::write(&file, "from file").unwrap();
    let file = file.to_str().unwrap();
    for (args, payload) in [(["-l", "hi"], "hi\n"), (["-n", "--json"], ""), (["-p", file], "from file")] {
        let args = [&["work", "submit", "sh"][..], &args].concat();
        let (code, out, err) = run(vec![submitted(payload.as_bytes())], &args, b"");
        assert_eq!((code, err.as_str()), (0, ""), "{out}");
        assert!(out.contains("abcd1234"), "{out}");
    }
}

#[test]
fn every_option_of_submit_reaches_the_node() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pod");
    fs::write(&file, "kind: Pod").unwrap();
    let line = concat!(
        r#"{"command":"work","subcommand":"submit","node":"beta","worktype":"sh","tlsclient":"t","ttl":"1h","#,
        r#""signwork":"true","a":"b=c","params":"one two","pod":"kind: Pod"}"#
    );
    let nodes = r#"{"command":"status","requested_fields":["NodeID","RoutingTable","KnownConnectionCosts"]}"#;
    let mesh = r#"{"NodeID":"alpha","RoutingTable":{"beta":"beta"},"KnownConnectionCosts":{}}"#;
    let script = greeted([hear(line), say(CREATED), Step::HearRest(vec![]), say(STARTED)]);
    let pod = format!("pod=@{}", file.display());
    let args = [
        "work",
        "submit",
        "sh",
        "--node",
        "beta",
        "-n",
        "--tls-client",
        "t",
        "--ttl",
        "1h",
        "--signwork",
        "-a",
        "a=b=c",
        "--param",
        &pod,
        "one",
        "two",
    ];
    let (code, _, err) = run(vec![asked(nodes, mesh), script], &args, b"");
    assert_eq!((code, err.as_str()), (0, ""));
}

#[test]
fn following_ends_as_the_unit_ends() {
    for (number, expected, message) in [
        (2, 0, ""),
        (3, 1, "meshctl: unit abcd1234 failed: why\n"),
        (4, 1, "meshctl: unit abcd1234 canceled: why\n"),
    ] {
        let script = vec![submitted(b"x"), streaming(0, "out\n"), state(number, 4, "why")];
        let (code, out, err) = run(script, &["work", "submit", "sh", "-p", "-", "-f"], b"x");
        assert_eq!((code, out.as_str(), err.as_str()), (expected, "out\n", message));
    }
}

#[test]
fn rm_releases_a_failed_unit_too() {
    let release = asked(RELEASE, r#"{"released":"abcd1234"}"#);
    let script = vec![submitted(b""), streaming(0, ""), state(3, 0, "exit status 2"), release];
    let (code, _, err) = run(script, &["work", "submit", "sh", "-n", "-f", "--rm"], b"");
    assert_eq!((code, err.as_str()), (1, "meshctl: unit abcd1234 failed: exit status 2\n"));
}

#[test]
fn results_resume_at_the_byte_where_a_restarted_node_stopped() {
    let script = vec![
        streaming(0, "first "),
        // The status request finds the node shutting down.
        vec![],
        streaming(6, "second "),
        // The connection closes although the unit is still running.
        state(1, 13, "Running: PID 7"),
        streaming(13, "third"),
        state(2, 18, "exit status 0"),
    ];
    let (code, out, err) = run(script, &["work", "results", "abcd1234"], b"");
    assert_eq!((code, out.as_str()), (0, "first second third"), "{err}");
    assert_eq!(err.matches("the node is back").count(), 2, "{err}");
}

#[test]
fn results_begin_at_the_requested_position() {
    let script = vec![streaming(7, "tail"), state(2, 11, "exit status 0")];
    let (code, out, _) = run(script, &["work", "results", "abcd1234", "--start", "7"], b"");
    assert_eq!((code, out.as_str()), (0, "tail"));
}

#[test]
fn a_refused_submission_says_why() {
    let script = greeted([hear(SUBMIT), say("ERROR: unknown work type sh\n")]);
    let (code, _, err) = run(vec![script], &["work", "submit", "sh", "-n"], b"");
    assert_eq!(code, 101);
    assert_eq!(err, "meshctl: the node does not accept the job: unknown work type sh\n");
}

#[test]
fn an_unacknowledged_submission_returns_no_id() {
    for (answer, code) in [
        ("ERROR: cannot start\n", 101),
        ("{\"result\":\"Job Started\"}\n", 1),
        ("{\"unitid\":\"abcd1234\"}\n", 1),
        ("", 69),
    ] {
        let script = greeted([hear(SUBMIT), say(CREATED), Step::HearRest(Vec::new()), say(answer)]);
        let (got, out, err) = run(vec![script], &["work", "submit", "sh", "-n"], b"");
        assert_eq!((got, out.as_str()), (code, ""), "{answer}: {err}");
        assert_eq!(err.lines().count(), 1, "{err}");
        assert!(err.starts_with("meshctl: ") && err.contains("unit abcd1234"), "{err}");
    }
}

#[test]
fn a_node_whose_disk_fills_is_heard_during_a_payload() {
    let said = [hear(SUBMIT), say(CREATED), say("ERROR: no space left on device\n")];
    let payload = vec![0; 8 << 20];
    // One node closes, which breaks the pipe; the other stops reading while the pipe is full.
    for script in [greeted(said.clone()), greeted(said.into_iter().chain([Step::Stall]))] {
        let (code, _, err) = run(vec![script], &["work", "submit", "sh", "-p", "-"], &payload);
        assert_eq!(code, 101, "{err}");
        assert!(err.contains("no space left on device (unit abcd1234 keeps the details)"), "{err}");
    }
}

#[test]
fn half_a_payload_never_runs() {
    let release = asked(RELEASE, r#"{"released":"abcd1234"}"#);
    let upload = greeted([
        hear(SUBMIT),
        say(CREATED),
        Step::HearBytes(b"half".to_vec()),
        Step::Signal,
        Step::HoldOpen,
    ]);
    let node = FakeNode::start(vec![upload, release]);
    let mut child = spawned(&node.socket(), &["work", "submit", "sh", "-p", "-"]);
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"half").unwrap();
    node.wait();
    interrupt(&child);
    let mut err = String::new();
    child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{err}");
    assert_eq!(
        err,
        "meshctl: interrupted while the payload was sent; unit abcd1234 was given up, no job was started\n"
    );
    node.finish();
}

#[test]
fn an_interrupted_follow_leaves_the_job_and_says_how_to_resume() {
    let follow =
        greeted([results(0), say("Streaming results for work unit abcd1234\nsome"), Step::WaitForClose]);
    let node = FakeNode::start(vec![follow]);
    let mut child = spawned(&node.socket(), &["work", "results", "abcd1234"]);
    let mut out = [0; 4];
    child.stdout.as_mut().unwrap().read_exact(&mut out).unwrap();
    assert_eq!(&out, b"some");
    interrupt(&child);
    let mut err = String::new();
    child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{err}");
    assert!(err.contains("work results abcd1234 --start 4\n"), "{err}");
    assert!(err.contains("work cancel abcd1234\n"), "{err}");
    node.finish();
}

#[test]
fn a_reader_that_leaves_ends_us_quietly() {
    let long = "y\n".repeat(1 << 20);
    let node = FakeNode::start(vec![streaming(0, &long)]);
    let mut child = spawned(&node.socket(), &["work", "results", "abcd1234"]);
    drop(child.stdout.take());
    let mut err = String::new();
    child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    assert_eq!((child.wait().unwrap().code(), err.as_str()), (Some(141), ""));
    node.finish();
}

#[test]
fn a_node_that_does_not_answer_is_given_up() {
    let status = r#"{"command":"status","requested_fields":["Version","NodeID","SystemCPUCount","SystemMemoryMiB","Connections","RoutingTable","Advertisements","KnownConnectionCosts","CertificatesEnding","Outages"]}"#;
    let script = greeted([hear(status), Step::WaitForClose]);
    let (code, _, err) = run(vec![script], &["--timeout", "0.2", "status"], b"");
    assert_eq!((code, err.starts_with("meshctl: no answer within 200ms")), (69, true), "{err}");
}

#[test]
fn other_servers_are_not_mistaken_for_nodes() {
    for greeting in ["SSH-2.0-OpenSSH_9.2\n".to_owned(), "x".repeat(10_000)] {
        let (code, _, err) = run(vec![vec![say(&greeting), Step::WaitForClose]], &["status"], b"");
        assert!(code != 0 && err.len() < 500, "{code} {err}");
    }
}

#[test]
fn missing_things_are_named_with_a_remedy() {
    let missing = Path::new("/nonexistent/meshd.sock");
    let output = meshctl(missing).arg("status").output().unwrap();
    assert_eq!(output.status.code(), Some(69));
    let err = String::from_utf8(output.stderr).unwrap();
    let expected = "meshctl: no socket at /nonexistent/meshd.sock: is meshd running? give --socket or set RECEPTORCTL_SOCKET\n";
    assert_eq!(err, expected);

    let output = meshctl(missing).args(["--json", "status"]).output().unwrap();
    let error: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(error["exit_code"], 69);
}

#[test]
fn wrong_usage_and_failed_pings_have_different_exit_codes() {
    let socket = Path::new("/nonexistent/meshd.sock");
    for args in [
        &["work", "submit", "sh"][..],
        &["work", "submit", "sh", "-n", "-l", "x"],
        &["work", "submit", "sh", "-n", "--param", "novalue"],
        &["work", "submit", "sh", "-n", "--ttl", "soon"],
        &["work", "release"],
        &["ping", "beta", "--delay", "-1"],
        &["nonsense"],
    ] {
        assert_eq!(meshctl(socket).args(args).output().unwrap().status.code(), Some(64), "{args:?}");
    }
    assert_eq!(meshctl(socket).arg("--help").output().unwrap().status.code(), Some(0));
}

#[test]
fn cancelling_a_finished_unit_is_not_reported_as_cancelled() {
    let (code, out, _) = run(vec![state(2, 0, "exit status 0")], &["work", "cancel", "abcd1234"], b"");
    assert_eq!((code, out.as_str()), (0, "abcd1234: nothing to cancel: it has already ended (Succeeded)\n"));

    let cancel = asked(
        r#"{"command":"work","subcommand":"cancel","unitid":"abcd1234"}"#,
        r#"{"cancel pending":"abcd1234"}"#,
    );
    let (code, out, _) =
        run(vec![state(1, 0, "Running: PID 7"), cancel], &["work", "cancel", "abcd1234"], b"");
    assert_eq!((code, out.as_str()), (0, "abcd1234: cancel pending\n"));
}

#[test]
fn releasing_all_continues_after_a_failure() {
    let release = |id: &str, answer: &str| {
        asked(&format!(r#"{{"command":"work","subcommand":"force-release","unitid":"{id}"}}"#), answer)
    };
    let script = vec![
        asked("work list", r#"{"b":{},"a":{}}"#),
        release("a", "ERROR: unknown work unit a"),
        release("b", r#"{"released":"b"}"#),
    ];
    let (code, out, err) = run(script, &["work", "release", "--all", "--force"], b"");
    assert_eq!((code, out.as_str(), err.as_str()), (1, "b: released\n", "meshctl: a: unknown work unit a\n"));
}

#[test]
fn units_of_another_node_are_listed_through_a_tunnel() {
    let script = greeted([
        hear(r#"{"command":"connect","node":"beta","service":"control"}"#),
        say("Connecting\nReceptor Control, node beta\n"),
        hear("work list"),
        say("{\"zz\":{},\"aa\":{}}\n"),
    ]);
    let (code, out, _) = run(vec![script], &["work", "list", "-q", "--node", "beta"], b"");
    assert_eq!((code, out.as_str()), (0, "aa\nzz\n"));
}

#[test]
fn connect_passes_bytes_both_ways_and_half_closes() {
    let script = greeted([
        hear(r#"{"command":"connect","node":"beta","service":"echo","tls":"t"}"#),
        say("Connecting\n"),
        Step::HearRest(b"ping\xff".to_vec()),
        say("pong"),
    ]);
    let (code, out, err) = run(vec![script], &["connect", "beta", "echo", "--tls-client", "t"], b"ping\xff");
    assert_eq!((code, out.as_str(), err.as_str()), (0, "pong", ""));
}
