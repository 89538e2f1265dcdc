//! Reloads of the real binary: what changes, what stays, what is refused, and that a refused reload changes
//! nothing.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use assert_cmd::Command;
use serde_json::{Value, json};

use crate::harness::{Node, configuration, echo, exchange, pattern, until};
use crate::port::free_port;

fn success() -> Value {
    json!({"Success": true})
}

#[test]
fn an_untouched_link_carries_on_through_reloads() {
    let (port, entrance, other, target) = (free_port(), free_port(), free_port(), echo());
    // Not port 0: the system might choose the other proxy's port.
    let listener = free_port();
    let far = Node::start(
        "far",
        json!([{"tcp-listener": {"port": port, "bindaddr": "127.0.0.1"}},
               {"tcp-client": {"service": "echo", "address": format!("127.0.0.1:{target}")}}]),
    );
    let proxy = |port: u16| json!({"tcp-server": {"port": port, "bindaddr": "127.0.0.1", "remotenode": "far", "remoteservice": "echo"}});
    let peer = json!({"tcp-peer": format!("127.0.0.1:{port}")});
    let near = Node::start("near", json!([peer, proxy(entrance)]));
    near.knows("far", "echo");
    let sent = pattern(60_000_000);
    let done = AtomicBool::new(false);
    let mut reloads = 0;
    thread::scope(|scope| {
        let transfer = scope.spawn(|| {
            let received = exchange(entrance, &sent);
            done.store(true, Ordering::Relaxed);
            received == sent
        });
        while !done.load(Ordering::Relaxed) && !transfer.is_finished() {
            // Each round has another proxy, log level, work type and listener.
            let mut items = json!([peer, proxy(entrance)]);
            if reloads % 2 == 0 {
                let more = [
                    proxy(other),
                    json!({"log-level": "warning"}),
                    json!({"work-command": {"worktype": "cat", "command": "cat"}}),
                    json!({"tcp-listener": {"port": listener, "bindaddr": "127.0.0.1"}}),
                ];
                items.as_array_mut().unwrap().extend(more);
            }
            near.configure("near", json!({}), items);
            assert_eq!(near.reload(), success());
            reloads += 1;
        }
        assert!(transfer.join().unwrap(), "byte for byte");
    });
    assert!(reloads >= 2, "only {reloads} reloads");
    drop(far);
}

#[test]
fn services_levels_and_work_types_follow_and_refusals_change_nothing() {
    let (first, second, taken) = (free_port(), free_port(), free_port());
    let target = echo();
    let client = json!({"tcp-client": {"service": "echo", "address": format!("127.0.0.1:{target}")}});
    let server = |port: u16| json!({"tcp-server": {"port": port, "bindaddr": "127.0.0.1", "remotenode": "localhost", "remoteservice": "echo"}});
    let work = |name: &str| json!({"work-command": {"worktype": name, "command": "cat"}});
    let before = json!([client, server(first), work("one")]);
    let node = Node::start("node", before.clone());
    assert_eq!(exchange(first, b"there"), b"there");

    node.configure("node", json!({}), json!([client, server(second), work("two"), {"log-level": "debug"}]));
    assert_eq!(node.reload(), success());
    assert_eq!(exchange(second, b"there"), b"there");
    assert!(TcpStream::connect(("127.0.0.1", first)).is_err(), "the old port is closed");
    assert_eq!(node.ask_json("loglevel"), json!({"Level": "debug"}));
    assert!(node.ask("work submit node one").contains("unknown work type"), "the old type is gone");
    assert!(node.ask("work submit node two").contains("created"));

    // One part is not available: everything stays as it was.
    let _holder = std::net::TcpListener::bind(("127.0.0.1", taken)).unwrap();
    node.configure("node", json!({}), json!([client, server(first), server(taken), work("three")]));
    let answer = node.reload();
    let text = answer["Error"].as_str().unwrap();
    assert!(
        text.contains(&format!("tcp-server on 127.0.0.1:{taken}")) && text.ends_with("ERRORCODE 4"),
        "{text}"
    );
    assert_eq!(exchange(second, b"still there"), b"still there");
    assert!(TcpStream::connect(("127.0.0.1", first)).is_err());
    assert!(node.ask("work submit node three").contains("unknown work type"));
    assert!(node.ask("work submit node two").contains("created"));

    for (id, parameters, code, says) in [
        ("other", json!({}), 3, "id cannot change"),
        ("node", json!({"datadir": "/nonexistent"}), 3, "datadir cannot change"),
        ("node", json!({"firewallrules": [{"action": "explode"}]}), 4, "an action is accept, reject or drop"),
    ] {
        node.configure(id, parameters, before.clone());
        let answer = node.reload();
        let text = answer["Error"].as_str().unwrap();
        assert!(text.contains(says) && text.ends_with(&format!("ERRORCODE {code}")), "{text}");
    }
    fs::write(node.dir.path().join("c.yml"), "- node: [unfinished").unwrap();
    assert!(node.reload()["Error"].as_str().unwrap().ends_with("ERRORCODE 4"));
    assert_eq!(exchange(second, b"still there"), b"still there");

    node.configure("node", json!({}), before);
    assert_eq!(node.reload(), success());
    assert_eq!(exchange(first, b"back"), b"back");
    assert_eq!(node.ask_json("loglevel"), json!({"Level": "info"}));
}

