//! A controller that fails is started again, and stops for good if it fails too often. The node goes on.

use super::streams::whole;
use super::*;
use serde_json::json;

/// Lets the controller fail this many times.
fn fail(site: &Site, times: u32) {
    site.fabric.change(|units| units.failures = times);
    site.until("it to have failed", || site.fabric.look(|units| units.failures) == 0);
}

#[test]
fn a_controller_that_fails_three_times_within_five_minutes_stops_and_says_why() {
    let mut site = Site::ready(&["e1"]);
    let (unit, job) = site.submit(json!({}));
    let child = site.running(job);
    // Fewer failures only cause pauses.
    fail(&site, 2);
    site.pass(seconds(301));
    fail(&site, 2);
    assert_eq!(site.driver().lease.halted(), None);
    let (_, other) = site.submit(json!({}));
    let second = site.running(other);
    fail(&site, 1);
    site.until("it to stop", || site.driver().lease.halted().is_some());
    let why = site.driver().lease.halted().unwrap();
    assert!(why.starts_with("it failed 3 times within 5 minutes, the last time because: "), "{why}");
    let own = site.instance(OWN).instance;
    assert_eq!(own.node_state, NodeState::Unavailable);
    assert_eq!(site.errors(OWN), [format!("its controller has stopped: {why}")]);
    let check = json!({"op": "instance.health", "name": "e1", "store": false});
    let refused = site.ask(check).unwrap_err();
    let words = "the lease of this control node could not be renewed";
    assert_eq!((refused.code.to_string().as_str(), refused.message.as_str()), ("owner_away", words));
    // The node goes on: it answers, refuses jobs and says why, and running jobs go on.
    let refused = site.submit_bytes(&super::site::stream(json!({}))).unwrap_err();
    assert!(refused.contains(&why), "{refused}");
    assert_eq!(site.unit(&unit).unwrap().state, crate::rpc::UnitState::Running);
    site.pass(seconds(60));
    assert_eq!(site.fabric.look(|units| units.alive(job.0)), std::slice::from_ref(&child));
    // After a restart everything is as before.
    site.kill();
    site.boot();
    for (job, child) in [(job, child), (other, second)] {
        site.fabric.write(&child, &whole(1, "successful"));
        site.fabric.end(&child, ChildEnd::Succeeded, "exit status 0");
        assert_eq!((site.ended(job).row.state, site.job(job).job.attempts.len()), (JobState::Successful, 1));
    }
    site.until("it to be ready again", || site.instance(OWN).instance.node_state == NodeState::Ready);
    assert!(site.errors(OWN).is_empty());
}
