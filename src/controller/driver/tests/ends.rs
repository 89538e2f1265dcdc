//! How a job ends: its stream decides first, then its unit, and neither overrides a saved cancel.

use super::streams::{artifacts, begun, events, failed, status, whole};
use super::*;
use crate::controller::core::AttemptNo;
use crate::rpc::UnitState;
use crate::work::Leftovers;
use serde_json::json;

/// A child that ends, and what its job then shows. In texts, U stands for the unit.
struct Row {
    output: Vec<u8>,
    end: ChildEnd,
    detail: &'static str,
    state: JobState,
    explanation: String,
}

fn row(output: Vec<u8>, end: ChildEnd, detail: &'static str, state: JobState, explanation: &str) -> Row {
    Row { output, end, detail, state, explanation: explanation.into() }
}

fn rows() -> Vec<Row> {
    use ChildEnd::{Canceled, Failed, Succeeded};
    let told = |status: &str| [begun(), events(1, 3), status.as_bytes().to_vec(), artifacts(10)].concat();
    let error = "{\"status\": \"error\", \"job_explanation\": \"no such image\"}\n";
    let traceback = format!("{}\nthe very end\n", "x".repeat(3000));
    let tail = format!("{}\nthe very end", "x".repeat(1000 - "\nthe very end\n".len()));
    let tail =
        format!("the runner on e1 ended without a final status: exit status 1; its output ends: {tail}");
    vec![
        row(whole(3, "successful"), Succeeded, "exit status 0", JobState::Successful, "Finished"),
        row(whole(3, "successful"), Failed, "exit status 1", JobState::Successful, "Finished"),
        row(
            whole(3, "failed"),
            Succeeded,
            "exit status 0",
            JobState::Failed,
            "the playbook failed on e1",
        ),
        row(
            [
                begun(),
                b"{\"counter\": 1, \"uuid\": \"u\", \"event\": \"verbose\", \"stdout\": \"no such program: podman\"}\n".to_vec(),
                status("failed"),
                artifacts(10),
            ]
            .concat(),
            Succeeded,
            "exit status 0",
            JobState::Failed,
            "the playbook never began on e1: no such program: podman",
        ),
        row(whole(0, "timeout"), Succeeded, "exit status 0", JobState::Failed, "timed out on e1"),
        row(
            told(error),
            Failed,
            "exit status 1",
            JobState::Error,
            "the runner reported an error on e1: no such image",
        ),
        row(
            whole(1, "canceled"),
            Failed,
            "exit status 254",
            JobState::Failed,
            "the runner was interrupted on e1, and nobody cancelled the job",
        ),
        row(
            [status("running"), b"Traceback\n  no module\n".to_vec()].concat(),
            Failed,
            "exit status 1",
            JobState::Error,
            "the runner on e1 ended without a final status: exit status 1; its output ends: Traceback\n  no module",
        ),
        row(traceback.into_bytes(), Failed, "exit status 1", JobState::Error, &tail),
        row(
            Vec::new(),
            Failed,
            "cannot start ansible-runner: No such file or directory",
            JobState::Error,
            "the runner on e1 ended without a final status: cannot start ansible-runner: No such file or directory",
        ),
        row(
            [begun(), b"{\"counter\": 1, \"uu".to_vec()].concat(),
            Canceled,
            "Canceled",
            JobState::Error,
            "its unit was cancelled on e1",
        ),
    ]
}

