//! Losing contact: what a silent node means for its jobs, and what its return does.

use super::streams::{begun, events, process, whole};
use super::*;
use crate::controller::core::JobId;
use serde_json::{Value, json};

/// A job that runs on a node of two, with its unit, its child and that node.
fn on_a_node(site: &Site, header: Value) -> (String, JobId, String, String) {
    let (unit, job) = site.submit(header);
    let child = site.running(job);
    let node = site.fabric.look(|units| units.there[&child].node.clone());
    (unit, job, child, node)
}

fn finish(site: &Site, child: &str) {
    site.fabric.write(child, &whole(2, "successful"));
    site.fabric.end(child, ChildEnd::Succeeded, "exit status 0");
}

fn is_pending_for(site: &Site, job: JobId, words: &str) -> bool {
    site.state(job) == JobState::Pending && site.explanation(job).contains(words)
}

#[test]
fn a_short_silence_is_nothing_but_a_pause() {
    let site = Site::ready(&["e1"]);
    let (unit, job, child, node) = on_a_node(&site, json!({}));
    site.fabric.set_routed(&node, false);
    site.pass(seconds(160));
    assert_eq!(site.state(job), JobState::Running);
    site.fabric.set_routed(&node, true);
    finish(&site, &child);
    site.soon("its end", || site.state(job) == JobState::Successful);
    assert_eq!(site.ended(job).attempts.len(), 1);
    assert_eq!(site.output(&unit), whole(2, "successful"));
}

#[test]
fn without_a_retry_a_lost_node_fails_its_jobs_and_its_return_cleans_up() {
    let site = Site::ready(&["e1"]);
    let (unit, job, child, node) = on_a_node(&site, json!({}));
    site.fabric.write(&child, &begun());
    site.until("its output", || site.output(&unit) == begun());
    site.fabric.set_routed(&node, false);
    let passed = site.until("its loss", || site.state(job) == JobState::Failed);
    assert!(passed >= seconds(180) && passed <= seconds(205), "{passed:?}");
    assert_eq!(site.explanation(job), "e1 was lost while it ran attempt 1");
    assert_eq!(site.output(&unit), begun());
    let lost = site.instance("e1").instance;
    assert_eq!((lost.node_state, lost.capacity()), (NodeState::Unavailable, 0));
    site.fabric.write(&child, b"more that nobody wants\n");
    site.fabric.set_routed(&node, true);
    site.soon("the child to be cancelled and released", || site.fabric.left().is_empty());
    site.until("e1 to be checked and ready", || site.instance("e1").instance.node_state == NodeState::Ready);
    assert_eq!((site.state(job), site.output(&unit)), (JobState::Failed, begun()), "what is final stays");
}

#[test]
fn an_attempt_that_is_still_alive_is_taken_up_at_once_when_its_node_is_seen_again() {
    let site = Site::ready(&["e1", "e2"]);
    let (unit, job, child, node) = on_a_node(&site, json!({"retry": {"max": 1}}));
    site.fabric.write(&child, &[begun(), events(1, 2)].concat());
    site.fabric.set_routed(&node, false);
    let waits = format!("attempt 1 on {node} is lost and may still run");
    site.until("its loss", || is_pending_for(&site, job, &waits));
    site.pass(seconds(600));
    assert!(
        is_pending_for(&site, job, &waits),
        "no other attempt while it may run: {}",
        site.explanation(job)
    );
    assert_eq!(site.unit(&unit).unwrap().detail, site.explanation(job));
    site.fabric.set_routed(&node, true);
    site.soon("it to be followed again", || site.state(job) == JobState::Running);
    assert_eq!(site.explanation(job), format!("Running on {node}, unit {child}"));
    finish(&site, &child);
    let ended = site.ended(job);
    assert_eq!((ended.row.state, ended.attempts.len()), (JobState::Successful, 1));
    assert_eq!(site.output(&unit), [begun(), events(1, 2), whole(2, "successful")].concat());
}

#[test]
fn the_result_of_an_attempt_that_ended_in_silence_counts() {
    let site = Site::ready(&["e1", "e2"]);
    let (unit, job, child, node) = on_a_node(&site, json!({"retry": {"max": 1}}));
    site.fabric.set_routed(&node, false);
    finish(&site, &child);
    site.until("its loss", || site.state(job) == JobState::Pending);
    site.fabric.set_routed(&node, true);
    site.soon("its result", || site.state(job) == JobState::Successful);
    assert_eq!(site.ended(job).attempts.len(), 1);
    assert_eq!(site.output(&unit), whole(2, "successful"));
}

#[test]
fn a_node_that_has_forgotten_the_attempt_lets_another_start() {
    let site = Site::ready(&["e1", "e2"]);
    let (unit, job, child, node) = on_a_node(&site, json!({"retry": {"max": 1}}));
    site.fabric.write(&child, &[begun(), events(1, 2), b"{\"counter\": 3, \"uu".to_vec()].concat());
    site.settle();
    site.fabric.set_routed(&node, false);
    site.until("its loss", || site.state(job) == JobState::Pending);
    site.fabric.change(|units| units.there.remove(&child));
    site.fabric.set_routed(&node, true);
    let next = site.running(job);
    assert_ne!(next, child);
    finish(&site, &next);
    let ended = site.ended(job);
    assert_eq!((ended.row.state, ended.attempts.len()), (JobState::Successful, 2));
    let (statuses, counters, end) = process(&site.output(&unit));
    assert_eq!((end, statuses.last().map(String::as_str)), ("eof", Some("successful")));
    assert_eq!(counters, [1, 2, 1, 2, 3]);
}

