//! Jobs that this control node takes over from a lost one.

use serde_json::json;

use super::elsewhere::{OTHER, Owner};
use super::streams::whole;
use super::*;
use crate::controller::core::{Group, JobId};
use crate::controller::store::{GroupRecord, InstanceRegistry};

/// Waits until this control node has the job of the other one, which is silent from now on.
pub(super) fn take_over(site: &Site, job: JobId) {
    let passed = site.until("it to be taken over", || {
        site.job(job).row.controller_node.is_some_and(|owner| owner.as_str() == OWN)
    });
    assert!(passed <= seconds(60), "{passed:?}");
}

/// Lets the running child of a job end, and checks that it was followed and was the only child.
fn finish(site: &Site, job: JobId, child: &str) {
    assert_eq!(site.running(job), child);
    site.fabric.write(child, &whole(2, "successful"));
    site.fabric.end(child, ChildEnd::Succeeded, "exit status 0");
    let ended = site.ended(job);
    assert_eq!((ended.row.state, ended.job.attempts.len()), (JobState::Successful, 1));
    assert_eq!(site.fabric.look(|units| units.started.iter().filter(|unit| *unit == child).count()), 1);
    assert_eq!(site.fabric.left(), [""; 0]);
}

/// A job whose child this control node can follow only at the sixth try.
fn follow_at_last(is_accepted: bool) {
    let site = Site::ready(&["e1"]);
    let other = Owner::start(&site);
    let job = other.submit("theirs");
    let child = other.about_to_send(job);
    site.fabric.run(&child, "e1");
    if is_accepted {
        other.accept(job);
    }
    site.fabric.change(|units| units.adopt_failures = 5);
    take_over(&site, job);
    let failures = || site.fabric.look(|units| units.adopt_failures);
    let is_open = || site.job(job).job.attempts.first().is_some_and(|attempt| attempt.is_open());
    site.until("the last failure", || failures() == 0 || !is_open());
    assert!(is_open(), "{:#?}", site.job(job));
    finish(&site, job, &child);
}

#[test]
fn a_unit_that_runs_and_cannot_be_followed_for_now_is_followed_later() {
    follow_at_last(true);
}

#[test]
fn a_unit_that_was_about_to_be_sent_is_asked_for_until_it_can_be_followed() {
    follow_at_last(false);
}

#[test]
fn a_pod_is_followed_once_the_credential_for_its_cluster_is_there() {
    let site = Site::ready(&["e1"]);
    let mut group = GroupRecord::from(Group::containers("pods".into()));
    group.cluster = Some("missing".into());
    group.pod_spec_override =
        Some(json!({"spec": {"containers": [{"name": "worker", "image": "i"}]}}).to_string());
    let create = move |registry: &mut InstanceRegistry, _| registry.create_group(group.clone());
    site.run(site.driver().store.change_registry(None, create)).unwrap();
    let other = Owner::start(&site);
    let job = other.submit_to("pods".into(), "theirs");
    let child = other.placed(job);
    site.fabric.run(&child, OWN);
    other.accept(job);
    take_over(&site, job);
    site.pass(seconds(10));
    assert_eq!(site.state(job), JobState::Running, "{}", site.explanation(job));
    let mend = |registry: &mut InstanceRegistry, _| {
        registry.group_mut(&"pods".into())?.cluster = None;
        Ok(())
    };
    site.run(site.driver().store.change_registry(None, mend)).unwrap();
    finish(&site, job, &child);
}

#[test]
fn output_waits_until_there_is_room_for_a_unit_of_its_job() {
    let site = Site::ready(&["e1"]);
    let other = Owner::start(&site);
    let (job, child) = other.running();
    site.fabric.write(&child, &whole(2, "successful"));
    site.fabric.end(&child, ChildEnd::Succeeded, "exit status 0");
    site.fabric.change(|units| units.unit_failures = 3);
    take_over(&site, job);
    assert_eq!(site.ended(job).row.state, JobState::Successful);
    let units = site.units();
    assert_eq!(units.len(), 1);
    assert!(site.output(&units[0]) == whole(2, "successful"));
    assert_eq!(site.fabric.look(|units| units.unit_failures), 0);
}

#[test]
fn a_job_that_had_ended_and_was_released_gets_no_empty_unit() {
    let site = Site::ready(&["e1"]);
    let other = Owner::start(&site);
    let job = other.submit("theirs");
    other.accept(job);
    other.end_unreleased(job, b"all of it");
    take_over(&site, job);
    let ended = site.ended(job);
    let last = ended.job.attempts.last().unwrap();
    assert_eq!((last.released_by.as_ref(), ended.row.state), (Some(&OTHER.into()), JobState::Successful));
    assert_eq!(site.units(), [""; 0]);
    assert_eq!(ended.complete, [(OTHER.into(), "theirs".to_owned())]);
}

#[test]
fn children_that_another_control_node_has_swept_do_not_hold_up_the_lease() {
    let site = Site::ready(&["e1"]);
    let jobs: Vec<_> = (0..12).map(|_| site.submit(json!({"forks": 1})).1).collect();
    for job in &jobs {
        site.running(*job);
    }
    let other = Owner::start(&site);
    let before = site.driver().lease.fence();
    other.take_over();
    for job in jobs {
        other.end_without_output(job);
    }
    let passed = site.until("a new lease that holds", || {
        site.driver().lease.fence() != before && site.driver().lease.may_act()
    });
    assert!(passed <= seconds(20), "{passed:?}");
    assert_eq!(
        site.fabric.left().len(),
        24,
        "housekeeping releases what no row needs (test_controller_operations.py)"
    );
}
