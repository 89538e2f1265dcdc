//! Instances by arrival times: sightings, health, loss and return.

use super::*;

fn report(uuid: &str) -> HealthResult {
    let memory = 4 << 30;
    HealthResult {
        cpus: Cpus::whole(4),
        memory,
        uuid: Some(uuid.into()),
        version: "ansible-runner-2.4.0".into(),
    }
}

fn sighting(arrived: Time) -> Sighting {
    Sighting { routed: true, arrived, beat: 0 }
}

/// The patience of a node that has watched an unchanged instance since START, `after` seconds later.
fn patience(e1: &Instance, lost_after: Duration, after: u64) -> Patience {
    Patience { sightings: watched(std::slice::from_ref(e1)), now: START + secs(after), lost_after }
}

#[test]
fn the_table_of_loss() {
    // An instance is lost right after the allowed time, not exactly at it.
    let e1 = execution("e1", 10);
    for allowed in [120, 180] {
        assert!(!patience(&e1, secs(allowed), allowed).is_over(&e1, None));
        assert!(patience(&e1, secs(allowed), allowed + 1).is_over(&e1, None));
    }
}

#[test]
fn no_step_of_the_stores_clock_loses_or_saves_an_instance() {
    let hour = 3_600_000;
    for step in [hour, -hour] {
        let (mut seen, mut silent) = (execution("e1", 10), execution("e2", 10));
        silent.seen.values_mut().for_each(|sighting| sighting.arrived = START);
        let mut sightings = SightingWatch::default();
        for at in (0..=600).step_by(10) {
            let now = START + secs(at);
            let sighting = seen.seen.get_mut("c2").unwrap();
            (sighting.beat, sighting.arrived) = (sighting.beat + 1, Time(sighting.arrived.0 + step));
            sightings.note(rows(&[seen.clone(), silent.clone()]), now, secs(20));
            let patience = Patience { sightings: sightings.clone(), now, lost_after: secs(180) };
            assert!(!patience.is_over(&seen, None));
            assert_eq!(patience.is_over(&silent, None), at > 180, "after {at} s");
        }
    }
}

#[test]
fn nothing_is_lost_soon_after_a_start_or_a_time_in_which_nobody_looked() {
    let mut e1 = execution("e1", 10);
    let old = e1.seen.values_mut().map(|sighting| sighting.arrived = Time(0)).count();
    assert_eq!(old, 2);
    assert!(!patience(&e1, secs(180), 180).is_over(&e1, None));
    let mut unseen = e1.clone();
    unseen.seen.clear();
    assert!(!patience(&unseen, secs(180), 180).is_over(&unseen, None));
    assert!(patience(&unseen, secs(180), 181).is_over(&unseen, None));
    let mut sightings = watched(std::slice::from_ref(&e1));
    sightings.note(rows(std::slice::from_ref(&e1)), START + secs(500), secs(20));
    let patience = Patience { sightings, now: START + secs(680), lost_after: secs(180) };
    assert!(!patience.is_over(&e1, None));
}

#[test]
fn a_job_may_override_the_time_to_loss() {
    let e1 = execution("e1", 10);
    assert!(patience(&e1, secs(180), 21).is_over(&e1, Some(secs(20))));
    assert!(!patience(&e1, secs(180), 500).is_over(&e1, Some(secs(600))));
}

#[test]
fn any_control_node_that_sees_an_instance_keeps_it() {
    let mut e1 = execution("e1", 10);
    let patience = patience(&e1, secs(180), 500);
    assert!(is_newly_lost(&e1, &patience));
    e1.seen.get_mut("c2").unwrap().beat += 1;
    assert!(!is_newly_lost(&e1, &patience));
    e1.seen.get_mut("c1").unwrap().routed = false;
    assert!(e1.is_reachable_from(&"c2".into()) && !e1.is_reachable_from(&"c1".into()));
}

