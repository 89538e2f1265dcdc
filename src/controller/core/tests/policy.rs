//! Which instances policies put into which groups.

use proptest::prelude::*;

use super::*;

fn policy(percentage: u32, minimum: usize, list: &[&str]) -> Policy {
    Policy { percentage, minimum, list: list.iter().map(|name| named(name)).collect() }
}

/// Instances by name: the first letter is the type, and `!` marks one that is not managed by policy.
fn nodes(names: &str) -> Vec<Instance> {
    names
        .split_whitespace()
        .map(|name| {
            let node_type = match &name[..1] {
                "c" => NodeType::Control,
                "h" if name != "hop" => NodeType::Hybrid,
                "h" => NodeType::Hop,
                _ => NodeType::Execution,
            };
            let mut node = instance(name.trim_end_matches('!'), node_type, 10);
            node.managed_by_policy = !name.ends_with('!');
            node
        })
        .collect()
}

fn apply(instances: &[Instance], groups: &mut [Group]) {
    for change in member_changes(instances, groups) {
        let group = groups.iter_mut().find(|group| group.name == change.group).unwrap();
        group.backing = Backing::Instances(change.members);
    }
    assert_eq!(member_changes(instances, groups), [], "a second run changes nothing");
}

/// The members of each group, sorted by name.
fn members(names: &str, policies: &[(&str, Policy)]) -> Vec<String> {
    let mut groups: Vec<_> =
        policies.iter().map(|(name, policy)| Group::new((*name).into(), policy.clone())).collect();
    apply(&nodes(names), &mut groups);
    let sorted = |group: &Group| {
        let mut names: Vec<_> =
            group.members().iter().map(|member| member.name.as_str().to_owned()).collect();
        names.sort();
        names.join(" ")
    };
    groups.iter().map(sorted).collect()
}

#[test]
fn the_table_of_policies() {
    let quarters = |first| {
        [
            ("a", policy(25, first, &[])),
            ("b", policy(25, 0, &[])),
            ("c", policy(25, 0, &[])),
            ("d", policy(25, 0, &[])),
        ]
    };
    let one = [("a", policy(50, 2, &[]))];
    assert_eq!(members("e1 e2 e3 e4 e5 e6", &one), ["e1 e2 e3"]);
    assert_eq!(members("e1 e2", &one), ["e1 e2"]);
    assert_eq!(members("e1 e2 e3 e4", &quarters(0)), ["e1", "e2", "e3", "e4"]);
    assert_eq!(members("e1 e2 e3", &quarters(0)), ["e1", "e2", "e3", "e1"]);
    assert_eq!(members("e1 e2 e3 e4 e5", &[("a", policy(79, 0, &[]))]), ["e1 e2 e3 e4"]);
    assert_eq!(members("e1 e2 e3 e4", &quarters(2)), ["e1 e2", "e3", "e4", "e1"]);
    let reserved =
        [("controlplane", policy(100, 0, &[])), ("default", policy(100, 0, &[])), ("g", policy(50, 0, &[]))];
    assert_eq!(members("c1 c2 h1 e1 e2 hop", &reserved), ["c1 c2 h1", "e1 e2 h1", "e1 e2"]);
    let pinned = [("g1", policy(100, 2, &[])), ("g2", policy(0, 0, &["e2"]))];
    assert_eq!(members("e1 e2!", &pinned), ["e1", "e2"]);
    let listed = [("a", policy(50, 0, &["e4"])), ("b", policy(50, 0, &[]))];
    assert_eq!(members("e1 e2 e3 e4", &listed), ["e3 e4", "e1 e2"]);
}

#[test]
fn lists_take_any_class_but_no_hop_and_no_stranger() {
    let policies = [("g", policy(0, 0, &["c1", "hop", "e9", "e1", "e1"]))];
    assert_eq!(members("c1 e1! hop", &policies), ["c1 e1"]);
}

#[test]
fn a_container_group_never_gets_members() {
    let mut pods = Group::containers("pods".into());
    pods.policy = policy(100, 2, &["e1"]);
    assert_eq!(member_changes(&nodes("e1 e2"), &[pods]), []);
}

#[test]
fn a_change_names_what_is_added_and_what_is_gone() {
    let mut groups = vec![Group::new("g".into(), policy(50, 0, &[]))];
    apply(&nodes("e1 e2"), &mut groups);
    groups[0].policy = policy(0, 0, &["e2"]);
    let changes = member_changes(&nodes("e1 e2"), &groups);
    let added = [Member { name: "e2".into(), origin: MemberOrigin::List }];
    assert_eq!((&changes[0].added[..], &changes[0].removed[..]), (&added[..], &[named("e1")][..]));
}

#[test]
fn a_lost_or_disabled_instance_keeps_its_groups() {
    let mut instances = nodes("e1 e2");
    let mut groups = vec![Group::new("g".into(), policy(100, 0, &[]))];
    apply(&instances, &mut groups);
    instances[0].on_lost();
    instances[1].enabled = false;
    assert_eq!(member_changes(&instances, &groups), []);
}

