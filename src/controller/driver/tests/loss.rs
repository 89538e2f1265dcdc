//! Losing contact: what a node's silence means for its jobs, and what its return changes.

use super::streams::{begun, events, exit_code, process, status, whole};
use super::*;
use crate::controller::core::JobId;
use crate::controller::driver::shown::unit_state;
use crate::rpc::UnitState;
use serde_json::{Value, json};

/// A job that runs on one of two nodes: its unit, its ID, its child and the node.
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
    let silent = || site.ask(json!({"op": "job.get", "id": job.0})).unwrap()["silent"].take();
    assert_eq!(silent(), Value::Null);
    site.fabric.set_routed(&node, false);
    site.pass(seconds(160));
    assert_eq!(site.state(job), JobState::Running);
    let told = silent();
    assert_eq!((&told["node"], &told["attempt"], &told["lost"]), (&json!("e1"), &json!(1), &json!(false)));
    assert!(told["since"].is_string() && told["lost_at"].is_string(), "{told}");
    site.fabric.set_routed(&node, true);
    finish(&site, &child);
    site.soon("its end", || site.state(job) == JobState::Successful);
    assert_eq!(silent(), Value::Null);
    assert_eq!(site.ended(job).job.attempts.len(), 1);
    assert_eq!(site.output(&unit), whole(2, "successful"));
}

