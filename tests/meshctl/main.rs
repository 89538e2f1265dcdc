//! meshctl as a process: against scripted nodes, byte for byte, and against real nodes of the Go implementation.

#[path = "../support/fake_node.rs"]
mod fake_node;
#[path = "../support/process.rs"]
mod process;
#[path = "../support/receptor.rs"]
mod receptor;
#[path = "../support/until.rs"]
mod until;

mod beside_go;
mod jobs;
mod verbs;

use std::path::Path;
use std::process::{Child, Command as Process, Stdio};
use std::time::Duration;

use assert_cmd::Command;

use fake_node::{FakeNode, Step};

const CREATED: &str = "Work unit created with ID abcd1234. Send stdin data and EOF.\n";
const STARTED: &str = "{\"result\":\"Job Started\",\"unitid\":\"abcd1234\"}\n";

/// meshctl for the node at that socket, which ends within a minute.
fn meshctl(socket: &Path) -> Command {
    let mut command = Command::cargo_bin("meshctl").unwrap();
    command.env_clear().arg("--socket").arg(socket).timeout(Duration::from_secs(60));
    command
}

/// meshctl as a child whose streams are the test's.
fn spawned(socket: &Path, args: &[&str]) -> Child {
    let mut command = Process::new(assert_cmd::cargo::cargo_bin!("meshctl"));
    command.env_clear().arg("--socket").arg(socket).args(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Runs meshctl against a script; returns exit code, standard output and standard error.
fn run(conversations: Vec<Vec<Step>>, args: &[&str], stdin: &[u8]) -> (i32, String, String) {
    let node = FakeNode::start(conversations);
    let output = meshctl(&node.socket()).args(args).write_stdin(stdin).output().unwrap();
    node.finish();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn interrupt(child: &Child) {
    let pid = rustix::process::Pid::from_raw(child.id().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
}
