//! Attempts of a control node that was lost and may come back. Their nodes do not have the units, and promise not to
//! run them, or make no promise.

use serde_json::{Value, json};

use super::elsewhere::{OTHER, Owner};
use super::streams::whole;
use super::takeover::take_over;
use super::*;
use crate::controller::core::{JobId, LeaseTimes};
use crate::controller::store::Kept;

/// Another control node is to send the attempt of a job to e1. Returns that control node, the job and the unit.
fn placed_by_another<'a>(site: &'a Site, header: Value) -> (Owner<'a>, JobId, String) {
    let other = Owner::start(site);
    site.operate(json!({"op": "pause"}));
    let (_, job) = site.submit(header);
    site.run(site.driver().store.hold(job, OTHER.into(), "theirs".into(), Kept::Payload)).unwrap();
    site.operate(json!({"op": "instance.disable", "name": OWN}));
    site.operate(json!({"op": "resume"}));
    let child = other.placed(job);
    site.operate(json!({"op": "instance.enable", "name": OWN}));
    (other, job, child)
}

/// The other control node is about to send the attempt, and is then lost. Returns the job and the unit.
fn about_to_be_sent(site: &Site, header: Value) -> (JobId, String) {
    let (other, job, child) = placed_by_another(site, header);
    other.about_to_send(job);
    take_over(site, job);
    (job, child)
}

fn become_go(site: &Site) {
    site.fabric.change(|units| units.nodes.get_mut("e1").unwrap().is_go = true);
}

/// The unit of an attempt that is not the first.
fn next(site: &Site, job: JobId) -> String {
    let attempts = || site.job(job).job.attempts;
    site.soon("another attempt", || attempts().len() == 2);
    attempts()[1].unit.to_string()
}

fn finish(site: &Site, job: JobId, child: &str) {
    site.until("it to run", || site.state(job) == JobState::Running);
    site.fabric.write(child, &whole(2, "successful"));
    site.fabric.end(child, ChildEnd::Succeeded, "exit status 0");
    assert_eq!(site.ended(job).row.state, JobState::Successful, "{}", site.explanation(job));
    site.soon("nothing to be left", || site.fabric.left().is_empty());
}

#[test]
fn what_its_node_promises_not_to_run_is_placed_again_and_a_former_owner_is_refused() {
    let site = Site::ready(&["e1"]);
    let (job, child) = about_to_be_sent(&site, json!({}));
    let second = next(&site, job);
    // The lost control node was suspended just before it sent the unit, and sends it now.
    site.fabric.run(&child, "e1");
    finish(&site, job, &second);
    assert!(!site.fabric.look(|units| units.started.contains(&child)));
}

#[test]
fn what_a_go_node_does_not_have_is_placed_again_only_when_an_operator_says_so() {
    let site = Site::ready(&["e1"]);
    become_go(&site);
    let (job, child) = about_to_be_sent(&site, json!({}));
    let why = "attempt 1 on e1 is lost and may still run";
    site.until("it to be held", || site.explanation(job).starts_with(why));
    site.pass(seconds(3600));
    assert_eq!((site.state(job), site.job(job).job.attempts.len()), (JobState::Pending, 1));
    let explained = site.operate(json!({"op": "job.explain", "id": job.0}));
    let check = explained["checks"].as_array().unwrap().iter().find(|check| check["check"] == "attempt");
    let detail = check.unwrap()["detail"].as_str().unwrap();
    assert!(detail.ends_with(&format!("meshctl job confirm-lost {job} --attempt 1")), "{detail}");
    for (id, attempt) in [(job.0, 2), (job.0 + 1, 1)] {
        site.ask(json!({"op": "job.confirm_lost", "id": id, "attempt": attempt})).unwrap_err();
    }
    let answer = site.operate(json!({"op": "job.confirm_lost", "id": job.0, "attempt": 1}));
    assert_eq!(answer["attempts"][0]["confirmed"], true, "{answer}");
    let audit = site.operate(json!({"op": "audit.list"}));
    assert_eq!(audit["rows"][0]["op"], "job.confirm_lost", "{audit}");
    let second = next(&site, job);
    site.ask(json!({"op": "job.confirm_lost", "id": job.0, "attempt": 2})).unwrap_err();
    finish(&site, job, &second);
    assert!(!site.fabric.look(|units| units.started.contains(&child)));
}

