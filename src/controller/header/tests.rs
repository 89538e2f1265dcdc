use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::controller::core::{GroupName, Level};

fn parse(value: Value) -> Result<Header, String> {
    Header::parse(value.to_string().as_bytes()).map_err(|fault| fault.to_string())
}

/// The refusal of a header with these keys besides its version.
fn refusal(mut keys: Value) -> String {
    keys["controller"] = json!(1);
    parse(keys.clone()).err().unwrap_or_else(|| panic!("{keys} is accepted"))
}

#[test]
fn a_header_says_everything_about_a_job() {
    let header = parse(json!({
        "controller": 1, "kind": "ad_hoc", "name": "Grüße", "key": "ci-4711", "labels": {"team": "a", "x": ""},
        "forks": 20, "hosts": 200, "slice": [2, 3], "impact": 7,
        "groups": {"template": ["east"], "organization": ["shared"], "prevent_fallback": ["template"]},
        "priority": -100, "depends_on": [41, {"key": "build"}], "exclusive": ["site"],
        "pending_timeout": "1h", "timeout": "1.5s", "output_limit": 5000, "lost_after": "3m",
        "retry": {"max": 10, "on": ["failed"], "unconfirmed": true},
        "runner": {"image": "quay.io/org/ee:1", "pull": "missing", "isolation": true, "options": ["--user=root"],
                   "registry": "quay", "keepalive": 30},
        "sync": {"url": "ssh://git@git.example/team/site.git", "revision": "main", "credential": "git",
                 "submodules": false, "requirements": false},
        "rerun": false, "cleanup": false,
    }))
    .unwrap();
    assert_eq!(header.kind, JobKind::AdHoc);
    assert_eq!(header.size(Some(3)).impact(header.kind), 7);
    let walk = [(GroupName::from("east"), Level::Template)];
    assert_eq!(header.groups.walk(), walk);
    assert_eq!(header.depends_on, [Dependency::Job(JobId(41)), Dependency::Key { key: "build".to_owned() }]);
    assert!(header.retry.on == [RetryOn::Failed].into());
    assert_eq!(header.timeout, Some(Duration::from_millis(1_500)));
    let used: Vec<_> = header.credentials().into_iter().map(|(name, what)| (name.as_str(), what)).collect();
    let url = Url::parse("ssh://git@git.example/team/site.git").unwrap();
    let image = Some("quay.io/org/ee:1");
    assert_eq!(used, [("quay", Purpose::Registry { image }), ("git", Purpose::Repository(&url))]);
    assert_eq!(header.needs_admin(), None);
}

