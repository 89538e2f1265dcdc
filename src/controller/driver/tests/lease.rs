//! The lease of a busy control node, and how clocks and lost commits of the store affect leases.

use std::sync::mpsc;

use serde_json::json;

use super::elsewhere::{Owner, submission};
use super::*;
use crate::controller::store::{JobSelection, PAGE_MAX, PassLimits, Submission};

#[test]
fn the_lease_is_kept_while_units_are_taken_up_at_the_start() {
    let mut site = Site::ready(&["e1"]);
    let (unit, job) = site.submit(json!({}));
    site.running(job);
    let before = site.run(site.driver().store.leases()).unwrap()[0].beat;
    site.kill();
    let beat = site.boot_while(async |driver| {
        // Its disk hangs for longer than a lease lasts.
        let (hanging, end) = mpsc::channel::<()>();
        tokio::task::spawn_blocking(move || end.recv());
        for _ in 0..12 {
            tokio::time::advance(seconds(5)).await;
            // Returns after all writes that are queued before this one.
            driver.store.remove_drained().await.unwrap();
        }
        assert_eq!(driver.publisher.job_of(&unit), None, "no unit follows its job yet");
        // Lets the disk go on, because reads are queued after what hangs.
        drop(hanging);
        driver.store.leases().await.unwrap()[0].beat
    });
    // A busy machine may skip some of the twelve heartbeats.
    assert!(beat >= before + 3, "{before}, {beat}");
    assert_eq!(site.driver().publisher.job_of(&unit), Some(job));
}

#[test]
fn heartbeats_come_between_the_passes_of_a_long_queue() {
    let site = Site::ready(&["e1"]);
    let _other = Owner::start(&site);
    site.operate(json!({"op": "instance.disable", "name": "e1"}));
    let (store, most) = (&site.driver().store, PassLimits::default().changes);
    let all = most + 50;
    for n in 0..all {
        let mut submission = Submission { unit: format!("unit{n}"), ..submission(&format!("job {n}")) };
        submission.terms.pending_timeout = Some(seconds(90));
        site.run(store.submit(submission, 1000)).unwrap();
    }
    let failed = || {
        let filter = JobSelection { states: vec![JobState::Failed], ..JobSelection::default() };
        site.run(store.list(filter, PAGE_MAX)).unwrap().jobs.len()
    };
    site.pass(seconds(85));
    assert_eq!(failed(), 0);
    site.run(tokio::time::advance(seconds(20)));
    site.settle_until("a pass", || failed() > 0);
    assert_eq!(failed(), most, "before time goes on there is no other one");
    let renewed = || site.driver().lease.own.renewals().borrow().unwrap().renewed;
    let before = renewed();
    site.run(tokio::time::advance(seconds(10)));
    site.settle_until("the next one", || failed() > most);
    assert!(renewed() > before, "after a heartbeat");
    assert_eq!(failed(), all);
}

#[test]
fn a_control_node_that_has_just_started_watches_before_it_takes_over() {
    let mut site = Site::ready(&["e1"]);
    let job = {
        let other = Owner::start(&site);
        let job = other.submit("theirs");
        other.placed(job);
        job
    };
    site.kill();
    site.boot();
    site.pass(seconds(25));
    let owner = || site.job(job).row.controller_node.unwrap().to_string();
    assert_eq!(owner(), elsewhere::OTHER);
    site.until("it to be taken over", || owner() == OWN);
}

#[test]
fn a_store_that_lost_its_last_commits_is_written_under_a_new_fence() {
    let site = Site::ready(&["e1"]);
    let (unit, job) = site.submit(json!({}));
    let child = site.running(job);
    let before = site.driver().lease.fence();
    site.sql("UPDATE lease SET beat = beat - 2");
    site.until("a new fence", || site.driver().lease.fence() != before);
    site.pass(seconds(30));
    site.fabric.write(&child, &streams::whole(2, "successful"));
    site.fabric.end(&child, ChildEnd::Succeeded, "exit status 0");
    let ended = site.ended(job);
    assert_eq!((ended.row.state, ended.job.attempts.len()), (JobState::Successful, 1));
    assert_eq!(site.output(&unit), streams::whole(2, "successful"));
}

#[test]
fn what_runs_is_not_sent_again_by_a_store_that_lost_that_it_was_placed() {
    let site = Site::ready(&["e1"]);
    let (_, job) = site.submit(json!({}));
    site.running(job);
    site.fabric.change(|units| units.keeps_released = true);
    site.sql(
        "DELETE FROM attempt; UPDATE job SET state = 'pending', attempt = 0, epoch = 0, controller_node = NULL, \
         execution_node = NULL, placed = NULL, started = NULL; UPDATE lease SET beat = beat - 2",
    );
    let started =
        || site.fabric.look(|units| units.started.iter().filter(|unit| unit.contains("n1a")).count());
    site.until("it to be placed again", || site.state(job) == JobState::Waiting);
    site.pass(seconds(120));
    assert_eq!((started(), site.state(job)), (1, JobState::Waiting));
    // The child's node says that the child has ended and is gone.
    site.fabric.change(|units| units.keeps_released = false);
    site.until("it to run again", || started() == 2);
}