#[test]
fn what_nobody_was_about_to_send_is_placed_again_also_from_a_go_node() {
    let site = Site::ready(&["e1"]);
    become_go(&site);
    let (_, job, child) = placed_by_another(&site, json!({}));
    take_over(&site, job);
    let second = next(&site, job);
    finish(&site, job, &second);
    assert!(!site.fabric.look(|units| units.started.contains(&child)));
}

#[test]
fn what_runs_is_followed_though_the_store_has_lost_that_it_was_sent() {
    let site = Site::ready(&["e1"]);
    let (_, job, child) = placed_by_another(&site, json!({}));
    site.fabric.run(&child, "e1");
    take_over(&site, job);
    finish(&site, job, &child);
    assert_eq!(site.job(job).job.attempts.len(), 1);
}

#[test]
fn what_a_go_node_gets_after_all_is_followed() {
    let site = Site::ready(&["e1"]);
    become_go(&site);
    let (job, child) = about_to_be_sent(&site, json!({}));
    site.until("it to be held", || site.state(job) == JobState::Pending);
    site.fabric.run(&child, "e1");
    finish(&site, job, &child);
    assert_eq!(site.job(job).job.attempts.len(), 1);
}

#[test]
fn who_may_run_twice_does_not_wait() {
    let site = Site::ready(&["e1"]);
    become_go(&site);
    let (job, _) = about_to_be_sent(&site, json!({"retry": {"max": 1, "unconfirmed": true}}));
    let second = next(&site, job);
    finish(&site, job, &second);
}

#[test]
fn what_was_accepted_by_a_go_node_that_does_not_have_it_may_still_run() {
    let site = Site::ready(&["e1"]);
    become_go(&site);
    let (other, job, _) = placed_by_another(&site, json!({"retry": {"max": 1}}));
    other.accept(job);
    take_over(&site, job);
    site.until("it to be held", || site.state(job) == JobState::Pending);
    site.pass(seconds(600));
    assert_eq!(site.job(job).job.attempts.len(), 1);
    // After a cancel nobody waits for the unit any more.
    site.operate(json!({"op": "job.cancel", "id": job.0}));
    site.soon("its end", || site.state(job) == JobState::Canceled);
    site.soon("nothing to be left", || site.fabric.left().is_empty());
    site.soon("it to hold nothing", || site.job(job).job.attempts[0].swept);
}

#[test]
fn who_lost_its_lease_while_it_prepared_a_unit_does_not_send_it() {
    let site = Site::ready(&["e1"]);
    site.fabric.change(|units| units.is_full = true);
    let (_, job) = site.submit(json!({}));
    site.soon("it to be placed", || site.state(job) == JobState::Waiting);
    site.pass(seconds(5));
    let store = &site.driver().store;
    site.run(store.start_owner(OWN.into(), LeaseTimes::default(), OnLoss::TakeOver)).unwrap();
    site.fabric.change(|units| units.is_full = false);
    site.pass(seconds(5));
    assert_eq!(site.fabric.left(), [""; 0]);
}

#[test]
fn what_its_node_refuses_since_it_promised_that_is_placed_again() {
    let site = Site::ready(&["e1"]);
    site.fabric.change(|units| units.is_full = true);
    let (_, job) = site.submit(json!({}));
    site.soon("it to be placed", || site.state(job) == JobState::Waiting);
    // Another control node had the job for a moment and got the promise, but did not save it.
    let child = site.job(job).job.attempts[0].unit.to_string();
    site.fabric.change(|units| units.disclaimed.insert(child));
    site.fabric.change(|units| units.is_full = false);
    let second = next(&site, job);
    finish(&site, job, &second);
}
