//! Health checks, and the other faults that an instance's record shows.

use super::streams::whole;
use super::*;
use serde_json::json;

fn set_health(site: &Site, node: &str, health: Health) {
    site.fabric.change(|units| units.nodes.get_mut(node).unwrap().health = health);
}

fn check_now(site: &Site, node: &str) {
    let checks = || site.instance(node).last_health_check;
    let before = checks();
    site.pass(Duration::from_millis(20));
    site.operate(json!({"op": "instance.health", "name": node}));
    site.until("the check", || checks() != before && checks().is_some());
}

fn state(site: &Site, node: &str) -> NodeState {
    site.instance(node).instance.node_state
}

#[test]
fn a_runner_that_is_missing_or_too_old_makes_its_node_unavailable_and_is_asked_ever_more_rarely() {
    let site = Site::ready(&["e1"]);
    for (end, detail, output, error) in [
        (ChildEnd::Failed, "cannot start it", "", "the health check failed: cannot start it"),
        (
            ChildEnd::Failed,
            "exit status 2",
            "ansible-runner: error: unrecognized arguments: --worker-info",
            "the health check failed: exit status 2: ansible-runner: error: unrecognized arguments: --worker-info",
        ),
        (
            ChildEnd::Succeeded,
            "exit status 0",
            "hello",
            "cannot understand the runner's answer: exit status 0: hello",
        ),
    ] {
        set_health(&site, "e1", Health::Says(end, detail.into(), output.into()));
        check_now(&site, "e1");
        assert_eq!((state(&site, "e1"), site.errors("e1")), (NodeState::Unavailable, vec![error.to_owned()]));
        set_health(&site, "e1", Health::Good("uuid-e1".into()));
        check_now(&site, "e1");
        assert_eq!((state(&site, "e1"), site.errors("e1").len()), (NodeState::Ready, 0));
    }
    set_health(&site, "e1", Health::Says(ChildEnd::Failed, "exit status 1".into(), String::new()));
    check_now(&site, "e1");
    for delay in [30, 45, 67] {
        let last = site.instance("e1").last_health_check;
        let passed = site.until("the next check", || site.instance("e1").last_health_check != last);
        assert!(passed >= seconds(delay - 1) && passed <= seconds(delay + 16), "{delay}: {passed:?}");
    }
    set_health(&site, "e1", Health::Good("uuid-e1".into()));
    site.until("it to be ready again", || state(&site, "e1") == NodeState::Ready);
    assert!(site.errors("e1").is_empty());
    let checks = |unit: &&String| unit.contains('h');
    site.until("the units of checks to go", || {
        site.fabric.look(|units| units.there.keys().filter(checks).count()) == 0
    });
}

#[test]
fn a_runner_that_does_not_answer_is_given_twenty_seconds() {
    let site = Site::ready(&["e1"]);
    set_health(&site, "e1", Health::Silent);
    check_now(&site, "e1");
    let wanted = "no answer to the health check within 20 s: e1 accepted a unit of type ansible-runner, but its command, called with --worker-info, did not end: find out on e1 what it is waiting for";
    assert_eq!(site.errors("e1"), [wanted]);
}

#[test]
fn a_node_that_takes_no_unit_is_told_with_what_to_look_at() {
    let site = Site::ready(&["e1"]);
    site.fabric.change(|units| units.nodes.get_mut("e1").unwrap().is_deaf = true);
    check_now(&site, "e1");
    let wanted = "no answer to the health check within 20 s: the control service of e1 did not accept a unit of \
                  type ansible-runner (the way there is long): check whether a firewall rule closes that service to \
                  c1, whether e1 has that work type, and whether it can be reached";
    assert_eq!(site.errors("e1"), [wanted]);
}