#[test]
fn an_operator_declares_a_node_dead() {
    let site = Site::ready(&["e1", "e2"]);
    let (_, again, _, node) = on_a_node(&site, json!({"retry": {"max": 1}}));
    site.fabric.set_routed(&node, false);
    site.until("its loss", || site.state(again) == JobState::Pending);
    site.fabric.change(|units| units.there.retain(|_, running| running.node != node));
    site.declare_dead(&node);
    let next = site.running(again);
    assert_ne!(site.fabric.look(|units| units.there[&next].node.clone()), node);
    site.pass(seconds(60));
    let known = site.instances().iter().any(|one| one.instance.name.as_str() == node);
    assert!(!known, "what is left of its advertisement brings it not back");
    finish(&site, &next);
    let ended = site.ended(again);
    assert_eq!((ended.row.state, ended.row.attempt), (JobState::Successful, 2));
}

#[test]
fn an_unconfirmed_retry_cancels_the_older_attempt_at_first_contact() {
    let site = Site::ready(&["e1", "e2"]);
    let header = json!({"retry": {"max": 1, "unconfirmed": true}, "lost_after": "60s"});
    let (unit, job, child, node) = on_a_node(&site, header);
    site.fabric.write(&child, &begun());
    site.settle();
    site.fabric.set_routed(&node, false);
    let passed = site.until("a second attempt", || {
        site.fabric.look(|units| units.alive(job.0).len()) == 2 && site.state(job) == JobState::Running
    });
    assert!(passed >= seconds(60) && passed <= seconds(100), "lost_after counts: {passed:?}");
    let next = site.fabric.look(|units| units.alive(job.0).into_iter().find(|one| *one != child)).unwrap();
    site.fabric.write(&child, &events(1, 1));
    site.fabric.set_routed(&node, true);
    site.soon("the older one to be cancelled", || {
        site.fabric.look(|units| units.alive(job.0) == [next.clone()])
    });
    finish(&site, &next);
    let ended = site.ended(job);
    assert_eq!((ended.row.state, ended.attempts.len()), (JobState::Successful, 2));
    let (statuses, counters, end) = process(&site.output(&unit));
    assert_eq!((counters, end), (vec![1, 2, 3], "eof"), "{statuses:?}");
    assert_eq!(site.fabric.left(), [""; 0]);
}

#[test]
fn no_attempt_follows_a_saved_cancel() {
    let site = Site::ready(&["e1", "e2"]);
    let (unit, job, _, node) = on_a_node(&site, json!({"retry": {"max": 3}}));
    site.fabric.set_routed(&node, false);
    site.until("its loss", || site.state(job) == JobState::Pending);
    site.cancel_unit(&unit);
    assert_eq!(site.state(job), JobState::Canceled);
    site.pass(seconds(60));
    site.fabric.set_routed(&node, true);
    let ended = site.ended(job);
    assert_eq!((ended.row.state, ended.attempts.len()), (JobState::Canceled, 1));
    assert_eq!(site.fabric.left(), [""; 0]);
}

#[test]
fn a_control_node_that_restarts_does_not_take_a_lost_attempt_for_alive() {
    let mut site = Site::ready(&["e1", "e2"]);
    let (unit, job, child, node) = on_a_node(&site, json!({"retry": {"max": 1}}));
    site.fabric.set_routed(&node, false);
    site.until("its loss", || site.state(job) == JobState::Pending);
    site.kill();
    site.boot();
    site.pass(seconds(30));
    assert_eq!(site.state(job), JobState::Pending);
    site.fabric.set_routed(&node, true);
    site.soon("it to be followed again", || site.state(job) == JobState::Running);
    finish(&site, &child);
    assert_eq!(site.ended(job).attempts.len(), 1);
    assert_eq!(site.output(&unit), whole(2, "successful"));
}

#[test]
fn where_jobs_fail_with_their_owner_its_restart_ends_them() {
    let mut site = Site::ready(&["e1"]);
    site.kill();
    site.options.on_loss = OnLoss::Fail;
    site.boot();
    let (unit, job) = site.submit(json!({"retry": {"max": 1}}));
    let child = site.running(job);
    site.fabric.write(&child, &[begun(), b"{\"cut".to_vec()].concat());
    site.until("its output", || site.output(&unit) == begun());
    site.kill();
    site.boot();
    let ended = site.ended(job);
    assert_eq!((ended.row.state, ended.attempts.len()), (JobState::Failed, 1));
    let (statuses, _, _) = process(&site.output(&unit));
    assert_eq!(statuses, ["starting", "running", "error"]);
    site.until("its child to go", || site.fabric.left().is_empty());
}
