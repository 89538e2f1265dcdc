use serde_json::{Value, json};

use super::super::*;
use super::recorded;

fn failure(stream: &[u8]) -> Option<FailureReport> {
    let mut output = WorkerOutput::default();
    stream.chunks(97).for_each(|part| output.push(part));
    output.failure()
}

fn event(name: &str, data: &Value) -> String {
    format!("{}\n", json!({"uuid": "u", "counter": 1, "event": name, "event_data": data}))
}

fn failed(host: &str, task: &str, res: Value) -> String {
    event("runner_on_failed", &json!({"host": host, "task": task, "res": res}))
}

fn unreachable(host: &str, task: &str) -> String {
    event(
        "runner_on_unreachable",
        &json!({"host": host, "task": task, "res": {"msg": "no route", "unreachable": true}}),
    )
}

/// The recap of a play on `hosts` hosts, of which those here failed or were not reached.
fn recap(hosts: usize, failures: &[&str], dark: &[&str]) -> String {
    let list = |names: &[&str]| {
        names.iter().map(|name| ((*name).to_owned(), json!(1))).collect::<serde_json::Map<_, _>>()
    };
    let others: Vec<String> = (0..hosts).map(|n| format!("h{n}")).collect();
    let mut all: Vec<&str> = failures.iter().chain(dark).copied().collect();
    let others =
        others.iter().map(String::as_str).filter(|one| !failures.contains(one) && !dark.contains(one));
    all.extend(others.take(hosts - failures.len() - dark.len()));
    event(
        "playbook_on_stats",
        &json!({"failures": list(failures), "dark": list(dark), "ok": list(&all), "processed": list(&all)}),
    )
}

fn line(stream: &str) -> String {
    failure(stream.as_bytes()).unwrap().line
}

#[test]
fn recorded_failures_are_told_with_their_place() {
    let stream = recorded("failed.out");
    let report = failure(&stream).unwrap();
    assert_eq!(report.line, "1 of 2 hosts failed: b: fail: no");
    let [task] = &report.tasks[..] else { panic!("{report:?}") };
    assert_eq!((task.hosts.as_slice(), task.count, task.unreachable), (&["b".to_owned()][..], 1, false));
    let there = &stream[task.offset as usize..];
    assert!(there.starts_with(b"{\"uuid\": \"9b145f75-03c6-46e3-848d-4ce3b3e1fa33\""));
    assert!(failure(&recorded("unreachable.out")).unwrap().line.ends_with(" unreachable"));
    assert_eq!(failure(&recorded("ok.out")), None);
}

#[test]
fn a_line_names_the_first_task_the_most_frequent_one_and_who_was_out_of_reach() {
    let code = || json!({"msg": "non-zero return code", "rc": 1, "stderr": ""});
    let configure = "Configure the application server";
    let example = [
        failed("web2", configure, code()),
        unreachable("db2", "Gathering Facts"),
        failed("web5", configure, code()),
        unreachable("db2", "a later play"),
        recap(8, &["web2", "web5"], &["db2"]),
    ];
    let expected = "3 of 8 hosts failed: web2, web5: Configure the application server: non-zero return code; db2 unreachable";
    assert_eq!(line(&example.concat()), expected);
    let cut_off = &example[..3];
    assert_eq!(line(&cut_off.concat()), expected.strip_prefix("3 of 8 hosts failed: ").unwrap());
    let many: String = (0..7).map(|n| failed(&format!("w{n}"), "Second", code())).collect();
    let more = failed("a", "First", json!({"msg": "no"})) + &many + &failed("b", "Third", json!({}));
    assert_eq!(line(&more), "a: First: no; w0, w1, w2 and 4 more: Second: non-zero return code; 1 more");
}