#[test]
fn what_was_not_sent_runs_elsewhere_and_the_instance_that_did_not_prove_itself_says_why() {
    let site = Site::ready(&["e1"]);
    site.fabric.change(|units| units.nodes.get_mut("e1").unwrap().is_deaf = true);
    let jobs: Vec<_> = (0..3).map(|_| site.submit(json!({})).1).collect();
    let first = |job| site.job(job).job.attempts.first().map(|attempt| attempt.unit.to_string());
    for job in &jobs {
        site.until("its unit to wait", || first(*job).is_some_and(|unit| site.fabric.is_unsent(&unit)));
    }
    let why = "TLS error connecting to remote service: error 42";
    for job in &jobs {
        site.fabric.give_up(&first(*job).unwrap(), why);
    }
    site.soon("e1 to say why", || site.errors("e1") == [why]);
    for job in &jobs {
        site.soon("it to wait again", || site.state(*job) == JobState::Pending);
        let ending = site.job(*job).job.attempts[0].ending();
        assert_eq!(ending, Some(crate::controller::core::Ending::NotAccepted));
    }
    let e1 = site.instance("e1").instance;
    assert_eq!(
        (e1.node_state, e1.health_failures),
        (NodeState::Unavailable, 1),
        "all of them are one failure"
    );
    // The jobs go on elsewhere, without a retry.
    site.fabric.change(|units| units.nodes.insert("e2".into(), FakeNode::runner("e2")));
    site.fabric.advertise();
    for job in jobs {
        let child = site.running(job);
        site.fabric.write(&child, &whole(1, "successful"));
        site.fabric.end(&child, ChildEnd::Succeeded, "exit status 0");
        assert_eq!((site.ended(job).row.state, site.job(job).job.attempts.len()), (JobState::Successful, 2));
    }
    site.fabric.change(|units| units.nodes.get_mut("e1").unwrap().is_deaf = false);
    site.until("e1 to be ready again", || state(&site, "e1") == NodeState::Ready);
    assert!(site.errors("e1").is_empty());
    site.soon("nothing to be left", || site.fabric.left().is_empty());
}

#[test]
fn an_instance_that_is_seen_and_answers_nothing_says_so_while_its_jobs_run_on() {
    let site = Site::ready(&["e1"]);
    let (_, job) = site.submit(json!({}));
    let child = site.running(job);
    let checked = || site.instance("e1").last_health_check;
    let before = checked();
    // A node that counts as unanswering is checked, although it answers, but only once every `lost_after`.
    site.fabric.change(|units| units.unanswering.insert("e1".into()));
    site.pass(seconds(170));
    assert_eq!((checked() == before, state(&site, "e1")), (true, NodeState::Ready));
    site.pass(seconds(30));
    let again = checked();
    assert_eq!((again == before, state(&site, "e1")), (false, NodeState::Ready));
    site.pass(seconds(140));
    assert_eq!(checked(), again);
    site.fabric.change(|units| units.nodes.get_mut("e1").unwrap().is_deaf = true);
    site.until("e1 to be found silent", || state(&site, "e1") == NodeState::Unavailable);
    let errors = site.errors("e1");
    assert!(errors[0].starts_with("no answer to the health check within 20 s: "), "{errors:?}");
    assert_eq!((site.state(job), site.job(job).job.attempts.len()), (JobState::Running, 1));
    site.fabric.change(|units| {
        units.unanswering.clear();
        units.nodes.get_mut("e1").unwrap().is_deaf = false;
    });
    site.fabric.write(&child, &whole(1, "successful"));
    site.fabric.end(&child, ChildEnd::Succeeded, "exit status 0");
    assert_eq!(site.ended(job).row.state, JobState::Successful);
    site.until("e1 to be ready again", || state(&site, "e1") == NodeState::Ready);
}

#[test]
fn a_failed_check_of_a_busy_node_ends_no_job_and_starts_none() {
    let site = Site::ready(&["e1"]);
    let (_, running) = site.submit(json!({}));
    let child = site.running(running);
    set_health(&site, "e1", Health::Says(ChildEnd::Failed, "exit status 1".into(), "no memory".into()));
    check_now(&site, "e1");
    let (unit, waiting) = site.submit(json!({}));
    site.pass(seconds(15));
    assert_eq!((site.state(running), site.state(waiting)), (JobState::Running, JobState::Pending));
    site.until("its unit to show why", || {
        site.unit(&unit).unwrap().detail == "waiting for a ready instance in default"
    });
    site.fabric.write(&child, &whole(1, "successful"));
    site.fabric.end(&child, ChildEnd::Succeeded, "exit status 0");
    assert_eq!(site.ended(running).row.state, JobState::Successful);
    set_health(&site, "e1", Health::Good("uuid-e1".into()));
    let child = site.running(waiting);
    site.fabric.write(&child, &whole(1, "successful"));
    site.fabric.end(&child, ChildEnd::Succeeded, "exit status 0");
    assert_eq!(site.ended(waiting).row.state, JobState::Successful);
}

