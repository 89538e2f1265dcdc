//! The directory of a node's units: jobs that replace their unit's files, and other programs that use the directory.

use std::fs;
use std::io::Read;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::harness::{Node, until};

/// A node that runs shell scripts.
fn node() -> Node {
    Node::start("n1", shell())
}

fn shell() -> Value {
    json!([{"work-command": {"worktype": "sh", "command": "sh", "params": "-c", "allowruntimeparams": true}}])
}

fn units(node: &Node) -> PathBuf {
    node.dir.path().join("data/n1")
}

/// Runs a script and returns its output.
fn run(node: &Node, script: &str) -> String {
    let params = shlex::try_quote(script).unwrap().into_owned();
    let (id, answer) = node.submit(json!({"node": "n1", "worktype": "sh", "params": params}), b"");
    assert!(answer.contains("\"result\""), "{script}: {answer}");
    id
}

fn ended(node: &Node, id: &str) -> Value {
    until(&format!("unit {id} ends"), || {
        let status = node.ask_json(&format!("work status {id}"));
        status["State"].as_u64().is_some_and(|state| state > 1).then_some(status)
    })
}

/// Everything that a reader of results receives.
fn results(node: &Node, id: &str) -> Vec<u8> {
    let (mut client, _streaming) = node.converse(&format!("work results {id}"));
    client.get_mut().shutdown(Shutdown::Write).unwrap();
    let mut all = Vec::new();
    client.read_to_end(&mut all).unwrap();
    all
}

/// Checks that an ordinary job still works.
fn works(node: &Node) {
    let id = run(node, "echo fine");
    assert_eq!(ended(node, &id)["Detail"], "exit status 0");
    assert_eq!(results(node, &id), b"fine\n");
    assert!(node.ask(&format!("work release {id}")).contains("released"));
}

/// How a job tampers with its unit's directory.
const TAMPERINGS: [&str; 19] = [
    "rm stdout; mkfifo stdout",
    "rm stdout; ln -s /dev/zero stdout",
    "rm stdout; mkdir stdout",
    "rm stdin; mkfifo stdin",
    "rm stdin; mkdir stdin",
    "rm -f status; mkfifo status",
    "rm -f status; ln -s /dev/zero status",
    "rm -f status; mkdir status",
    "rm -f status; truncate -s 20G status",
    "rm status.lock; mkfifo status.lock",
    "exec 9>status.lock; flock 9; sleep 600 & echo $! >$MESHD_UNIT_DIR.left",
    "mkfifo end",
    "ln -s /dev/zero end",
    "mkdir end",
    "truncate -s 20G end",
    "mkfifo group cancel queued cgroup",
    "rm runner; mkfifo runner",
    "rm runner; ln -s /dev/zero runner",
    "mv $MESHD_UNIT_DIR $MESHD_UNIT_DIR.away; mkfifo $MESHD_UNIT_DIR",
];

/// Kills processes that jobs left and their unit no longer knows.
struct Left(PathBuf);

impl Drop for Left {
    fn drop(&mut self) {
        let names = fs::read_dir(&self.0).unwrap().map(|found| found.unwrap().path());
        for left in names.filter(|path| path.extension().is_some_and(|extension| extension == "left")) {
            let pid = fs::read_to_string(left).unwrap().trim().parse().ok().and_then(Pid::from_raw);
            let _gone = pid.map(|pid| kill_process(pid, Signal::KILL));
        }
    }
}

#[test]
fn a_job_that_replaces_its_files_harms_nobody() {
    let mut node = node();
    let _left = Left(units(&node));
    let script = |tampering: &str, rest: &str| format!("echo out; cd $MESHD_UNIT_DIR; {tampering}; {rest}");
    let run = |rest: &str| TAMPERINGS.map(|tampering| (tampering, run(&node, &script(tampering, rest))));
    let at_once = run("exit 0");
    let later = run("echo $$ >$MESHD_UNIT_DIR.left; exec sleep 600");
    for (tampering, id) in &at_once {
        println!("{tampering}: {}", ended(&node, id));
    }
    for (tampering, id) in &later {
        until(tampering, || units(&node).join(format!("{id}.left")).exists().then_some(()));
    }
    works(&node);
    node.kill();
    node.start_again();
    works(&node);
    for (tampering, id) in at_once.iter().chain(&later) {
        println!("{tampering}: {}", node.ask(&format!("work status {id}")));
    }
    for (_, id) in &at_once {
        results(&node, id);
    }
    for (tampering, id) in at_once.iter().chain(&later) {
        let released = node.ask(&format!("work force-release {id}"));
        assert!(
            released.contains("released") || released.contains("unknown work unit"),
            "{tampering}: {released}"
        );
    }
    works(&node);
}