#[test]
fn what_the_playbook_survived_is_no_failure() {
    let ignored = event(
        "runner_on_failed",
        &json!({"host": "a", "task": "t", "ignore_errors": true, "res": {"msg": "no"}}),
    );
    assert_eq!(failure(ignored.as_bytes()), None);
    let no = || json!({"msg": "no"});
    let rescued = [
        failed("h0", "Try", no()),
        failed("b", "Try", no()),
        failed("b", "Rescue", no()),
        recap(2, &["b"], &[]),
    ];
    assert_eq!(line(&rescued.concat()), "1 of 2 hosts failed: b: Rescue: no");
    // However many hosts there are, and however often they were rescued.
    let each = |task: &str| (0..300).map(|n| failed(&format!("h{n}"), task, no())).collect::<String>();
    let tries: String = (0..30).map(|n| each(&format!("Try {n}"))).collect();
    let names: Vec<String> = (0..300).map(|n| format!("h{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let in_the_end = tries + &each("Install") + &recap(300, &names[..200], &[]);
    let report = failure(in_the_end.as_bytes()).unwrap();
    let [task] = &report.tasks[..] else { panic!("{report:?}") };
    assert_eq!((task.task.as_str(), task.count, report.others), ("Install", 200, 0));
    assert_eq!(report.line, "200 of 300 hosts failed: h0, h1, h2 and 197 more: Install: no");
    let all_rescued = failed("h0", "Try", no()) + &recap(1, &[], &[]);
    assert_eq!(failure(all_rescued.as_bytes()), None);
    let successful = failed("a", "Try", no()) + "{\"status\": \"successful\"}\n";
    assert_eq!(failure(successful.as_bytes()), None);
}

#[test]
fn a_message_is_what_a_person_reads_first() {
    for (res, message) in [
        (
            json!({"msg": "non-zero return code", "stderr": "first\ncat: /x: No such file\n"}),
            "non-zero return code: cat: /x: No such file",
        ),
        (
            json!({"msg": "MODULE FAILURE\nSee stdout", "module_stderr": "Traceback\nKeyError: 'a'"}),
            "MODULE FAILURE: KeyError: 'a'",
        ),
        (json!({"msg": "it said no", "stderr": "no"}), "it said no"),
        (json!({"censored": "hidden", "msg": "secret"}), "hidden by no_log"),
        (
            json!({"msg": "One or more items failed", "results": [{"msg": "fine"}, {"failed": true, "msg": "disk full"}]}),
            "disk full",
        ),
        (
            json!({"msg": "One or more items failed", "results": [{"failed": true, "censored": "x", "msg": "secret"}]}),
            "hidden by no_log",
        ),
        (json!({"msg": "odd", "results": 7, "stderr": ["a"]}), "odd"),
        (json!({"msg": ["a", "list"], "rc": 3}), ""),
        (json!({"msg": "\u{1b}]0;x\u{7}red"}), "\u{fffd}]0;x\u{fffd}red"),
        (json!("no object"), ""),
    ] {
        let report = failure(failed("h", "t", res.clone()).as_bytes()).unwrap();
        assert_eq!(report.tasks[0].message, message, "{res}");
    }
}

#[test]
fn whatever_fails_only_a_little_is_kept_of_it() {
    let long = "\u{e9}".repeat(4000);
    let events: String = (0..40)
        .flat_map(|task| (0..30).map(move |host| (task, host)))
        .map(|(task, host)| {
            let res = json!({"msg": long, "stderr": long});
            failed(&format!("{task}-{host}{long}"), &format!("{task}{long}"), res)
        })
        .collect();
    let report = failure(events.as_bytes()).unwrap();
    assert!(serde_json::to_string(&report).unwrap().len() <= 2048);
    assert!(
        !report.tasks.is_empty()
            && report.tasks.iter().all(|task| task.count == 30 && task.hosts.len() <= 10)
    );
    assert_eq!(report.others + 30 * report.tasks.len() as u64, 40 * 30);
    let short: String =
        (0..40).map(|n| failed(&format!("h{n}"), &format!("task {n}"), json!({"msg": "no"}))).collect();
    let report = failure(short.as_bytes()).unwrap();
    assert_eq!((report.tasks.len(), report.others), (20, 20));
}