#[test]
fn a_lost_instance_comes_back_through_a_health_check() {
    let mut e1 = execution("e1", 10);
    e1.on_lost();
    assert_eq!((e1.node_state, e1.capacity(), e1.health_due), (NodeState::Unavailable, 0, None));
    let back = START + secs(600);
    e1.on_seen("c1".into(), sighting(back), back);
    assert_eq!((e1.node_state, e1.health_due), (NodeState::Unavailable, Some(back)));
    e1.on_healthy(report("a"), &Rates::default(), true);
    assert_eq!((e1.node_state, e1.capacity(), e1.health_due), (NodeState::Ready, 20, None));
}

#[test]
fn a_control_node_without_a_runner_asks_for_it_each_minute() {
    let ill = |node_type| {
        let mut one = Instance::register("c1".into(), node_type, true, START);
        (0..20).for_each(|_| one.on_unhealthy(vec!["no runner".into()], START));
        one
    };
    let (own, other) = (ill(NodeType::Hybrid), ill(NodeType::Execution));
    assert!(!own.is_check_due(START + secs(59)) && own.is_check_due(START + secs(60)));
    assert!(!other.is_check_due(START + secs(1_799)) && other.is_check_due(START + secs(1_800)));
}

#[test]
fn a_hop_is_ready_when_it_is_seen() {
    let mut hop = Instance::register("hop".into(), NodeType::Hop, true, START);
    assert_eq!((hop.node_state, hop.health_due), (NodeState::Installed, None));
    hop.on_seen("c1".into(), sighting(START), START);
    assert_eq!((hop.node_state, hop.capacity()), (NodeState::Ready, 0));
    hop.on_lost();
    hop.on_seen("c1".into(), sighting(START), START);
    assert_eq!(hop.node_state, NodeState::Ready);
}

#[test]
fn what_is_left_of_an_advertisement_brings_no_instance_back() {
    let mut hop = Instance::register("hop".into(), NodeType::Hop, true, START);
    let mut e1 = execution("e1", 10);
    let late = START + secs(600);
    let gone = Sighting { routed: false, ..sighting(late) };
    hop.on_lost();
    e1.on_lost();
    hop.on_seen("c1".into(), gone, late);
    e1.on_seen("c1".into(), gone, late);
    assert_eq!((hop.node_state, e1.health_due), (NodeState::Unavailable, None));
}

#[test]
fn an_instance_that_nobody_enabled_is_checked_on_demand_alone() {
    let mut e1 = Instance::register("e1".into(), NodeType::Execution, false, START);
    let later = START + secs(60);
    e1.on_seen("c1".into(), sighting(START), START);
    assert_eq!((e1.node_state, e1.health_due), (NodeState::Installed, None));
    e1.request_health_check(START);
    assert_eq!(e1.health_due, Some(START));
    e1.on_unhealthy(vec!["runner missing".into()], START);
    e1.on_seen("c1".into(), sighting(later), later);
    assert_eq!((e1.node_state, e1.health_due), (NodeState::Unavailable, None), "it is not asked again");
    e1.set_enabled(true, later);
    assert_eq!(e1.health_due, Some(later));
    e1.on_healthy(report("a"), &Rates::default(), true);
    assert_eq!((e1.node_state, e1.capacity(), e1.capacities.mem), (NodeState::Ready, 20, 20));
    e1.set_enabled(false, later);
    e1.set_enabled(true, later);
    assert_eq!((e1.node_state, e1.health_due), (NodeState::Ready, None), "what is known to be well stays so");
    e1.on_unhealthy(vec!["runner missing".into()], later);
    e1.set_enabled(false, later);
    assert_eq!(e1.health_due, None);
    let mut hop = Instance::register("hop".into(), NodeType::Hop, false, START);
    hop.set_enabled(true, later);
    assert_eq!(hop.health_due, None);
}

