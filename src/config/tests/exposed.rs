//! The warnings of work types with which any node of the mesh can run anything, and of services that run or reach
//! something for it.

use super::*;

/// Profiles and a key that close a mesh by certificates and signatures.
const PROFILES: &str = "- tls-server: {name: s, cert: c, key: k, clientcas: a, requireclientcert: true}
- tls-client: {name: c, cert: c, key: k, rootcas: a}
- work-verification: k
";
const SHELL: &str = "- work-command: {worktype: sh, command: sh, params: -c, allowruntimeparams: true}\n";
const LISTENER: &str = "- tcp-listener: 1\n";
const CONTROL: &str = "- control-service: {filename: f}\n";

/// The work types and services that warnings name.
fn exposed(text: &str) -> Vec<String> {
    let (_, warnings) = load_text(&format!("{PROFILES}{text}")).unwrap();
    let text = |warning: Warning| warning.text.split(": ").next().unwrap_or_default().to_owned();
    let all = warnings.into_iter().inspect(|warning| assert!(warning.text.contains(ADVICE), "{warning}"));
    all.map(text).collect()
}

#[test]
fn a_type_that_takes_what_strangers_like_is_warned_of() {
    assert_eq!(exposed(&format!("{CONTROL}{LISTENER}{SHELL}")), ["work-command sh"]);
    for (types, found) in [
        ("- work-command: {worktype: t, command: cat}", vec![]),
        (
            "- work-command: {worktype: t, command: sh, allowruntimeparams: true, verifysignature: true}",
            vec![],
        ),
        ("- work-python: {worktype: t, plugin: p, function: f}", vec!["work-python t"]),
        (
            "- work-kubernetes: {worktype: t, authmethod: runtime, allowruntimeauth: true, allowruntimepod: true}",
            vec![],
        ),
        (
            "- work-kubernetes: {worktype: t, authmethod: runtime, allowruntimeauth: true, allowruntimepod: true, mesh: true}",
            vec!["work-kubernetes t"],
        ),
        ("- work-kubernetes: {worktype: t, namespace: n, image: i, allowruntimeparams: true}", vec![]),
        ("- work-kubernetes: {worktype: t, namespace: n, image: i, mesh: true}", vec![]),
        (
            "- work-kubernetes: {worktype: t, authmethod: kubeconfig, allowruntimecommand: true}",
            vec!["work-kubernetes t"],
        ),
    ] {
        assert_eq!(exposed(&format!("{CONTROL}{LISTENER}{types}\n")), found, "{types}");
    }
}

#[test]
fn a_service_that_runs_or_reaches_something_for_strangers_is_warned_of() {
    let shell = "- command-service: {service: sh, command: bash}\n";
    let rule =
        "- node: {id: a, firewallrules: [{action: accept, fromnode: b}, {action: drop, toservice: sh}]}\n";
    let open = |text: &str| exposed(&format!("{LISTENER}{text}"));
    assert_eq!(open(shell), ["command-service sh"]);
    assert_eq!(open("- tcp-client: {service: t, address: 'h:1'}\n"), ["tcp-client t"]);
    assert_eq!(open("- udp-client: {service: u, address: 'h:1'}\n"), ["udp-client u"]);
    assert_eq!(open("- unix-socket-client: {service: x, filename: /s}\n"), ["unix-socket-client x"]);
    assert!(open("- command-service: {service: sh, command: bash, tls: s}\n").is_empty());
    assert!(open("- tcp-client: {service: t, address: 'h:1', tlsserver: s}\n").is_empty());
    assert!(open(&format!("{rule}{shell}")).is_empty());
    assert!(exposed(&format!("- local-only\n{shell}")).is_empty());
    let (_, warnings) = load_text(&format!("{LISTENER}{shell}")).unwrap();
    assert_eq!(warnings[0].at.to_string(), "x.yml:2");
}

#[test]
fn certificates_and_rules_close_it() {
    let rule = "- node: {id: a, firewallrules: [{action: accept, fromnode: b}, {action: reject, toservice: control}]}\n";
    let half = "- node: {id: a, firewallrules: [{action: reject, fromnode: evil, toservice: control}]}\n";
    let weak = "- tls-client: {name: w, insecureskipverify: true}\n- tcp-peer: {address: 'b:1', tls: w}\n";
    for (text, is_closed) in [
        (format!("{CONTROL}{LISTENER}"), false),
        (format!("{CONTROL}- local-only\n"), true),
        (LISTENER.to_owned(), true),
        (format!("{rule}{CONTROL}{LISTENER}"), true),
        (format!("{half}{CONTROL}{LISTENER}"), false),
        (format!("- control-service: {{filename: f, tls: s}}\n{LISTENER}"), true),
        (format!("{CONTROL}- tcp-listener: {{port: 1, tls: s}}\n"), true),
        (format!("{CONTROL}- tcp-listener: {{port: 1, tls: s}}\n- udp-listener: 2\n"), false),
        (format!("{CONTROL}- tcp-listener: {{port: 1, allowedpeers: [b]}}\n"), false),
        (format!("{CONTROL}- tcp-peer: {{address: 'b:1', tls: c}}\n"), true),
        (format!("{CONTROL}- tcp-peer: 'b:1'\n"), false),
        (format!("{CONTROL}- ws-peer: 'wss://b/'\n"), true),
        (format!("{CONTROL}- ws-peer: 'ws://b/'\n"), false),
        (format!("{CONTROL}{weak}"), false),
    ] {
        assert_eq!(exposed(&format!("{SHELL}{text}")).is_empty(), is_closed, "{text}");
    }
}
