use std::collections::BTreeSet;
use std::time::Duration;

use super::*;
use crate::controller::core::{
    Capacities, Instance, InstanceName, NodeState, NodeType, Rates, Sighting, Time,
};

fn end(child: ChildEnd, detail: &str, output: &str) -> CheckEnd {
    CheckEnd { child, detail: detail.to_owned(), output: output.as_bytes().to_vec() }
}

fn good(output: &str) -> HealthResult {
    end(ChildEnd::Succeeded, "exit status 0", output).report().unwrap()
}

fn bad(output: &str) -> Vec<String> {
    end(ChildEnd::Succeeded, "exit status 0", output).report().unwrap_err()
}

/// As ansible-runner 2.4.3 printed it.
const ANSWER: &str = "{cpu_count: 2, errors: [], mem_in_bytes: 25276510208, runner_version: 2.4.3, \
                      uuid: 1c878ce3-27df-4338-97ea-8d70c65037ad}\n\n";

#[test]
fn the_runners_answer_gives_capacity_and_identity() {
    let report = good(ANSWER);
    assert_eq!(report.version, "ansible-runner-2.4.3");
    assert_eq!(report.uuid.as_deref(), Some("1c878ce3-27df-4338-97ea-8d70c65037ad"));
    let capacities = Capacities::measure(report.cpus, report.memory, &Rates::default());
    assert_eq!(capacities, Capacities { cpu: 8, mem: 220 });
    assert_eq!(good(&format!("/usr/lib/x.py:3: DeprecationWarning: old\n  import x\n{ANSWER}")), report);
    let json = r#"{"cpu_count": 2, "mem_in_bytes": 25276510208, "runner_version": "2.4.3"}"#;
    assert_eq!(good(json), HealthResult { uuid: None, ..report });
    assert_eq!(good("{cpu_count: 1, mem_in_bytes: 1, runner_version: 2.4}").version, "ansible-runner-2.4");
}

#[test]
fn a_machine_that_reports_errors_is_unhealthy() {
    let answer = "{cpu_count: 2, errors: ['Could not find /proc/meminfo'], mem_in_bytes: null, \
                  runner_version: 2.4.3, uuid: x}";
    assert_eq!(
        bad(answer),
        ["Could not find /proc/meminfo", "the runner's answer has no usable mem_in_bytes"]
    );
    assert_eq!(bad("{cpu_count: 0, mem_in_bytes: -1}").len(), 3);
}

#[test]
fn an_answer_of_another_program_is_shown_as_it_is() {
    for output in ["", "hello", "[1, 2]", "{a: ", "{\u{1b}[31m"] {
        let errors = bad(output);
        assert!(errors[0].starts_with("cannot understand the runner's answer: exit status 0"), "{errors:?}");
        assert!(!errors[0].contains('\u{1b}'));
    }
    let usage = "usage: ansible-runner\nansible-runner: error: unrecognized arguments: --worker-info";
    let [error] = &end(ChildEnd::Failed, "exit status 2", usage).report().unwrap_err()[..] else { panic!() };
    assert_eq!(*error, format!("the health check failed: exit status 2: {usage}"));
    let long = bad(&"ä".repeat(LONGEST_OUTPUT));
    assert!(long[0].len() <= LONGEST_ERROR);
    let [nul] =
        &bad("{errors: [{\"a\\u009bb\": \"x\"}], cpu_count: 1, mem_in_bytes: 1, runner_version: a}")[..]
    else {
        panic!()
    };
    assert!(!nul.contains(char::is_control), "{nul:?}");
    let many = format!("{{errors: [{}]}}", "x, ".repeat(1_000));
    assert!(bad(&many).len() <= MOST_ERRORS + 3);
}

fn seen(name: &str, now: Time) -> Instance {
    let mut instance = Instance::register(name.into(), NodeType::Execution, true, now);
    instance.on_seen("c1".into(), Sighting { routed: true, arrived: now, beat: 0 }, now);
    instance
}