#[test]
fn a_refused_reload_leaves_queued_units_alone() {
    let taken = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    let slow =
        json!({"work-command": {"worktype": "slow", "command": "sleep", "params": "1000", "maxunits": 1}});
    let node = Node::start("node", json!([slow]));
    let submit = || node.submit(json!({"node": "node", "worktype": "slow"}), b"").0;
    let is = |id: &str, state: &str| node.ask_json(&format!("work status {id}"))["StateName"] == state;
    let (first, second) = (submit(), submit());
    until("the first unit runs", || is(&first, "Running").then_some(()));
    // The type is removed, and one of the other parts is not available.
    let server = json!({"tcp-server": {"port": port, "bindaddr": "127.0.0.1", "remotenode": "localhost", "remoteservice": "x"}});
    node.configure("node", json!({}), json!([server]));
    assert!(node.reload()["Error"].as_str().unwrap().ends_with("ERRORCODE 4"));
    assert!(node.ask(&format!("work cancel {first}")).contains("cancelled"));
    until("the second unit runs", || {
        assert!(!is(&second, "Failed"), "{}", node.ask(&format!("work status {second}")));
        is(&second, "Running").then_some(())
    });
    node.ask(&format!("work release {second}"));
}

/// A reload may change the very socket over which it was requested.
#[test]
fn a_control_service_changes_under_its_client() {
    let node = Node::start("node", json!([]));
    let path = node.socket();
    let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(), 0o600);
    let text = fs::read_to_string(node.dir.path().join("c.yml")).unwrap();
    let edited = text.replace(r#""control-service":{"#, r#""control-service":{"permissions":"0660","#);
    assert_ne!(text, edited);
    fs::write(node.dir.path().join("c.yml"), edited).unwrap();
    assert_eq!(node.reload(), success());
    assert_eq!(mode(), 0o660);
    assert!(node.ask("status").contains("\"node\""));
}

#[test]
fn the_log_level_changes_by_meshctl() {
    let node = Node::start("node", json!([]));
    let meshctl = |args: &[&str]| {
        let mut command = Command::cargo_bin("meshctl").unwrap();
        command.env_clear().arg("--socket").arg(node.socket()).args(args).assert()
    };
    meshctl(&["loglevel"]).success().stdout("info\n");
    meshctl(&["loglevel", "debug"]).success().stdout("debug\n");
    node.ask("status");
    until("debug lines", || node.log().contains("DEBUG").then_some(()));
    meshctl(&["loglevel", "loud"]).failure();
    meshctl(&["loglevel"]).success().stdout("debug\n");
    // A reload of an unchanged file keeps values that were set by hand.
    assert_eq!(node.reload(), success());
    meshctl(&["loglevel"]).success().stdout("debug\n");
}

