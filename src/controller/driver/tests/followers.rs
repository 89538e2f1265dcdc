//! Units here whose job is driven, or ended, by another control node.

use serde_json::json;

use super::elsewhere::{Answers, Elsewhere, OTHER, Owner};
use super::streams::whole;
use super::*;
use crate::controller::core::JobId;
use crate::rpc::UnitState;

/// Makes a unit here for a job that was submitted to the other control node.
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
    // A stream that ends while the job runs has broken off.
    for there in [10, 11, 200] {
        elsewhere.says(Answers::Whole, &output[..there], there);
        site.until("what there is", || site.output(&unit) == output[..there]);
        assert_eq!(state(&site, &unit), UnitState::Running);
    }
    elsewhere.says(Answers::Never, b"", 0);
    other.end(job, &output);
    site.pass(seconds(90));
    assert_eq!((state(&site, &unit), site.output(&unit).len()), (UnitState::Running, 200));
    assert_eq!(site.unit(&unit).unwrap().detail, "its output is fetched from c2");
    elsewhere.says(Answers::Whole, &output, output.len());
    let passed = site.until("its end", || state(&site, &unit) == UnitState::Succeeded);
    assert!(passed <= seconds(12), "{passed:?}");
    assert_eq!(site.output(&unit), output);
    assert!(site.job(job).complete.contains(&(OWN.into(), unit)));
}

#[test]
fn output_that_comes_slowly_is_whole() {
    let site = Site::ready(&["e1"]);
    let (elsewhere, other) = (Elsewhere::open(&site), Owner::start(&site));
    let (unit, job) = follow(&site, &other);
    other.accept(job);
    elsewhere.says(Answers::Slowly, b"slow output", 11);
    other.end(job, b"slow output");
    let passed = site.until("its end", || state(&site, &unit) == UnitState::Succeeded);
    assert_eq!(String::from_utf8_lossy(&site.output(&unit)), "slow output");
    assert!(passed >= seconds(11 * 20), "{passed:?}");
}

#[test]
fn a_unit_whose_output_stops_half_way_runs_until_the_last_holder_is_dead() {
    let site = Site::ready(&["e1"]);
    let (elsewhere, other) = (Elsewhere::open(&site), Owner::start(&site));
    let (unit, job) = follow(&site, &other);
    other.accept(job);
    elsewhere.says(Answers::Stalling, b"half", 4);
    site.until("what there is", || site.output(&unit) == b"half");
    other.end(job, b"half and half");
    site.pass(seconds(200));
    assert_eq!(state(&site, &unit), UnitState::Running);
    site.declare_dead(OTHER);
    site.soon("its end", || state(&site, &unit) == UnitState::Failed);
    let words = format!("output lost: job {job} is successful, and its output was on c2");
    assert_eq!(site.unit(&unit).unwrap().detail, words);
    assert_eq!(site.job(job).output_lost, Some(OTHER.into()));
    assert_eq!(site.output(&unit), b"half", "what there is stays");
}

#[test]
fn a_unit_without_its_output_ends_after_outputretention() {
    let mut site = Site::ready(&["e1"]);
    let (unit, job) = {
        let (_elsewhere, other) = (Elsewhere::open(&site), Owner::start(&site));
        let (unit, job) = follow(&site, &other);
        other.accept(job);
        other.end(job, b"all of it");
        site.pass(seconds(100));
        assert_eq!(state(&site, &unit), UnitState::Running);
        (unit, job)
    };
    site.options.bounds.output_retention = seconds(150);
    site.set_options();
    site.until("its end", || site.unit(&unit).is_none_or(|unit| unit.state == UnitState::Failed));
    assert_eq!(site.job(job).output_lost, Some(OWN.into()));
}

#[test]
fn a_unit_of_a_job_that_ended_elsewhere_shows_the_end_once_its_output_has_come() {
    let site = Site::ready(&["e1"]);
    let (elsewhere, other) = (Elsewhere::open(&site), Owner::start(&site));
    let job = other.submit("theirs");
    other.accept(job);
    other.end(job, b"all of it");
    let (unit, _) = site.submit(json!({"key": "theirs"}));
    site.pass(seconds(120));
    assert_eq!((state(&site, &unit), site.output(&unit).len()), (UnitState::Running, 0));
    // An output with the right length but other bytes is not accepted.
    elsewhere.says(Answers::Whole, b"something", 9);
    site.until("what there is", || site.output(&unit) == b"something");
    site.pass(seconds(5));
    assert_eq!(state(&site, &unit), UnitState::Running);
    elsewhere.says(Answers::Whole, b"all of it", 9);
    let passed = site.until("its end", || state(&site, &unit) == UnitState::Succeeded);
    assert!(passed <= seconds(12), "{passed:?}");
    assert_eq!(site.output(&unit), b"all of it");
}

