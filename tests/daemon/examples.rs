//! Configurations from elsewhere, unchanged except for paths and ports: those of AWX and of receptor's
//! documentation pass the check without a finding, and start.

use std::fs;
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use serde_json::json;

use crate::harness::Node;
use crate::port::free_port;

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/configs")
}

/// The host name, which is the ID of a node without one.
fn host_name() -> String {
    rustix::system::uname().nodename().to_str().unwrap().to_owned()
}

/// Certificates and keys below a directory, at the paths that the examples name.
fn trust(root: &Path) {
    let meshd = |args: &[String]| {
        Command::cargo_bin("meshd").unwrap().args(args).assert().success();
    };
    let path = |name: &str| root.join(name).display().to_string();
    for directory in ["etc/receptor/tls/ca", "full/path"] {
        fs::create_dir_all(root.join(directory)).unwrap();
    }
    let (ca, ca_key, request) = (path("full/path/ca.crt"), path("ca.key"), path("req"));
    let (cert, key) = (path("full/path/foo.crt"), path("full/path/foo.key"));
    meshd(
        &["--cert-init", "commonname=ca", "bits=2048", &format!("outcert={ca}"), &format!("outkey={ca_key}")]
            .map(str::to_owned),
    );
    let mut make = vec!["--cert-makereq".to_owned(), "commonname=all".to_owned(), "bits=2048".to_owned()];
    let nodes = ["foo".to_owned(), "awx-execution".to_owned(), "awx-hop".to_owned(), host_name()];
    make.extend(nodes.iter().map(|node| format!("nodeid={node}")));
    make.extend([format!("outreq={request}"), format!("outkey={key}")]);
    meshd(&make);
    let sign = [
        format!("req={request}"),
        format!("cacert={ca}"),
        format!("cakey={ca_key}"),
        format!("outcert={cert}"),
    ];
    meshd(&[&["--cert-signreq".to_owned(), "verify=yes".to_owned()][..], &sign].concat());
    let certs = Path::new(env!("CARGO_MANIFEST_DIR")).join("certs");
    for (from, to) in [
        (root.join("full/path/ca.crt"), "etc/receptor/tls/ca/mesh-CA.crt"),
        (root.join("full/path/foo.crt"), "etc/receptor/tls/receptor.crt"),
        (root.join("full/path/foo.key"), "etc/receptor/tls/receptor.key"),
        (certs.join("work.key"), "etc/receptor/work_private_key.pem"),
        (certs.join("work.pub"), "etc/receptor/work_public_key.pem"),
        (certs.join("work.key"), "full/path/signworkprivate.pem"),
        (certs.join("work.pub"), "full/path/signworkpublic.pem"),
    ] {
        fs::copy(from, root.join(to)).unwrap();
    }
}

/// The file's text with its paths and ports adapted to this machine; the socket is `s` in the directory.
fn fitted(name: &str, root: &Path) -> String {
    let text = fs::read_to_string(directory().join(name)).unwrap();
    let (here, port) = (root.display().to_string(), free_port());
    let mut text = text
        .replace("/etc/receptor/", &format!("{here}/etc/receptor/"))
        .replace("/full/path/", &format!("{here}/full/path/"))
        .replace("command: ansible-runner", "command: cat");
    for socket in ["/var/run/receptor/receptor.sock", "/tmp/receptor.sock", "/tmp/foo.sock"] {
        text = text.replace(socket, &format!("{here}/s"));
    }
    // In two steps: the new port may have the digits of a known one, as 12222 has.
    for known in ["27199", "2222", "7323"] {
        text = text.replace(known, "{port}");
    }
    text = text.replace("{port}", &port.to_string());
    let data = format!("datadir: {here}/data");
    match (text.contains("- node:\n"), text.contains("\nnode:\n")) {
        (true, _) => text.replace("- node:\n", &format!("- node:\n    {data}\n")),
        (_, true) => text.replace("\nnode:\n", &format!("\nnode:\n  {data}\n")),
        _ => format!("{text}\n- node:\n    {data}\n"),
    }
}

#[test]
fn configurations_from_elsewhere_pass_the_check_and_start() {
    let mut names: Vec<String> = fs::read_dir(directory())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert!(names.len() >= 10, "{names:?}");
    let trusted = tempfile::tempdir().unwrap();
    trust(trusted.path());
    for name in names {
        let dir = tempfile::tempdir().unwrap();
        for tree in ["etc", "full"] {
            std::os::unix::fs::symlink(trusted.path().join(tree), dir.path().join(tree)).unwrap();
        }
        let (text, config) = (fitted(&name, dir.path()), dir.path().join("c.yml"));
        fs::write(&config, &text).unwrap();
        let checked = Command::cargo_bin("meshd").unwrap().arg("check").arg(&config).output().unwrap();
        assert_eq!(checked.status.code(), Some(0), "{name}: {checked:?}");
        if text.contains(&dir.path().join("s").display().to_string()) {
            let node = Node::spawn(Path::new(env!("CARGO_BIN_EXE_meshd")), dir, &config);
            assert!(node.ask_json("status")["NodeID"].is_string(), "{name}");
            assert_eq!(node.reload(), json!({"Success": true}), "{name}");
        }
    }
}

#[test]
fn kubernetes_work_is_taken_over_the_socket_and_a_bad_submission_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    trust(dir.path());
    let config = dir.path().join("c.yml");
    fs::write(&config, fitted("awx-control.yml", dir.path())).unwrap();
    let node = Node::spawn(Path::new(env!("CARGO_BIN_EXE_meshd")), dir, &config);
    let status = node.ask_json("status");
    let offered = &status["Advertisements"][0]["WorkCommands"];
    // AWX submits over the socket: the types that take any pod are offered to no other node.
    assert_eq!(*offered, json!([{"WorkType": "local", "Secure": false}]), "{status}");
    let id = status["NodeID"].as_str().unwrap();
    assert_eq!(
        node.ask(&format!("work submit {id} kubernetes-runtime-auth")),
        "ERROR: param secret_kube_config must be provided if AuthMethod=runtime"
    );
    assert_eq!(node.ask_json("work list"), json!({}), "nothing is left of it");
    // As AWX does when a node joins or leaves: the same entries with other peers.
    let text = fs::read_to_string(&config).unwrap();
    let more = format!("{text}- tcp-peer:\n    address: localhost:{}\n    tls: tlsclient\n", free_port());
    fs::write(&config, more).unwrap();
    assert_eq!(node.reload(), json!({"Success": true}));
    let without = text.replace("worktype: kubernetes-incluster-auth", "worktype: kubernetes-other");
    fs::write(&config, without).unwrap();
    assert_eq!(node.reload(), json!({"Success": true}));
    assert!(node.ask(&format!("work submit {id} kubernetes-other")).starts_with("Work unit created"));
    assert!(node.ask(&format!("work submit {id} kubernetes-incluster-auth")).contains("unknown work type"));
}