#[test]
fn what_went_wrong_is_kept_with_the_job_for_its_latest_attempt() {
    let site = Site::ready(&["e1"]);
    let told = |task: &str| [begun(), failed(1, task), status("failed"), artifacts(10)].concat();
    let (_, job) = site.submit(json!({"retry": {"max": 2, "on": ["failed"]}}));
    let mut last = None;
    for (output, end) in [(told("Install"), ChildEnd::Failed), (told("Start"), ChildEnd::Failed)] {
        site.until("another attempt", || {
            site.fabric.running(job.0).is_some_and(|next| Some(&next) != last.as_ref())
        });
        let child = site.running(job);
        site.fabric.write(&child, &output);
        site.fabric.end(&child, end, "exit status 0");
        last = Some(child);
    }
    site.until("the last attempt", || {
        site.fabric.running(job.0).is_some_and(|next| Some(&next) != last.as_ref())
    });
    let child = site.running(job);
    site.fabric.write(&child, &[begun(), failed(1, "Check"), status("failed")].concat());
    let line = "1 of 2 hosts failed: web1: Check: non-zero return code";
    site.until("it to be known before the end", || {
        site.job(job).failure.is_some_and(|found| found.line == line)
    });
    site.fabric.write(&child, &artifacts(10));
    site.fabric.end(&child, ChildEnd::Failed, "exit status 0");
    let ended = site.ended(job);
    assert_eq!((ended.row.state, ended.row.explanation.as_str()), (JobState::Failed, line));
    assert_eq!(ended.failure.unwrap().tasks[0].offset, begun().len() as u64);

    let (_, job) = site.submit(json!({"retry": {"max": 1, "on": ["failed"]}}));
    let child = site.running(job);
    site.fabric.write(&child, &told("Install"));
    site.fabric.end(&child, ChildEnd::Failed, "exit status 0");
    site.until("another attempt", || site.fabric.running(job.0).is_some_and(|next| next != child));
    let child = site.running(job);
    site.fabric.write(&child, &whole(1, "successful"));
    site.fabric.end(&child, ChildEnd::Succeeded, "exit status 0");
    assert_eq!(site.ended(job).failure, None, "it went well in the end");
}

#[test]
fn the_stream_decides_then_the_unit() {
    let site = Site::ready(&["e1"]);
    for Row { output, end, detail, state, explanation } in rows() {
        let (unit, job) = site.submit(json!({}));
        let child = site.running(job);
        let running = format!("Running on e1, unit {child}");
        site.soon("its unit to say so", || site.unit(&unit).unwrap().detail == running);
        let input = site.fabric.look(|units| units.there[&child].input.clone());
        assert_eq!(
            input, b"{\"kwargs\":{\"ident\":\"x\"}}\n{\"eof\":true}\n",
            "the stream without the header"
        );
        site.fabric.write(&child, &output);
        site.fabric.end(&child, end, detail);
        let ended = site.ended(job);
        let explanation = explanation.replace('U', &child);
        assert_eq!((ended.row.state, ended.row.explanation.as_str()), (state, explanation.as_str()));
        assert_eq!(site.output(&unit), output, "{explanation}");
        let shown = site.unit(&unit).unwrap();
        let wanted = if state == JobState::Successful { UnitState::Succeeded } else { UnitState::Failed };
        assert_eq!((shown.state, shown.detail), (wanted, explanation));
        assert_eq!(site.fabric.left(), [""; 0], "its child is released");
    }
}

#[test]
fn a_unit_that_is_released_after_the_end_stays_away_while_the_child_is_still_there() {
    let mut site = Site::ready(&["e1"]);
    let (unit, job) = site.submit(json!({}));
    let child = site.running(job);
    site.fabric.change(|units| units.keeps_released = true);
    site.fabric.write(&child, &whole(1, "successful"));
    site.fabric.end(&child, ChildEnd::Succeeded, "exit status 0");
    site.soon("its unit's end", || site.unit(&unit).unwrap().state == UnitState::Succeeded);
    site.release_unit(&unit);
    for _ in 0..2 {
        site.pass(seconds(30));
        assert_eq!(site.units(), [""; 0], "of the job");
        site.kill();
        site.boot();
    }
    site.fabric.change(|units| units.keeps_released = false);
    site.soon("its child to go", || site.fabric.left().is_empty());
}

#[test]
fn an_end_is_shown_though_its_attempt_ended_before_it_heard_of_its_own_loss() {
    let site = Site::ready(&["e1"]);
    let (unit, job) = site.submit(json!({}));
    let child = site.running(job);
    site.fabric.write(&child, &whole(1, "successful"));
    site.soon("its output", || !site.output(&unit).is_empty());
    // Does what a loss does before the task hears of it.
    site.driver().publisher.published.await_output((job, AttemptNo(1)));
    site.fabric.end(&child, ChildEnd::Succeeded, "exit status 0");
    site.soon("its unit's end", || site.unit(&unit).unwrap().state == UnitState::Succeeded);
}

