use std::time::Duration;

use serde_json::{Value, json};

use super::super::*;
use super::recorded;
use crate::controller::credentials::RegistryLogin;
use crate::controller::header::{Header, Pull, RunnerWords};

/// The kwargs of a line after a change.
fn changed(change: &KwargsChange<'_>, kwargs: &Value) -> Value {
    let line = format!("{}\n", json!({"kwargs": kwargs}));
    let line = change.apply(line.as_bytes()).unwrap();
    assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
    let mut whole: Value = serde_json::from_slice(&line).unwrap();
    whole["kwargs"].take()
}

#[test]
fn without_a_reason_the_bytes_stay_as_they_are() {
    let stream = recorded("ok.in");
    let line = &stream[..stream.iter().position(|byte| *byte == b'\n').unwrap() + 1];
    let header = Header::default();
    assert_eq!(KwargsChange::of(&header).apply(line).unwrap(), line);
    let in_pod = KwargsChange { in_pod: true, ..KwargsChange::default() };
    assert_eq!(in_pod.apply(line).unwrap(), line);
    assert_eq!(KwargsChange::default().apply(b"anything"), Ok(b"anything".to_vec()));
}

#[test]
fn image_pull_options_and_login_become_the_runners_words() {
    let words = RunnerWords {
        image: Some("quay.io/ee".to_owned()),
        pull: Some(Pull::Always),
        options: None,
        ..RunnerWords::default()
    };
    let login = RegistryLogin {
        host: "quay.io".to_owned(),
        username: "u".to_owned(),
        password: "canary".to_owned().into(),
        verify_ssl: false,
    };
    let header =
        Header { runner: Some(words), timeout: Some(Duration::from_millis(1_001)), ..Header::default() };
    let change = KwargsChange { registry: Some(&login), ..KwargsChange::of(&header) };
    let kwargs = json!({
        "playbook": "a.yml", "ident": "x", "container_options": ["--user=root", "--pull=never"],
        "process_isolation": null, "process_isolation_executable": null,
    });
    let wanted = json!({
        "playbook": "a.yml", "ident": "x", "container_options": ["--user=root", "--pull=always"],
        "process_isolation": true, "process_isolation_executable": "podman", "container_image": "quay.io/ee",
        "container_auth_data": {"host": "quay.io", "username": "u", "password": "canary", "verify_ssl": false},
        "timeout": 2,
    });
    assert_eq!(changed(&change, &kwargs), wanted);
    assert!(!format!("{change:?}").contains("canary"));

    // In a pod no other container is started.
    let change = KwargsChange { in_pod: true, ..change };
    let mut wanted = kwargs.clone();
    wanted["timeout"] = 2.into();
    assert_eq!(changed(&change, &kwargs), wanted);
    let isolated =
        json!({"process_isolation": true, "container_image": "i", "container_auth_data": {}, "x": 1});
    assert_eq!(changed(&change, &isolated), json!({"process_isolation": false, "timeout": 2, "x": 1}));
}

#[test]
fn isolation_alone_keeps_the_image_and_program_of_the_stream() {
    let words = RunnerWords {
        isolation: Some(true),
        options: Some(vec!["-v=/a:/b".to_owned()]),
        ..RunnerWords::default()
    };
    let change = KwargsChange { runner: Some(&words), ..KwargsChange::default() };
    let kwargs =
        json!({"container_image": "i", "process_isolation_executable": "docker", "container_options": ["x"]});
    let wanted = json!({
        "container_image": "i", "process_isolation_executable": "docker", "container_options": ["-v=/a:/b"],
        "process_isolation": true,
    });
    assert_eq!(changed(&change, &kwargs), wanted);
    let off = RunnerWords { isolation: Some(false), image: Some("j".to_owned()), ..RunnerWords::default() };
    let off = changed(&KwargsChange { runner: Some(&off), ..KwargsChange::default() }, &json!({}));
    assert_eq!(off, json!({"process_isolation": false, "container_image": "j"}));
}

