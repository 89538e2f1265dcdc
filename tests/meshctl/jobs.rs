//! meshctl's verbs on jobs against a scripted node: what it sends, what it prints, and its exit code.

use std::fs;
use std::io::Read;
use std::time::Duration;

use crate::fake_node::{FakeNode, Step, asked, greeted, hear, say};
use crate::{CREATED, STARTED, interrupt, spawned};
use assert_cmd::Command;
use serde_json::{Value, json};

const SUBMIT: &str = r#"{"command":"work","subcommand":"submit","node":"localhost","worktype":"controller","header":"{\"controller\":1,\"name\":\"site.yml\"}"}"#;
const EVENT: &str = "{\"counter\":1,\"uuid\":\"u1\",\"event\":\"x\",\"stdout\":\"ok: [a]\"}\n";
const RECAP: &str =
    "{\"counter\":2,\"uuid\":\"u2\",\"event\":\"playbook_on_stats\",\"stdout\":\"PLAY RECAP\"}\n";

/// Runs meshctl, which reads nothing, against a script; returns exit code, standard output and standard error.
fn run(conversations: Vec<Vec<Step>>, args: &[&str]) -> (i32, String, String) {
    crate::run(conversations, args, b"")
}

/// The question of an operation, and its answer.
fn operation(op: &str, arguments: Value, result: Value) -> Vec<Step> {
    asked(&question(op, arguments), &json!({"ok": true, "result": result}).to_string())
}

fn question(op: &str, mut arguments: Value) -> String {
    let fields = arguments.as_object_mut().unwrap();
    // What is as usual is not said.
    fields.retain(|key, value| key != "from" || *value != 0);
    fields.insert("op".to_owned(), json!(op));
    fields.insert("command".to_owned(), json!("controller"));
    arguments.to_string()
}

/// The output of job 7 from a byte on, until the node closes the connection.
fn output(from: usize, text: &str) -> Vec<Step> {
    let asked = question("job.output", json!({"id": 7, "from": from, "follow": true}));
    let answer = json!({"ok": true, "result": {"id": 7, "from": from, "size": 0}});
    greeted([hear(&asked), say(&format!("{answer}\n")), say(text)])
}

fn job(state: &str, more: Value) -> Vec<Step> {
    let mut job = json!({"id": 7, "state": state, "rc": 0, "explanation": "", "host_stats": {}});
    job.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    operation("job.get", json!({"id": 7}), job)
}

/// The submission of a job that becomes number 7.
fn submitted() -> [Vec<Step>; 2] {
    let status = r#"{"State":0,"Detail":"","StdoutSize":0,"WorkType":"controller","ExtraData":{"JobID":7}}"#;
    [
        greeted([hear(SUBMIT), say(CREATED), Step::WaitForClose, say(STARTED)]),
        asked("work status abcd1234", status),
    ]
}

fn project() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("site.yml"), "[]").unwrap();
    folder
}

#[test]
fn a_job_is_followed_over_a_lost_connection_and_ends_us_as_its_playbook() {
    let folder = project();
    let text = format!("{EVENT}{RECAP}");
    let size =
        json!({"rc": 2, "output_bytes": text.len(), "execution_node": "e1", "explanation": "2 hosts failed"});
    let mut script = submitted().to_vec();
    script.extend([
        output(0, &text[..30]),
        job("running", json!({})),
        output(30, &text[30..60]),
        // It has ended, and not all came.
        job("failed", size.clone()),
        output(60, &text[60..]),
        job("failed", size.clone()),
        job("failed", size),
    ]);
    let (code, out, err) = run(script, &["job", "run", folder.path().to_str().unwrap(), "-p", "site.yml"]);
    assert_eq!((code, out.as_str()), (2, "ok: [a]\nPLAY RECAP\n"), "{err}");
    assert_eq!(err, "Job 7\nJob 7 failed on e1: 2 hosts failed\n");
}