#[test]
fn a_changed_version_2_file_is_reloaded_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("two.yml");
    let text = |more: &str| {
        let (data, socket) = (dir.path().join("data"), dir.path().join("s"));
        format!(
            "version: 2\nnode: {{id: node, datadir: {}}}\nlocal-only: true\ncontrol-services:\n  - filename: {}\n{more}",
            data.display(),
            socket.display()
        )
    };
    fs::write(&config, text("")).unwrap();
    let written = text("log-level: debug\n");
    let node = Node::spawn(Path::new(env!("CARGO_BIN_EXE_meshd")), dir, &config);
    until("ready", || node.log().contains("ready").then_some(()));
    // As an editor saves a file.
    let draft = node.dir.path().join(".two.yml.swp");
    fs::write(&draft, written).unwrap();
    fs::rename(draft, &config).unwrap();
    until("the new level", || (node.ask_json("loglevel") == json!({"Level": "debug"})).then_some(()));
    fs::write(&config, "version: 2\nnode: [").unwrap();
    until("the complaint", || node.log().contains("reload failed, nothing was changed").then_some(()));
    assert_eq!(node.ask_json("loglevel"), json!({"Level": "debug"}));
}

/// A certificate of the development set, as a profile names it.
fn cert(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("certs").join(name).display().to_string()
}

fn times_connected(node: &Node, peer: &str) -> usize {
    let peer = format!("peer={peer}");
    node.log().lines().filter(|line| line.contains(" connected") && line.contains(&peer)).count()
}

#[test]
fn a_changed_profile_restarts_its_links_and_no_others() {
    let (secured, plain) = (free_port(), free_port());
    let server = |more: Value| {
        let mut profile = json!({"name": "srv", "cert": cert("hop.crt"), "key": cert("hop.key"),
            "clientcas": cert("ca.crt"), "requireclientcert": true});
        profile.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"tls-server": profile})
    };
    let links = [
        json!({"tcp-listener": {"port": secured, "bindaddr": "127.0.0.1", "tls": "srv"}}),
        json!({"tcp-listener": {"port": plain, "bindaddr": "127.0.0.1"}}),
    ];
    let with = |more: Value| json!([server(more), links[0], links[1]]);
    let hop = Node::start("hop", with(json!({})));
    let client = json!({"tls-client": {"name": "cli", "rootcas": cert("ca.crt"), "cert": cert("control.crt"),
        "key": cert("control.key")}});
    let _control = Node::start(
        "control",
        json!([client, {"tcp-peer": {"address": format!("127.0.0.1:{secured}"), "tls": "cli"}}]),
    );
    let _execution = Node::start("execution", json!([{"tcp-peer": format!("127.0.0.1:{plain}")}]));
    let connected = || (times_connected(&hop, "control"), times_connected(&hop, "execution"));
    until("both links", || (connected() == (1, 1)).then_some(()));

    hop.configure("hop", json!({}), with(json!({"mintls13": true})));
    assert_eq!(hop.reload(), success());
    until("the link with the changed profile again", || (connected() == (2, 1)).then_some(()));

    // An invalid profile changes nothing, not even the valid parts.
    let mut broken = with(json!({"cert": "/nonexistent/hop.crt"}));
    broken.as_array_mut().unwrap().push(json!({"log-level": "debug"}));
    hop.configure("hop", json!({}), broken);
    let answer = hop.reload()["Error"].as_str().unwrap().to_owned();
    assert!(answer.contains("/nonexistent/hop.crt") && answer.ends_with("ERRORCODE 4"), "{answer}");
    assert_eq!(hop.ask_json("loglevel"), json!({"Level": "info"}));
    // A certificate that clients do not trust is accepted, and so is a good one after it.
    hop.configure("hop", json!({}), with(json!({"pinnedclientcert": ["00".repeat(32)]})));
    assert_eq!(hop.reload(), success());
    until("the link is refused", || {
        hop.ask_json("status")["RoutingTable"].get("control").is_none().then_some(())
    });
    hop.configure("hop", json!({}), with(json!({})));
    assert_eq!(hop.reload(), success());
    hop.reaches("control");
    assert_eq!(connected().1, 1, "the other link was never touched");
}