#[test]
fn what_was_never_ready_or_is_disabled_is_not_counted() {
    let mut instances = nodes("e1 e2 e3 e4");
    // e1 is a name that somebody invented, e2 was taken out of use.
    instances[0] = Instance::register("e1".into(), NodeType::Execution, true, START);
    instances[1].enabled = false;
    let mut groups = vec![
        Group::new("one".into(), policy(0, 1, &[])),
        Group::new("half".into(), policy(50, 0, &[])),
        Group::new("all".into(), policy(100, 0, &[])),
        Group::new("mine".into(), policy(0, 0, &["e1"])),
    ];
    apply(&instances, &mut groups);
    let names =
        |group: &Group| group.members().iter().map(|one| one.name.to_string()).collect::<Vec<_>>().join(" ");
    assert_eq!(groups.iter().map(names).collect::<Vec<_>>(), ["e3", "e4", "e2 e3 e4", "e1"]);
    instances[0].on_healthy(
        HealthResult { cpus: Cpus::whole(1), memory: 1, uuid: None, version: "ansible-runner-2.4.0".into() },
        &Rates::default(),
        false,
    );
    apply(&instances, &mut groups);
    assert_eq!(names(&groups[2]), "e1 e2 e3 e4");
}

/// The order in which instances join a group depends on the other groups. The order of its members does not.
#[test]
fn members_stand_in_order_of_registration() {
    let mut groups = vec![
        Group::new("controlplane".into(), policy(51, 0, &[])),
        Group::new("g1".into(), policy(0, 2, &[])),
    ];
    apply(&nodes("h1 h2 h3"), &mut groups);
    let names: Vec<_> = groups[0].members().iter().map(|member| member.name.clone()).collect();
    let mut sorted = names.clone();
    sorted.sort();
    assert_eq!((names.len(), &names), (2, &sorted));
}

#[test]
fn the_reserved_groups_take_everything() {
    let mut groups = Group::reserved().to_vec();
    apply(&nodes("c1 h1 e1"), &mut groups);
    let sizes: Vec<_> =
        groups.iter().map(|group| (group.name.is_reserved(), group.members().len())).collect();
    assert_eq!(sizes, [(true, 2), (true, 2)]);
}

prop_compose! {
    fn any_nodes()(picks in prop::collection::vec((0u8..4, any::<bool>()), 0..14)) -> Vec<Instance> {
        picks.into_iter().enumerate().map(|(at, (node_type, managed))| {
            let node_type = [NodeType::Control, NodeType::Hybrid, NodeType::Execution, NodeType::Hop][usize::from(node_type)];
            Instance { managed_by_policy: managed, ..instance(&format!("n{at}"), node_type, 10) }
        }).collect()
    }
}

prop_compose! {
    fn any_groups()(picks in prop::collection::vec((0u32..=100, 0usize..5, prop::collection::vec(0u8..16, 0..4)), 0..6)) -> Vec<Group> {
        picks.into_iter().enumerate().map(|(at, (percentage, minimum, list))| {
            let name = if at == 0 { "controlplane".to_owned() } else { format!("g{at}") };
            let list: Vec<_> = list.into_iter().map(|n| format!("n{n}")).collect();
            let list: Vec<&str> = list.iter().map(String::as_str).collect();
            Group::new(name.as_str().into(), policy(percentage, minimum, &list))
        }).collect()
    }
}

proptest! {
    /// The result of the policies depends on instances and groups only, a second run changes nothing, and
    /// each group gets as many members as there are instances for it.
    #[test]
    fn policies_are_stable_and_give_what_they_promise(
        before in any_nodes(), now in any_nodes(), groups in any_groups(),
    ) {
        let mut fresh = groups.clone();
        apply(&now, &mut fresh);
        let mut moved = groups;
        apply(&before, &mut moved);
        apply(&now, &mut moved);
        prop_assert_eq!(&fresh, &moved);
        for group in &fresh {
            let wrong = if group.name == GroupName::controlplane() { NodeType::Execution } else { NodeType::Control };
            let fits = |node: &&Instance| {
                node.managed_by_policy && node.node_type != NodeType::Hop && node.node_type != wrong
            };
            let pool = now.iter().filter(fits).count();
            let size = group.members().len();
            let everybody = now.iter().filter(fits).all(|node| group.has_member(&node.name));
            prop_assert!(size >= group.policy.minimum || everybody);
            prop_assert!(100 * size >= group.policy.percentage as usize * pool || everybody);
            for member in group.members() {
                let node = now.iter().find(|node| node.name == member.name).unwrap();
                prop_assert!(node.node_type != NodeType::Hop);
                prop_assert!(member.origin == MemberOrigin::List || fits(&node));
            }
        }
    }
}
