//! The lease of a control node that is busy.

use std::sync::mpsc;

use serde_json::json;

use super::elsewhere::{Owner, submission};
use super::*;
use crate::controller::store::{JobFilter, PAGE_MAX, PassLimits, Submission};

#[test]
fn the_lease_is_kept_while_units_are_taken_up_at_the_start() {
    let mut site = Site::ready(&["e1"]);
    let (unit, job) = site.submit(json!({}));
    site.running(job);
    site.kill();
    let passed = site.boot_while(async |driver| {
        // Its disk hangs for longer than a lease lasts.
        let (hanging, end) = mpsc::channel::<()>();
        tokio::task::spawn_blocking(move || end.recv());
        for _ in 0..12 {
            tokio::time::advance(seconds(5)).await;
            // Behind the writes that wait.
            driver.store.remove_drained().await.unwrap();
        }
        assert_eq!(driver.job_of(&unit), None, "no unit follows its job yet");
        let passed = driver.store.pass(driver.fence(), PassLimits::default()).await;
        drop(hanging);
        passed
    });
    assert!(passed.is_ok(), "{passed:?}");
    assert_eq!(site.driver().job_of(&unit), Some(job));
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
        let filter = JobFilter { states: vec![JobState::Failed], ..JobFilter::default() };
        site.run(store.list(filter, PAGE_MAX)).unwrap().jobs.len()
    };
    site.pass(seconds(85));
    assert_eq!(failed(), 0);
    site.run(tokio::time::advance(seconds(20)));
    site.settle_until("a pass", || failed() > 0);
    assert_eq!(failed(), most, "before time goes on there is no other one");
    let renewed = || site.driver().tenure.borrow().unwrap().renewed;
    let before = renewed();
    site.run(tokio::time::advance(seconds(10)));
    site.settle_until("the next one", || failed() > most);
    assert!(renewed() > before, "after a heartbeat");
    assert_eq!(failed(), all);
}
