//! The output of a job: byte for byte its child's. If a retry may follow, `ansible-runner process` can read all of it.

use super::streams::{artifacts, begun, events, exit_code, process, recap, status, whole};
use super::*;
use crate::controller::core::{AttemptNo, JobId};
use crate::controller::driver::output::AttemptOutput;
use crate::controller::store::Kept;
use crate::work::{Caller, WorkError};
use serde_json::json;
use std::path::PathBuf;

#[test]
fn an_attempt_that_breaks_off_at_any_byte_leaves_whole_lines_and_zips() {
    let site = Site::ready(&["e1"]);
    let first = whole(3, "failed");
    let cuts = (0..first.len()).step_by(first.len() / 24).chain([first.len() - 1, first.len()]);
    for cut in cuts {
        let (unit, job) = site.submit(json!({"retry": {"max": 1, "on": ["error", "failed"]}}));
        let child = site.running(job);
        site.fabric.write(&child, &first[..cut]);
        site.fabric.end(&child, ChildEnd::Failed, "killed");
        site.until("another attempt", || site.fabric.running(job.0).is_some_and(|next| next != child));
        let next = site.running(job);
        site.fabric.write(&next, &whole(2, "successful"));
        site.fabric.end(&next, ChildEnd::Succeeded, "exit status 0");
        let ended = site.ended(job);
        assert_eq!((ended.row.state, ended.row.attempt, ended.row.events), (JobState::Successful, 2, 3));
        let output = site.output(&unit);
        let (statuses, counters, end) = process(&output);
        assert_eq!(end, "eof", "cut at {cut}: {}", String::from_utf8_lossy(&output));
        assert!(output.ends_with(&whole(2, "successful")), "cut at {cut}");
        assert!(counters.ends_with(&[1, 2, 3]), "cut at {cut}: {counters:?}");
        let told = statuses.iter().rev().nth(3).map(String::as_str);
        assert_eq!(told, (cut > 53).then_some("error"), "cut at {cut}: {statuses:?}");
    }
}

#[test]
fn what_a_runner_would_not_write_stays_out_before_a_retry() {
    let site = Site::ready(&["e1"]);
    let (unit, job) = site.submit(json!({"retry": {"max": 1, "on": ["error"]}}));
    let child = site.running(job);
    let lines = [begun(), events(1, 1), b"Traceback\n  no module\n".to_vec(), events(2, 2)].concat();
    site.fabric.write(&child, &lines);
    site.fabric.end(&child, ChildEnd::Failed, "exit status 1");
    site.until("another attempt", || site.fabric.running(job.0).is_some_and(|next| next != child));
    let next = site.running(job);
    site.fabric.write(&next, &lines);
    site.fabric.end(&next, ChildEnd::Failed, "exit status 1");
    let ended = site.ended(job);
    assert_eq!((ended.row.state, ended.row.attempt), (JobState::Error, 2));
    assert!(ended.row.explanation.ends_with("its output ends: Traceback\n  no module"));
    let (statuses, counters, end) = process(&site.output(&unit));
    assert_eq!(statuses, ["starting", "running", "error", "starting", "running", "error"]);
    assert_eq!((counters, end), (vec![1, 1], "empty"), "it reads to the end");
    // If the end line is there, the output is exactly what the worker wrote, even with odd lines in it.
    let (unit, job) = site.submit(json!({"retry": {"max": 1}}));
    let child = site.running(job);
    let odd = [b"a warning\n".to_vec(), whole(2, "successful")].concat();
    site.fabric.write(&child, &odd);
    site.fabric.end(&child, ChildEnd::Succeeded, "exit status 0");
    site.ended(job);
    assert_eq!(site.output(&unit), odd);
}

