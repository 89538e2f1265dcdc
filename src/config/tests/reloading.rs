//! Which changes a running node takes, and which need a restart.

use super::super::typed::backends::Backend;
use super::*;

const BEFORE: &str = "
- node: {id: a, firewallrules: [{action: accept, fromnode: /b.*/}]}
- log-level: info
- control-service: {filename: /run/x}
- work-command: {worktype: one, command: sh}
- work-command: {worktype: two, command: sh}
- tcp-listener: 1
- tcp-peer: {address: 'b:1', cost: 1.0, allowedpeers: [x, y]}
- tcp-peer: c:1
";

#[test]
fn spelling_order_and_defaults_are_no_change() {
    let after = "
- Work-Command: {command: sh, workType: two, verifysignature: no}
- tcp-peer: {address: 'c:1', redial: yes}
- tcp-peer: {address: 'b:1', allowedpeers: [y, x]}
- tcp-listener: {port: '1', bindaddr: 0.0.0.0}
- work-command: {worktype: one, command: sh, params: ''}
- control-service: {filename: /run/x, permissions: 0600, service: control}
- node: {id: a, datadir: /var/lib/meshd, maxidleconnectiontimeout: 21s, firewallrules: [{fromNode: /b.*/, action: ACCEPT}]}
";
    let plan = plan(&parse_text(BEFORE), &parse_text(after)).unwrap();
    assert_eq!((plan.added.len(), plan.removed.len(), plan.unchanged.len()), (0, 0, 3));
}

#[test]
fn links_come_and_go() {
    let after = BEFORE.replace("c:1", "d:1").replace("tcp-listener: 1", "tcp-listener: 2")
        + "- local-only\n- udp-peer: e:1\n";
    let plan = plan(&parse_text(BEFORE), &parse_text(&after)).unwrap();
    let names = |backends: &[Backend]| -> Vec<String> {
        let name = |backend: &Backend| match backend {
            Backend::TcpListener(listener) => listener.bind.to_string(),
            Backend::TcpPeer(peer) => peer.address.to_string(),
            Backend::UdpPeer(peer) => peer.address.to_string(),
            other => panic!("{other:?}"),
        };
        backends.iter().map(name).collect()
    };
    assert_eq!(names(&plan.added), ["0.0.0.0:2", "d:1", "e:1"]);
    assert_eq!(names(&plan.removed), ["0.0.0.0:1", "c:1"]);
    assert_eq!(names(&plan.unchanged), ["b:1"]);
    assert!(plan.local_only);
}

/// One link twice is two links.
#[test]
fn equal_links_are_counted() {
    let twice = BEFORE.to_owned() + "- tcp-peer: c:1\n";
    let plan = |old: &str, new: &str| plan(&parse_text(old), &parse_text(new)).unwrap();
    assert_eq!((plan(BEFORE, &twice).added.len(), plan(&twice, BEFORE).removed.len()), (1, 1));
}

#[test]
fn everything_else_needs_a_restart() {
    let old = parse_text(BEFORE);
    for (from, to, directive) in [
        ("id: a", "id: b", "node"),
        ("/b.*/", "/c.*/", "node"),
        ("log-level: info", "log-level: debug", "log-level"),
        ("- log-level: info", "- log-level: info\n- trace", "trace"),
        ("/run/x", "/run/y", "control-service"),
        ("worktype: two, command: sh", "worktype: two, command: bash", "work-command"),
        ("- tcp-listener: 1", "- work-command: {worktype: three, command: sh}", "work-command"),
        ("- tcp-listener: 1", "- tls-client: {name: a}", "tls-client"),
        ("- tcp-listener: 1", "- work-signing: key", "work-signing"),
    ] {
        assert!(BEFORE.contains(from));
        let error = plan(&old, &parse_text(&BEFORE.replace(from, to))).unwrap_err();
        assert_eq!(error, NotReloadable::ModifiedOrAdded(directive), "{to}");
    }
    let less = BEFORE.replace("- work-command: {worktype: two, command: sh}\n", "");
    let error = plan(&old, &parse_text(&less)).unwrap_err();
    assert_eq!(error, NotReloadable::Removed("work-command"));
}

#[test]
fn the_words_are_those_that_controllers_know() {
    assert_eq!(
        NotReloadable::ModifiedOrAdded("node").to_string(),
        "a non-reloadable config action 'node' was modified or added. Must restart receptor for these changes to take effect"
    );
    assert_eq!(
        NotReloadable::Removed("trace").to_string(),
        "a non-reloadable config action 'trace' was removed. Must restart receptor for changes to take effect"
    );
}