#[test]
fn without_a_recap_one_is_made_and_artifacts_are_kept() {
    let folder = project();
    let artifacts = folder.path().join("out");
    let counts = json!({"web": {"ok": 3, "changed": 0, "dark": 0, "failures": 0, "skipped": 0, "rescued": 0, "ignored": 0}});
    let end = || job("successful", json!({"host_stats": counts, "output_bytes": EVENT.len()}));
    let mut script = submitted().to_vec();
    script.extend([output(0, EVENT), end(), end()]);
    let args = [
        "job",
        "run",
        folder.path().to_str().unwrap(),
        "-p",
        "site.yml",
        "--artifacts",
        artifacts.to_str().unwrap(),
    ];
    let (code, out, err) = run(script, &args);
    assert_eq!(code, 0, "{err}");
    assert!(out.starts_with("ok: [a]\n\nPLAY RECAP  ok") && out.contains("\nweb         3"), "{out}");
    assert_eq!(fs::read_to_string(artifacts.join("job_events/1-u1.json")).unwrap(), EVENT.trim_end());
    assert_eq!(fs::read_to_string(artifacts.join("status")).unwrap(), "successful");
    assert_eq!(fs::read_to_string(artifacts.join("rc")).unwrap(), "0");
}

#[test]
fn detached_the_number_is_the_output_and_a_refusal_is_101() {
    let folder = project();
    let args = ["job", "run", folder.path().to_str().unwrap(), "-p", "site.yml", "--detach"];
    let (code, out, err) = run(submitted().to_vec(), &args);
    assert_eq!((code, out.as_str(), err.as_str()), (0, "7\n", "Job 7\n"));
    let refused = greeted([
        hear(SUBMIT),
        say(CREATED),
        Step::WaitForClose,
        say("ERROR: controller: there is no group x\n"),
    ]);
    let (code, out, err) = run(vec![refused], &args);
    assert_eq!((code, out.as_str()), (101, ""));
    assert_eq!(err, "meshctl: the node does not accept the job: controller: there is no group x\n");
}

#[test]
fn ctrl_c_cancels_and_a_second_one_leaves() {
    let folder = project();
    let follow = question("job.output", json!({"id": 7, "follow": true}));
    let mut script = submitted().to_vec();
    script.push(greeted([
        hear(&follow),
        say("{\"ok\":true,\"result\":{}}\n{\"status\":\"running\"}\n"),
        Step::Signal,
        Step::HoldOpen,
    ]));
    let mut cancel = operation("job.cancel", json!({"id": 7}), json!({"id": 7}));
    // It closes once it has read the answer.
    cancel.extend([Step::WaitForClose, Step::Signal]);
    script.push(cancel);
    let node = FakeNode::start(script);
    let mut child =
        spawned(&node.socket(), &["job", "run", folder.path().to_str().unwrap(), "-p", "site.yml"]);
    node.wait();
    interrupt(&child);
    node.wait();
    interrupt(&child);
    let mut err = String::new();
    child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{err}");
    assert!(err.contains("cancelling job 7"), "{err}");
    assert!(
        err.contains(
            "job 7 is being cancelled, and ends without meshctl; to see what becomes of it: meshctl"
        ),
        "{err}"
    );
    node.finish();
}