#[test]
fn the_last_attempt_that_is_lost_ends_with_a_status() {
    let site = Site::ready(&["e1"]);
    let (unit, job) = site.submit(json!({"retry": {"max": 1, "on": ["error"]}}));
    let child = site.running(job);
    site.fabric.write(&child, &[begun(), events(1, 2), b"{\"half".to_vec()].concat());
    site.settle();
    site.fabric.set_routed("e1", false);
    site.until("its loss", || site.state(job) == JobState::Failed);
    let closed = [
        begun(),
        events(1, 2),
        b"{\"status\":\"error\",\"job_explanation\":\"e1 was lost while it ran attempt 1\"}\n".to_vec(),
    ]
    .concat();
    assert_eq!(String::from_utf8_lossy(&site.output(&unit)), String::from_utf8_lossy(&closed));
    site.until("its unit's end", || site.unit(&unit).unwrap().state as u8 == 3);
    site.fabric.write(&child, b"way\": 1}\n");
    site.fabric.set_routed("e1", true);
    site.until("its child to go", || site.fabric.left().is_empty());
    assert_eq!(site.output(&unit), closed);
}

#[test]
fn an_attempt_that_begins_late_takes_nothing_from_the_one_after_it() {
    let site = Site::ready(&["e1"]);
    let (unit, job) = site.submit(json!({"retry": {"max": 1, "on": ["error"]}}));
    let child = site.running(job);
    let before = site.job(job).job;
    site.fabric.end(&child, ChildEnd::Failed, "exit status 1");
    site.until("another attempt", || site.fabric.running(job.0).is_some_and(|next| next != child));
    let next = site.running(job);
    site.fabric.write(&next, &begun());
    site.until("its output", || site.output(&unit) == begun());
    let driver = site.driver().clone();
    let late = super::super::output::begin(
        &driver.store,
        driver.publisher.first_unit(job),
        &before,
        AttemptNo(1),
        "",
    );
    assert!(site.run(late).unwrap().is_none());
    site.fabric.write(&next, &whole(2, "successful")[begun().len()..]);
    site.fabric.end(&next, ChildEnd::Succeeded, "exit status 0");
    assert_eq!(site.ended(job).row.state, JobState::Successful);
    assert_eq!(site.output(&unit), whole(2, "successful"));
}

#[test]
fn an_attempt_that_was_declared_lost_while_its_end_was_written_leaves_no_end_line() {
    let site = Site::ready(&["e1"]);
    let (unit, job) = site.submit(json!({"retry": {"max": 1}}));
    site.running(job);
    site.run(async {
        let driver = site.driver();
        let (store, row) = (&driver.store, driver.store.job(job).await.unwrap());
        let begin = async |n: u32, words: &str| {
            let first = driver.publisher.first_unit(job);
            AttemptOutput::begin(store, first, &row, AttemptNo(n), words).await.unwrap()
        };
        let mut output = begin(1, "").await;
        output.push(whole(2, "successful").into()).await.unwrap();
        output.write_held(true).await.unwrap();
        begin(2, "attempt 1 on e1 did not come to its end").await;
    });
    let (statuses, counters, end) = process(&site.output(&unit));
    assert_eq!(statuses.last().map(String::as_str), Some("error"));
    assert_eq!((counters, end), (vec![1, 2, 3], "empty"), "it reads on to the next attempt");
}

#[test]
fn a_zip_that_is_too_large_to_wait_in_memory_is_whole_all_the_same() {
    let site = Site::ready(&["e1"]);
    let (unit, job) = site.submit(json!({"retry": {"max": 1}}));
    let child = site.running(job);
    let big = [begun(), events(1, 1), status("successful"), exit_code("0", 5 << 20)].concat();
    let (first, rest) = big.split_at(big.len() - 100);
    site.fabric.write(&child, first);
    site.settle();
    site.fabric.write(&child, rest);
    site.fabric.end(&child, ChildEnd::Succeeded, "exit status 0");
    assert_eq!(site.ended(job).row.rc, Some(0));
    assert!(site.output(&unit) == big);
}

