//! `meshd check`: its findings and exit codes, and that it starts nothing.

use std::fs;
use std::net::TcpListener;
use std::path::Path;

use assert_cmd::Command;
use serde_json::json;

use crate::harness::{Node, configuration};
use crate::port::free_port;

fn check(args: &[&Path]) -> (Option<i32>, String) {
    let output = Command::cargo_bin("meshd").unwrap().arg("check").args(args).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

#[test]
fn a_good_configuration_is_fine_and_nothing_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("c.yml");
    let items = json!([{"tcp-listener": {"port": free_port(), "bindaddr": "127.0.0.1"}}, {"work-command": {"worktype": "x", "command": "sh"}}]);
    fs::write(&config, configuration(dir.path(), "a", json!({}), items)).unwrap();
    for path in [&config, dir.path()] {
        assert_eq!(check(&[path]), (Some(0), "fine: node a, 1 links, 2 services, 1 work types\n".to_owned()));
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "only the configuration is there");
}

#[test]
fn missing_files_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("c.yml");
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = holder.local_addr().unwrap().port();
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
        "error: tcp-server on 192.0.2.1:1: cannot listen on 192.0.2.1:1",
        "the path exists and is not a socket",
        "error: tls-client t: rootcas /nonexistent/ca.pem: cannot be read",
        "error: command-service t: there is no program \"/nonexistent/shell\"",
        "error: work-command x: there is no program \"no-such-program\"",
        "c.yml:1: command-service t: any node of the mesh can run its command as this node's user",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    assert_eq!(text.lines().count(), 8, "{text}");
    drop(holder);

    fs::write(&config, "- node: a\n- tcp-peer: nohost\n- tcp-listener: {port: 1, tls: missing}\n").unwrap();
    let (code, text) = check(&[&config]);
    assert_eq!((code, text.lines().count()), (Some(1), 2), "{text}");
    assert!(text.contains("c.yml:3: tcp-listener: tls: there is no tls-server named \"missing\""), "{text}");
}

#[test]
fn with_json_each_finding_says_what_where_how_bad_and_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("c.yml");
    let look = || {
        let (code, text) = check(&[Path::new("--json"), &config]);
        (
            code,
            serde_json::from_str::<serde_json::Value>(&text)
                .unwrap_or_else(|error| panic!("{error}: {text}")),
        )
    };
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let (taken, open) = (holder.local_addr().unwrap(), free_port());
    let items = json!([
        {"work-command": {"worktype": "x", "command": "no-such-program"}},
        {"tcp-listener": {"port": taken.port(), "bindaddr": "127.0.0.1"}},
        {"tcp-listener": {"port": open, "bindaddr": "0.0.0.0"}}]);
    fs::write(&config, configuration(dir.path(), "a", json!({}), items)).unwrap();
    let (code, found) = look();
    let wanted = json!([
        {"what": "anybody who reaches it joins the mesh without a certificate", "where": format!("tcp-listener on 0.0.0.0:{open}"),
            "severity": "warning", "remedy": "docs/security.md says which lines close a mesh"},
        {"what": format!("{taken} is in use"), "where": format!("tcp-listener on {taken}"), "severity": "error",
            "remedy": "if that is this node itself, check with --running"},
        {"what": "there is no program \"no-such-program\" that can be run", "where": "work-command x",
            "severity": "error", "remedy": "install it, or write its path where the configuration names it"}]);
    assert_eq!((code, found), (Some(1), wanted));

    fs::write(&config, configuration(dir.path(), "a", json!({}), json!([]))).unwrap();
    assert_eq!(look(), (Some(0), json!([])));

    fs::write(&config, "- node: a\n- tcp-peer: nohost\n").unwrap();
    let (code, found) = look();
    let place = format!("{}:2: tcp-peer: address", config.display());
    assert_eq!(
        (code, &found[0]["where"], found.as_array().unwrap().len()),
        (Some(1), &json!(place), 1),
        "{found}"
    );
}

