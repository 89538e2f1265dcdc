//! What a job waits for, from its header to its end.

use super::streams::whole;
use super::*;
use crate::controller::core::JobId;
use serde_json::{Value, json};

fn finish(site: &Site, job: JobId, status: &str) {
    let child = site.running(job);
    site.fabric.write(&child, &whole(1, status));
    site.fabric.end(&child, ChildEnd::Succeeded, "exit status 0");
    site.ended(job);
}

/// Submits jobs while nothing is placed.
fn queued(site: &Site, headers: impl IntoIterator<Item = Value>) -> Vec<JobId> {
    site.operate(json!({"op": "pause"}));
    let jobs = headers.into_iter().map(|header| site.submit(header).1).collect();
    site.settle();
    site.operate(json!({"op": "resume"}));
    jobs
}

fn placed(site: &Site, jobs: &[JobId]) -> Vec<bool> {
    jobs.iter().map(|job| site.state(*job) != JobState::Pending).collect()
}

#[test]
fn a_job_that_is_pending_for_too_long_fails() {
    let site = Site::ready(&["e1"]);
    site.operate(json!({"op": "instance.disable", "name": "e1"}));
    let (unit, job) = site.submit(json!({"pending_timeout": "90s"}));
    let passed = site.until("its end", || site.state(job) == JobState::Failed);
    assert!(passed >= seconds(89) && passed <= seconds(105), "{passed:?}");
    let why = "pending for longer than its pending_timeout of 90 s";
    assert_eq!(site.explanation(job), why);
    site.soon("its unit to say so", || site.unit(&unit).unwrap().detail == why);
    assert!(site.job(job).job.attempts.is_empty());
}

#[test]
fn one_job_for_each_word_runs_by_order() {
    let site = Site::ready(&["e1"]);
    let jobs = queued(&site, ["a", "a", "b"].map(|word| json!({"exclusive": [word]})));
    site.until("two to run", || placed(&site, &jobs) == [true, false, true]);
    site.pass(seconds(1));
    assert_eq!(site.explanation(jobs[1]), format!("waiting for job {}, which holds \"a\"", jobs[0]));
    finish(&site, jobs[0], "failed");
    finish(&site, jobs[1], "successful");
    finish(&site, jobs[2], "successful");
}

#[test]
fn a_job_waits_for_those_it_depends_on_and_fails_with_them() {
    let site = Site::ready(&["e1"]);
    let (_, first) = site.submit(json!({"key": "build"}));
    let (_, second) = site.submit(json!({"depends_on": [{"key": "build"}]}));
    let (_, third) = site.submit(json!({"depends_on": [first.0, second.0]}));
    site.pass(seconds(1));
    assert_eq!(site.explanation(second), format!("waiting for job {first}"));
    finish(&site, first, "successful");
    finish(&site, second, "failed");
    assert_eq!(site.ended(third).row.state, JobState::Failed);
    let why = format!("job {second}, which this one depends on, did not succeed, or was deleted");
    assert_eq!((site.explanation(third), site.job(third).job.attempts.len()), (why, 0));
}

#[test]
fn a_higher_priority_goes_first_and_what_does_not_fit_holds_up_nobody() {
    let site = Site::ready(&["e1"]);
    let room = site.instance("e1").instance.capacity();
    let header = |impact: u32, priority: i32| json!({"impact": impact, "priority": priority});
    let jobs = queued(&site, [header(room, 0), header(room - 1, 5), header(2, 3), header(1, -7)]);
    site.until("those that fit to run", || placed(&site, &jobs) == [false, true, false, true]);
    site.pass(seconds(1));
    for waiting in [jobs[0], jobs[2]] {
        assert_eq!(site.explanation(waiting), "waiting for capacity in default");
    }
    finish(&site, jobs[1], "successful");
    finish(&site, jobs[2], "successful");
    finish(&site, jobs[3], "successful");
    finish(&site, jobs[0], "successful");
}

#[test]
fn jobs_spread_over_nodes_and_no_node_gets_more_than_it_holds() {
    let site = Site::ready(&["e1", "e2", "e3"]);
    let room: u32 = ["e1", "e2", "e3"].iter().map(|node| site.instance(node).instance.capacity()).sum();
    let jobs = queued(&site, (0..room + 5).map(|_| json!({"impact": 1})));
    let running = || jobs.iter().filter(|job| site.state(**job) == JobState::Running).count();
    // The control node needs capacity too: 1 for each job.
    let most = room.min(site.instance(OWN).instance.capacity()) as usize;
    site.until("all to be used", || running() == most);
    site.pass(seconds(2));
    assert_eq!(running(), most);
    let loads = site.run(site.driver().store.overview()).unwrap().loads.instances;
    assert!(loads.iter().all(|load| load.consumed <= load.capacity), "{loads:?}");
    for job in jobs {
        finish(&site, job, "successful");
    }
    let loads = site.run(site.driver().store.overview()).unwrap().loads.instances;
    assert!(loads.iter().all(|load| (load.consumed, load.jobs) == (0, 0)), "{loads:?}");
}

#[test]
fn every_pending_job_shows_what_it_waits_for() {
    let mut options = options(Discovery::Enabled);
    options.bounds.max_pending = 2000;
    let site = Site::started(Fabric::new(&[], true), options);
    let shown = |site: &Site, unit: &str| site.unit(unit).unwrap().extra_data["Explanation"].clone();
    // More than one page of the list.
    let units: Vec<String> = (0..1001).map(|_| site.submit(json!({})).0).collect();
    site.until("the oldest one to say it", || shown(&site, &units[0]) != "");
    site.operate(json!({"op": "pause"}));
    let paused = "the controller is paused";
    site.until("the newest one to say so", || shown(&site, &units[1000]) == paused);
    site.until("the oldest one to say so", || shown(&site, &units[0]) == paused);
}
