//! Which changes a running node adopts, and which need a restart.

use super::*;
use crate::telemetry::LogLevel;

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

fn names(components: &[Component]) -> Vec<String> {
    components.iter().map(Component::to_string).collect()
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
    assert_eq!(plan.unchanged.len(), 6, "three links, three listeners of the control service");
}

#[test]
fn listeners_on_the_host_open_last_and_the_one_on_the_mesh_first() {
    let components = names(&parse_text(BEFORE).components());
    assert_eq!(components.first().unwrap(), "control-service control");
    assert_eq!(
        components[components.len() - 2..],
        ["control-service on /run/x", "control-service on 0.0.0.0:7"]
    );
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

/// The same link given twice makes two links.
#[test]
fn equal_links_are_counted() {
    let twice = BEFORE.to_owned() + "- tcp-peer: c:1\n";
    let plan = |old: &str, new: &str| plan(&parse_text(old), &parse_text(new)).unwrap();
    assert_eq!((plan(BEFORE, &twice).added.len(), plan(&twice, BEFORE).removed.len()), (1, 1));
}

#[test]
fn a_control_service_changes_listener_by_listener() {
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
        assert!(!plan.added[0].facts().claims.is_empty(), "{line}");
    }
}

#[test]
fn rules_levels_and_work_types_change() {
    let firewall = planned("/b.*/", "/c.*/").firewall.unwrap();
    assert_eq!(firewall, parse_text(&BEFORE.replace("/b.*/", "/c.*/")).node.firewall_rules);
    assert_eq!(planned("log-level: info", "log-level: debug").log, Some((LogLevel::Debug, false)));
    let trace = planned("- log-level: info", "- log-level: info\n- trace");
    assert_eq!(trace.log, Some((LogLevel::Info, true)));
    for (from, to) in [
        ("worktype: two, command: sh", "worktype: two, command: bash"),
        ("- tcp-listener: 1", "- work-command: {worktype: three, command: sh}"),
        ("- tcp-listener: 1", "- work-kubernetes: {worktype: k, namespace: n, image: i}"),
        ("- tcp-listener: 1", "- work-python: {worktype: p, plugin: m, function: f}"),
        ("- work-command: {worktype: two, command: sh}\n", ""),
    ] {
        assert!(planned(from, to).work_types, "{to}");
    }
    assert_eq!(
        planned("id: a", "id: a, maxidleconnectiontimeout: 1m").max_idle,
        Some(std::time::Duration::from_secs(60))
    );
    let quota = planned("id: a", "id: a, peerunits: 7").quota;
    assert_eq!(quota.map(|quota| quota.units), Some(7));
    let forget = planned("id: a", "id: a, forgetafter: 2m").forget_after;
    assert_eq!(forget, Some(std::time::Duration::from_secs(120)));
    assert_eq!(planned("id: a", "id: a, diskreserve: 0").disk_reserve, Some(Some(0)));
    for (text, bytes) in [
        ("0", 0),
        ("4096", 4096),
        ("3KiB", 3 << 10),
        ("500MiB", 500 << 20),
        ("2GiB", 2 << 30),
        ("1TiB", 1 << 40),
    ] {
        let cache = planned("id: a", &format!("id: a, payloadcache: {text}")).payload_cache;
        assert_eq!(cache, Some(Some(bytes)), "{text}");
    }
    assert_eq!(planned("id: a", "id: a, streambuffers: 33554432").stream_buffers, Some(Some(32 << 20)));
}

const SECURED: &str = "
- node: a
- tls-server: {name: one, cert: c, key: k}
- tls-server: {name: two, cert: c, key: k}
- tls-client: {name: one, rootcas: ca}
- tls-client: {name: two, rootcas: ca}
- tcp-listener: {port: 1, tls: one}
- tcp-listener: {port: 2, tls: two}
- tcp-listener: {port: 3}
- quic-peer: {address: 'b:1', tls: one}
- ws-peer: {address: 'wss://b', tls: two}
- tcp-server: {port: 4, remotenode: b, remoteservice: c, tlsserver: two, tlsclient: two}
- control-service: {filename: /run/x, tls: one, tcplisten: 5, tcptls: two}
- command-service: {service: s, command: sh, tls: two}
- unix-socket-server: {filename: /run/y, remotenode: b, remoteservice: c, tls: one}
- unix-socket-client: {service: t, filename: /run/y, tls: one}
";

#[test]
fn components_whose_profile_changes_start_again_and_no_others() {
    let old = parse_text(SECURED);
    let plan = |from: &str, to: &str| {
        assert!(SECURED.contains(from), "{from}");
        plan(&old, &parse_text(&SECURED.replace(from, to))).unwrap()
    };
    let server = plan("tls-server: {name: one,", "tls-server: {name: one, mintls13: yes,");
    let restarted = ["control-service control", "tcp-listener on 0.0.0.0:1", "unix-socket-client t"];
    assert_eq!(
        (names(&server.added), names(&server.removed)),
        (restarted.map(str::to_owned).to_vec(), names(&server.added))
    );
    assert!(server.tls && !server.signing);
    let client = plan("tls-client: {name: one,", "tls-client: {name: one, insecureskipverify: yes,");
    assert_eq!(names(&client.removed), ["quic-peer b:1", "unix-socket-server /run/y"]);
    let both = plan("{name: two,", "{name: two, mintls13: yes,");
    assert_eq!(names(&both.added).len(), 5, "{both:?}");
    let unused = plan("- tcp-listener: {port: 3}", "- tcp-listener: {port: 3}\n- tls-client: {name: three}");
    assert!(unused.tls && unused.added.is_empty() && unused.removed.is_empty());
    assert!(!plan("- node: a", "- node: a").tls);
}

#[test]
fn keys_change() {
    for (item, signing, verification) in
        [("work-signing: key", true, false), ("work-verification: key", false, true)]
    {
        let more = BEFORE.replace("- tcp-listener: 1", &format!("- {item}"));
        for (old, new) in [(BEFORE, more.as_str()), (more.as_str(), BEFORE)] {
            let plan = plan(&parse_text(old), &parse_text(new)).unwrap();
            assert_eq!((plan.signing, plan.verification), (signing, verification), "{item}");
        }
    }
}

#[test]
fn node_and_data_need_a_restart() {
    let old = parse_text(BEFORE);
    for (from, to, error) in [
        ("id: a", "id: b", NotReloadable::Node("id")),
        ("id: a", "id: a, datadir: /x", NotReloadable::Node("datadir")),
    ] {
        assert!(BEFORE.contains(from));
        assert_eq!(plan(&old, &parse_text(&BEFORE.replace(from, to))).unwrap_err(), error, "{to}");
    }
}

#[test]
fn the_words_are_those_that_controllers_know() {
    let known = "a non-reloadable config action 'node' was modified or added. Must restart receptor for these changes to take effect";
    assert_eq!(NotReloadable::ModifiedOrAdded("node").of_receptor(), known);
    assert_eq!(
        NotReloadable::Node("id").of_receptor(),
        format!("{known}: id cannot change while the node runs")
    );
}