#[test]
fn a_unit_whose_output_nobody_waits_for_can_be_released() {
    let site = Site::ready(&["e1"]);
    let (_elsewhere, other) = (Elsewhere::open(&site), Owner::start(&site));
    let (unit, job) = follow(&site, &other);
    other.accept(job);
    other.end(job, b"all of it");
    let waits = || site.unit(&unit).unwrap().detail == "its output is fetched from c2";
    site.until("it to wait", waits);
    site.release_unit(&unit);
    assert!(site.unit(&unit).is_none());
    assert_eq!(site.state(job), JobState::Successful);
}

#[test]
fn a_copy_of_something_else_is_made_again() {
    let site = Site::ready(&["e1"]);
    let (elsewhere, other) = (Elsewhere::open(&site), Owner::start(&site));
    let (unit, job) = follow(&site, &other);
    other.accept(job);
    elsewhere.has(&["its first owner's"]);
    site.until("what there is", || site.output(&unit) == b"its first owner's");
    elsewhere.has(&["its second owner"]);
    other.end(job, b"its second owner");
    site.until("its end", || state(&site, &unit) == UnitState::Succeeded);
    assert_eq!(site.output(&unit), b"its second owner");
    assert_eq!(site.unit(&unit).unwrap().stdout_size, 16, "the former one was longer");
}

#[test]
fn attempts_that_printed_nothing_make_a_copy_no_other_one() {
    let site = Site::ready(&["e1"]);
    let (elsewhere, other) = (Elsewhere::open(&site), Owner::start(&site));
    let (unit, job) = follow(&site, &other);
    other.accept(job);
    elsewhere.has(&["", "two", "", "four"]);
    site.until("what there is", || site.output(&unit) == b"twofour");
    elsewhere.has(&["", "two", "", "four and more"]);
    site.until("the rest", || site.output(&unit) == b"twofour and more");
    other.end(job, b"twofour and more");
    site.until("its end", || state(&site, &unit) == UnitState::Succeeded);
}

#[test]
fn a_job_is_not_deleted_while_a_unit_elsewhere_fetches_its_output() {
    let site = Site::ready(&["e1"]);
    let (elsewhere, other) = (Elsewhere::open(&site), Owner::start(&site));
    let (unit, job) = follow(&site, &other);
    other.accept(job);
    other.end(job, b"all of it");
    let delete = json!({"op": "job.delete", "id": job.0});
    let refused = site.ask(delete.clone()).unwrap_err();
    assert!(refused.message.contains("has not got all of its output yet"), "{}", refused.message);
    elsewhere.says(Answers::Whole, b"all of it", 9);
    site.until("its end", || state(&site, &unit) == UnitState::Succeeded);
    site.operate(delete);
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
    let made = site.run(site.driver().base.children.adopt_job(job)).unwrap().id().to_string();
    site.kill();
    site.boot();
    site.until("it to follow its job", || site.driver().publisher.job_of(&made) == Some(job));
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
fn of_an_end_without_a_hash_the_length_alone_decides() {
    let site = Site::ready(&["e1"]);
    let (elsewhere, other) = (Elsewhere::open(&site), Owner::start(&site));
    let (unit, job) = follow(&site, &other);
    other.accept(job);
    elsewhere.has(&["one", "two"]);
    site.until("both attempts", || site.output(&unit) == b"onetwo");
    elsewhere.has(&["one"]);
    site.pass(seconds(2));
    assert_eq!(state(&site, &unit), UnitState::Running);
    other.end_without_output(job);
    let passed = site.until("its end", || state(&site, &unit) == UnitState::Succeeded);
    assert!(passed <= seconds(2), "{passed:?}");
    assert_eq!(site.output(&unit), b"onetwo");
}
