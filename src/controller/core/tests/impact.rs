//! The impact of a job, and the capacity that it consumes.

use super::*;

fn size(forks: u32, hosts: impl Into<Option<u32>>) -> Size {
    Size { forks, hosts: hosts.into(), ..Size::default() }
}

#[test]
fn the_impact_of_a_playbook_is_its_hosts_or_its_forks_and_one() {
    let rows = [
        (size(0, 3), 4),
        (size(50, 200), 51),
        (size(0, 12), 6),
        (size(1, 1000), 2),
        (size(0, None), 6),
        (size(7, None), 8),
        (size(0, 2), 3), // launched by a callback
        (size(0, 0), 1),
        (size(u32::MAX, u32::MAX), u32::MAX),
    ];
    for (size, impact) in rows {
        assert_eq!(size.impact(JobKind::Job), impact, "{size:?}");
        assert_eq!(size.impact(JobKind::AdHoc), impact, "{size:?}");
    }
}

#[test]
fn slices_share_the_hosts() {
    let slices = [1, 2, 3].map(|number| Size { slice: Some(Slice { number, count: 3 }), ..size(0, 10) });
    assert_eq!(slices.map(|size| size.hosts_in_slice()), [Some(4), Some(3), Some(3)]);
    assert_eq!(slices.map(|size| size.impact(JobKind::Job)), [5, 4, 4]);
    let odd = Size { slice: Some(Slice { number: 9, count: 3 }), ..size(0, 1) };
    assert_eq!(odd.hosts_in_slice(), Some(0), "a number beyond the count takes nothing and breaks nothing");
}

#[test]
fn the_other_kinds_have_fixed_impacts() {
    let fixed = |kind| size(50, 200).impact(kind);
    assert_eq!(fixed(JobKind::InventoryUpdate), 1);
    assert_eq!(fixed(JobKind::ProjectUpdate), 1);
    assert_eq!(fixed(JobKind::ProjectSync), 0);
    assert_eq!(fixed(JobKind::System), 5);
    assert_eq!(Size { impact: Some(9), ..size(50, 200) }.impact(JobKind::System), 9);
}

#[test]
fn kinds_have_names_and_classes() {
    for kind in JobKind::ALL {
        assert_eq!(JobKind::ALL.into_iter().find(|one| one.name() == kind.name()), Some(kind));
    }
    let control: Vec<_> = JobKind::ALL.into_iter().filter(|kind| kind.class() == Class::Control).collect();
    assert_eq!(control, [JobKind::ProjectUpdate, JobKind::ProjectSync, JobKind::System]);
    assert!(!JobKind::ProjectSync.is_submitted() && JobKind::System.is_submitted());
}

/// The capacity of `c1`, `h1` and `e1` that one placed job consumes.
fn consumed(job: PendingJob) -> [u32; 3] {
    let instances = [control("c1", 100), hybrid("h1", 100), execution("e1", 100)];
    let mut pods = Group::containers("pods".into());
    pods.max_forks = 50;
    let groups =
        [group("controlplane", &["c1", "h1"]), group("exec", &["e1"]), group("hybrids", &["h1"]), pods];
    let decisions = pass(&scene(&instances, &groups, &[]), std::slice::from_ref(&job));
    let [Decision::Place(place)] = &decisions[..] else { panic!("{decisions:?}") };
    let claims = [Claim {
        job: job.id,
        owner: Some(place.owner.clone()),
        execution_node: place.execution_node.clone(),
        group: Some(place.group.clone()),
        impact: job.impact,
        words: Vec::new(),
    }];
    Loads::sum(&instances, &groups, &claims)
        .instances
        .iter()
        .map(|load| load.consumed)
        .collect::<Vec<_>>()
        .try_into()
        .unwrap()
}

#[test]
fn the_table_of_consumption() {
    let on_hybrid = |job: PendingJob| PendingJob { holders: vec![named("h1")], ..job };
    let update = |id| PendingJob { kind: JobKind::ProjectUpdate, ..pending(id, 1, &[]) };
    assert_eq!(consumed(pending(1, size(0, 3).impact(JobKind::Job), &["exec"])), [1, 0, 4]);
    assert_eq!(consumed(pending(2, size(50, 200).impact(JobKind::Job), &["exec"])), [1, 0, 51]);
    assert_eq!(consumed(update(3)), [1, 0, 0], "on a control node");
    assert_eq!(consumed(on_hybrid(update(4))), [0, 2, 0], "on a hybrid");
    assert_eq!(consumed(on_hybrid(pending(5, size(1, 99).impact(JobKind::Job), &["hybrids"]))), [0, 3, 0]);
    assert_eq!(
        consumed(pending(6, size(0, 5).impact(JobKind::Job), &["pods"])),
        [1, 0, 0],
        "a container group"
    );
    assert_eq!(
        consumed(pending(7, 2, &["hybrids"])),
        [1, 2, 0],
        "a hybrid without the payload runs it for c1"
    );
}

#[test]
fn class_control_needs_both_impacts_even_where_it_consumes_one() {
    let groups = [group("controlplane", &["c1"])];
    let update = PendingJob { kind: JobKind::ProjectUpdate, ..pending(1, 1, &[]) };
    let placed = |capacity| {
        let instances = [control("c1", capacity)];
        matches!(
            pass(&scene(&instances, &groups, &[]), std::slice::from_ref(&update))[..],
            [Decision::Place(_)]
        )
    };
    assert_eq!([1, 2].map(placed), [false, true]);
}
