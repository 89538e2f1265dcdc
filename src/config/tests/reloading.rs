//! Which changes a running node takes, and which need a restart.

use super::super::typed::node::LogLevel;
use super::super::typed::parts::Part;
use super::*;

const BEFORE: &str = "
- node: {id: a, firewallrules: [{action: accept, fromnode: /b.*/}]}
- log-level: info
- control-service: {filename: /run/x, tcplisten: 7}
- work-command: {worktype: one, command: sh}
- work-command: {worktype: two, command: sh}
- tcp-listener: 1
- tcp-peer: {address: 'b:1', cost: 1.0, allowedpeers: [x, y]}
- tcp-peer: c:1
";

fn names(parts: &[Part]) -> Vec<String> {
    parts.iter().map(Part::to_string).collect()
}

fn planned(from: &str, to: &str) -> ReloadPlan {
    assert!(BEFORE.contains(from), "{from}");
    plan(&parse_text(BEFORE), &parse_text(&BEFORE.replace(from, to))).unwrap()
}

#[test]
fn spelling_order_and_defaults_are_no_change() {
    let after = "
- Work-Command: {command: sh, workType: two, verifysignature: no}
- tcp-peer: {address: 'c:1', redial: yes}
- tcp-peer: {address: 'b:1', allowedpeers: [y, x]}
- tcp-listener: {port: '1', bindaddr: 0.0.0.0}
- work-command: {worktype: one, command: sh, params: ''}
- control-service: {filename: /run/x, permissions: 0600, service: control, tcplisten: '0.0.0.0:7'}
- node: {id: a, datadir: /var/lib/meshd, maxidleconnectiontimeout: 21s, firewallrules: [{fromNode: /b.*/, action: ACCEPT}]}
";
    let plan = plan(&parse_text(BEFORE), &parse_text(after)).unwrap();
    assert!(plan.is_empty(), "{plan:?}");
    assert_eq!(plan.unchanged.len(), 6, "three links, three doors of the control service");
}

#[test]
fn links_come_and_go() {
    let after = BEFORE.replace("c:1", "d:1").replace("tcp-listener: 1", "tcp-listener: 2")
        + "- local-only\n- udp-peer: e:1\n";
    let plan = plan(&parse_text(BEFORE), &parse_text(&after)).unwrap();
    assert_eq!(names(&plan.added), ["tcp-listener on 0.0.0.0:2", "tcp-peer d:1", "udp-peer e:1"]);
    assert_eq!(names(&plan.removed), ["tcp-listener on 0.0.0.0:1", "tcp-peer c:1"]);
    assert_eq!(plan.unchanged.len(), 4);
}

/// One link twice is two links.
#[test]
fn equal_links_are_counted() {
    let twice = BEFORE.to_owned() + "- tcp-peer: c:1\n";
    let plan = |old: &str, new: &str| plan(&parse_text(old), &parse_text(new)).unwrap();
    assert_eq!((plan(BEFORE, &twice).added.len(), plan(&twice, BEFORE).removed.len()), (1, 1));
}

#[test]
fn a_control_service_changes_door_by_door() {
    let socket = planned("/run/x", "/run/y");
    assert_eq!(names(&socket.added), ["control-service on /run/y"]);
    assert_eq!(names(&socket.removed), ["control-service on /run/x"]);
    let mode = planned("/run/x,", "/run/x, permissions: 0660,");
    assert_eq!(names(&mode.added), names(&mode.removed));
    let name = planned("{filename: /run/x", "{service: other, filename: /run/x");
    assert_eq!(names(&name.added), ["control-service other"]);
    let gone = planned(", tcplisten: 7", "");
    assert_eq!((names(&gone.removed), gone.added), (vec!["control-service on 0.0.0.0:7".to_owned()], vec![]));
}

#[test]
fn services_come_and_go() {
    for line in [
        "tcp-server: {port: 9, remotenode: b, remoteservice: s}",
        "tcp-client: {service: s, address: 'h:9'}",
        "udp-server: {port: 9, remotenode: b, remoteservice: s}",
        "udp-client: {service: s, address: 'h:9'}",
        "unix-socket-server: {filename: /run/s, remotenode: b, remoteservice: s}",
        "unix-socket-client: {service: s, filename: /run/s}",
        "command-service: {service: s, command: sh}",
        "ip-router: {networkname: s, localnet: 10.0.0.0/30}",
    ] {
        let plan = planned("- log-level: info\n", &format!("- {line}\n"));
        let directive = line.split(':').next().unwrap();
        assert!(matches!(names(&plan.added).as_slice(), [one] if one.starts_with(directive)), "{plan:?}");
        assert!(plan.removed.is_empty() && plan.log.is_none(), "info is the default: {plan:?}");
        assert!(!plan.added[0].claims().is_empty(), "{line}");
    }
}

#[test]
fn rules_levels_and_work_types_change() {
    let firewall = planned("/b.*/", "/c.*/").firewall.unwrap();
    assert_eq!(firewall, parse_text(&BEFORE.replace("/b.*/", "/c.*/")).node.firewall_rules);
    assert_eq!(planned("log-level: info", "log-level: debug").log, Some((LogLevel::Debug, false)));
    let trace = planned("- log-level: info", "- log-level: info\n- trace");
    assert_eq!(trace.log, Some((LogLevel::Info, true)));
    for (from, to, count) in [
        ("worktype: two, command: sh", "worktype: two, command: bash", 2),
        ("- tcp-listener: 1", "- work-command: {worktype: three, command: sh}", 3),
        ("- work-command: {worktype: two, command: sh}\n", "", 1),
    ] {
        assert_eq!(planned(from, to).work_commands.map(|types| types.len()), Some(count), "{to}");
    }
}

#[test]
fn everything_else_needs_a_restart() {
    let old = parse_text(BEFORE);
    for (from, to, error) in [
        ("id: a", "id: b", NotReloadable::Node("id")),
        ("id: a", "id: a, datadir: /x", NotReloadable::Node("datadir")),
        ("id: a", "id: a, maxidleconnectiontimeout: 1m", NotReloadable::Node("maxidleconnectiontimeout")),
        ("- tcp-listener: 1", "- tls-client: {name: a}", NotReloadable::ModifiedOrAdded("tls-client")),
        ("- tcp-listener: 1", "- work-signing: key", NotReloadable::ModifiedOrAdded("work-signing")),
    ] {
        assert!(BEFORE.contains(from));
        assert_eq!(plan(&old, &parse_text(&BEFORE.replace(from, to))).unwrap_err(), error, "{to}");
    }
    let more = BEFORE.replace("- tcp-listener: 1", "- work-signing: key");
    let error = plan(&parse_text(&more), &old).unwrap_err();
    assert_eq!(error, NotReloadable::Removed("work-signing"));
}

#[test]
fn the_words_are_those_that_controllers_know() {
    let known = "a non-reloadable config action 'node' was modified or added. Must restart receptor for these changes to take effect";
    assert_eq!(NotReloadable::ModifiedOrAdded("node").to_string(), known);
    assert_eq!(
        NotReloadable::Node("id").to_string(),
        format!("{known}: id cannot change while the node runs")
    );
    assert_eq!(
        NotReloadable::Removed("trace").to_string(),
        "a non-reloadable config action 'trace' was removed. Must restart receptor for changes to take effect"
    );
}
