//! meshctl against real nodes of the Go implementation.

use std::{
    fs,
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    process::Command as Program,
    time::Duration,
};

use assert_cmd::Command;
use serde_json::{Value, json};

use crate::process::Process;
use crate::until::until;
use crate::{interrupt, meshctl, spawned};

/// A node with the work types `cat` and `sh`, ended when dropped.
struct Node {
    _process: Process,
    dir: tempfile::TempDir,
}

impl Node {
    fn start(program: &Path) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let config = json!([
            {"node": {"id": "solo", "datadir": dir.path().join("data")}},
            {"local-only": null},
            {"control-service": {"filename": socket}},
            {"work-command": {"worktype": "cat", "command": "cat"}},
            {"work-command": {"worktype": "sh", "command": "sh", "params": "-c", "allowruntimeparams": true}}]);
        fs::write(dir.path().join("c.yml"), config.to_string()).unwrap();
        let log = fs::File::create(dir.path().join("log")).unwrap();
        let process =
            Process::start(Program::new(program).arg("--config").arg(dir.path().join("c.yml")), log);
        let node = Self { _process: process, dir };
        until("the node answers", || (UnixStream::connect(&socket).is_ok()).then_some(()));
        // It answers before it has read its whole configuration.
        until("the node knows its work types", || {
            (node.json(&["status"]).to_string().contains("\"cat\"")).then_some(())
        });
        node
    }

    fn meshctl(&self, args: &[&str]) -> Command {
        let mut command = meshctl(&self.dir.path().join("s"));
        command.args(args);
        command
    }

    fn json(&self, args: &[&str]) -> Value {
        let args = &[&["--json"], args].concat();
        let output = self.meshctl(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

crate::receptor::beside_go_nodes!(
    a_job_there_and_back,
    failures_are_told,
    cancel_and_status,
    an_interrupted_payload_leaves_no_unit,
    the_demo_runs_on_go_nodes_too,
);

fn a_job_there_and_back(program: &Path) {
    let node = Node::start(program);
    let payload: Vec<u8> = (0..10_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let args = ["work", "submit", "cat", "-p", "-", "-f", "--rm"];
    let output = node.meshctl(&args).write_stdin(payload.clone()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stdout == payload, "{} bytes came back", output.stdout.len());
    assert_eq!(node.json(&["work", "list"]), json!({}));
}

fn failures_are_told(program: &Path) {
    let node = Node::start(program);
    let output =
        node.meshctl(&["work", "submit", "sh", "-n", "-f", "--", "'echo out; exit 3'"]).output().unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(1), b"out\n".as_slice()));
    assert!(String::from_utf8_lossy(&output.stderr).contains("failed: exit status 3"));
    for (args, code) in [
        (&["work", "submit", "nosuch", "-n"][..], 101),
        (&["work", "results", "nosuch"], 1),
        (&["work", "cancel", "nosuch"], 1),
        (&["ping", "nosuch", "--count", "1"], 2),
        (&["traceroute", "nosuch"], 2),
    ] {
        let output = node.meshctl(args).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?} {}", String::from_utf8_lossy(&output.stderr));
    }
}

fn cancel_and_status(program: &Path) {
    let node = Node::start(program);
    let unit = node.json(&["work", "submit", "sh", "-n", "--", "'sleep 600'"]);
    let unit = unit["unitid"].as_str().unwrap();
    let state = || node.json(&["work", "status", unit])[unit]["State"].clone();
    until("the unit runs", || (state() == 1).then_some(()));
    assert_eq!(node.json(&["work", "cancel", unit]), json!({unit: "cancelled"}));
    until("the unit is canceled", || (state() == 4).then_some(()));
    let status = node.meshctl(&["status"]).output().unwrap();
    assert!(String::from_utf8_lossy(&status.stdout).contains("Node      solo\n"));
    assert!(node.meshctl(&["ping", "solo", "--count", "1"]).output().unwrap().status.success());
}

fn an_interrupted_payload_leaves_no_unit(program: &Path) {
    let node = Node::start(program);
    let mut child = spawned(&node.dir.path().join("s"), &["work", "submit", "cat", "-p", "-"]);
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"half").unwrap();
    until("the unit exists", || (node.json(&["work", "list"]) != json!({})).then_some(()));
    interrupt(&child);
    let mut err = String::new();
    child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{err}");
    assert_eq!(node.json(&["work", "list"]), json!({}), "{err}");
}

#[test]
fn the_demo_runs_jobs_loses_a_node_and_leaves_nothing_behind() {
    demo_on(Path::new(env!("CARGO_BIN_EXE_meshd")));
}

fn the_demo_runs_on_go_nodes_too(program: &Path) {
    demo_on(program);
}

fn demo_on(program: &Path) {
    let tmp = tempfile::tempdir().unwrap();
    let output = Command::cargo_bin("meshctl")
        .unwrap()
        .env_clear()
        // Without ansible-runner, so that the job is the same everywhere.
        .env("PATH", "/usr/bin:/bin")
        .env("TMPDIR", tmp.path())
        .args(["demo", "--meshd"])
        .arg(program)
        .timeout(Duration::from_secs(240))
        .output()
        .unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
    for part in [
        "over mutual TLS, jobs signed",
        "1: hop",
        "2: e1",
        "ok: [localhost] => Hello from e",
        "instance remove e",
        "ok: [localhost] => Done on e",
        "6 of 6 jobs successful",
    ] {
        assert!(out.contains(part), "{part:?} is missing in {out}");
    }
    assert_eq!(fs::read_dir(tmp.path()).unwrap().count(), 0, "the directory is removed");
}

#[test]
fn a_node_program_that_fails_is_reported_with_its_output() {
    let output = Command::cargo_bin("meshctl")
        .unwrap()
        .args(["demo", "--meshd", "/bin/false"])
        .timeout(Duration::from_secs(60))
        .output()
        .unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(err.contains("node hop ended by itself (exit status: 1)"), "{err}");
}