#[test]
fn no_more_output_is_read_than_the_final_status_counts() {
    let node = node();
    let go = node.dir.path().join("go");
    assert!(Command::new("mkfifo").arg(&go).status().unwrap().success());
    // A child keeps writing after the runner has reported the end, while the daemon is slow to look.
    let child = "until [ -e $MESHD_UNIT_DIR/end ]; do sleep 0.01; done; head -c 200000000 /dev/zero";
    let id = run(&node, &format!("read x <{}; echo out; ({child}) & exit 0", go.display()));
    kill_process(node.pid(), Signal::STOP).unwrap();
    fs::write(&go, "x\n").unwrap();
    let stdout = units(&node).join(&id).join("stdout");
    until("the child has written", || (fs::metadata(&stdout).ok()?.len() > 200_000_000).then_some(()));
    let before = node.rss();
    kill_process(node.pid(), Signal::CONT).unwrap();
    assert_eq!(ended(&node, &id)["StdoutSize"], 4);
    let grown = node.rss().saturating_sub(before);
    assert!(grown < 50_000_000, "{grown} bytes more");
    assert_eq!(results(&node, &id), b"out\n");
}

#[test]
fn changes_that_another_daemon_made_to_units_are_kept() {
    let mut node = node();
    let (released, _) = node.submit(json!({"node": "away", "worktype": "sh"}), b"a remote secret");
    let (started, _) = node.submit(json!({"node": "away", "worktype": "sh"}), b"");
    node.kill();
    fs::remove_dir_all(units(&node).join(&released)).unwrap();
    let path = units(&node).join(&started).join("status");
    let mut status: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    status["ExtraData"]["RemoteUnitID"] = json!("abcd1234");
    fs::write(&path, format!("{status}\n")).unwrap();
    node.start_again();
    let list = node.ask_json("work list");
    assert_eq!(list.as_object().unwrap().len(), 1, "{list}");
    assert_eq!(list[&started]["ExtraData"]["RemoteUnitID"], "abcd1234");
}

#[test]
fn a_directory_has_one_daemon() {
    let mut node = node();
    let config = node.dir.path().join("second.yml");
    let socket = node.dir.path().join("t");
    let text = fs::read_to_string(node.dir.path().join("c.yml")).unwrap();
    fs::write(&config, text.replace(node.socket().to_str().unwrap(), socket.to_str().unwrap())).unwrap();
    // A running job does not hold the lock. It outlives the node, and ends when its directory is gone.
    run(&node, "while [ -e $MESHD_UNIT_DIR ]; do sleep 0.1; done");
    let second = Command::new(env!("CARGO_BIN_EXE_meshd")).arg("--config").arg(&config).output().unwrap();
    let told = String::from_utf8_lossy(&second.stderr);
    assert!(!second.status.success());
    let pid = node.pid().as_raw_nonzero().to_string();
    for word in [units(&node).to_str().unwrap(), &pid, "meshd"] {
        assert!(told.contains(word), "{word}: {told}");
    }
    let check = Command::new(env!("CARGO_BIN_EXE_meshd")).arg("check").arg(&config).output().unwrap();
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stdout));
    works(&node);
    // A node that follows waits until its predecessor has ended.
    kill_process(node.pid(), Signal::STOP).unwrap();
    let log = node.dir.path().join("successor");
    let told = fs::File::create(&log).unwrap();
    let mut successor = Command::new(env!("CARGO_BIN_EXE_meshd"))
        .arg("--config")
        .arg(&config)
        .stdout(told.try_clone().unwrap())
        .stderr(told)
        .spawn()
        .unwrap();
    until("it waits", || {
        fs::read_to_string(&log).unwrap().contains("waiting for another daemon").then_some(())
    });
    node.kill();
    until("the successor answers", || UnixStream::connect(&socket).ok());
    kill_process(Pid::from_child(&successor), Signal::TERM).unwrap();
    successor.wait().unwrap();
    node.start_again();
    works(&node);
}
