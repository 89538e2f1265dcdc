//! Payloads and outputs that are too old or too many.

use std::time::Instant;

use serde_json::json;

use super::streams::whole;
use super::*;
use crate::controller::core::JobId;
use crate::controller::store::Kept;

/// The longest time that a round of housekeeping may take by the real clock.
const DEADLINE: Duration = Duration::from_secs(60);
/// More copies than are looked at in one transaction.
const MANY: usize = 230;
/// How many copies cannot be deleted. They come first.
const STUCK: usize = 205;

fn set_bounds(site: &mut Site, change: impl FnOnce(&mut Bounds)) {
    change(&mut site.options.bounds);
    site.set_options();
}

/// A job that has run and ended.
fn finished(site: &Site) -> (String, JobId) {
    let (unit, job) = site.submit(json!({}));
    finish(site, job);
    (unit, job)
}

fn finish(site: &Site, job: JobId) {
    let child = site.running(job);
    site.fabric.write(&child, &whole(3, "successful"));
    site.fabric.end(&child, ChildEnd::Succeeded, "exit status 0");
    site.ended(job);
}

fn payloads(site: &Site) -> usize {
    let now = site.run(site.driver().store.now()).unwrap();
    let held = site.driver().store.held(OWN.into(), Kept::Payload, now, u32::MAX);
    site.run(held).unwrap().len()
}

fn holds(site: &Site, job: JobId, kept: Kept) -> bool {
    site.job(job).holders.iter().any(|(_, _, held)| *held == kept)
}

#[test]
fn beyond_outputlimit_the_oldest_output_goes_and_its_job_can_still_run_again() {
    let mut site = Site::ready(&["e1"]);
    let jobs: Vec<_> = (0..3).map(|_| finished(&site)).collect();
    let size = site.output(&jobs[0].0).len() as u64;
    assert_eq!(size, site.job(jobs[0].1).output_bytes);
    set_bounds(&mut site, |bounds| bounds.output_limit = 2 * size);
    site.until("an output to go", || !holds(&site, jobs[0].1, Kept::Output));
    site.pass(seconds(150));
    assert!(site.output(&jobs[0].0).is_empty() && holds(&site, jobs[0].1, Kept::Payload));
    for (unit, job) in &jobs[1..] {
        assert!(holds(&site, *job, Kept::Output) && site.output(unit).len() as u64 == size);
    }
    set_bounds(&mut site, |bounds| bounds.output_limit = 1 << 30);
    let again = site.operate(json!({"op": "job.rerun", "id": jobs[0].1.0}));
    finish(&site, JobId(again["id"].as_i64().unwrap()));

    set_bounds(&mut site, |bounds| bounds.payload_retention = seconds(200));
    site.until("the payloads to go", || payloads(&site) == 0);
    site.until("the unit to go that holds nothing", || site.unit(&jobs[0].0).is_none());
    assert!(jobs[1..].iter().all(|(unit, _)| site.unit(unit).is_some()));
}

#[test]
fn an_output_goes_with_its_unit_once_the_payload_is_gone() {
    let mut site = Site::ready(&["e1"]);
    let (unit, job) = finished(&site);
    set_bounds(&mut site, |bounds| bounds.payload_retention = seconds(100));
    site.until("the payload to go", || !holds(&site, job, Kept::Payload));
    assert!(!site.output(&unit).is_empty());
    set_bounds(&mut site, |bounds| bounds.output_retention = seconds(200));
    site.until("the unit to go", || site.unit(&unit).is_none());
    assert!(!holds(&site, job, Kept::Output));
}

#[test]
fn what_an_earlier_process_left_goes_and_a_header_that_nobody_understands_holds_up_nothing() {
    let mut site = Site::ready(&["e1"]);
    let [odd, unwanted, wanted] = [(); 3].map(|()| finished(&site).1);
    site.kill();
    for (job, header) in
        [(odd, r#"{"controller":1,"later":1}"#), (unwanted, r#"{"controller":1,"rerun":false}"#)]
    {
        site.sql(&format!("UPDATE job SET header = '{header}' WHERE id = {job}"));
    }
    site.boot();
    site.until("the payload to go that is not wanted", || !holds(&site, unwanted, Kept::Payload));
    assert!(holds(&site, odd, Kept::Payload) && holds(&site, wanted, Kept::Payload));
    set_bounds(&mut site, |bounds| bounds.payload_retention = seconds(100));
    site.until("the payloads to go", || payloads(&site) == 0);
}

#[test]
fn one_round_deletes_all_that_is_over_and_what_cannot_be_deleted_holds_up_nothing() {
    let mut site = Site::started(Fabric::new(&[], true), options(Discovery::Enabled));
    let jobs: Vec<_> = (0..MANY).map(|_| site.submit(json!({}))).collect();
    for (_, job) in &jobs {
        site.run(site.driver().store.cancel(None, *job)).unwrap();
    }
    site.settle();
    let stuck: Vec<_> = jobs[..STUCK].iter().map(|(unit, _)| site.directory(unit).join("stdin")).collect();
    for payload in &stuck {
        std::fs::remove_file(payload).unwrap();
        std::fs::create_dir(payload).unwrap();
    }
    site.pass(seconds(10));
    assert_eq!(payloads(&site), MANY);
    set_bounds(&mut site, |bounds| bounds.payload_retention = seconds(120));
    site.until("a payload to go", || payloads(&site) < MANY);
    // This is still the same round, because no time passes.
    let begun = Instant::now();
    while payloads(&site) > STUCK {
        assert!(begun.elapsed() < DEADLINE, "{} are left", payloads(&site));
        site.settle();
    }
    stuck.iter().for_each(|payload| std::fs::remove_dir(payload).unwrap());
    site.until("the rest to go", || payloads(&site) == 0);
}
