//! Configurations that load, and their values.

use std::path::PathBuf;
use std::time::Duration;

use super::super::directives::node::DEFAULT_MAX_IDLE;
use super::super::directives::services::{Forward, RemoteNode};
use super::*;
use crate::mesh::firewall::{Action, Pattern};
use crate::pods::options::{AuthMethod, StreamMethod};
use crate::telemetry::LogLevel;
use crate::wire::{Cost, NodeId};
use crate::work::Quota;
use crate::work::limits::{Limits, MaxStdout, WhenFull};

fn node(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

fn host_port(host: &str, port: u16) -> HostPort {
    HostPort { host: host.to_owned(), port }
}

#[test]
fn every_default_has_its_parameters_type() {
    for directive in DIRECTIVES.iter() {
        for parameter in &directive.parameters {
            assert_eq!(
                parameter.default.is_some(),
                item::default_of(parameter).is_some(),
                "{}",
                parameter.name
            );
            assert_eq!(parameter.name, parameter.name.to_lowercase());
            assert!(!(parameter.required && parameter.default.is_some()), "{}", parameter.name);
        }
        assert!(directive.parameters.iter().filter(|parameter| parameter.bare).count() <= 1);
        assert_eq!(directive.name, directive.name.to_lowercase());
    }
}

#[test]
fn a_node_alone_takes_the_machines_name_and_the_defaults() {
    let (config, warnings) = load_text("- local-only\n").unwrap();
    assert_eq!(config.node.id, node("host.example"));
    assert_eq!(config.node.data_dir, PathBuf::from("/var/lib/meshd"));
    assert_eq!(config.node.max_idle, DEFAULT_MAX_IDLE);
    assert_eq!(config.node.forget_after.as_secs(), 600);
    assert_eq!(config.log_level, LogLevel::Info);
    assert!(config.local_only && !config.trace);
    assert_eq!(warnings, []);
}

#[test]
fn what_receptor_accepts_loads() {
    let yaml = "- tcp-listener: {port: 1, bindaddr: ''}
- tcp-peer: ':2222'
- ws-peer: 'ws://:8080/'
- tcp-client: {service: x, address: ':80'}
- tls-server: {name: s, cert: c, key: k, requireclientcert: yes}
- tls-server: {name: t, cert: c, key: k, requireclientcert: yes, clientcas: ca, requirenodeid: no}
";
    let (config, warnings) = load_text(yaml).unwrap();
    assert_eq!(config.tcp_listeners[0].bind, host_port("0.0.0.0", 1));
    assert_eq!(config.tcp_peers[0].address, host_port("localhost", 2222));
    assert_eq!(config.ws_peers[0].address.server, host_port("localhost", 8080));
    assert_eq!(config.tcp_clients[0].address, host_port("localhost", 80));
    let ids: Vec<bool> = config.tls_servers.iter().map(|server| !server.admit_nameless).collect();
    assert_eq!(ids, [true, false]);
    let [warning, open] = &warnings[..] else { panic!("{warnings:?}") };
    assert!(open.text.starts_with("tcp-client x: any node of the mesh can reach localhost:80"), "{open}");
    let text = warning.to_string();
    assert!(text.contains("requireclientcert without clientcas trusts the system's authorities"), "{text}");
}

#[test]
fn a_machine_called_localhost_gives_no_name() {
    for host in [None, Some(""), Some("localhost"), Some("LocalHost.localdomain")] {
        let environment = Environment { host_name: host.map(str::to_owned), ..environment() };
        let error = load(["--local-only".to_owned()], &environment).unwrap_err().to_string();
        assert!(
            error.starts_with("configuration: node: id: no node ID given and the host name is "),
            "{error}"
        );
        assert!(error.ends_with("set one, as in `- node: {id: my-name}`"), "{error}");
    }
}

#[test]
fn tls_of_the_service_does_not_protect_the_port() {
    let warnings = |control: &str| {
        let yaml = format!(
            "- local-only\n- tls-server: {{name: s, cert: c, key: k}}\n- control-service: {{{control}}}\n"
        );
        load_text(&yaml).unwrap().1.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    // The TCP port does not use the profile of the service on the mesh.
    for open in ["tls: s, tcplisten: 8888", "tcplisten: 8888", "tcplisten: '127.0.0.1:8888'"] {
        let [warning] = &warnings(open)[..] else { panic!("one warning is expected: {open}") };
        assert!(
            warning.starts_with("x.yml:3: ") && warning.contains("the port of tcplisten has no TLS"),
            "{warning}"
        );
    }
    for fine in ["tls: s", "tls: s, tcplisten: 8888, tcptls: s"] {
        assert_eq!(warnings(fine), [] as [String; 0], "{fine}");
    }
}

#[test]
fn a_work_type_may_have_blanks() {
    let (config, _) = load_text("- local-only\n- work-command: {worktype: my type, command: sh}\n").unwrap();
    assert_eq!(config.work_commands[0].name, "my type");
}

#[test]
fn the_default_data_directory_depends_on_caller_and_name() {
    let root = environment();
    let home = |home: &str| Environment { is_root: false, home: Some(home.into()), ..environment() };
    let state = Environment { xdg_state_home: Some("/state".into()), ..home("/home/a") };
    let relative = Environment { xdg_state_home: Some("state".into()), ..home("/home/a") };
    let service = Environment { state_directory: Some("/var/lib/mesh".into()), ..home("/var/lib/mesh") };
    let receptor = Environment { program: "receptor".to_owned(), ..service.clone() };
    for (environment, expected) in [
        (root, Some("/var/lib/meshd")),
        (home("/home/a"), Some("/home/a/.local/state/meshd")),
        (home("relative"), None),
        (home("/"), None),
        (state, Some("/state/meshd")),
        (relative, Some("/home/a/.local/state/meshd")),
        (service, Some("/var/lib/mesh")),
        (receptor, Some("/tmp/receptor")),
    ] {
        assert_eq!(environment.default_data_dir(), expected.map(PathBuf::from), "{environment:?}");
    }
}

#[test]
fn names_are_taken_in_any_case() {
    let (config, _) = load_text(
        "- Node: {ID: Foo, dataDir: /d}\n- LOCAL-only:\n- Work-Command: {workType: a, Command: b, allowRuntimeParams: Yes}\n",
    )
    .unwrap();
    assert_eq!((config.node.id, config.node.data_dir), (node("Foo"), PathBuf::from("/d")));
    assert_eq!(config.work_commands[0].name, "a");
    assert!(config.local_only && config.work_commands[0].allow_runtime_params);
    assert_eq!(load_args("--NODE ID=x -Local-Only").unwrap().config.node.id, node("x"));
}

#[test]
fn a_control_service_trusts_nobody_unless_told() {
    let forward = |text: &str| {
        let text = format!("- local-only\n- control-service: {{service: c{text}}}\n");
        load_text(&text).unwrap().0.control_services[0].forward
    };
    assert_eq!(forward(""), Forward::None);
    assert_eq!(forward(", forward: none"), Forward::None);
    assert_eq!(forward(", forward: Tcp"), Forward::Tcp);
    assert_eq!(forward(", forward: all"), Forward::All);
}

#[test]
fn a_calling_node_may_have_so_much() {
    let quota =
        |text: &str| load_text(&format!("- local-only\n- node: {{id: a{text}}}\n")).unwrap().0.node.quota;
    assert_eq!(quota(""), Quota { units: 10_000, payload: 64 << 30 });
    assert_eq!(quota(", peerunits: 5, peerpayload: '1000'"), Quota { units: 5, payload: 1000 });
}

#[test]
fn bare_values_stand_for_the_main_parameter() {
    let config = parse_text(
        "- node: foo\n- log-level: debug\n- tcp-listener: 2222\n- tcp-peer: bar:1\n- udp-listener: '3333'\n\
         - ws-peer: wss://h/p\n- work-signing: key.pem\n- work-verification: pub.pem\n- trace\n",
    );
    assert_eq!(config.node.id, node("foo"));
    assert_eq!(config.log_level, LogLevel::Debug);
    assert_eq!(config.tcp_listeners[0].bind, host_port("0.0.0.0", 2222));
    assert_eq!(config.udp_listeners[0].bind.port, 3333);
    assert_eq!(config.tcp_peers[0].address, host_port("bar", 1));
    assert_eq!(config.ws_peers[0].address.to_string(), "wss://h:443/p");
    assert_eq!(config.work_signing.unwrap().private_key, PathBuf::from("key.pem"));
    assert_eq!(config.work_verification.unwrap().public_key, PathBuf::from("pub.pem"));
    assert!(config.trace);
    assert_eq!(load_text("- local-only\n- log-level:\n").unwrap().0.log_level, LogLevel::Error);
}

#[test]
fn a_listener_takes_lists_and_maps_in_both_notations() {
    let yaml = "- tcp-listener: {port: 1, bindaddr: '::1', cost: 2, nodecost: {a: 1.5, b: 2}, allowedpeers: [a, b]}\n";
    let (from_yaml, _) = load_text(yaml).unwrap();
    let listener = &from_yaml.tcp_listeners[0];
    assert_eq!(listener.bind.to_string(), "[::1]:1");
    assert_eq!(listener.policy.cost, Cost::new(2.0).unwrap());
    assert_eq!(listener.policy.node_cost[&node("a")], Cost::new(1.5).unwrap());
    let allowed = listener.policy.allowed_peers.as_ref().unwrap();
    assert_eq!(allowed.iter().map(NodeId::as_str).collect::<Vec<_>>(), ["a", "b"]);
    for line in [
        r#"--tcp-listener port=1 bindaddr=::1 cost=2 'nodecost={"a":1.5,"b":2}' allowedpeers=a allowedpeers=b"#,
        r#"-tcp-listener 1 bindaddr=[::1] cost=2.0 'nodecost={"b":2.0,"a":"1.5"}' 'allowedpeers=["b","a"]'"#,
    ] {
        assert_eq!(load_args(line).unwrap().config, from_yaml, "{line}");
    }
}

#[test]
fn firewall_rules_match_whole_names() {
    let (config, _) = load_text(
        "- node:\n    id: foo\n    firewallrules:\n      - {action: Reject, toNode: foo, toservice: control}\n      \
         - {action: drop, fromnode: '/a|b.*/', fromservice: ''}\n      - {action: accept}\n- local-only\n",
    )
    .unwrap();
    let [reject, drop, accept] = config.node.firewall_rules.as_slice() else { panic!() };
    assert_eq!((reject.action, drop.action, accept.action), (Action::Reject, Action::Drop, Action::Accept));
    assert_eq!(reject.to_node, Some(Pattern::Exact("foo".to_owned())));
    assert_eq!((&reject.from_node, &drop.from_service, &accept.to_service), (&None, &None, &None));
    let from = drop.from_node.as_ref().unwrap();
    for (name, matches) in [("a", true), ("bcd", true), ("ab", false), ("cab", false)] {
        assert_eq!(from.matches(name), matches, "{name}");
    }
    let json = r#"--local-only --node id=foo 'firewallrules=[{"action":"accept"}]'"#;
    assert_eq!(load_args(json).unwrap().config.node.firewall_rules, std::slice::from_ref(accept));
}

#[test]
fn equal_keys_count_once_with_a_warning() {
    let (config, warnings) =
        load_text("- node:\n    id: a\n    ID: b\n    datadir: /x\n    datadir: /y\n- local-only\n").unwrap();
    assert_eq!((config.node.id, config.node.data_dir), (node("b"), PathBuf::from("/y")));
    let warnings: Vec<String> = warnings.iter().map(Warning::to_string).collect();
    assert_eq!(
        warnings,
        [
            "x.yml:5: `datadir` is given more than once, the last one counts",
            "x.yml:3: `id` is given more than once, the last one counts",
        ]
    );
}

#[test]
fn a_node_that_reaches_nobody_is_alone_unless_that_is_meant() {
    for (text, alone) in [("- node: a\n", true), ("- tcp-peer: b:1\n", false), ("- local-only\n", false)] {
        let (config, warnings) = load_text(text).unwrap();
        assert_eq!((config.is_alone(), warnings), (alone, vec![]), "{text}");
    }
}

#[test]
fn expressions_that_a_receptor_node_reads_in_another_way_are_warned_of() {
    let warnings = |name: &str| {
        let rule = format!("{{action: reject, fromnode: b, ToNode: '{name}'}}");
        load_text(&format!("- local-only\n- node:\n    id: a\n    firewallrules:\n    - {rule}\n")).unwrap().1
    };
    for name in ["/evil|bad/", "/a[|]|b/", "/(?i)x|(y|z)/", "/|a/"] {
        let warnings = warnings(name);
        let [warning] = &warnings[..] else { panic!("{name}: {warnings:?}") };
        let (pattern, text) = (name.trim_matches('/'), warning.to_string());
        assert!(text.starts_with("x.yml:5: node: firewallrules: ToNode: "), "{text}");
        for part in [format!(" ^(?:{pattern})$ here"), format!(" ^{pattern}$ by a receptor node")] {
            assert!(text.contains(&part), "{part} is missing in {text}");
        }
    }
    for name in ["evil|bad", "/(?:evil|bad)/", "/(evil|bad).*/", r"/evil\|bad/", "/a[|]b/", "/evil/", ""] {
        assert_eq!(warnings(name), [], "{name}");
    }
}

#[test]
fn what_is_for_pyroscope_is_accepted_and_warned_of_once() {
    let one = "- local-only\n- pyroscope-client:\n    applicationName: a\n    tags: {k: v}\n    serverAddress: http://p:4040\n    \
               basicAuthUser: u\n    basicAuthPassword: hidden\n    tenantID: t\n    uploadRate: 15s\n    \
               profileTypes: [cpu, goroutines]\n    disableGCRuns: true\n    HTTPHeaders: {X-Y: z}\n";
    let two = one.replace("- local-only", "version: 2\nlocal-only: true").replace("- pyroscope", "pyroscope");
    for text in [one, &two] {
        let (_, warnings) = load_text(text).unwrap();
        let [warning] = &warnings[..] else { panic!("{warnings:?}") };
        assert!(warning.text.starts_with("pyroscope-client: meshd sends no profiles"), "{warning}");
        assert!(!warning.text.contains("hidden"), "{warning}");
    }
}

#[test]
fn an_explicit_false_of_redial_counts_in_both_versions() {
    let one = "- tcp-peer: {address: 'a:1', redial: false}\n- ws-peer: {address: 'ws://a:1', redial: no}\n";
    let two = "version: 2\ntcp-peers:\n- {address: 'a:1', redial: false}\nws-peer: {address: 'ws://a:1', redial: no}\n";
    for text in [one, two] {
        let (config, _) = load_text(text).unwrap();
        assert!(!config.tcp_peers[0].redial && !config.ws_peers[0].redial, "{text}");
    }
}

/// The file that AWX writes for a control node on Kubernetes.
const AWX: &str = r#"
- local-only: null
- log-level: debug
- node:
    firewallrules:
    - action: reject
      tonode: awx-control
      toservice: control
- control-service:
    filename: /var/run/receptor/receptor.sock
    permissions: '0660'
    service: control
- work-command:
    allowruntimeparams: true
    command: ansible-runner
    params: worker
    worktype: local
- work-signing:
    privatekey: /etc/receptor/work_private_key.pem
    tokenexpiration: 1m
- work-kubernetes:
    allowruntimeauth: true
    allowruntimeparams: true
    allowruntimepod: true
    authmethod: runtime
    worktype: kubernetes-runtime-auth
- work-kubernetes:
    allowruntimeauth: true
    allowruntimeparams: true
    allowruntimepod: true
    authmethod: incluster
    worktype: kubernetes-incluster-auth
- tls-client:
    cert: /etc/receptor/tls/receptor.crt
    key: /etc/receptor/tls/receptor.key
    mintls13: false
    name: tlsclient
    rootcas: /etc/receptor/tls/ca/mesh-CA.crt
- tcp-peer:
    address: 10.0.0.5:27199
    tls: tlsclient
- ws-peer:
    address: wss://hop.example:443/path
    tls: tlsclient
- ws-peer:
    address: hop.example:443
    tls: tlsclient
"#;

#[test]
fn what_awx_writes_parses() {
    let config = parse_text(AWX);
    assert_eq!(config.control_services[0].permissions, 0o660);
    assert_eq!(config.work_kubernetes[0].auth_method, AuthMethod::Runtime);
    assert_eq!(config.work_kubernetes[1].stream_method, StreamMethod::Logger);
    assert!(config.work_kubernetes.iter().all(|work| work.delete_pod_on_restart));
    assert_eq!(
        config.work_signing.as_ref().unwrap().token_expiration,
        Some(std::time::Duration::from_secs(60))
    );
    assert_eq!(
        config.tls_clients[0].files.identity.as_ref().unwrap().0,
        PathBuf::from("/etc/receptor/tls/receptor.crt")
    );
    assert_eq!(config.components().iter().filter(|it| matches!(it, Component::Link(_))).count(), 3);
    assert!(config.ws_peers[1].address.secure, "a TLS profile makes it wss");
    let (_, warnings) = load_text(AWX).unwrap();
    assert_eq!(warnings, []);
    let (config, warnings) =
        load_text("- node: {id: a, receptorkubeclientsetqps: 5}\n- local-only\n").unwrap();
    assert_eq!(warnings, []);
    assert_eq!(config.node.kubernetes(), [("RECEPTOR_KUBE_CLIENTSET_QPS", "5".to_owned())].into());
}

#[test]
fn work_types_may_be_bounded() {
    let config = parse_text(
        "- work-command: {worktype: a, command: sh, maxUnits: '20', timeout: 1h30m, cancelgrace: 0, \
         maxstdout: 1000, maxstdoutaction: Truncate-Head, releaseafter: 72h, cwd: /srv, user: jobs, \
         cpu: 1.5, memory: 1073741824, pids: 100, stderr: separate, \
         env: {A: b c, NUM: 7, YES_: true}}\n- work-command: {worktype: b, command: sh}\n",
    );
    let [bounded, free] = &config.work_commands[..] else { panic!() };
    let env = [("A", "b c"), ("NUM", "7"), ("YES_", "true")];
    let wanted = Limits {
        env: env.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        environment: None,
        cwd: Some("/srv".into()),
        user: Some("jobs".to_owned()),
        max_units: Some(20),
        timeout: Some(Duration::from_secs(5400)),
        cancel_grace: Some(Duration::ZERO),
        max_stdout: Some(MaxStdout { bytes: 1000, when_full: WhenFull::TruncateHead }),
        stderr_apart: true,
        release_after: Some(Duration::from_secs(72 * 3600)),
        cpu_millis: Some(1500),
        memory: Some(1 << 30),
        pids: Some(100),
    };
    assert_eq!((&bounded.limits, &free.limits), (&wanted, &Limits::default()));
    let config = parse_text(
        "- work-python: {worktype: p, plugin: m, function: f, maxunits: 20, timeout: 1h30m, cancelgrace: 0, \
         releaseafter: 72h, cwd: /srv, cpu: 1.5, memory: 1073741824, pids: 100, env: {A: b c, NUM: 7, YES_: true}}\n",
    );
    let plugin = Limits { user: None, max_stdout: None, stderr_apart: false, ..wanted };
    assert_eq!(config.work_python[0].limits, plugin);
}

#[test]
fn proxies_routers_and_certificates_have_types() {
    let config = parse_text(
        "- tcp-server: {port: 0, remotenode: localhost, remoteservice: web}\n- udp-client: {service: dns, address: '1.1.1.1:53'}\n\
         - ip-router: {networkname: net, localnet: 10.0.0.0/30, routes: '10.1.0.0/16, 10.2.0.0/16',\n\
           accept: [10.3.4.5/16, 'fd00:3::/32'], fromnodes: b}\n\
         - unix-socket-server: {filename: /s, remotenode: a, remoteservice: b}\n\
         - work-python: {worktype: p, plugin: m, function: f, config: {a: [1, x]}}\n",
    );
    assert_eq!(config.tcp_servers[0].remote.node, RemoteNode::Local);
    assert_eq!(config.udp_clients[0].address, host_port("1.1.1.1", 53));
    assert_eq!(
        config.ip_routers[0].routes.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["10.1.0.0/16", "10.2.0.0/16"]
    );
    assert_eq!(
        config.ip_routers[0].accept.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["10.3.0.0/16", "fd00:3::/32"]
    );
    assert_eq!(config.ip_routers[0].from_nodes, [NodeId::new("b").unwrap()]);
    assert_eq!(config.unix_socket_servers[0].permissions, 0o600);
    assert_eq!(
        serde_json::Value::from(config.work_python[0].plugin.clone().unwrap().config),
        serde_json::json!({"a": [1, "x"]})
    );
    let config = parse_text(
        "- cert-init: {commonname: ca, bits: '2048', outcert: c, outkey: k, notafter: '2030-01-01T00:00:00Z'}\n",
    );
    let init = config.cert_init.unwrap();
    assert_eq!((init.bits, init.not_before), (2048, None));
}

#[test]
fn metrics_are_for_this_machine_unless_somebody_says_otherwise() {
    let metrics = |text: &str| {
        let profile = "- tls-server: {name: s, cert: c, key: k}";
        parse_text(&format!("- local-only\n{profile}\n- metrics{text}\n")).metrics.unwrap()
    };
    assert_eq!(metrics("").address, host_port("127.0.0.1", 27190));
    assert_eq!(metrics(": {address: 'localhost:0'}").address, host_port("localhost", 0));
    assert_eq!(metrics(": {address: '[::1]:9'}").address, host_port("::1", 9));
    let open = metrics(": {address: '9', tls: s, tokenfile: t}");
    assert_eq!((open.address, open.tls.as_deref()), (host_port("0.0.0.0", 9), Some("s")));
    assert!(parse_text("- local-only\n").metrics.is_none());
}
