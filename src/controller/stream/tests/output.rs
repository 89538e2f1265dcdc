use std::io::Cursor;

use proptest::prelude::*;
use serde_json::json;

use super::super::*;
use super::{recorded, zip};
use crate::controller::core::{ChildEnd, Ending, FinalStatus, JobKind, judge};

fn read(stream: &[u8], chunk: usize) -> WorkerOutput {
    let mut output = WorkerOutput::default();
    stream.chunks(chunk).for_each(|part| output.push(part));
    output.finish();
    output
}

fn exit_code(stream: &[u8], output: &WorkerOutput) -> Option<i32> {
    output.zip()?.exit_code(&mut Cursor::new(stream))
}

fn has_failed(stats: &HostStats) -> bool {
    stats.failures > 0 || stats.dark > 0
}

fn stats(output: &WorkerOutput, host: &str) -> HostStats {
    output.recap().unwrap().hosts[host]
}

#[test]
fn recorded_streams_tell_how_they_ended() {
    for (name, status, last, events, code, ending) in [
        ("ok.out", Some(FinalStatus::Successful), "successful", 8, Some(0), Ending::Successful),
        ("failed.out", Some(FinalStatus::Failed), "failed", 8, Some(2), Ending::Failed),
        ("unreachable.out", Some(FinalStatus::Failed), "failed", 6, Some(4), Ending::Failed),
        ("timeout.out", Some(FinalStatus::Timeout), "timeout", 4, Some(254), Ending::Failed),
        ("canceled.out", Some(FinalStatus::Canceled), "canceled", 5, Some(254), Ending::Failed),
        ("error.out", Some(FinalStatus::Error), "error", 0, None, Ending::Error),
    ] {
        let stream = recorded(name);
        for chunk in [1, 7, 1000, stream.len()] {
            let output = read(&stream, chunk);
            assert_eq!(output.final_status(), status, "{name}");
            assert_eq!(output.last_status(), Some(last), "{name}");
            assert_eq!((output.events(), exit_code(&stream, &output)), (events, code), "{name}");
            assert!(output.has_ended());
            assert_eq!(output.position(), stream.len() as u64);
            // Everything but the end line is whole.
            assert_eq!(&stream[output.whole() as usize..], b"{\"eof\": true}\n", "{name}");
            let evidence = output.evidence(ChildEnd::Failed, "exit status 2".to_owned());
            assert_eq!(evidence.tail, "");
            let verdict = judge(JobKind::Job, false, &evidence, None);
            assert_eq!(verdict.ending, ending, "{name}");
        }
    }
}

#[test]
fn the_recap_is_counted_per_host() {
    let one = HostStats { ok: 1, ..HostStats::default() };
    let output = read(&recorded("ok.out"), 512);
    assert_eq!(
        (output.recap().unwrap().counts.hosts, stats(&output, "a"), stats(&output, "b")),
        (2, one, one)
    );
    let output = read(&recorded("failed.out"), 512);
    assert_eq!(stats(&output, "a"), HostStats { skipped: 1, ..HostStats::default() });
    assert_eq!(stats(&output, "b"), HostStats { failures: 1, ..HostStats::default() });
    assert!(has_failed(&stats(&output, "b")) && !has_failed(&stats(&output, "a")));
    let output = read(&recorded("unreachable.out"), 512);
    assert_eq!(stats(&output, "a"), HostStats { dark: 1, ..HostStats::default() });
    assert!(has_failed(&stats(&output, "a")));
    assert_eq!(read(&recorded("timeout.out"), 512).recap(), None);
}