#[test]
fn failed_health_checks_back_off_to_half_an_hour() {
    let mut e1 = execution("e1", 10);
    let mut delays = Vec::new();
    for _ in 0..13 {
        e1.on_unhealthy(vec!["runner missing".into()], START);
        delays.push(e1.health_due.unwrap().since(START).as_secs());
    }
    assert_eq!(delays[..4], [30, 45, 67, 101]);
    assert_eq!(delays[11..], [1800, 1800]);
    assert_eq!((e1.node_state, e1.capacity()), (NodeState::Unavailable, 0));
    e1.request_health_check(START);
    assert_eq!(e1.health_due, Some(START));
    e1.on_healthy(report("a"), &Rates::default(), true);
    assert_eq!((e1.health_failures, e1.errors.len()), (0, 0));
}

#[test]
fn another_machine_under_the_same_name_is_noticed() {
    let mut e1 = execution("e1", 10);
    let rates = Rates::default();
    e1.on_healthy(report("a"), &rates, false);
    assert!(e1.errors.is_empty() && e1.enabled);
    // Something vouches for it: a certificate, or the size of the machine.
    e1.on_healthy(report("b"), &rates, true);
    let changed = "its machine has changed from a to b: it was renamed or reinstalled; if it is disabled, confirm \
                   it with `meshctl instance enable`";
    assert_eq!((faults(&e1), e1.enabled), (vec![changed.to_owned()], true));
    e1.on_healthy(report("b"), &rates, false);
    assert!(e1.errors.is_empty() && e1.enabled, "the next good check takes the warning away");
}

#[test]
fn a_machine_for_which_nothing_vouches_waits_for_an_operator() {
    let (mut e1, rates) = (execution("e1", 10), Rates::default());
    e1.on_healthy(report("a"), &rates, false);
    for (other, now) in
        [(report("b"), "b"), (HealthResult { uuid: None, ..report("") }, "one without identity")]
    {
        e1.on_healthy(other.clone(), &rates, false);
        assert_eq!((e1.enabled, unusable(&e1)), (false, Some(Why::Disabled)), "{now}");
        // Another check changes nothing, and the reason stays.
        e1.on_healthy(other, &rates, false);
        assert!(
            !e1.enabled && faults(&e1)[0].starts_with("its machine has changed from a to "),
            "{:?}",
            faults(&e1)
        );
        assert!(faults(&e1)[0].contains(now), "{:?}", faults(&e1));
        // The operator accepts whichever machine answers next, even the former one.
        e1.set_enabled(true, START);
        assert!(faults(&e1).is_empty());
        e1.on_healthy(report("a"), &rates, false);
        assert!(e1.enabled && faults(&e1).is_empty());
    }
}

#[test]
fn a_wrong_clock_is_an_error_but_no_loss() {
    let mut e1 = execution("e1", 10);
    assert!(!e1.on_clock_offset(secs(30)));
    assert!(e1.errors.is_empty());
    assert!(e1.on_clock_offset(secs(31)));
    assert!(e1.on_clock_offset(secs(4000)) && !e1.on_clock_offset(secs(4020)));
    let off = "its clock is off by 4000 s: its tokens will be refused";
    assert_eq!(faults(&e1), [off]);
    assert_eq!(e1.capacity(), 10);
    e1.on_unhealthy(vec!["no runner".into()], START);
    assert_eq!(faults(&e1), [off, "no runner"], "a health check says nothing about the clock");
    e1.on_healthy(report("a"), &Rates::default(), true);
    assert_eq!(faults(&e1), [off]);
    assert!(e1.on_clock_offset(secs(1)));
    assert!(e1.errors.is_empty());
}

fn faults(instance: &Instance) -> Vec<String> {
    instance.errors.iter().map(ToString::to_string).collect()
}

#[test]
fn a_drained_instance_goes_when_its_last_attempt_is_over() {
    let mut e1 = execution("e1", 10);
    e1.drain();
    assert_eq!(unusable(&e1), Some(Why::Draining));
    assert!(!e1.is_removable(1) && e1.is_removable(0));
    e1.on_healthy(report("a"), &Rates::default(), true);
    assert_eq!(e1.node_state, NodeState::Deprovisioning, "a good health check does not bring it back");
}
