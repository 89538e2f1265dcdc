//! `meshd check`: findings, exit codes, and that nothing is started.

use std::fs;
use std::net::TcpListener;
use std::path::Path;

use assert_cmd::Command;
use serde_json::json;

use crate::harness::{Node, configuration, free_port};

fn check(args: &[&Path]) -> (Option<i32>, String) {
    let output = Command::cargo_bin("meshd").unwrap().arg("check").args(args).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

#[test]
fn a_good_configuration_is_fine_and_nothing_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("c.yml");
    let items = json!([{"tcp-listener": free_port()}, {"work-command": {"worktype": "x", "command": "sh"}}]);
    fs::write(&config, configuration(dir.path(), "a", json!({}), items)).unwrap();
    for path in [&config, dir.path()] {
        assert_eq!(check(&[path]), (Some(0), "fine: node a, 1 links, 2 services, 1 work types\n".to_owned()));
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "only the configuration is there");
}

#[test]
fn what_is_missing_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("c.yml");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let holder = TcpListener::bind(("127.0.0.1", taken)).unwrap();
    fs::write(dir.path().join("file"), "").unwrap();
    let items = json!([
        {"tcp-listener": {"port": taken, "bindaddr": "127.0.0.1"}},
        {"tcp-server": {"port": 1, "bindaddr": "192.0.2.1", "remotenode": "b", "remoteservice": "c"}},
        {"unix-socket-server": {"filename": dir.path().join("file"), "remotenode": "b", "remoteservice": "c"}},
        {"tls-client": {"name": "t", "rootcas": "/nonexistent/ca.pem"}},
        {"command-service": {"service": "t", "command": "/nonexistent/shell"}},
        {"work-command": {"worktype": "x", "command": "no-such-program"}}]);
    let node = json!({"datadir": dir.path().join("file/data")});
    fs::write(&config, configuration(dir.path(), "a", node, items)).unwrap();
    let (code, text) = check(&[&config]);
    assert_eq!(code, Some(1));
    for part in [
        "error: node: datadir: ",
        &format!("error: tcp-listener on 127.0.0.1:{taken}: 127.0.0.1:{taken} is in use"),
        "error: tcp-server on 192.0.2.1:1: 192.0.2.1:1 cannot be listened on",
        "the path exists and is not a socket",
        "error: tls-client t: /nonexistent/ca.pem cannot be read",
        "error: command-service t: there is no program \"/nonexistent/shell\"",
        "error: work-command x: there is no program \"no-such-program\"",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    assert_eq!(text.lines().count(), 7, "{text}");
    drop(holder);

    fs::write(&config, "- node: a\n- tcp-peer: nohost\n- tcp-listener: {port: 1, tls: missing}\n").unwrap();
    let (code, text) = check(&[&config]);
    assert_eq!((code, text.lines().count()), (Some(1), 2), "{text}");
    assert!(text.contains("c.yml:3: tcp-listener: tls: there is no tls-server named \"missing\""), "{text}");
}

#[test]
fn a_running_node_does_not_stand_in_its_own_way() {
    let items = json!([{"tcp-listener": {"port": free_port(), "bindaddr": "127.0.0.1"}}]);
    let node = Node::start("a", items);
    let config = node.dir.path().join("c.yml");
    let (code, text) = check(&[&config]);
    assert_eq!((code, text.lines().count()), (Some(1), 2), "{text}");
    assert!(text.contains("check with --running"), "{text}");
    assert_eq!(check(&[Path::new("--running"), &config]).0, Some(0));
}