#[test]
fn the_exit_code_is_that_of_the_attempt_that_counts() {
    let mut site = Site::ready(&["e1"]);
    let (_, job) = site.submit(json!({"retry": {"max": 1, "on": ["failed"]}}));
    let child = site.running(job);
    let all = |end: &str, code: &str| [begun(), events(1, 3), status(end), exit_code(code, 900)].concat();
    site.fabric.write(&child, &all("failed", "2"));
    site.pass(seconds(2));
    assert_eq!(site.job(job).row.rc, Some(2), "it is there before the unit's end");
    site.fabric.end(&child, ChildEnd::Failed, "exit status 2");
    site.until("another attempt", || site.fabric.running(job.0).is_some_and(|next| next != child));
    assert_eq!(site.job(job).row.rc, None);
    let next = site.running(job);
    let stream = all("successful", "0");
    let (first, rest) = stream.split_at(stream.len() - 300);
    site.fabric.write(&next, first);
    site.settle();
    // The next process reads what the former one wrote.
    site.kill();
    site.boot();
    site.fabric.write(&next, rest);
    site.fabric.end(&next, ChildEnd::Succeeded, "exit status 0");
    assert_eq!(site.ended(job).row.rc, Some(0));
}

#[test]
fn a_silent_job_is_counted_to_its_last_event() {
    let mut site = Site::ready(&["e1"]);
    let (_, job) = site.submit(json!({}));
    let child = site.running(job);
    let counted = |site: &Site| site.job(job).row.events;
    site.fabric.write(&child, &[begun(), events(1, 4)].concat());
    site.settle();
    site.fabric.write(&child, &events(5, 7));
    site.pass(seconds(2));
    assert_eq!(counted(&site), 7, "nothing came since");
    // The next process counts what came just before the end of the former one.
    site.fabric.write(&child, &events(8, 9));
    site.settle();
    site.kill();
    site.boot();
    let passed = site.until("the last ones to be counted", || counted(&site) == 9);
    assert!(passed <= seconds(2), "{passed:?}");
}

#[test]
fn a_restart_counts_nothing_twice() {
    for header in [json!({}), json!({"retry": {"max": 1}})] {
        let mut site = Site::ready(&["e1"]);
        let (unit, job) = site.submit(header);
        let child = site.running(job);
        let all = [begun(), events(1, 6), recap(7, 5), status("successful"), artifacts(3000)].concat();
        let parts = all.len() / 5;
        for (at, part) in all.chunks(parts).enumerate() {
            site.fabric.write(&child, part);
            site.settle();
            if at == 2 {
                site.pass(seconds(2));
            }
            site.kill();
            site.boot();
        }
        site.fabric.end(&child, ChildEnd::Succeeded, "exit status 0");
        let ended = site.ended(job);
        assert_eq!(
            (ended.row.state, ended.row.events, ended.job.attempts.len()),
            (JobState::Successful, 7, 1)
        );
        let recap = site.run(site.driver().store.recap(job, 0, 9)).unwrap();
        assert_eq!((recap.hosts.len(), recap.hosts[0].1.ok), (1, 5));
        assert_eq!(ended.output_bytes, all.len() as u64);
        assert!(site.output(&unit) == all, "{}", String::from_utf8_lossy(&site.output(&unit)));
    }
}

#[test]
fn a_second_unit_of_a_job_shows_the_same() {
    let site = Site::ready(&["e1"]);
    let (first, job) = site.submit(json!({"key": "ci-1"}));
    let (second, again) = site.submit(json!({"key": "ci-1"}));
    assert_eq!(job, again);
    let child = site.running(job);
    site.fabric.write(&child, &whole(2, "failed"));
    site.fabric.end(&child, ChildEnd::Succeeded, "exit status 0");
    site.ended(job);
    let (third, after) = site.submit(json!({"key": "ci-1"}));
    assert_eq!(job, after);
    for unit in [first, second, third] {
        site.until("its end", || site.unit(&unit).unwrap().detail.contains("the playbook failed"));
        assert!(site.output(&unit) == whole(2, "failed"), "{unit}");
        let extra = site.service().registry.job_unit(&unit).unwrap().extra();
        assert_eq!((extra.output_attempt, extra.output_starts.get(&1)), (1, Some(&0)), "{unit}");
    }
}