#[test]
fn a_header_that_says_nothing_has_all_defaults() {
    let header = parse(json!({"controller": 1})).unwrap();
    assert_eq!(header, Header::default());
    let nulls = json!({"controller": 1, "name": null, "key": null, "forks": null, "hosts": null, "slice": null,
        "impact": null, "pending_timeout": null, "timeout": null, "lost_after": null, "runner": null, "sync": null});
    assert_eq!(parse(nulls).unwrap(), header);
    assert_eq!(header.to_string(), r#"{"controller":1}"#);
    assert!(header.rerun && header.cleanup && Retry::from(&header.retry).on_lost);
    assert_eq!(header.size(None).forks, 0);
    assert_eq!(header.size(Some(9)).forks, 9);
    assert!(header.credentials().is_empty());
}

#[test]
fn every_rule_has_a_text_that_names_the_key() {
    for (keys, text) in [
        (
            json!({"frks": 1}),
            "unknown key `frks`: the keys are kind, name, key, labels, forks, hosts, slice, impact, groups, \
             priority, depends_on, exclusive, pending_timeout, timeout, output_limit, lost_after, retry, runner, \
             sync, rerun, cleanup",
        ),
        (json!({"retry": {"maximum": 1}}), "unknown key `retry.maximum`: the keys are max, on, unconfirmed"),
        (
            json!({"a\nb": 1, "kind": "job"}),
            "unknown key `a\\nb`: the keys are kind, name, key, labels, forks, hosts, slice, impact, groups, \
             priority, depends_on, exclusive, pending_timeout, timeout, output_limit, lost_after, retry, runner, \
             sync, rerun, cleanup",
        ),
        (
            json!({"groups": {"lunch": []}}),
            "unknown key `groups.lunch`: the keys are launch, template, inventory, organization, prevent_fallback",
        ),
        (
            json!({"kind": "task"}),
            "kind: it must be one of job, ad_hoc, inventory_update, project_update, project_sync, system, health, cleanup",
        ),
        (json!({"kind": "health"}), "kind: jobs of kind health are made by the controller"),
        (json!({"name": ""}), "name: it must be a text of 1 to 512 characters without control characters"),
        (
            json!({"name": "a\u{1b}[2J"}),
            "name: it must be a text of 1 to 512 characters without control characters",
        ),
        (
            json!({"key": "k".repeat(256)}),
            "key: it must be a text of 1 to 255 characters without control characters",
        ),
        (json!({"labels": {"a": 1}}), "labels.a: it is not a string"),
        (
            json!({"labels": {"a": "\n"}}),
            "labels: a value may be empty, else it must be a text of 1 to 512 characters without control characters",
        ),
        (
            json!({"exclusive": [""]}),
            "exclusive: a word: it must be a text of 1 to 255 characters without control characters",
        ),
        (
            json!({"labels": {"": "a"}}),
            "labels: a name: it must be a text of 1 to 255 characters without control characters",
        ),
        (json!({"labels": []}), "labels: it is not a map"),
        (json!({"forks": -1}), "forks: it must be a whole number from 0 to 2147483647"),
        (json!({"forks": "5"}), "forks: it must be a whole number from 0 to 2147483647"),
        (json!({"forks": 1.5}), "forks: it must be a whole number from 0 to 2147483647"),
        (json!({"slice": 3}), "slice: it is not an array of length 2"),
        (json!({"slice": [4, 3]}), "slice: it must be [number, count]: number from 1 to count"),
        (json!({"slice": [1]}), "slice: it is not an array of length 2"),
        (json!({"slice": [0, 3]}), "slice: it must be [number, count]: number from 1 to count"),
        (json!({"groups": {"template": "east"}}), "groups.template: it is not a sequence"),
        (json!({"groups": {"template": ["a", 5]}}), "groups.template[1]: it is not a string"),
        (
            json!({"groups": {"prevent_fallback": ["default"]}}),
            "groups: prevent_fallback: it must be a list of template, inventory, organization",
        ),
        (json!({"priority": 101}), "priority: it must be a whole number from -100 to 100"),
        (json!({"depends_on": [0]}), "depends_on[0]: an entry must be a job's number or {\"key\": KEY}"),
        (json!({"depends_on": ["a"]}), "depends_on[0]: an entry must be a job's number or {\"key\": KEY}"),
        (json!({"depends_on": [{}]}), "depends_on[0]: an entry must be a job's number or {\"key\": KEY}"),
        (json!({"key": "a", "depends_on": [{"key": "a"}]}), "depends_on: a job cannot depend on its own key"),
        (json!({"exclusive": vec!["a"; 17]}), "exclusive: it must be a list of at most 16"),
        (json!({"timeout": "0s"}), "timeout: it must be a duration above zero, as in 1.5h, 30m or 30m10s"),
        (
            json!({"pending_timeout": 5}),
            "pending_timeout: it must be a duration above zero, as in 1.5h, 30m or 30m10s",
        ),
        (
            json!({"lost_after": "3 days"}),
            "lost_after: it must be a duration above zero, as in 1.5h, 30m or 30m10s",
        ),
        (json!({"retry": {"max": 11}}), "retry.max: it must be a whole number from 0 to 10"),
        (json!({"retry": {"on": ["canceled"]}}), "retry.on[0]: it must be one of lost, error, failed"),
        (json!({"retry": 3}), "retry: it is not an object"),
        (json!({"runner": {"image": "--privileged"}}), "runner.image: it is not the name of an image"),
        (json!({"runner": {"pull": "newer"}}), "runner.pull: it must be one of always, missing, never"),
        (
            json!({"runner": {"registry": "../x"}}),
            "runner.registry: a credential's name must have 1 to 63 lower-case letters, digits, dashes and dots, \
             and must begin and end with a letter or digit",
        ),
        (json!({"runner": {"keepalive": 0}}), "runner.keepalive: it must be a whole number from 1 to 86400"),
        (json!({"sync": {}}), "sync.url: it is missing"),
        (
            json!({"sync": {"url": "git@git.example:a"}}),
            "sync.url: write it as https://HOST/PATH, ssh://USER@HOST/PATH or file:///PATH",
        ),
        (
            json!({"sync": {"url": "--upload-pack=x"}}),
            "sync.url: write it as https://HOST/PATH, ssh://USER@HOST/PATH or file:///PATH",
        ),
        (
            json!({"sync": {"url": "http://h/a"}}),
            "sync.url: the URL of a repository must begin with https, ssh or file",
        ),
        (
            json!({"sync": {"url": "https://u:p@h/a"}}),
            "sync.url: it holds a password: put it into a credential",
        ),
        (
            json!({"sync": {"url": "https://token@h/a"}}),
            "sync.url: it holds a user name: put it into a credential",
        ),
        (
            json!({"sync": {"url": "https://h/a", "revision": "--exec=x"}}),
            "sync.revision: it is not a branch, tag or commit",
        ),
        (json!({"rerun": "yes"}), "rerun: it is not a boolean"),
    ] {
        assert_eq!(refusal(keys), text);
    }
    let labels: serde_json::Map<_, _> = (0..33).map(|i| (i.to_string(), json!("a"))).collect();
    assert_eq!(refusal(json!({"labels": labels})), "labels: there may be at most 32");
    // Few characters with many bytes.
    let labels = |n: usize| json!({"controller": 1, "labels": {"a": "\u{10348}".repeat(512), "b": "\u{10348}".repeat(n)}});
    let why = "labels: together they may have at most 4096 bytes, but these have 4098";
    assert_eq!(refusal(labels(512)), why);
    assert!(parse(labels(511)).is_ok());
    for version in
        [json!({}), json!({"controller": 2}), json!({"controller": "1"}), json!({"controller": null})]
    {
        assert_eq!(parse(version).unwrap_err(), "controller: this node understands version 1 only");
    }
    for text in ["", "[]", "null", "{", "{\"controller\": 1} x", "\u{0}"] {
        assert_eq!(Header::parse(text.as_bytes()), Err(HeaderFault::NotAnObject), "{text}");
    }
}

#[test]
fn what_runs_on_the_control_node_needs_admin_rights() {
    for (keys, admin) in [
        (json!({"controller": 1, "kind": "project_update"}), true),
        (json!({"controller": 1, "kind": "system"}), true),
        (json!({"controller": 1, "sync": {"url": "file:///srv/git/a"}}), true),
        (json!({"controller": 1, "kind": "inventory_update", "sync": {"url": "https://h/a"}}), false),
    ] {
        assert_eq!(parse(keys.clone()).unwrap().needs_admin().is_some(), admin, "{keys}");
    }
}

fn text() -> impl Strategy<Value = String> {
    "[a-zäß0-9 ._-]{1,20}"
}

fn credential() -> impl Strategy<Value = Option<String>> {
    proptest::option::of("[a-z][a-z0-9-]{0,8}[a-z]")
}

prop_compose! {
    fn placing()(
        name in proptest::option::of(text()),
        key in proptest::option::of(text()),
        labels in proptest::collection::btree_map(text(), text(), 0..4),
        forks in proptest::option::of(0u32..1000),
        slice in proptest::option::of((1u32..5).prop_flat_map(|count| (1..=count, Just(count)))),
        launch in proptest::collection::vec(text(), 0..3),
        prevent in proptest::collection::vec(prop::sample::select(vec!["template", "inventory"]), 0..2),
        priority in -100i8..=100,
        needs in proptest::collection::vec(1i64..1000, 0..3),
        words in proptest::collection::vec(text(), 0..3),
    ) -> serde_json::Map<String, Value> {
        let value = json!({
            "controller": 1, "name": name, "key": key, "labels": labels, "forks": forks,
            "slice": slice.map(|(number, count)| [number, count]),
            "groups": {"launch": launch, "prevent_fallback": prevent}, "priority": priority,
            "depends_on": needs, "exclusive": words,
        });
        value.as_object().unwrap().clone()
    }
}

prop_compose! {
    fn headers()(
        mut map in placing(),
        millis in proptest::option::of(1u64..1_000_000_000),
        max in 0u32..=10,
        on in proptest::collection::btree_set(prop::sample::select(vec!["lost", "error", "failed"]), 0..3),
        flags in any::<(bool, bool, bool)>(),
        registry in credential(),
        pull in proptest::option::of(prop::sample::select(vec!["always", "missing", "never"])),
        revision in proptest::option::of("[a-z][a-z0-9/]{0,10}"),
        sync in any::<bool>(),
    ) -> Value {
        let span = millis.map(|millis| crate::duration::print(Duration::from_millis(millis)));
        map.insert("timeout".into(), json!(span));
        map.insert("retry".into(), json!({"max": max, "on": on, "unconfirmed": flags.0}));
        map.insert("rerun".into(), json!(flags.1));
        map.insert("cleanup".into(), json!(flags.2));
        map.insert("runner".into(), json!({"registry": registry, "pull": pull, "options": ["-v=/a:/b"]}));
        if sync {
            map.insert("sync".into(), json!({"url": "https://h/a", "revision": revision}));
        }
        Value::Object(map)
    }
}

proptest! {
    /// The store gives back what was submitted.
    #[test]
    fn a_header_survives_its_own_text(value in headers()) {
        let header = Header::parse(value.to_string().as_bytes()).unwrap();
        prop_assert_eq!(&Header::parse(header.to_string().as_bytes()).unwrap(), &header);
    }

    #[test]
    fn one_key_too_many_is_refused_by_name(value in headers(), key in "[a-z]{3,8}x_") {
        let mut value = value;
        value[&key] = json!(1);
        let fault = Header::parse(value.to_string().as_bytes()).unwrap_err().to_string();
        let wanted = format!("unknown key `{key}`: ");
        prop_assert!(fault.starts_with(&wanted), "{}", fault);
    }

    #[test]
    fn no_bytes_do_harm(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Err(fault) = Header::parse(&bytes) {
            prop_assert!(!fault.to_string().is_empty());
        }
    }
}