#[test]
fn a_release_that_waits_for_the_end_of_a_job_is_done_after_a_restart_too() {
    let mut site = Site::ready(&["e1"]);
    let (unit, job) = site.submit(json!({}));
    site.running(job);
    site.fabric.set_routed("e1", false);
    let (registry, name) = (site.service().registry.clone(), unit.clone());
    let mut asked = None;
    site.run(async {
        asked = Some(tokio::spawn(async move { registry.release_child(&name, Leftovers::Stay).await }))
    });
    let asked = asked.unwrap();
    site.until("the answer", || asked.is_finished());
    assert_eq!(site.run(asked).unwrap().unwrap(), crate::work::Outcome::Pending);
    site.kill();
    site.boot();
    site.pass(seconds(1));
    assert_eq!(site.units(), [unit], "while its job has not ended");
    site.fabric.set_routed("e1", true);
    assert_eq!(site.ended(job).row.state, JobState::Canceled);
    site.soon("the unit to go", || site.units().is_empty());
    site.kill();
    site.boot();
    assert_eq!(site.units(), [""; 0]);
}

#[test]
fn a_child_that_a_stranger_releases_is_an_error() {
    let site = Site::ready(&["e1"]);
    let (_, job) = site.submit(json!({}));
    let child = site.running(job);
    site.fabric.change(|units| units.there.remove(&child));
    let ended = site.ended(job);
    let wanted = "its unit on e1 is gone: it was released there, or the node was installed again";
    assert_eq!((ended.row.state, ended.row.explanation.as_str()), (JobState::Error, wanted));
}

#[test]
fn a_quota_is_waited_for() {
    let site = Site::ready(&["e1"]);
    let (_, job) = site.submit(json!({}));
    let child = site.running(job);
    site.fabric.end(&child, ChildEnd::Failed, "pods \"x\" is forbidden: exceeded quota: compute");
    site.soon("it to wait", || site.state(job) == JobState::Pending);
    assert!(site.explanation(job).contains("exceeded quota: compute"), "{}", site.explanation(job));
    let passed = site.until("it to be tried again", || site.state(job) == JobState::Running);
    assert!(passed >= seconds(29) && passed <= seconds(41), "{passed:?}");
    let child = site.fabric.running(job.0).unwrap();
    site.fabric.write(&child, &whole(1, "successful"));
    site.fabric.end(&child, ChildEnd::Succeeded, "exit status 0");
    assert_eq!(site.ended(job).row.state, JobState::Successful);
}

#[test]
fn a_cancel_counts_from_the_moment_at_which_it_is_saved() {
    let site = Site::ready(&["e1"]);
    // Cancelled while pending.
    site.operate(json!({"op": "pause"}));
    let (unit, job) = site.submit(json!({}));
    site.cancel_unit(&unit);
    assert_eq!(site.state(job), JobState::Canceled);
    site.soon("its unit to say so", || site.unit(&unit).unwrap().state == UnitState::Canceled);
    site.operate(json!({"op": "resume"}));
    // Cancelled on the way to a node that does not answer: the job never starts.
    let (unit, job) = site.submit(json!({}));
    site.fabric.set_routed("e1", false);
    site.until("it to wait", || {
        matches!(site.state(job), JobState::Waiting | JobState::Pending | JobState::Running)
    });
    site.cancel_unit(&unit);
    let before = site.fabric.look(|units| units.started.len());
    site.fabric.set_routed("e1", true);
    assert_eq!(site.ended(job).row.state, JobState::Canceled);
    let after = site.fabric.look(|units| {
        let new = &units.started[before..];
        new.iter().filter(|unit| crate::controller::core::ChildId::parse(unit).is_some()).count()
    });
    assert_eq!(after, 0, "nothing starts after a saved cancel");
    // Cancelled while running, just as the playbook succeeds.
    site.until("e1 to be back", || site.instance("e1").instance.node_state == NodeState::Ready);
    let (unit, job) = site.submit(json!({"retry": {"max": 3, "on": ["lost", "failed", "error"]}}));
    let child = site.running(job);
    site.fabric.set_routed("e1", false);
    site.cancel_unit(&unit);
    assert!(site.job(job).row.cancel_requested);
    site.fabric.write(&child, &whole(1, "successful"));
    site.fabric.end(&child, ChildEnd::Succeeded, "exit status 0");
    site.fabric.set_routed("e1", true);
    let ended = site.ended(job);
    assert_eq!((ended.row.state, ended.job.attempts.len()), (JobState::Canceled, 1));
    assert_eq!(site.unit(&unit).unwrap().state, UnitState::Canceled);
    assert_eq!(site.fabric.left(), [""; 0]);
}

