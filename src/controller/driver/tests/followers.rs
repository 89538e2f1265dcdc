//! Units here of jobs that another control node drives, or whose end it decides.

use serde_json::json;

use super::elsewhere::{Answers, Elsewhere, Owner};
use super::streams::whole;
use super::*;
use crate::controller::core::JobId;
use crate::rpc::UnitState;

/// A unit here of a job that was submitted to the other control node.
fn follow(site: &Site, other: &Owner<'_>) -> (String, JobId) {
    let job = other.submit("theirs");
    let (unit, same) = site.submit(json!({"key": "theirs"}));
    assert_eq!(same, job);
    (unit, job)
}

fn state(site: &Site, unit: &str) -> UnitState {
    site.unit(unit).unwrap().state
}

#[test]
fn a_unit_shows_the_end_of_a_job_elsewhere_once_it_has_all_of_its_output() {
    let site = Site::ready(&["e1"]);
    let (elsewhere, other) = (Elsewhere::open(&site), Owner::start(&site));
    let (unit, job) = follow(&site, &other);
    other.accept(job);
    let output = whole(3, "successful");
    // A stream that ends while the job runs was broken off.
    for there in [10, 11, 200] {
        elsewhere.says(Answers::Whole, &output[..there], there);
        site.until("what there is", || site.output(&unit) == output[..there]);
        assert_eq!(state(&site, &unit), UnitState::Running);
    }
    elsewhere.says(Answers::Never, b"", 0);
    other.end(job);
    site.pass(seconds(20));
    assert_eq!((state(&site, &unit), site.output(&unit).len()), (UnitState::Running, 200));
    elsewhere.says(Answers::Whole, &output, output.len());
    let passed = site.until("its end", || state(&site, &unit) == UnitState::Succeeded);
    assert!(passed <= seconds(2), "{passed:?}");
    assert_eq!(site.output(&unit), output);
}

#[test]
fn output_that_comes_slowly_is_whole() {
    let site = Site::ready(&["e1"]);
    let (elsewhere, other) = (Elsewhere::open(&site), Owner::start(&site));
    let (unit, job) = follow(&site, &other);
    other.accept(job);
    elsewhere.says(Answers::Slowly, b"slow output", 11);
    other.end(job);
    let passed = site.until("its end", || state(&site, &unit) == UnitState::Succeeded);
    assert_eq!(String::from_utf8_lossy(&site.output(&unit)), "slow output");
    assert!(passed >= seconds(11 * 20), "{passed:?}");
}

#[test]
fn a_unit_waits_a_minute_for_the_output_of_a_job_that_has_ended_elsewhere() {
    let site = Site::ready(&["e1"]);
    let (elsewhere, other) = (Elsewhere::open(&site), Owner::start(&site));
    let (unit, job) = follow(&site, &other);
    other.accept(job);
    elsewhere.says(Answers::Stalling, b"half", 4);
    site.until("what there is", || site.output(&unit) == b"half");
    other.end(job);
    let passed = site.until("its end", || state(&site, &unit) == UnitState::Succeeded);
    assert!(passed >= seconds(59) && passed <= seconds(70), "{passed:?}");
    assert_eq!(site.output(&unit), b"half");
}

#[test]
fn a_unit_shows_at_once_that_its_pending_job_was_cancelled_elsewhere() {
    let site = Site::ready(&["e1"]);
    site.operate(json!({"op": "pause"}));
    let (_elsewhere, other) = (Elsewhere::open(&site), Owner::start(&site));
    let (unit, job) = follow(&site, &other);
    assert_eq!(state(&site, &unit), UnitState::Pending);
    site.run(site.driver().store.cancel(None, job)).unwrap();
    let passed = site.until("its unit to say so", || state(&site, &unit) == UnitState::Canceled);
    assert!(passed <= seconds(2), "{passed:?}");
}

#[test]
fn a_unit_that_was_made_for_a_job_from_elsewhere_follows_it_again_after_a_restart() {
    let mut site = Site::ready(&["e1"]);
    let (_, job) = site.submit(json!({}));
    let made = site.run(site.driver().children.adopt_job(job)).unwrap().id().to_string();
    site.kill();
    site.boot();
    site.until("it to follow its job", || site.driver().job_of(&made) == Some(job));
}

#[test]
fn a_unit_goes_on_in_the_attempt_that_it_has_copied_last() {
    let mut site = Site::ready(&["e1"]);
    let elsewhere = Elsewhere::open(&site);
    let unit = {
        let other = Owner::start(&site);
        let (unit, job) = follow(&site, &other);
        other.accept(job);
        elsewhere.has(&["one"]);
        site.until("the first attempt", || site.output(&unit) == b"one");
        elsewhere.has(&["one, lost", "two"]);
        site.until("the second one", || site.output(&unit) == b"one, losttwo");
        unit
    };
    site.kill();
    site.boot();
    let elsewhere = Elsewhere::open(&site);
    elsewhere.has(&["one, lost", "two and a half", "three"]);
    site.until("the rest", || site.output(&unit) == b"one, losttwo and a halfthree");
}

#[test]
fn a_unit_that_has_more_than_the_owner_shows_the_end_at_once() {
    let site = Site::ready(&["e1"]);
    let (elsewhere, other) = (Elsewhere::open(&site), Owner::start(&site));
    let (unit, job) = follow(&site, &other);
    other.accept(job);
    elsewhere.has(&["one", "two"]);
    site.until("both attempts", || site.output(&unit) == b"onetwo");
    elsewhere.has(&["one"]);
    site.pass(seconds(2));
    assert_eq!(state(&site, &unit), UnitState::Running);
    other.end(job);
    let passed = site.until("its end", || state(&site, &unit) == UnitState::Succeeded);
    assert!(passed <= seconds(2), "{passed:?}");
    assert_eq!(site.output(&unit), b"onetwo");
}