#[test]
fn without_a_retry_a_lost_node_fails_its_jobs_and_its_return_cleans_up() {
    let site = Site::ready(&["e1"]);
    let (unit, job, child, node) = on_a_node(&site, json!({}));
    site.fabric.write(&child, &begun());
    site.until("its output", || site.output(&unit) == begun());
    site.fabric.set_routed(&node, false);
    let is_shown = || site.unit(&unit).is_some_and(|shown| shown.state == UnitState::Failed);
    let passed = site.until("its loss to be shown", is_shown);
    assert!(passed >= seconds(180) && passed <= seconds(205), "{passed:?}");
    assert_eq!(site.state(job), JobState::Failed);
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
fn the_unit_of_a_job_that_waits_for_another_attempt_goes_on_running_and_says_why() {
    let mut site = Site::ready(&["e1"]);
    let (unit, job, child, _) = on_a_node(&site, json!({"retry": {"max": 1, "on": ["error"]}}));
    let shown = |site: &Site| site.unit(&unit).map(|shown| (shown.state, shown.detail)).unwrap();
    site.soon("its unit to run", || shown(&site).0 == UnitState::Running);
    site.operate(json!({"op": "instance.disable", "name": "e1"}));
    site.fabric.end(&child, ChildEnd::Failed, "exit status 1");
    let why = "waiting for an enabled instance in default";
    site.until("its unit to say why", || shown(&site) == (UnitState::Running, why.to_owned()));
    assert_eq!((site.state(job), site.explanation(job).as_str()), (JobState::Pending, why));
    site.kill();
    site.boot();
    site.pass(seconds(1));
    assert_eq!(shown(&site), (UnitState::Running, why.to_owned()), "also after a restart");
    site.operate(json!({"op": "instance.enable", "name": "e1"}));
    let next = site.running(job);
    let runs = format!("Running on e1, unit {next}");
    site.soon("its unit to say that it runs", || shown(&site) == (UnitState::Running, runs.clone()));
    finish(&site, &next);
    site.ended(job);
    assert_eq!(shown(&site).0, UnitState::Succeeded);
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
    assert_eq!((ended.row.state, ended.job.attempts.len()), (JobState::Successful, 1));
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
    assert_eq!(site.ended(job).job.attempts.len(), 1);
    assert_eq!(site.output(&unit), whole(2, "successful"));
}

#[test]
fn a_final_status_that_has_arrived_decides_though_its_node_is_lost_before_the_unit_ends() {
    for (status, header, state) in [
        ("successful", json!({}), JobState::Successful),
        ("successful", json!({"retry": {"max": 1}}), JobState::Successful),
        ("failed", json!({"retry": {"max": 1}}), JobState::Failed),
    ] {
        let mut site = Site::ready(&["e1", "e2"]);
        let (unit, job, child, node) = on_a_node(&site, header);
        let all = whole(2, status);
        let said = all.windows(6).position(|window| window == b"zipfil").unwrap() - 2;
        site.fabric.write(&child, &all[..said]);
        site.settle();
        site.fabric.set_routed(&node, false);
        site.kill();
        site.boot();
        let passed = site.until("its loss", || site.state(job).is_final());
        assert!(passed >= seconds(160), "{passed:?}: until then its node may answer");
        assert_eq!((site.state(job), site.job(job).job.attempts.len()), (state, 1), "{status}");
        site.soon("its unit's end", || site.unit(&unit).unwrap().state == unit_state(state));
        site.fabric.set_routed(&node, true);
        site.soon("what is left of it to go", || site.fabric.left().is_empty());
        assert_eq!(site.state(job), state, "what is final stays");
    }
}

#[test]
fn what_a_lost_attempt_that_decides_has_written_is_whole() {
    for (status, restarts) in [("successful", false), ("failed", false), ("successful", true)] {
        let mut site = Site::ready(&["e1"]);
        let (unit, job, child, node) = on_a_node(&site, json!({"retry": {"max": 1}}));
        site.fabric.write(&child, &whole(2, status));
        site.settle();
        site.fabric.set_routed(&node, false);
        if restarts {
            site.kill();
            site.boot();
        }
        site.until("its loss", || site.state(job).is_final());
        site.soon("its unit's end", || site.unit(&unit).unwrap().state == unit_state(site.state(job)));
        let (output, all) = (site.output(&unit), whole(2, status));
        if restarts {
            // The held-back output was lost with the process, but the end line is written anew, because its text is
            // known.
            assert!(output.starts_with(&all[..all.len() - b"{\"eof\":true}\n".len()]));
            assert_eq!(process(&output).2, "eof");
        } else {
            assert!(output == all, "{status}: the end line is missing");
        }
    }
}

#[test]
fn a_large_zip_of_a_lost_node_that_decides_is_in_the_output_too() {
    let site = Site::ready(&["e1"]);
    let (unit, job, child, node) = on_a_node(&site, json!({"retry": {"max": 1}}));
    let all = [begun(), events(1, 2), status("successful"), exit_code("0", 9 << 20)].concat();
    let (first, rest) = all.split_at(all.len() - 100);
    site.fabric.write(&child, first);
    site.settle();
    site.fabric.write(&child, rest);
    site.until("it to come", || site.job(job).row.events == 2);
    site.fabric.set_routed(&node, false);
    site.until("its loss", || site.state(job).is_final());
    site.soon("its unit's end", || site.unit(&unit).unwrap().state == UnitState::Succeeded);
    assert!(site.output(&unit) == all, "what was held back is not there");
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
    assert_eq!((ended.row.state, ended.job.attempts.len()), (JobState::Successful, 2));
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
    site.soon("its end", || site.state(again) == JobState::Successful);
    assert_eq!(site.job(again).row.attempt, 2);
    // If the node lives after all, it is told to release its unit.
    assert!(!site.job(again).job.attempts[0].swept);
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
    assert_eq!((ended.row.state, ended.job.attempts.len()), (JobState::Successful, 2));
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
    assert_eq!((ended.row.state, ended.job.attempts.len()), (JobState::Canceled, 1));
    assert_eq!(site.fabric.left(), [""; 0]);
}

#[test]
fn a_cancel_that_was_saved_before_a_kill_is_known_before_anything_is_sent() {
    let mut site = Site::ready(&["e1"]);
    site.fabric.change(|units| units.nodes.get_mut("e1").unwrap().is_deaf = true);
    let (unit, job) = site.submit(json!({"retry": {"max": 2}}));
    let child = |site: &Site| site.job(job).job.attempts.first().map(|attempt| attempt.unit.to_string());
    site.until("its child to wait", || child(&site).is_some_and(|child| site.fabric.is_unsent(&child)));
    let child = child(&site).unwrap();
    site.run(site.driver().store.cancel(None, job)).unwrap();
    assert!(site.fabric.is_unsent(&child), "the cancel is saved, and not passed on yet");
    site.kill();
    site.fabric.change(|units| units.nodes.get_mut("e1").unwrap().is_deaf = false);
    site.boot();
    let ended = site.ended(job);
    assert_eq!((ended.row.state, ended.job.attempts.len()), (JobState::Canceled, 1));
    assert!(!site.fabric.look(|units| units.started.contains(&child)), "it never started");
    assert_eq!(site.unit(&unit).unwrap().state, UnitState::Canceled);
    site.until("its child to go", || site.fabric.left().is_empty());
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
    assert_eq!(site.ended(job).job.attempts.len(), 1);
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
    assert_eq!((ended.row.state, ended.job.attempts.len()), (JobState::Failed, 1));
    let (statuses, _, _) = process(&site.output(&unit));
    assert_eq!(statuses, ["starting", "running", "error"]);
    site.until("its child to go", || site.fabric.left().is_empty());
}

#[test]
fn a_hop_that_is_cut_off_is_lost_once_and_is_back_with_its_route() {
    let site = Site::ready(&["e1"]);
    let mut hop = FakeNode::runner("hop");
    hop.types.clear();
    site.fabric.change(|units| units.nodes.insert("hop".into(), hop));
    site.fabric.advertise();
    let is = |state| {
        site.instances()
            .iter()
            .any(|one| one.instance.name == "hop".into() && one.instance.node_state == state)
    };
    site.until("hop to be ready", || is(NodeState::Ready));
    site.fabric.set_routed("hop", false);
    site.until("its loss", || is(NodeState::Unavailable));
    for _ in 0..10 {
        site.pass(seconds(3));
        // Its advertisement is still there at every look.
        site.fabric.change(|_| ());
        site.settle();
        assert!(is(NodeState::Unavailable));
    }
    site.fabric.set_routed("hop", true);
    site.soon("it to be back", || is(NodeState::Ready));
}