#[test]
fn a_rerun_names_its_hosts_and_no_other_value_changes() {
    let hosts = ["b".to_owned(), "c".to_owned()];
    let change = KwargsChange { limit: Some(&hosts), ..KwargsChange::default() };
    // Numbers that a parser would round, and keys that we do not know, stay as they are.
    let line = br#"{"kwargs": {"x": 123456789012345678901234567890, "y": 1.10, "limit": "all", "z": {"b":1,"a":2}}, "w": 0}"#;
    let line = String::from_utf8(change.apply(line).unwrap()).unwrap();
    assert_eq!(
        line,
        "{\"kwargs\":{\"limit\":\"b,c\",\"x\":123456789012345678901234567890,\"y\":1.10,\
         \"z\":{\"b\":1,\"a\":2}},\"w\":0}\n"
    );
    let many: Vec<String> = (0..20_000).map(|i| format!("host-{i:06}")).collect();
    let many = KwargsChange { limit: Some(&many), ..KwargsChange::default() };
    assert_eq!(many.apply(b"{\"kwargs\": {}}\n"), Err(KwargsError::LongLimit));
    for line in [b"".as_slice(), b"{}", b"{\"kwargs\": 5}", b"[]"] {
        assert_eq!(change.apply(line), Err(KwargsError::NoKwargs));
    }
}

#[test]
fn variables_of_a_project_leave_those_of_the_stream_alone() {
    let variables = [("ROLES", "/r".to_owned()), ("COLLECTIONS", "/c".to_owned())];
    let change = KwargsChange { variables: Some(variables), ..KwargsChange::default() };
    let wanted = json!({"envvars": {"COLLECTIONS": "/c", "ROLES": "/r"}});
    assert_eq!(changed(&change, &json!({})), wanted);
    let given = json!({"playbook": "a", "envvars": {"ROLES": "own", "X": "1"}});
    let wanted = json!({"playbook": "a", "envvars": {"COLLECTIONS": "/c", "ROLES": "own", "X": "1"}});
    assert_eq!(changed(&change, &given), wanted);
    let in_pod = KwargsChange { in_pod: true, ..change };
    assert_eq!(changed(&in_pod, &given)["envvars"], wanted["envvars"]);
}

#[test]
fn a_limit_has_names_of_hosts_and_no_patterns() {
    let limit_of = |names: &[&str]| {
        let hosts: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let change = KwargsChange { limit: Some(&hosts), ..KwargsChange::default() };
        // The check for an operator refuses the same names as the change for a runner.
        let line = change.apply(b"{\"kwargs\":{}}\n").map(|line| String::from_utf8(line).unwrap());
        assert_eq!(limit(&hosts).err(), line.as_ref().err().cloned());
        line
    };
    let names = ["web1", "db-2.example.org", "10.0.0.1", "fe80::1", "::ffff:10.0.0.1", "knöchel_3", "All"];
    assert!(limit_of(&names).unwrap().contains("web1,db-2.example.org,10.0.0.1,fe80::1,"));
    let cut = "a".repeat(252);
    for pattern in [
        "",
        "all",
        "ungrouped",
        "*",
        "web*",
        "web?",
        "web[0:9]",
        "~.*",
        "web1,all",
        "web1:db1",
        "!web1",
        "&web",
        "@/etc/hosts",
        "-e",
        "--become",
        "a b",
        "a\tb",
        "a\nb",
        "a\u{a0}b",
        "a\u{7f}",
        "a/b",
        "a\\b",
        "x::y",
        "[::1]",
        "fe80::1%eth0",
        "a\u{fffd}",
        "a\u{200b}",
        "{{ x }}",
        "a;b",
        "a=b",
        &cut,
    ] {
        let why = limit_of(&["web1", pattern, "web2"]).unwrap_err();
        assert_eq!(why, KwargsError::Pattern(pattern.to_owned()));
    }
}