#[test]
fn of_a_recap_with_many_hosts_some_are_kept_and_all_are_counted() {
    let name = |at: usize| format!("h{at:06}");
    let list = |hosts: std::ops::Range<usize>| -> serde_json::Map<String, serde_json::Value> {
        hosts.map(|at| (name(at), json!(1))).collect()
    };
    let of = |lists: serde_json::Value| {
        let event = json!({"event": "playbook_on_stats", "counter": 1, "uuid": "a", "event_data": lists});
        read(format!("{event}\n").as_bytes(), 65_536).recap().unwrap().clone()
    };
    // The failed hosts come last by name, and their lists before or after those of all hosts.
    let recap =
        of(json!({"processed": list(0..150_000), "ok": list(0..150_000), "failures": list(149_900..149_990),
        "dark": list(149_980..150_000), "skipped": {}, "more": {"x": [1, {}]}}));
    let counts = RecapCounts { hosts: 150_000, failed: 90, unreachable: 20, left_out: 0 };
    assert_eq!((recap.counts, recap.hosts.len()), (counts, MOST_HOSTS));
    assert_eq!(recap.hosts.values().filter(|stats| has_failed(stats)).count(), 100);
    let both = HostStats { ok: 1, failures: 1, dark: 1, ..HostStats::default() };
    assert_eq!((recap.hosts[&name(149_985)], recap.hosts[&name(0)].ok), (both, 1));
    // More hosts failed than are kept.
    let recap =
        of(json!({"dark": list(0..12_000), "failures": list(11_000..12_000), "processed": list(0..12_000)}));
    assert_eq!(
        (recap.counts.hosts, recap.counts.unreachable, recap.hosts.len()),
        (12_000, 12_000, MOST_HOSTS)
    );
    assert!(recap.counts.left_out >= 2_000 && recap.hosts.values().all(has_failed));
    let exactly = of(json!({"dark": list(0..MOST_HOSTS)}));
    assert_eq!((exactly.counts.hosts, exactly.counts.left_out), (MOST_HOSTS as u64, 0));
    // A list without numbers is no recap.
    let event =
        json!({"event": "playbook_on_stats", "counter": 1, "uuid": "a", "event_data": {"ok": {"a": "b"}}});
    assert_eq!(read(format!("{event}\n").as_bytes(), 100).recap(), None);
}

#[test]
fn a_traceback_is_kept_for_the_explanation() {
    let output = read(&recorded("exception.out"), 100);
    assert_eq!((output.final_status(), output.last_status(), output.has_ended()), (None, None, false));
    let evidence = output.evidence(ChildEnd::Failed, "exit status 1".to_owned());
    assert!(evidence.tail.ends_with("got an unexpected keyword argument 'nonsense'"), "{}", evidence.tail);
    assert!(evidence.tail.len() <= 1_000 && evidence.tail.len() > 500);
    let verdict = judge(JobKind::Job, false, &evidence, None);
    assert!(verdict.explanation.contains("'nonsense'"));

    let mut output = read(b"one\n{\"status\": \"running\"}\n\x1b[31mtwo\xff\nthree", 3);
    output.finish();
    assert_eq!(output.last_status(), Some("running"));
    let tail = output.evidence(ChildEnd::Failed, String::new()).tail;
    assert!(tail.starts_with("one\n\u{fffd}[31mtwo\u{fffd}\nthree"), "{tail:?}");
}

#[test]
fn an_output_is_whole_at_lines_and_zips_only() {
    let stream = recorded("failed.out");
    let zip_line = stream.windows(11).position(|window| window == b"{\"zipfile\":").unwrap();
    let end_line = stream.len() - b"{\"eof\": true}\n".len();
    let mut output = WorkerOutput::default();
    for (at, byte) in stream.iter().enumerate() {
        output.push(&[*byte]);
        let whole = output.whole() as usize;
        let read = at + 1;
        if read <= zip_line {
            let line_end = stream[..read].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            assert_eq!(whole, line_end);
        } else if read < end_line {
            assert_eq!(whole, zip_line, "at {read}");
        } else {
            assert_eq!(whole, end_line, "at {read}");
        }
    }
}

#[test]
fn a_cut_output_that_is_closed_and_continued_reads_to_the_end() {
    let lost = recorded("failed.out");
    for cut in (0..lost.len()).step_by(97) {
        let first = read(&lost[..cut], 64);
        let whole = &lost[..first.whole() as usize];
        let line = lost_line("attempt 1 was lost with e1");
        let joined = [whole, line.as_bytes(), &recorded("ok.out")].concat();
        let output = read(&joined, 64);
        assert_eq!(output.final_status(), Some(FinalStatus::Successful));
        assert_eq!(output.evidence(ChildEnd::Succeeded, String::new()).tail, "", "cut at {cut}");
        assert!(output.has_ended());
        assert_eq!(exit_code(&joined, &output), Some(0));
    }
}

#[test]
fn nothing_behind_a_damaged_zip_is_whole() {
    let stream = [zip(300)[..100].to_vec(), b"Killed {\n{\"status\": \"failed\"}\n".to_vec()].concat();
    let output = read(&stream, 10);
    assert_eq!(output.whole(), 0);
    assert_eq!(output.final_status(), Some(FinalStatus::Failed));
}