#[test]
fn checks_follow_first_sight_errors_loss_and_demand() {
    let start = Time(1_000_000);
    let later = |seconds| start + Duration::from_secs(seconds);
    let owner = InstanceName::from("c1");
    let none = BTreeSet::new();
    let mut e1 = seen("e1", start);
    let due = |instance: &Instance, now| {
        !next_checks(std::slice::from_ref(instance), &owner, &none, now).is_empty()
    };

    assert!(due(&e1, start));
    e1.on_unhealthy(vec!["no runner".to_owned()], start);
    let mut now = start;
    for delay in [30_000, 45_000, 67_500, 101_250] {
        assert_eq!(e1.health_due, Some(now + Duration::from_millis(delay)));
        now = e1.health_due.unwrap();
        e1.on_unhealthy(vec!["no runner".to_owned()], now);
    }
    for _ in 0..20 {
        let at = e1.health_due.unwrap();
        assert!(at <= now + Duration::from_secs(1_800));
        e1.on_seen(owner.clone(), Sighting { routed: true, arrived: at, beat: 0 }, at);
        assert!(!due(&e1, Time(at.0 - 1)) && due(&e1, at));
        assert!(due(&e1, Time(at.0 - 3_600_000)), "the clock was set back");
        now = at;
        e1.on_unhealthy(vec!["no runner".to_owned()], now);
    }
    assert_eq!(e1.health_due, Some(now + Duration::from_secs(1_800)));
    e1.on_healthy(good(ANSWER), &Rates::default(), true);
    assert_eq!(e1.node_state, NodeState::Ready);
    assert!(!due(&e1, later(100_000)));
    e1.request_health_check(now);
    assert!(due(&e1, now));
    e1.on_healthy(good(ANSWER), &Rates::default(), true);
    e1.on_lost();
    assert!(!due(&e1, now));
    e1.on_seen(owner.clone(), Sighting { routed: true, arrived: now, beat: 0 }, now);
    assert!(due(&e1, now));
}

#[test]
fn a_hop_is_never_checked() {
    let now = Time(1_000_000);
    let mut hop = Instance::register("h1".into(), NodeType::Hop, true, now);
    hop.request_health_check(now);
    hop.on_seen("c1".into(), Sighting { routed: true, arrived: now, beat: 0 }, now);
    assert!(next_checks(&[hop], &"c1".into(), &BTreeSet::new(), now).is_empty());
}

#[test]
fn only_so_many_are_checked_at_once_and_only_those_in_reach() {
    let now = Time(5_000_000);
    let mut instances: Vec<_> = (0..40).map(|i| seen(&format!("e{i:02}"), Time(now.0 - i))).collect();
    let owner = InstanceName::from("c1");
    let first = next_checks(&instances, &owner, &BTreeSet::new(), now);
    assert_eq!(first.len(), CHECKS_AT_ONCE);
    assert_eq!(first[0].as_str(), "e39");
    let running: BTreeSet<_> = first[..10].iter().cloned().collect();
    let more = next_checks(&instances, &owner, &running, now);
    assert_eq!(more.len(), CHECKS_AT_ONCE - 10);
    assert!(more.iter().all(|name| !running.contains(name)));
    instances.iter_mut().for_each(|instance| instance.seen.clear());
    assert!(next_checks(&instances, &owner, &BTreeSet::new(), now).is_empty());
}

#[test]
fn awx_variables_and_a_pod_change_the_measure() {
    let read = |known: &[(&str, &str)]| {
        let known: std::collections::BTreeMap<&str, &str> = known.iter().copied().collect();
        Surroundings::read(|name| known.get(name).map(|value| (*value).to_owned()))
    };
    let report = good(ANSWER);
    let nothing = read(&[("SYSTEM_TASK_FORKS_CPU", "many"), ("SYSTEM_TASK_ABS_MEM", "")]);
    assert_eq!(nothing, Surroundings::default());
    assert_eq!(nothing.rates(4, 100, None), Rates::default());
    assert_eq!(nothing.correct(report.clone()), report);
    let rates =
        read(&[("SYSTEM_TASK_FORKS_CPU", "6"), ("SYSTEM_TASK_FORKS_MEM", "50")]).rates(4, 100, Some(1));
    assert_eq!(rates, Rates { forks_per_cpu: 6, mib_per_fork: 50, memory_reserve: 1 });
    // A pod of half a processor and 3 GiB.
    let pod = [
        ("KUBERNETES_SERVICE_HOST", "10.0.0.1"),
        ("SYSTEM_TASK_ABS_CPU", "500m"),
        ("SYSTEM_TASK_ABS_MEM", "3Gi"),
    ];
    let pod = read(&pod);
    let own = pod.correct(report);
    let measured = Capacities::measure(own.cpus, own.memory, &pod.rates(4, 100, None));
    assert_eq!(measured, Capacities { cpu: 2, mem: 30 });
}