/// A table of configuration entries and the finding for each.
#[test]
fn certificates_keys_and_claims_are_checked() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("c.yml");
    let cert = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("certs").join(name);
    let port = free_port();
    let listener = |host: &str| json!({"tcp-listener": {"port": port, "bindaddr": host}});
    let router = |name: &str| json!({"networkname": name, "localnet": "10.0.0.0/30", "interface": "mesh9"});
    let both = format!("is in use: tcp-listener on 127.0.0.1:{port} has the port");
    let cases = [
        (
            json!([{"tls-server": {"name": "s", "cert": cert("hop.crt"), "key": cert("hop.key")}}]),
            vec!["tls-server s: cert ", "does not name this node: expected node control, found"],
        ),
        (
            json!([{"tls-server": {"name": "s", "cert": cert("control.crt"), "key": cert("hop.key")}}]),
            vec!["tls-server s: key ", "does not belong to the certificate"],
        ),
        (
            json!([{"tls-client": {"name": "c", "rootcas": cert("hop.key")}}]),
            vec!["tls-client c: rootcas ", "holds no certificate"],
        ),
        (json!([{"work-signing": cert("work.pub")}]), vec!["work-signing: ", "holds a public key"]),
        (
            json!([{"work-verification": cert("work.key")}]),
            vec!["work-verification: ", "holds a private key"],
        ),
        (json!([listener("127.0.0.1"), listener("0.0.0.0")]), vec!["tcp-listener on 0.0.0.0", &both]),
        (
            json!([{"ip-router": router("one")}, {"ip-router": router("two")}]),
            vec!["ip-router two: interface mesh9 belongs to ip-router one already"],
        ),
        (
            json!([{"work-command": {"worktype": "x", "command": "sh", "cwd": "/nonexistent"}}]),
            vec!["work-command x: cwd: /nonexistent is not a directory"],
        ),
        (
            json!([{"work-kubernetes": {"worktype": "k", "namespace": "n", "pod": "/nonexistent/pod.yml"}}]),
            vec!["work-kubernetes k: /nonexistent/pod.yml cannot be read"],
        ),
        (
            json!([{"ip-router": {"networkname": "n", "localnet": "10.0.0.0/30", "interface": "lo"}}]),
            vec!["ip-router n: there is an interface lo"],
        ),
    ];
    for (items, parts) in cases {
        fs::write(&config, configuration(dir.path(), "control", json!({}), items)).unwrap();
        let (code, text) = check(&[&config]);
        let errors: Vec<&str> = text.lines().filter(|line| line.starts_with("error: ")).collect();
        assert_eq!((code, errors.len()), (Some(1), 1), "{text}");
        for part in parts {
            assert!(errors[0].contains(part), "{part} is not in\n{text}");
        }
    }
    let fine = json!([
        {"tls-server": {"name": "s", "cert": cert("control.crt"), "key": cert("control.key"),
            "clientcas": cert("ca.crt"), "requireclientcert": true}},
        {"work-signing": cert("work.key")}, {"work-verification": cert("work.pub")},
        {"tcp-listener": {"port": port, "bindaddr": "127.0.0.1", "tls": "s"}},
        {"tcp-listener": {"port": port, "bindaddr": "127.0.0.2"}},
        {"ip-router": {"networkname": "open", "localnet": "10.0.0.0/30"}},
        {"ip-router": {"networkname": "closed", "localnet": "10.0.1.0/30", "accept": ["10.1.0.0/16"]}}]);
    fs::write(&config, configuration(dir.path(), "control", json!({}), fine)).unwrap();
    let (code, text) = check(&[&config]);
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.contains("ip-router open: any node of the mesh that claims") && !text.contains("closed"),
        "{text}"
    );
}

#[test]
fn a_check_does_not_complain_about_the_running_node_itself() {
    let items = json!([{"tcp-listener": {"port": free_port(), "bindaddr": "127.0.0.1"}}]);
    let node = Node::start("a", items);
    let config = node.dir.path().join("c.yml");
    let (code, text) = check(&[&config]);
    assert_eq!((code, text.lines().count()), (Some(1), 2), "{text}");
    assert!(text.contains("check with --running"), "{text}");
    assert_eq!(check(&[Path::new("--running"), &config]).0, Some(0));
}