#[test]
fn another_machine_under_a_name_and_another_name_of_a_machine_are_told() {
    let site = Site::ready(&["e1", "e2"]);
    set_health(&site, "e1", Health::Good("new".into()));
    check_now(&site, "e1");
    let warning = "its machine has changed from uuid-e1 to new: it was renamed or reinstalled";
    assert_eq!((state(&site, "e1"), site.errors("e1").len()), (NodeState::Ready, 1));
    assert!(site.errors("e1")[0].starts_with(warning) && site.instance("e1").instance.enabled);
    // e2 gets another name. While both names are seen, they are two nodes on one machine.
    site.fabric.change(|units| {
        let mut twin = FakeNode::runner("e4");
        twin.health = Health::Good("uuid-e2".into());
        units.nodes.insert("e4".into(), twin);
    });
    site.fabric.advertise();
    site.until("e4", || site.instances().iter().any(|one| one.instance.name.as_str() == "e4"));
    site.until("e4 to be ready", || state(&site, "e4") == NodeState::Ready);
    assert!(site.errors("e4").is_empty());
    site.fabric.set_routed("e2", false);
    site.until("e2 to be lost", || state(&site, "e2") == NodeState::Unavailable);
    check_now(&site, "e4");
    let warning = "its machine used to be e2, which is not seen any more: remove e2 if it was renamed";
    assert_eq!(site.errors("e4"), [warning]);
}

#[test]
fn another_machine_of_another_size_waits_for_an_operator_unless_a_certificate_names_it() {
    for (profile, tls, is_enabled) in [
        (None, false, false),
        (Some("lax"), true, false),
        (Some("strict"), false, false),
        (Some("strict"), true, true),
    ] {
        let fabric = Fabric::new(&["e1"], true);
        fabric.change(|units| units.nodes.get_mut("e1").unwrap().tls = tls);
        let profile = profile.map(str::to_owned);
        let options = ControllerOptions { tls_client: profile, ..options(Discovery::Enabled) };
        let site = Site::started(fabric, options);
        site.until("e1 to be ready", || {
            site.instances().len() == 2 && state(&site, "e1") == NodeState::Ready
        });
        set_health(&site, "e1", Health::Good("new+".into()));
        check_now(&site, "e1");
        assert_eq!(site.instance("e1").instance.enabled, is_enabled);
        assert!(site.errors("e1")[0].contains("has changed from uuid-e1 to new+"), "{:?}", site.errors("e1"));
        site.operate(json!({"op": "instance.enable", "name": "e1"}));
        check_now(&site, "e1");
        assert!(site.instance("e1").instance.enabled && site.errors("e1").is_empty());
    }
}

#[test]
fn a_clock_that_is_off_is_told_and_loses_nothing() {
    let site = Site::ready(&["e1"]);
    for (skew, off) in [(45_000, 45), (-4_000_000, 4_000)] {
        site.fabric.change(|units| units.nodes.get_mut("e1").unwrap().skew = skew);
        site.fabric.advertise();
        let says = |word: &str| site.errors("e1").iter().any(|error| error.contains(word));
        site.until("its record to say so", || says("its clock is off by"));
        let errors = site.errors("e1");
        let seconds: u64 = errors[0].split(' ').nth(5).unwrap().parse().unwrap();
        assert!(seconds.abs_diff(off) <= 30, "{errors:?}");
        assert_eq!(state(&site, "e1"), NodeState::Ready);
        let (_, job) = site.submit(json!({}));
        let child = site.running(job);
        site.fabric.write(&child, &whole(1, "successful"));
        site.fabric.end(&child, ChildEnd::Succeeded, "exit status 0");
        site.ended(job);
        site.fabric.change(|units| units.nodes.get_mut("e1").unwrap().skew = 0);
        site.fabric.advertise();
        site.until("its record to be clean", || site.errors("e1").is_empty());
    }
}