#[test]
fn verbs_send_their_operation() {
    let result = || json!({"name": "x"});
    for (args, op, arguments) in [
        ("job explain 4", "job.explain", json!({"id": 4})),
        ("job rerun 4 --failed-hosts", "job.rerun", json!({"id": 4, "failed_hosts": true})),
        ("job delete 4", "job.delete", json!({"id": 4})),
        ("job confirm-lost 4 --attempt 1", "job.confirm_lost", json!({"id": 4, "attempt": 1})),
        (
            "instance add e1 --type hop",
            "instance.add",
            json!({"name": "e1", "node_type": "hop", "enabled": true}),
        ),
        ("instance health e1 --no-store", "instance.health", json!({"name": "e1", "store": false})),
        (
            "instance set e1 --adjustment 0.5",
            "instance.set",
            json!({"name": "e1", "capacity_adjustment": 0.5}),
        ),
        ("instance remove e1", "instance.remove", json!({"name": "e1"})),
        ("instance remove e1 --dead", "instance.remove", json!({"name": "e1", "dead": true})),
        (
            "group create g --percentage 50 --minimum 1 --list a,b --max-jobs 3 --max-forks 9",
            "group.create",
            json!({"policy_instance_percentage": 50, "policy_instance_minimum": 1, "policy_instance_list": ["a", "b"],
                "max_concurrent_jobs": 3, "max_forks": 9, "name": "g"}),
        ),
        (
            "group set g --container --cluster c --namespace n --registry r",
            "group.set",
            json!({"is_container_group": true, "cluster": "c", "namespace": "n", "registry": "r", "name": "g"}),
        ),
        ("group add g e1", "group.add", json!({"name": "g", "instance": "e1"})),
        ("controller policy --dry-run", "policy.run", json!({"dry_run": true})),
        ("controller backup /tmp/b", "backup", json!({"path": "/tmp/b"})),
        ("controller cleanup", "cleanup", json!({})),
    ] {
        let words: Vec<&str> = ["--json"].into_iter().chain(args.split(' ')).collect();
        let (code, out, err) = run(vec![operation(op, arguments, result())], &words);
        assert_eq!((code, out.as_str()), (0, "{\n  \"name\": \"x\"\n}\n"), "{args}: {err}");
    }
}

#[test]
fn an_action_answers_one_line_in_a_pipe_too() {
    let named = || json!({"name": "e1"});
    for (args, op, arguments, result, line) in [
        ("instance enable e1", "instance.enable", named(), named(), "e1 enabled"),
        ("instance disable e1", "instance.disable", named(), named(), "e1 disabled"),
        (
            "instance remove e1",
            "instance.remove",
            named(),
            json!({"name": "e1", "removed": true}),
            "e1 removed",
        ),
        ("group delete g", "group.delete", json!({"name": "g"}), json!({"name": "g"}), "g deleted"),
        (
            "group add g e1",
            "group.add",
            json!({"name": "g", "instance": "e1"}),
            json!({"name": "g"}),
            "e1 added to g",
        ),
        ("controller pause", "pause", json!({}), json!({"paused": true}), "Paused: no more jobs start"),
        (
            "controller backup /b",
            "backup",
            json!({"path": "/b"}),
            json!({"path": "/b", "bytes": 2048}),
            "/b: 2.0 KiB",
        ),
        (
            "job cancel 4",
            "job.cancel",
            json!({"id": 4}),
            json!({"id": 4, "state": "running", "cancel_requested": true}),
            "Job 4 cancelling",
        ),
        ("job delete 4", "job.delete", json!({"id": 4}), json!({"id": 4, "deleted": true}), "Job 4 deleted"),
        (
            "job confirm-lost 4 --attempt 1",
            "job.confirm_lost",
            json!({"id": 4, "attempt": 1}),
            json!({"id": 4, "state": "pending"}),
            "Job 4 pending: attempt 1 is over",
        ),
    ] {
        let words: Vec<&str> = args.split(' ').collect();
        let script = || vec![operation(op, arguments.clone(), result.clone())];
        let (code, out, err) = run(script(), &words);
        assert_eq!((code, out, err), (0, format!("{line}\n"), String::new()), "{args}");
        let quiet = run(script(), &[words.as_slice(), &["-q"]].concat());
        assert_eq!(quiet, (0, String::new(), String::new()), "{args}");
    }
}

#[test]
fn a_rerun_answers_with_its_number() {
    let script = || vec![operation("job.rerun", json!({"id": 63}), json!({"id": 65, "state": "pending"}))];
    let (code, out, err) = run(script(), &["job", "rerun", "63"]);
    assert_eq!((code, out.as_str(), err.as_str()), (0, "65\n", "Job 65 runs job 63 again\n"));
    let (code, out, err) = run(script(), &["job", "rerun", "63", "--quiet"]);
    assert_eq!((code, out.as_str(), err.as_str()), (0, "65\n", ""));
}