#[test]
fn keys_and_limits_change_at_run_time() {
    let port = free_port();
    let listener = json!({"tcp-listener": {"port": port, "bindaddr": "127.0.0.1"}});
    let work = json!({"work-command": {"worktype": "say", "command": "echo", "params": "done"}});
    let execution = Node::start("execution", json!([listener, work]));
    let peer = json!({"tcp-peer": format!("127.0.0.1:{port}")});
    let control = Node::start("control", json!([peer]));
    control.reaches("execution");
    let submit = || {
        let mut command = Command::cargo_bin("meshctl").unwrap();
        let socket = control.socket();
        command.env_clear().arg("--socket").arg(socket);
        let output =
            command.args(["work", "submit", "say", "--node", "execution", "--signwork", "-n", "-f"]).output();
        let output = output.unwrap();
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    assert!(submit().contains("signing key is empty"), "{}", submit());
    let signing = |key: String| json!({"work-signing": {"privatekey": key}});
    control.configure("control", json!({}), json!([peer, signing("/nonexistent/key".to_owned())]));
    let answer = control.reload()["Error"].as_str().unwrap().to_owned();
    assert!(answer.contains("work-signing") && answer.contains("/nonexistent/key"), "{answer}");
    control.configure("control", json!({}), json!([peer, signing(cert("work.key"))]));
    assert_eq!(control.reload(), success());
    assert!(!submit().contains("done"), "nobody verifies yet");
    let verification = json!({"work-verification": {"publickey": cert("work.pub")}});
    let mut verified = work.clone();
    verified["work-command"]["verifysignature"] = json!(true);
    execution.configure(
        "execution",
        json!({"maxidleconnectiontimeout": "1m"}),
        json!([listener, verified, verification]),
    );
    assert_eq!(execution.reload(), success());
    assert!(submit().contains("done"), "{}", submit());
    assert_eq!(times_connected(&execution, "control"), 1, "one link all the time");
}

#[test]
fn a_hang_up_signal_reloads() {
    let node = Node::start("node", json!([]));
    let hang_up = || rustix::process::kill_process(node.pid(), rustix::process::Signal::HUP).unwrap();
    node.configure("node", json!({}), json!([{"log-level": "debug"}]));
    hang_up();
    until("the new level", || (node.ask_json("loglevel") == json!({"Level": "debug"})).then_some(()));
    node.configure("other", json!({}), json!([{"log-level": "error"}]));
    hang_up();
    for part in ["reload failed, nothing was changed", "id cannot change while the node runs"] {
        until(part, || node.log().contains(part).then_some(()));
    }
    assert_eq!(node.ask_json("loglevel"), json!({"Level": "debug"}));
}

#[test]
fn a_directory_is_one_configuration_and_its_files_come_and_go() {
    let dir = tempfile::tempdir().unwrap();
    let parts = dir.path().join("parts");
    fs::create_dir(&parts).unwrap();
    fs::write(parts.join("10-node.yml"), configuration(dir.path(), "node", json!({}), json!([]))).unwrap();
    let node = Node::spawn(Path::new(env!("CARGO_BIN_EXE_meshd")), dir, &parts);
    assert!(node.ask("work submit node cat").contains("unknown work type"));
    let more = parts.join("20-work.yaml");
    fs::write(&more, json!([{"work-command": {"worktype": "cat", "command": "cat"}}]).to_string()).unwrap();
    fs::write(parts.join("30-other.txt"), "not looked at").unwrap();
    assert_eq!(node.reload(), success());
    assert!(node.ask("work submit node cat").contains("created"));
    fs::remove_file(more).unwrap();
    assert_eq!(node.reload(), success());
    assert!(node.ask("work submit node cat").contains("unknown work type"));
}
