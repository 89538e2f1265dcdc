//! Instances, groups, members, and what operators do to them.

use super::*;
use crate::controller::core::{Adjustment, InstanceFault, MemberOrigin};

both![
    every_column_of_an_instance_and_a_group_comes_back,
    policies_run_after_each_change,
    reserved_groups_stay,
    a_group_with_running_jobs_stays,
    a_drained_instance_goes_after_its_last_job,
    a_lost_control_node_goes_once_nothing_waits_for_it,
    what_a_dead_node_held_is_over,
    the_audit_keeps_a_request,
];

async fn every_column_of_an_instance_and_a_group_comes_back(site: Site) {
    let store = site.open().await;
    let mut record = InstanceRecord::register("x".into(), NodeType::Hybrid, true, Time(5));
    record.instance = Instance {
        node_state: NodeState::Deprovisioning,
        managed_by_policy: false,
        draining: true,
        adjustment: Adjustment(75),
        capacities: Capacities { cpu: 3, mem: 4 },
        offer: Offer { runner: true, secure: true, tls: true },
        signs: true,
        uuid: Some("uuid".into()),
        version: Some("ansible-runner-2.4".into()),
        errors: vec![InstanceFault::Health("one".into()), InstanceFault::Clock(31)],
        health_due: Some(Time(6)),
        health_failures: 2,
        ..record.instance
    };
    (record.cpu, record.memory, record.last_health_check) = (15, 1 << 40, Some(Time(7)));
    let mut group = GroupRecord::from(Group::containers("pods".into()));
    group.group.max_concurrent_jobs = 3;
    group.group.max_forks = 4;
    group.cluster = Some("prod".into());
    group.namespace = Some("awx".into());
    group.pod_spec_override = Some(r#"{"a": 1}"#.into());
    group.registry = Some("quay".into());
    let (new_record, new_group) = (record.clone(), group.clone());
    let add = move |registry: &mut InstanceRegistry, _| {
        registry.add_instance(new_record.clone())?;
        registry.create_group(new_group.clone())
    };
    store.change_registry(Some(audit("instance.add")), add).await.unwrap();
    let mut listed = GroupRecord::from(Group::new("east".into(), Policy::default()));
    listed.group.policy = Policy { percentage: 40, minimum: 2, list: vec!["x".into()] };
    let new = listed.clone();
    store.change_registry(None, move |registry, _| registry.create_group(new.clone())).await.unwrap();
    let registry = store.registry().await.unwrap();
    assert_eq!(registry.instances, [record.clone()]);
    assert_eq!(registry.groups[2], group);
    assert_eq!(registry.groups[3].group.policy, listed.group.policy);
    assert_eq!(registry.groups[3].group.members()[0].origin, MemberOrigin::List);

    // The same once all columns that may change have changed.
    let change = |registry: &mut InstanceRegistry, _| {
        let record = registry.instance_mut(&"x".into())?;
        *record = InstanceRecord {
            instance: Instance {
                name: "x".into(),
                ..Instance::register("x".into(), NodeType::Hop, false, Time(9))
            },
            ..InstanceRecord::register("x".into(), NodeType::Hop, false, Time(5))
        };
        *registry.group_mut(&"pods".into())? = Group::containers("pods".into()).into();
        Ok(registry.clone())
    };
    let changed = store.change_registry(None, change).await.unwrap();
    let registry = store.registry().await.unwrap();
    assert_eq!(registry.instances, changed.instances);
    assert_eq!(registry.groups[2], changed.groups[2]);
}

fn members(registry: &InstanceRegistry, group: &str) -> Vec<String> {
    let found = registry.groups.iter().find(|record| record.group.name.as_str() == group).unwrap();
    found.group.members().iter().map(|member| member.name.to_string()).collect()
}

async fn policies_run_after_each_change(site: Site) {
    let (store, _) = site.ready().await;
    let registry = store.registry().await.unwrap();
    assert_eq!(members(&registry, "default"), ["e1", "e2"]);
    assert_eq!(members(&registry, "controlplane"), ["c1", "c2"]);
    let create = |registry: &mut InstanceRegistry, _| {
        let policy = Policy { percentage: 50, ..Policy::default() };
        registry.create_group(Group::new("half".into(), policy).into())
    };
    store.change_registry(None, create).await.unwrap();
    assert_eq!(members(&store.registry().await.unwrap(), "half").len(), 1);
    let both = |registry: &mut InstanceRegistry, _| {
        registry.add_to_group(&"half".into(), &"e1".into())?;
        registry.add_to_group(&"half".into(), &"e2".into())
    };
    store.change_registry(None, both).await.unwrap();
    assert_eq!(members(&store.registry().await.unwrap(), "half"), ["e1", "e2"]);
    let taken = store
        .change_registry(None, |registry, _| registry.create_group(Group::containers("e1".into()).into()))
        .await;
    assert!(matches!(taken, Err(Error::Conflict(_))));
    assert_eq!(store.registry().await.unwrap().policy_changes(), []);
    store.delete_group(audit("group.delete"), "half".into()).await.unwrap();
    assert_eq!(number(&store, "SELECT count(*) FROM member WHERE grp = 'half'").await, 0);
    assert!(matches!(store.delete_group(audit("x"), "half".into()).await, Err(Error::NoGroup(_))));
}

async fn reserved_groups_stay(site: Site) {
    let (store, _) = site.ready().await;
    let refused = store.delete_group(audit("group.delete"), GroupName::default_group()).await;
    assert!(matches!(refused, Err(Error::Conflict(_))));
    let add = |registry: &mut InstanceRegistry, _| registry.add_to_group(&"default".into(), &"e1".into());
    assert!(matches!(store.change_registry(Some(audit("group.add")), add).await, Err(Error::Conflict(_))));
    assert_eq!(store.registry().await.unwrap().groups.len(), 2);
    // Neither the change nor its row in the audit was saved.
    assert_eq!(store.audit(None, 9).await.unwrap(), []);
}

async fn a_group_with_running_jobs_stays(site: Site) {
    let (store, c1) = site.ready().await;
    let create = |registry: &mut InstanceRegistry, _| {
        let policy = Policy { list: vec!["e1".into()], ..Policy::default() };
        registry.create_group(Group::new("east".into(), policy).into())
    };
    store.change_registry(None, create).await.unwrap();
    let mut new = submission("u1");
    new.terms.groups = vec![("east".into(), Level::Launch)];
    let id = store.submit(new, 9).await.unwrap().id();
    assert_eq!(place(&store, &c1).await, [id]);
    let refused = store.delete_group(audit("x"), "east".into()).await.unwrap_err();
    assert_eq!(refused.to_string(), "1 job runs in the group east");
    end(&store, &c1, id, FinalStatus::Failed).await.unwrap();
    store.delete_group(audit("x"), "east".into()).await.unwrap();
}

async fn a_drained_instance_goes_after_its_last_job(site: Site) {
    let (store, c1) = site.ready().await;
    let id = submit(&store, "u1").await;
    place(&store, &c1).await;
    let node = store.job(id).await.unwrap().current().unwrap().node.clone().unwrap();
    assert!(!store.drain_instance(Some(audit("instance.remove")), node.clone()).await.unwrap());
    assert_eq!(store.remove_drained().await.unwrap(), []);
    let overview = store.overview().await.unwrap();
    let at = overview.registry.instances.iter().position(|record| record.instance.name == node).unwrap();
    assert_eq!((overview.loads.instances[at].consumed, overview.loads.instances[at].jobs), (6, 1));
    end(&store, &c1, id, FinalStatus::Successful).await.unwrap();
    assert_eq!(store.remove_drained().await.unwrap(), std::slice::from_ref(&node));
    let registry = store.registry().await.unwrap();
    assert!(!registry.instances.iter().any(|record| record.instance.name == node));
    assert_eq!(members(&registry, "default").len(), 1);
    let gone = store.drain_instance(None, node).await;
    assert!(matches!(gone, Err(Error::NoInstance(_))));
}

async fn a_lost_control_node_goes_once_nothing_waits_for_it(site: Site) {
    let (store, c1) = site.ready().await;
    let (running, waiting) = (submit(&store, "u1").await, submit(&store, "u2").await);
    let pending = Submission { impact: 99, ..submission("u3") };
    let pending = store.submit(pending, 9).await.unwrap().id();
    place(&store, &c1).await;
    accept(&store, &c1, running).await.unwrap();
    let removed = async || store.remove_lost_control_nodes().await.unwrap();
    let lose = |registry: &mut InstanceRegistry, _| {
        registry.instance_mut(&"c1".into())?.instance.on_lost();
        Ok(())
    };
    store.change_registry(None, lose).await.unwrap();
    assert_eq!(removed().await, [], "it has its lease, and owns jobs");
    let c2 = start(&store, "c2").await;
    take_over(&store, &c2, "c1", OnLoss::TakeOver).await;
    assert_eq!(removed().await, [], "pending and waiting jobs may need their payload");
    accept(&store, &c2, waiting).await.unwrap();
    store.cancel(None, pending).await.unwrap();
    assert_eq!(removed().await, ["c1".into()]);
    assert_eq!(removed().await, []);
    let registry = store.registry().await.unwrap();
    assert!(!registry.instances.iter().any(|record| record.instance.name.as_str() == "c1"));
    assert_eq!(store.job(running).await.unwrap().state, JobState::Running);
}

async fn what_a_dead_node_held_is_over(site: Site) {
    let (store, c1) = site.ready().await;
    let c2 = start(&store, "c2").await;
    let mut with_retry = submission("u1");
    with_retry.terms.retry.max = 1;
    let running = store.submit(with_retry, 9).await.unwrap().id();
    place(&store, &c1).await;
    accept(&store, &c1, running).await.unwrap();
    let node = store.job(running).await.unwrap().current().unwrap().node.clone().unwrap();
    store.declare_dead(audit("instance.remove"), node.clone()).await.unwrap();
    let job = store.job(running).await.unwrap();
    assert_eq!((job.state, job.hold()), (JobState::Pending, None));
    assert_eq!(place(&store, &c2).await, [running]);
    assert_ne!(store.job(running).await.unwrap().current().unwrap().node, Some(node));
    // The only control node with the payload is dead.
    let pending = submit(&store, "u2").await;
    let copied = submit(&store, "u3").await;
    store.hold(copied, "c2".into(), "copy".into(), Kept::Payload).await.unwrap();
    let alive = store.declare_dead(audit("instance.remove"), "c1".into()).await;
    assert!(matches!(alive, Err(Error::Conflict(_))), "{alive:?}");
    assert_eq!(store.job(pending).await.unwrap().state, JobState::Pending);
    take_over(&store, &c2, "c1", OnLoss::TakeOver).await;
    store.declare_dead(audit("instance.remove"), "c1".into()).await.unwrap();
    assert_eq!(store.job(pending).await.unwrap().explanation, "its payload was lost with c1");
    assert_eq!(store.job(pending).await.unwrap().state, JobState::Failed);
    assert_eq!(store.job(copied).await.unwrap().state, JobState::Pending);
    assert_eq!(place(&store, &c2).await, [copied]);
}

async fn the_audit_keeps_a_request(site: Site) {
    let (store, _) = site.ready().await;
    store.record(audit("cleanup")).await.unwrap();
    assert_eq!(store.audit(None, 1).await.unwrap().len(), 1);
}
