//! Our own nodes over every kind of link, those with certificates too.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::mesh::{Kind, Node, Plan, free_port, megabytes};

/// Two nodes, a job from the one that dials to the one that listens.
fn job_over(listener: Value, peer: Value, root: &Path, tls: &[Value]) {
    let program = Path::new(env!("CARGO_BIN_EXE_meshd"));
    let with = |id, link: Value| {
        let directives = tls.iter().cloned().chain([link]).collect();
        Node::start(root, Plan { program, id, directives })
    };
    let execution = with("execution", listener);
    let control = with("control", peer);
    control.wait_for("execution");
    execution.wait_for("control");
    let size = megabytes(4) << 20;
    println!("{size} bytes each way in {:.1?}", control.echo("execution", size));
}

#[test]
fn jobs_over_links_without_certificates() {
    for kind in Kind::ALL {
        let (root, port) = (tempfile::tempdir().unwrap(), free_port());
        job_over(kind.listener(port), kind.peer(port), root.path(), &[]);
    }
}

#[test]
fn a_job_over_wss() {
    let (root, port) = (tempfile::tempdir().unwrap(), free_port());
    let listener = json!({"ws-listener":
        {"port": port, "bindaddr": "127.0.0.1", "path": "/mesh", "tls": "server"}});
    let peer = json!({"ws-peer": {"address": format!("wss://127.0.0.1:{port}/mesh"), "tls": "client"}});
    job_over(listener, peer, root.path(), &profiles(root.path()));
}

#[test]
fn a_job_over_quic() {
    let (root, port) = (tempfile::tempdir().unwrap(), free_port());
    let listener = json!({"quic-listener": {"port": port, "bindaddr": "127.0.0.1", "tls": "server"}});
    let peer = json!({"quic-peer": {"address": format!("127.0.0.1:{port}"), "tls": "client"}});
    job_over(listener, peer, root.path(), &profiles(root.path()));
}

/// One certificate for both nodes, made by the program itself.
fn profiles(root: &Path) -> Vec<Value> {
    let file = |name: &str| root.join(name).display().to_string();
    let (ca, ca_key) = (file("ca.crt"), file("ca.key"));
    let (request, cert, key) = (file("n.req"), file("n.crt"), file("n.key"));
    meshd(&[
        "--cert-init",
        "commonname=ca",
        "bits=2048",
        &format!("outcert={ca}"),
        &format!("outkey={ca_key}"),
    ]);
    meshd(&[
        "--cert-makereq",
        "commonname=n",
        "bits=2048",
        "ipaddress=127.0.0.1",
        "nodeid=control",
        "nodeid=execution",
        &format!("outreq={request}"),
        &format!("outkey={key}"),
    ]);
    meshd(&[
        "--cert-signreq",
        &format!("req={request}"),
        &format!("cacert={ca}"),
        &format!("cakey={ca_key}"),
        &format!("outcert={cert}"),
        "verify=true",
    ]);
    vec![
        json!({"tls-server": {"name": "server", "cert": cert, "key": key, "clientcas": ca,
            "requireclientcert": true}}),
        json!({"tls-client": {"name": "client", "cert": cert, "key": key, "rootcas": ca}}),
    ]
}

fn meshd(args: &[&str]) {
    let output = Command::new(env!("CARGO_BIN_EXE_meshd")).args(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
}
