//! Tests of configurations that are written, and of files put in place.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use super::configuration::{NODE_FILE, of};
use super::host;
use super::own::{checked, may_be_replaced};
use super::place::{Access, FileTree};
use super::record::{NodeRole, Record, address};

fn record(role: NodeRole) -> Record {
    let mut record = Record::new("e1", role).unwrap();
    record.dials = Some("control.example.org:27199".to_owned());
    record.listens = Some(27199);
    record
}

#[test]
fn the_configuration_of_each_role_is_one() {
    for role in [NodeRole::Control, NodeRole::Hop, NodeRole::Execution, NodeRole::Hybrid] {
        let text = of(&record(role));
        let config = checked(&[(PathBuf::from(NODE_FILE), text.clone())].into()).unwrap();
        assert_eq!(config.node.id.as_str(), "e1");
        assert_eq!((config.tcp_listeners.len(), config.tcp_peers.len()), (1, 1));
        assert!(config.tls_servers[0].require_client_cert && config.tls_servers[0].files.crl.is_some());
        assert_eq!(config.control_services[0].tls.as_deref(), Some("mesh"));
        assert_eq!(config.work_commands.len(), usize::from(role.runs_jobs()));
        assert_eq!(config.work_signing.is_some(), role == NodeRole::Control);
        assert!(may_be_replaced(NODE_FILE.as_ref(), &text));
    }
}

#[test]
fn a_file_that_says_more_than_the_packages_is_left_alone() {
    let socket = "- control-service: {filename: /run/meshd/meshd.sock, permissions: '0660'}\n- local-only:\n";
    let may = |text: &str| may_be_replaced(NODE_FILE.as_ref(), text);
    assert!(may(&format!("# Words.\n- node: {{id: a, datadir: /var/lib/meshd}}\n{socket}")));
    for more in [
        "- tcp-peer: {address: 'a:1'}\n",
        "- work-command: {worktype: a, command: a}\n",
        "- node: {id: a, datadir: /var/lib/meshd, firewallrules: [{action: reject, tonode: a}]}\n",
        "- nonsense:\n",
    ] {
        assert!(!may(&format!("{more}{socket}")), "{more}");
    }
    assert!(!may("- node: {id: a, datadir: /srv}\n- local-only:\n"));
}

#[test]
fn an_address_has_a_port_also_without_one() {
    for (text, host, port) in [
        ("a", "a", 27199),
        ("a.b:1", "a.b", 1),
        ("192.0.2.1", "192.0.2.1", 27199),
        ("2001:db8::1", "2001:db8::1", 27199),
        ("[2001:db8::1]:5", "2001:db8::1", 5),
    ] {
        let found = address(text).unwrap();
        assert_eq!((found.host.as_str(), found.port), (host, port), "{text}");
    }
    for text in ["", ":1", "a:", "a:0", "a:70000", "-a", "a b", "a:1:2", "$(x)"] {
        assert!(address(text).is_err(), "{text}");
    }
}

#[test]
fn only_what_differs_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let put = |contents: &[u8], access| {
        let mut tree = FileTree::new(dir.path(), None);
        tree.directory("/etc/meshd").unwrap();
        tree.file("/etc/meshd/key", contents, access).unwrap();
        tree.changed().to_vec()
    };
    let both = ["/etc/meshd", "/etc/meshd/key"].map(PathBuf::from);
    assert_eq!(put(b"1", Access::Daemon), both);
    assert!(put(b"1", Access::Daemon).is_empty());
    assert_eq!(put(b"2", Access::Daemon), both[1..]);
    assert_eq!(put(b"2", Access::Public), both[1..]);
    let file = dir.path().join("etc/meshd/key");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o644);
    // A link is replaced, not followed.
    let elsewhere = dir.path().join("elsewhere");
    fs::write(&elsewhere, "2").unwrap();
    fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &file).unwrap();
    assert_eq!(put(b"3", Access::Public), both[1..]);
    assert_eq!((fs::read(&elsewhere).unwrap(), fs::read(&file).unwrap()), (b"2".to_vec(), b"3".to_vec()));
}

#[test]
fn the_daemons_user_gets_ids_that_nobody_has() {
    let dir = tempfile::tempdir().unwrap();
    let mut tree = FileTree::new(dir.path(), None);
    tree.directory("/etc").unwrap();
    fs::write(dir.path().join("etc/subuid"), "a:100000:65536\nb:300000:65536").unwrap();
    host::prepare_for_jobs(&mut tree, true).unwrap();
    let read = |name: &str| fs::read_to_string(dir.path().join("etc").join(name)).unwrap();
    assert_eq!(read("subuid"), "a:100000:65536\nb:300000:65536\nmeshd:365536:65536\n");
    assert_eq!(read("subgid"), "meshd:100000:65536\n");
    assert!(tree.path(host::DROP_IN).exists());
    host::prepare_for_jobs(&mut tree, true).unwrap();
    assert_eq!(read("subgid"), "meshd:100000:65536\n");
    host::prepare_for_jobs(&mut tree, false).unwrap();
    assert!(!tree.path(host::DROP_IN).exists());
}