/// A job whose first output waits as on a full disk. Each write fails, and is tried again each second, until the link
/// to nowhere is removed. Returns the job, its unit, its child and the link.
fn waiting_for_its_disk(site: &Site) -> (String, JobId, String, PathBuf) {
    let (unit, job) = site.submit(json!({"retry": {"max": 1}}));
    let child = site.running(job);
    let blocked = site.directory(&unit).join("stdout");
    std::os::unix::fs::symlink("/nowhere/at/all", &blocked).unwrap();
    site.fabric.write(&child, &[begun(), events(1, 3)].concat());
    site.until("the disk to refuse", || site.unit(&unit).unwrap().detail.contains("stdout"));
    (unit, job, child, blocked)
}

#[test]
fn what_waits_for_a_disk_is_not_written_into_the_output_of_the_next_attempt() {
    let site = Site::ready(&["e1", "e2"]);
    let (unit, job, child, blocked) = waiting_for_its_disk(&site);
    site.declare_dead(&site.fabric.look(|units| units.there[&child].node.clone()));
    let next = site.running(job);
    std::fs::remove_file(&blocked).unwrap();
    let all = whole(9, "successful");
    let (first, rest) = all.split_at(all.len() / 2);
    site.fabric.write(&next, first);
    site.pass(seconds(3));
    site.fabric.write(&next, rest);
    site.fabric.end(&next, ChildEnd::Succeeded, "exit status 0");
    assert_eq!(site.ended(job).row.state, JobState::Successful);
    assert_eq!(String::from_utf8_lossy(&site.output(&unit)), String::from_utf8_lossy(&all));
}

#[test]
fn a_cancel_is_passed_on_while_the_output_waits_for_its_disk() {
    let site = Site::ready(&["e1"]);
    let (unit, job, child, blocked) = waiting_for_its_disk(&site);
    site.cancel_unit(&unit);
    site.until("the child to be cancelled", || site.fabric.running(job.0).is_none());
    assert!(site.fabric.look(|units| units.there[&child].end.is_some()));
    std::fs::remove_file(&blocked).unwrap();
    assert_eq!(site.ended(job).row.state, JobState::Canceled);
    assert!(site.output(&unit).starts_with(&[begun(), events(1, 3)].concat()));
}

#[test]
fn a_line_that_a_kill_cut_is_not_in_the_way_of_the_next_attempt() {
    let mut site = Site::ready(&["e1", "e2"]);
    let (unit, job) = site.submit(json!({"retry": {"max": 1}}));
    let child = site.running(job);
    let node = site.fabric.look(|units| units.there[&child].node.clone());
    site.fabric.write(&child, &[begun(), events(1, 3)].concat());
    site.until("its output", || site.output(&unit).ends_with(&events(3, 3)));
    site.kill();
    let stdout = site.directory(&unit).join("stdout");
    std::fs::write(&stdout, [begun(), events(1, 2), b"{\"counter\": 3, ".to_vec()].concat()).unwrap();
    site.fabric.set_routed(&node, false);
    site.fabric.end(&child, ChildEnd::Failed, "its machine died");
    site.boot();
    site.declare_dead(&node);
    let next = site.running(job);
    site.fabric.write(&next, &whole(2, "successful"));
    site.fabric.end(&next, ChildEnd::Succeeded, "exit status 0");
    site.soon("the unit's end", || site.unit(&unit).unwrap().detail == "Finished");
    let output = site.output(&unit);
    let (statuses, counters, end) = process(&output);
    assert_eq!(end, "eof", "{}", String::from_utf8_lossy(&output));
    assert_eq!((counters, statuses[2].as_str()), (vec![1, 2, 1, 2, 3], "error"));
    assert!(output.ends_with(&whole(2, "successful")));
}

