//! Capacity from processors and memory.

use super::*;

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

#[test]
fn the_table_of_capacities() {
    let rates = Rates::default();
    let pod = Rates { memory_reserve: 0, ..rates };
    let half = Cpus::from_override("500m");
    let rows = [
        (Cpus::whole(4), 4 * GIB, rates, 100, (16, 20, 20)),
        (Cpus::whole(4), 4 * GIB, rates, 50, (16, 20, 18)),
        (Cpus::whole(4), 4 * GIB, rates, 0, (16, 20, 16)),
        (Cpus::whole(2), 1763 * MIB, rates, 100, (8, 1, 8)),
        (Cpus::whole(2), 1763 * MIB, pod, 100, (8, 17, 17)),
        (Cpus::whole(8), 32 * GIB, rates, 25, (32, 307, 100)),
        (Cpus::whole(16), 16 * GIB, rates, 75, (64, 143, 123)),
        (half, 3 * GIB, pod, 100, (2, 30, 30)),
        (half, 3 * GIB, rates, 100, (2, 10, 10)),
    ];
    for (at, (cpus, memory, rates, adjustment, expected)) in rows.into_iter().enumerate() {
        let measured = Capacities::measure(cpus, memory, &rates);
        let capacity = measured.adjusted(Adjustment(adjustment));
        assert_eq!((measured.cpu, measured.mem, capacity), expected, "row {at}");
    }
}

#[test]
fn an_adjustment_above_one_goes_beyond_the_larger_capacity() {
    assert_eq!(Capacities { cpu: 16, mem: 20 }.adjusted(Adjustment(150)), 22);
}

#[test]
fn the_smallest_machine_has_a_capacity_of_one() {
    let tiny = Capacities::measure(Cpus::from_override("0"), 1, &Rates::default());
    assert_eq!(tiny, Capacities { cpu: 1, mem: 1 });
}

#[test]
fn overrides_are_read_as_awx_reads_them() {
    for (text, same_as) in
        [("2", "2000m"), ("250m", "0.2"), ("0", "0.1"), ("1m", "0.1"), ("many", "1"), ("", "1")]
    {
        assert_eq!(Cpus::from_override(text), Cpus::from_override(same_as), "{text:?}");
    }
    let rows = [
        ("1048576", MIB),
        ("1Mi", MIB),
        ("2Gi", 2 * GIB),
        ("1K", 1000),
        ("3G", 3_000_000_000),
        ("1Ei", 1 << 60),
        ("1k", 1),
        ("lots", 1),
        ("", 1),
        ("0", 1),
        ("1Mib", 1),
        ("5µ", 1),
    ];
    for (text, bytes) in rows {
        assert_eq!(memory_from_override(text), bytes, "{text:?}");
    }
}

#[test]
fn a_hybrid_keeps_one_processor_s_share_for_its_controller() {
    let rows = [
        (Cpus::whole(2), (8, 220), (4, 110)),
        (Cpus::whole(8), (32, 220), (28, 192)),
        (Cpus::whole(1), (4, 20), (2, 10)),
        (Cpus::of_tenths(5), (2, 1), (1, 1)),
        (Cpus::of_tenths(0), (1, 1), (1, 1)),
    ];
    for (cpus, (cpu, mem), (left_cpu, left_mem)) in rows {
        let left = Capacities { cpu, mem }.beside_controller(cpus);
        assert_eq!(left, Capacities { cpu: left_cpu, mem: left_mem }, "{cpus:?}");
    }
    let of = |node_type| {
        let mut one = Instance::register("h".into(), node_type, true, START);
        let (cpus, memory, version) = (Cpus::whole(2), 24 * GIB, "2.4.0".to_owned());
        one.on_healthy(HealthResult { cpus, memory, uuid: None, version }, &Rates::default(), false);
        one.capacity()
    };
    let types = [NodeType::Execution, NodeType::Control, NodeType::Hybrid];
    assert_eq!(types.map(of), [225, 225, 112]);
}

#[test]
fn only_a_ready_and_enabled_instance_that_is_no_hop_has_capacity() {
    let with = |change: fn(&mut Instance)| {
        let mut instance = execution("e1", 20);
        change(&mut instance);
        (instance.capacity(), instance.capacities.cpu)
    };
    assert_eq!(with(|_| ()), (20, 20));
    assert_eq!(with(|e| e.enabled = false), (0, 20));
    assert_eq!(with(|e| e.node_state = NodeState::Unavailable), (0, 20));
    assert_eq!(with(|e| e.node_state = NodeState::Installed), (0, 20));
    assert_eq!(with(|e| e.node_type = NodeType::Hop), (0, 20));
}

#[test]
fn a_group_has_the_sum_of_its_members_and_a_container_group_its_forks() {
    let instances = [execution("e1", 20), execution("e2", 10), execution("e3", 5)];
    let mut pods = Group::containers("pods".into());
    pods.max_forks = 50;
    let groups = [group("east", &["e1", "e2"]), group("all", &["e1", "e2", "e3"]), pods];
    let mut claims = vec![claim(1, "c1", "e1", "east", 4), claim(2, "c1", "e2", "all", 30)];
    claims.push(Claim { execution_node: None, ..claim(3, "c1", "", "pods", 6) });
    let loads = Loads::sum(&instances, &groups, &claims);
    let seen = |at| {
        let sum = loads.group_capacity(&instances, &groups, at);
        (sum.capacity, sum.consumed, sum.remaining, sum.jobs_running)
    };
    // A job on an instance reduces every group with that instance; an overcommitted instance has 0 left, not
    // less.
    assert_eq!([seen(0), seen(1), seen(2)], [(30, 34, 16, 1), (35, 34, 21, 1), (50, 6, 44, 1)]);
}