#[test]
fn a_list_is_a_table_of_what_differs_and_fits_a_line() {
    let why = "2 hosts failed, of which one was not there and another one said a lot about it: no space left on device";
    let job = |id: i64, state: &str, why: &str| {
        json!({"id": id, "name": "site.yml", "kind": "job", "state": state, "explanation": why,
            "execution_node": format!("e{id}"), "instance_group": "default", "elapsed": 24.2, "impact": 5,
            "launched_by": "unix:0", "created": jiff::Timestamp::now() - jiff::SignedDuration::from_secs(200)})
    };
    let jobs = json!({"jobs": [job(12, "failed", why), job(3, "successful", "Finished")]});
    let list = |more: &[&str]| {
        let script = vec![operation("job.list", json!({"limit": 50}), jobs.clone())];
        let (code, out, err) = run(script, &[&["job", "list"], more].concat());
        assert_eq!((code, err.as_str()), (0, ""), "{out}");
        out
    };
    let expected = "\
ID  NAME      STATE       WHY                                       NODE  AGE
12  site.yml  failed      2 hosts failed, of which one was not th…  e12   3m ago
3   site.yml  successful                                            e3    3m ago
";
    assert_eq!(list(&[]), expected);
    assert_eq!(list(&["-q"]), "12\n3\n");
    let wide = list(&["-o", "wide"]);
    assert!(wide.contains(why) && wide.contains("default") && wide.contains("IMPACT"), "{wide}");
    let json: Value = serde_json::from_str(&list(&["--json"])).unwrap();
    assert_eq!(json["jobs"][1]["explanation"], "Finished");
}

#[test]
fn an_empty_list_is_no_line_for_programs() {
    let script = vec![operation("job.list", json!({"limit": 50}), json!({"jobs": []}))];
    let (code, out, err) = run(script, &["job", "list"]);
    assert_eq!((code, out.as_str(), err.as_str()), (0, "", "No jobs.\n"));
}

#[test]
fn waiting_ends_with_the_code_of_the_last_failure() {
    let get = |id: i64, state: &str, rc: i64| {
        operation("job.get", json!({"id": id}), json!({"id": id, "state": state, "rc": rc}))
    };
    let script = || vec![get(1, "failed", 4), get(2, "running", 0), get(2, "successful", 0)];
    let (code, out, err) = run(script(), &["job", "wait", "1", "2"]);
    assert_eq!((code, out.as_str()), (4, "Job 1 failed\nJob 2 successful\n"), "{err}");
    let (code, out, err) = run(script(), &["--json", "job", "wait", "1", "2"]);
    assert_eq!(code, 4, "{err}");
    let first = "{\"id\":1,\"state\":\"failed\",\"rc\":4,\"output_lost\":null}\n";
    assert!(out.starts_with(&format!("{first}{{\"id\":2,")), "{out}");
}

#[test]
fn one_refusal_does_not_keep_the_others_from_their_turn() {
    let refused = json!({"ok": false, "error": {"code": "not_found", "message": "there is no job 1"}});
    let script = vec![
        asked(&question("job.cancel", json!({"id": 1})), &refused.to_string()),
        operation("job.cancel", json!({"id": 2}), json!({"id": 2, "state": "canceled"})),
    ];
    let (code, out, err) = run(script, &["job", "cancel", "1", "2"]);
    assert_eq!((code, out.as_str(), err.as_str()), (1, "Job 2 canceled\n", "meshctl: there is no job 1\n"));
}