#[test]
fn a_cancel_that_could_not_be_passed_on_is_asked_for_again() {
    let site = Site::ready(&["e1"]);
    let (unit, job) = site.submit(json!({}));
    let child = site.running(job);
    site.fabric.change(|units| units.cancel_failures = 2);
    site.cancel_unit(&unit);
    site.soon("the first failure", || site.fabric.look(|units| units.cancel_failures == 1));
    assert_eq!(site.running(job), child);
    site.pass(seconds(10));
    assert_eq!(site.fabric.running(job.0), None);
    assert_eq!(site.ended(job).row.state, JobState::Canceled);
    assert_eq!(site.unit(&unit).unwrap().state, UnitState::Canceled);
}

#[test]
fn a_short_job_ran_from_when_its_node_had_it_though_the_store_hears_of_that_at_its_end() {
    let site = Site::ready(&["e1"]);
    let (unit, job) = site.submit(json!({}));
    site.until("it to be sent", || site.fabric.running(job.0).is_some());
    let child = site.fabric.running(job.0).unwrap();
    site.pass(Duration::from_millis(50));
    assert_eq!(site.state(job), JobState::Waiting, "it may end within the next moment");
    site.fabric.write(&child, &whole(2, "successful"));
    site.fabric.end(&child, ChildEnd::Succeeded, "exit status 0");
    let ended = site.ended(job);
    let attempt = &ended.job.attempts[0];
    let (started, ended) = (attempt.started.unwrap(), attempt.ended.unwrap());
    assert!(ended.since(started) >= Duration::from_millis(50), "{started:?} {ended:?}");
    assert_eq!(site.output(&unit), whole(2, "successful"));
}

#[test]
fn a_job_whose_control_node_ends_before_the_store_has_heard_that_it_runs_is_followed() {
    let mut site = Site::ready(&["e1"]);
    let (unit, job) = site.submit(json!({}));
    site.until("it to be sent", || site.fabric.running(job.0).is_some());
    let child = site.fabric.running(job.0).unwrap();
    assert_eq!(site.state(job), JobState::Waiting);
    site.kill();
    site.boot();
    assert_eq!(site.running(job), child);
    site.fabric.write(&child, &whole(2, "successful"));
    site.fabric.end(&child, ChildEnd::Succeeded, "exit status 0");
    site.ended(job);
    assert_eq!(site.output(&unit), whole(2, "successful"));
    let is_run = |unit: &&String| crate::controller::core::ChildId::parse(unit).is_some();
    assert_eq!(site.fabric.look(|units| units.started.iter().filter(is_run).count()), 1);
}

#[test]
fn a_unit_that_has_lost_the_number_of_its_job_finds_it_by_its_own_id() {
    let mut site = Site::ready(&["e1"]);
    site.operate(json!({"op": "instance.disable", "name": "e1"}));
    let unit = site.submit_bytes(&super::site::stream(json!({"name": "one"}))).unwrap();
    site.kill();
    let text = std::fs::read_to_string(site.directory(&unit).join("status")).unwrap();
    assert!(!text.contains("\"JobID\""), "{text}");
    site.boot();
    site.until("its number", || site.unit(&unit).unwrap().extra_data["JobID"].is_number());
    assert_eq!(site.jobs().len(), 1);
    assert_eq!(site.unit(&unit).unwrap().extra_data["JobID"], site.jobs()[0].row.id.0);
}