#[test]
fn a_kill_before_it_is_noted_who_has_the_output_loses_nothing_of_it() {
    let mut site = Site::ready(&["e1"]);
    let (unit, job) = site.submit(json!({}));
    let child = site.running(job);
    let noted = |site: &Site| {
        let holders = site.job(job).holders;
        holders
            .iter()
            .any(|(node, held, kept)| node.as_str() == OWN && *held == unit && *kept == Kept::Output)
    };
    // As if the store had lost its notes with its last commits: the unit still belongs to the job.
    for kept in [&Kept::ALL[1..], &Kept::ALL] {
        site.run(site.driver().store.let_go_unit(OWN.into(), unit.clone(), kept)).unwrap();
        assert!(!noted(&site));
        site.kill();
        site.boot();
        site.until("it to be noted", || noted(&site));
    }
    site.fabric.write(&child, &whole(2, "successful"));
    site.fabric.end(&child, ChildEnd::Succeeded, "exit status 0");
    assert_eq!(site.ended(job).row.state, JobState::Successful);
    assert!(noted(&site));
    assert_eq!(site.output(&unit), whole(2, "successful"));
}

#[test]
fn of_two_writers_of_the_same_attempt_the_later_one_alone_writes() {
    let site = Site::ready(&["e1"]);
    let (_, job) = site.submit(json!({}));
    let unit = site.run(site.driver().base.children.adopt_job(job)).unwrap();
    site.run(async {
        let first = unit.write_output(1).await.unwrap();
        first.append("first, ".into()).await;
        let second = unit.write_output(1).await.unwrap();
        first.append("late, ".into()).await;
        first.cut(0).await.unwrap();
        second.append("second".into()).await;
    });
    assert_eq!(String::from_utf8_lossy(&site.output(unit.id().as_str())), "first, second");
}

#[test]
fn who_has_read_what_is_cut_off_gets_nothing_of_what_takes_its_place() {
    let site = Site::ready(&["e1"]);
    let (_, job) = site.submit(json!({}));
    let unit = site.run(site.driver().base.children.adopt_job(job)).unwrap();
    let registry = site.registry();
    site.run(async {
        let reader = || async { registry.results(unit.id().as_str(), 0, &Caller::local()).await.unwrap() };
        let (mut early, mut late) = (reader().await, reader().await);
        let output = unit.write_output(1).await.unwrap();
        output.append("kept, lost, ".into()).await;
        assert_eq!(early.next().await.unwrap().unwrap(), "kept, lost, ");
        output.cut(6).await.unwrap();
        output.append("written instead".into()).await;
        assert!(matches!(early.next().await, Err(WorkError::OutputReplaced { read: 12, .. })));
        assert_eq!(late.next().await.unwrap().unwrap(), "kept, written instead");
        // Nobody has read what is cut off here.
        output.append(", and more".into()).await;
        output.cut(21).await.unwrap();
        output.append(", and other words".into()).await;
        assert_eq!(late.next().await.unwrap().unwrap(), ", and other words");
    });
}

#[test]
fn output_that_was_read_to_its_end_line_is_whole_though_its_unit_is_gone_then() {
    let site = Site::ready(&["e1"]);
    for (retries, output, explanation) in [
        (0, whole(2, "successful"), "Finished"),
        (1, whole(2, "successful"), "Finished"),
        (1, [begun(), status("successful")].concat(), "Finished; the end of its output is missing"),
    ] {
        let (unit, job) = site.submit(json!({"retry": {"max": retries}}));
        let child = site.running(job);
        site.fabric.write(&child, &output);
        site.settle();
        site.fabric.change(|units| units.there.remove(&child));
        let ended = site.ended(job);
        assert_eq!((ended.row.state, ended.row.attempt), (JobState::Successful, 1));
        assert!(ended.row.explanation.starts_with(explanation), "{}", ended.row.explanation);
        assert_eq!(ended.row.explanation == "Finished", explanation == "Finished");
        let shown = site.output(&unit);
        assert_eq!(String::from_utf8_lossy(&shown), String::from_utf8_lossy(&output), "{retries}");
        if explanation == "Finished" {
            assert_eq!(ended.row.events, 3, "{retries}");
        }
    }
}