#[test]
fn a_list_is_filtered_by_states_labels_and_times() {
    let filter = json!({"state": ["failed", "error"], "kind": ["ad_hoc"], "label": {"a": "b", "c": "d"}, "limit": 2,
        "since": "2026-01-31T12:00:00Z"});
    let jobs = json!({"jobs": [{"id": 10, "state": "error"}, {"id": 9, "state": "failed"}], "next": 9});
    let words = "job list --state failed,error --kind ad_hoc --label a=b --label c=d --limit 2 --since 2026-01-31T12:00:00Z";
    let words: Vec<&str> = words.split(' ').collect();
    let (code, out, err) = run(vec![operation("job.list", filter, jobs)], &words);
    assert_eq!((code, out.starts_with("ID  NAME  STATE")), (0, true), "{out}");
    assert_eq!(err, "There are more: --before 9, or a higher --limit\n");
    let (code, out, err) = run(vec![], &["job", "list", "--state", "nonsense"]);
    assert_eq!((code, out.as_str()), (64, ""));
    assert!(err.contains("possible values: pending, waiting, running"), "{err}");
}

#[test]
fn times_are_shown_and_read_in_the_zone_of_the_terminal() {
    for (zone, flag, created, since) in [
        ("Europe/Berlin", None, "2026-01-10T00:30:00+01:00 (", "2026-01-09T23:00:00Z"),
        ("Europe/Berlin", Some("--utc"), "2026-01-09T23:30:00Z (", "2026-01-10T00:00:00Z"),
        ("", None, "2026-01-09T23:30:00Z (", "2026-01-10T00:00:00Z"),
    ] {
        let filter = json!({"limit": 50, "since": since});
        let node = FakeNode::start(vec![
            job("successful", json!({"created": "2026-01-09T23:30:00.5Z"})),
            operation("job.list", filter, json!({"jobs": [], "next": null})),
        ]);
        let run = |words: &[&str]| {
            let mut meshctl = crate::meshctl(&node.socket());
            let output = meshctl.env("TZ", zone).args(flag).args(words).output().unwrap();
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        let shown = run(&["job", "show", "7"]);
        assert!(shown.contains(created), "{shown}");
        run(&["job", "list", "--since", "2026-01-10"]);
        node.finish();
    }
}

#[test]
fn all_jobs_of_a_kind_are_counted_before_something_is_done_to_them() {
    let page = |state: Value, before: Value, ids: &[i64], next: Value| {
        let jobs: Vec<Value> = ids.iter().map(|id| json!({"id": id})).collect();
        let mut filter = json!({"state": state, "limit": 1000, "name": "x"});
        if !before.is_null() {
            filter["before"] = before;
        }
        operation("job.list", filter, json!({"jobs": jobs, "next": next}))
    };
    let going = || json!(["pending", "waiting", "running"]);
    let pages =
        || vec![page(going(), json!(null), &[9, 8], json!(8)), page(going(), json!(8), &[7], json!(null))];
    let (code, out, err) = run(pages(), &["job", "cancel", "--name", "x"]);
    assert_eq!((code, out.as_str()), (64, ""));
    assert_eq!(err, "meshctl: Cancel 3 jobs? Cannot ask here: give --yes\n");
    let cancel = |id: i64| operation("job.cancel", json!({"id": id}), json!({"id": id, "state": "canceled"}));
    let script = [pages(), vec![cancel(9), cancel(8), cancel(7)]].concat();
    let (code, out, err) = run(script, &["job", "cancel", "--name", "x", "--yes"]);
    assert_eq!((code, out.as_str()), (0, "Job 9 canceled\nJob 8 canceled\nJob 7 canceled\n"), "{err}");
    // What is said of states counts.
    let failed = page(json!(["failed"]), json!(null), &[5], json!(null));
    let rerun = operation("job.rerun", json!({"id": 5}), json!({"id": 10}));
    let words = ["job", "rerun", "--name", "x", "--state", "failed", "--yes"];
    let (code, out, _) = run(vec![failed, rerun], &words);
    assert_eq!((code, out.as_str()), (0, "10\n"));
    let none = page(going(), json!(null), &[], json!(null));
    let (code, out, err) = run(vec![none], &["job", "cancel", "--name", "x"]);
    assert_eq!((code, out.as_str(), err.as_str()), (0, "", "No jobs.\n"));
    for words in [&["job", "cancel"][..], &["job", "cancel", "4", "--name", "x"]] {
        assert_eq!(run(vec![], words).0, 64, "{words:?}");
    }
}

#[test]
fn events_are_printed_as_they_come() {
    let asked = question("job.events", json!({"follow": true, "host": "web", "failed": true, "id": 7}));
    for (state, expected) in [("successful", 0), ("running", 69)] {
        let events = [hear(&asked), say("{\"ok\":true,\"result\":{\"id\":7}}\n"), say(EVENT)];
        let after = operation("job.get", json!({"id": 7}), json!({"id": 7, "state": state}));
        let words = ["job", "events", "7", "-f", "--host", "web", "--failed"];
        let (code, out, err) = run(vec![greeted(events), after], &words);
        assert_eq!((code, out.as_str()), (expected, EVENT), "{state}: {err}");
    }
}

#[test]
fn output_that_breaks_off_is_asked_for_again() {
    let part = |from: usize, text: &str| {
        let asked = question("job.output", json!({"id": 7, "from": from}));
        let answer = json!({"ok": true, "result": {"id": 7, "from": from, "size": 9}});
        greeted([hear(&asked), say(&format!("{answer}\n")), say(text)])
    };
    let words = ["job", "output", "7"];
    let (code, out, err) = run(vec![part(0, "abc"), part(3, "defghi")], &words);
    assert_eq!((code, out.as_str()), (0, "abcdefghi"), "{err}");
    let (code, out, err) = run(vec![part(0, "abc"), part(3, "")], &words);
    assert_eq!((code, out.as_str()), (69, "abc"));
    assert_eq!(err, "meshctl: the output is cut off after 3 of 9 bytes\n");
}

/// What bash offers for the last of these words.
fn completed(conversations: Vec<Vec<Step>>, words: &[&str]) -> String {
    let node = FakeNode::start(conversations);
    let output = Command::cargo_bin("meshctl")
        .unwrap()
        .env_clear()
        .env("MESHCTL_COMPLETE", "bash")
        .env("_CLAP_COMPLETE_INDEX", (words.len() - 1).to_string())
        .env("RECEPTORCTL_SOCKET", node.socket())
        .arg("--")
        .args(words)
        .timeout(Duration::from_secs(60))
        .output()
        .unwrap();
    node.finish();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn shells_complete_names_that_the_node_knows() {
    let jobs = json!({"jobs": [{"id": 42, "name": "site"}, {"id": 41, "name": "x"}]});
    let out = completed(vec![operation("job.list", json!({}), jobs)], &["meshctl", "job", "show", ""]);
    assert!(out.starts_with("42\n41"), "{out}");
    let status = r#"{"command":"status","requested_fields":["NodeID","RoutingTable"]}"#;
    let nodes = asked(status, r#"{"NodeID":"control","RoutingTable":{"e1":"hop","e2":"hop","hop":"hop"}}"#);
    assert_eq!(completed(vec![nodes], &["meshctl", "ping", "e"]), "e1\ne2");
    let script = Command::cargo_bin("meshctl").unwrap().args(["completion", "bash"]).output().unwrap();
    assert!(String::from_utf8_lossy(&script.stdout).contains("MESHCTL_COMPLETE"));
}

#[test]
fn shells_complete_states_kinds_playbooks_and_sockets() {
    let folder = project();
    fs::create_dir(folder.path().join("plays")).unwrap();
    let _listener = std::os::unix::net::UnixListener::bind(folder.path().join("s.sock")).unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    for (words, expected) in [
        (vec!["meshctl", "job", "list", "--state", "fail"], "failed".to_owned()),
        (vec!["meshctl", "job", "list", "--state", "failed,err"], "failed,error".to_owned()),
        (vec!["meshctl", "job", "cancel", "--kind", "ad"], "ad_hoc".to_owned()),
        (vec!["meshctl", "job", "run", &at("si")], at("site.yml")),
        (vec!["meshctl", "job", "run", &at("pl")], at("plays/")),
        (vec!["meshctl", "--socket", &at("s")], at("s.sock")),
    ] {
        assert_eq!(completed(vec![], &words), expected, "{words:?}");
    }
}
