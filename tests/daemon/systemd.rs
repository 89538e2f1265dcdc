//! The messages of the daemon to systemd, read from a socket as systemd gives it; that no job can speak for the daemon;
//! and that limits are refused on a system with cgroup v1. tests/system has a real systemd.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::{LIMIT, Node, until};

/// Reads messages up to one that has this line, and returns it.
fn told(socket: &UnixDatagram, line: &str) -> String {
    let mut message = vec![0; 64 * 1024];
    loop {
        let length = socket.recv(&mut message).unwrap_or_else(|error| panic!("{line}: {error}"));
        let text = String::from_utf8_lossy(&message[..length]);
        if text.lines().any(|found| found == line) {
            return text.into_owned();
        }
    }
}

fn supervised(items: Value) -> (Node, UnixDatagram, tempfile::TempDir) {
    let temp = tempfile::tempdir().unwrap();
    let socket = UnixDatagram::bind(temp.path().join("notify")).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_meshd"));
    let mut command = Command::new(program);
    command.env("NOTIFY_SOCKET", temp.path().join("notify")).env("WATCHDOG_USEC", "400000");
    (Node::run_by(command, program, "n1", items), socket, temp)
}

#[test]
fn systemd_learns_of_ready_life_reloads_and_stop() {
    let (mut node, socket, _temp) = supervised(json!([]));
    told(&socket, "READY=1");
    for _ in 0..3 {
        told(&socket, "WATCHDOG=1");
    }
    node.configure("n1", json!({}), json!([{"unix-socket-client": {"service": "a", "filename": "/none"}}]));
    rustix::process::kill_process(node.pid(), rustix::process::Signal::HUP).unwrap();
    assert!(told(&socket, "RELOADING=1").contains("\nMONOTONIC_USEC="), "Type=notify-reload needs it");
    assert_eq!(told(&socket, "READY=1").lines().nth(1), Some("STATUS="));

    fs::write(node.dir.path().join("c.yml"), "- nonsense: {}\n").unwrap();
    rustix::process::kill_process(node.pid(), rustix::process::Signal::HUP).unwrap();
    told(&socket, "RELOADING=1");
    let answer = told(&socket, "READY=1");
    assert!(answer.contains("STATUS=the last reload failed, nothing was changed: "), "{answer}");
    assert_eq!(answer.lines().count(), 2, "{answer}");
    told(&socket, "WATCHDOG=1");
    node.stop();
    told(&socket, "STOPPING=1");
}

#[test]
fn a_job_does_not_get_what_systemd_gave_to_the_daemon() {
    let shell = json!([{"work-command": {"worktype": "env", "command": "env"}}]);
    let (node, _socket, _temp) = supervised(shell);
    let (id, _) = node.submit(json!({"node": "n1", "worktype": "env"}), b"");
    let output = until("the job ends", || {
        let status = node.ask_json(&format!("work status {id}"));
        let output = fs::read_to_string(node.dir.path().join("data/n1").join(&id).join("stdout"));
        (status["StateName"] == "Succeeded").then(|| output.unwrap())
    });
    assert!(output.contains("PATH="), "{output}");
    assert!(!output.contains("NOTIFY_SOCKET") && !output.contains("WATCHDOG_USEC"), "{output}");
}

#[test]
fn limits_are_refused_by_name_where_the_system_has_cgroup_v1() {
    let system = fs::read_to_string("/proc/cgroups").unwrap_or_default();
    let memory = system.lines().find_map(|line| line.strip_prefix("memory\t")?.split('\t').next());
    if memory.is_none_or(|hierarchy| hierarchy == "0") {
        println!("nothing shown: the controller memory is not in cgroup v1 here");
        return;
    }
    let node = Node::start("n1", json!([]));
    let limited = json!([{"work-command": {"worktype": "sh", "command": "sh", "memory": 1 << 20}}]);
    node.configure("n1", json!({}), limited);
    let refusal = "work type sh: memory: this system uses cgroup v1 for these";
    let answer = node.reload();
    assert!(answer["Error"].as_str().unwrap_or_default().contains(refusal), "{answer}");
    let config = node.dir.path().join("c.yml");
    for arguments in [vec!["check", "--running"], vec!["--config"]] {
        let output =
            Command::new(env!("CARGO_BIN_EXE_meshd")).args(&arguments).arg(&config).output().unwrap();
        let text = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
        assert!(!output.status.success() && text.contains(refusal), "{arguments:?}: {text}");
    }
}