#[test]
fn long_lines_are_passed_over() {
    let long = [b"{\"event\": \"".to_vec(), vec![b'x'; 5 << 20], b"\"}\n".to_vec()].concat();
    let stream = [&long, b"{\"status\": \"successful\"}\n".as_slice()].concat();
    let output = read(&stream, 1 << 16);
    assert_eq!(output.events(), 0);
    assert_eq!(output.final_status(), Some(FinalStatus::Successful));
    assert_eq!(output.whole(), stream.len() as u64);
    assert_eq!(output.evidence(ChildEnd::Failed, String::new()).tail, "");
}

#[test]
fn lines_of_other_runners_do_no_harm() {
    for (line, events, last) in [
        (r#"{"event": "keepalive", "counter": 0, "uuid": 0}"#, 0, None),
        (r#"{"event": "verbose", "counter": 1, "uuid": "a", "stdout": "x", "new": [1]}"#, 1, None),
        (r#"{"event": "verbose", "counter": 0, "uuid": "a"}"#, 0, None),
        (r#"{"event": "verbose", "uuid": "a"}"#, 0, None),
        (r#"{"counter": 3, "uuid": "a"}"#, 1, None),
        (
            r#"{"event": "playbook_on_stats", "counter": 1, "uuid": "a", "event_data": {"ok": {"h": -1}}}"#,
            1,
            None,
        ),
        (r#"{"status": "weird", "event": "verbose"}"#, 0, Some("weird")),
        (
            r#"{"status": "sssssssssssssssssssssssssssssssssssssssssss"}"#,
            0,
            Some("ssssssssssssssssssssssssssssssss"),
        ),
        ("{}", 0, None),
    ] {
        let output = read(format!("{line}\n").as_bytes(), 5);
        assert_eq!((output.events(), output.last_status()), (events, last), "{line}");
        assert_eq!(output.final_status(), None);
        assert_eq!(output.evidence(ChildEnd::Failed, String::new()).tail, "", "{line}");
    }
}

#[test]
fn what_a_node_writes_is_fit_for_every_store() {
    let long = "h".repeat(10_000);
    let recap = json!({"event": "playbook_on_stats", "counter": 1, "uuid": "a",
        "event_data": {"ok": {"a\0b": 1, &long: 2}, "processed": {"c\u{1b}[31m": 1}}});
    let end = json!({"status": "error", "job_explanation": format!("a\0b{}", "x".repeat(10_000))});
    let output = read(format!("{recap}\n{end}\n").as_bytes(), 100);
    let hosts: Vec<&str> = output.recap().unwrap().hosts.keys().map(String::as_str).collect();
    assert_eq!(hosts, ["a\u{fffd}b", "c\u{fffd}[31m", &long[..255]]);
    let explanation = output.final_explanation().unwrap();
    assert!(explanation.starts_with("a\u{fffd}bx") && explanation.len() <= 1_000);
    let status = read(b"{\"status\": \"a\\u0000b\"}\n", 100);
    assert_eq!(status.last_status(), Some("a\u{fffd}b"));
    for (output, detail) in [(&output, ""), (&status, "exit\0\u{1b}"), (&status, "exceeded quota\0")] {
        let detail = format!("{detail}{}", "y".repeat(10_000));
        let verdict = judge(JobKind::Job, false, &output.evidence(ChildEnd::Failed, detail), None);
        assert!(!verdict.explanation.contains(char::is_control), "{:?}", verdict.explanation);
        assert!(verdict.explanation.len() < 6_000);
    }
}

proptest! {
    /// Splitting a stream does not change what is read from it, and damage breaks nothing.
    #[test]
    fn splitting_changes_nothing(
        name in prop::sample::select(vec!["ok.out", "failed.out", "exception.out"]),
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        chunk in 1usize..5_000,
    ) {
        let mut stream = recorded(name);
        for (at, byte) in edits {
            let at = at.index(stream.len());
            stream[at] = byte;
        }
        let (whole, parts) = (read(&stream, stream.len()), read(&stream, chunk));
        prop_assert_eq!(format!("{:?}", parts.evidence(ChildEnd::Failed, String::new())),
            format!("{:?}", whole.evidence(ChildEnd::Failed, String::new())));
        prop_assert_eq!((parts.whole(), parts.events(), parts.zip()), (whole.whole(), whole.events(), whole.zip()));
        let _whatever = exit_code(&stream, &whole);
        prop_assert!(parts.whole() <= stream.len() as u64);
    }
}
