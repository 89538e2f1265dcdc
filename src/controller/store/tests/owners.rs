//! Leases, fencing, loss and takeover.

use std::collections::BTreeMap;

use super::*;
use crate::controller::core::{AttemptNo, ChildId, Lease, LeaseWatch};

both![
    a_second_start_fences_the_first,
    a_lost_owner_is_taken_over_and_fenced,
    a_former_owner_sends_nothing,
    nothing_is_taken_from_one_that_lives,
    lost_commits_are_noticed,
    onloss_fail_ends_the_jobs,
    an_instance_that_nobody_sees_is_lost_with_its_attempts,
    a_payload_without_a_live_holder_waits,
];

/// Looks at all leases.
async fn look(watch: &mut LeaseWatch, store: &Store, at: i64) -> Vec<Lease> {
    let (now, times) = (Time(at * 1000), LeaseTimes::default());
    assert!(!watch.note(store.leases().await.unwrap(), now, &times));
    watch.lost(now, &times)
}

/// Watches long enough for an idle control node to be lost.
async fn lost(store: &Store) -> Vec<Lease> {
    let mut watch = LeaseWatch::default();
    for at in [0, 10, 20, 30] {
        assert_eq!(look(&mut watch, store, at).await, []);
    }
    look(&mut watch, store, 40).await
}

async fn a_second_start_fences_the_first(site: Site) {
    let (store, old) = site.ready().await;
    let id = submit(&store, "u1").await;
    place(&store, &old).await;
    accept(&store, &old, id).await.unwrap();
    let new = start(&store, "c1").await;
    assert!(new.epoch > old.epoch);
    let job = store.job(id).await.unwrap();
    assert_eq!((job.fence.as_ref(), job.state), (Some(&new), JobState::Running));
    assert!(matches!(end(&store, &old, id, FinalStatus::Failed).await, Err(Error::Fenced(_))));
    assert!(matches!(store.count(old.clone(), id, figures_of(1)).await, Err(Error::Fenced(_))));
    submit(&store, "u2").await;
    assert!(matches!(store.pass(old.clone(), PassLimits::default()).await, Err(Error::Fenced(_))));
    let beat = store.heartbeat(old.clone(), LeaseTimes::default(), Vec::new()).await;
    assert!(matches!(beat, Err(Error::Fenced(_))));
    assert_eq!(store.job(id).await.unwrap(), job);
    assert_eq!(end(&store, &new, id, FinalStatus::Successful).await.unwrap().state, JobState::Successful);
}

async fn a_lost_owner_is_taken_over_and_fenced(site: Site) {
    let (store, c1) = site.ready().await;
    let c2 = start(&store, "c2").await;
    let (running, sent) = (submit(&store, "u1").await, submit(&store, "u2").await);
    place(&store, &c1).await;
    accept(&store, &c1, running).await.unwrap();
    let mut watch = LeaseWatch::default();
    for at in [0, 10, 20, 30, 40] {
        beat(&store, &c2, &[]).await;
        look(&mut watch, &store, at).await;
    }
    let [c1s] = &watch.lost(Time(40_000), &LeaseTimes::default())[..] else { panic!("{watch:?}") };
    let mut moved = store.take_over(c2.clone(), c1s.clone(), OnLoss::TakeOver).await.unwrap();
    let owners = store.owners_of(vec![running, JobId(777)]).await.unwrap();
    assert_eq!(owners, [(running, c2.owner.clone())].into());
    moved.sort();
    assert_eq!(moved, [(running, c2.clone()), (sent, c2.clone())]);
    assert_eq!(store.job(running).await.unwrap().state, JobState::Running);
    assert_eq!(store.job(sent).await.unwrap().state, JobState::Waiting);
    // The lost owner comes back: nothing that it writes changes anything.
    assert!(matches!(end(&store, &c1, running, FinalStatus::Failed).await, Err(Error::Fenced(_))));
    let beat = store.heartbeat(c1.clone(), LeaseTimes::default(), Vec::new()).await;
    assert!(matches!(beat, Err(Error::Fenced(_))));
    let again = start(&store, "c1").await;
    assert!(again.epoch > c1.epoch);
    assert!(matches!(accept(&store, &again, sent).await, Err(Error::Fenced(_))));
    assert_eq!(end(&store, &c2, running, FinalStatus::Successful).await.unwrap().state, JobState::Successful);
}

async fn a_former_owner_sends_nothing(site: Site) {
    let (store, c1) = site.ready().await;
    let c2 = start(&store, "c2").await;
    let id = submit(&store, "u1").await;
    place(&store, &c1).await;
    let child = store.job(id).await.unwrap().attempts.remove(0).unit;
    let lost = ChildId { random: !child.random, ..child.clone() };
    assert_eq!(
        store.before_sending(c1.clone(), lost).await.unwrap(),
        None,
        "of another job with that number"
    );
    assert!(!store.may_have_been_sent(id, AttemptNo(1)).await.unwrap());
    let sent_as = async || store.before_sending(c1.clone(), child.clone()).await.unwrap().unwrap().sent_as;
    assert_eq!(sent_as().await, None);
    assert!(store.may_have_been_sent(id, AttemptNo(1)).await.unwrap());
    assert_eq!(sent_as().await, Some(child.to_string()), "it may be there under its own ID");
    assert_eq!(store.far_unit(child.clone()).await.unwrap(), None);
    store.keep_far_unit(c1.clone(), child.clone(), "theirs".to_owned()).await.unwrap();
    assert_eq!(sent_as().await, Some("theirs".to_owned()));
    assert_eq!(store.far_unit(child.clone()).await.unwrap(), Some("theirs".to_owned()));
    let is_ours =
        async |by: &Fence| store.before_sending(by.clone(), child.clone()).await.unwrap().unwrap().is_ours;
    assert!(is_ours(&c1).await, "nobody else had it");
    take_over(&store, &c2, "c1", OnLoss::TakeOver).await;
    assert!(!is_ours(&c2).await);
    assert!(matches!(store.before_sending(c1.clone(), child.clone()).await, Err(Error::Fenced(_))));
    let kept = store.keep_far_unit(c1, child.clone(), "other".to_owned()).await;
    assert!(matches!(kept, Err(Error::Fenced(_))));
    store.before_sending(c2, child).await.unwrap().unwrap();
}

async fn nothing_is_taken_from_one_that_lives(site: Site) {
    let (store, c1) = site.ready().await;
    let c2 = start(&store, "c2").await;
    let id = submit(&store, "u1").await;
    place(&store, &c1).await;
    let lost = lost(&store).await;
    assert_eq!(lost.len(), 2);
    beat(&store, &c1, &[]).await;
    let nobodys = Lease { node: "nobody".into(), ..lost[0].clone() };
    for seen in [lost[0].clone(), nobodys] {
        assert_eq!(store.take_over(c2.clone(), seen, OnLoss::TakeOver).await.unwrap(), []);
    }
    assert!(accept(&store, &c1, id).await.is_ok());
}

async fn lost_commits_are_noticed(site: Site) {
    let (store, c1) = site.ready().await;
    let mut watch = LeaseWatch::default();
    look(&mut watch, &store, 0).await;
    let beat = async || store.heartbeat(c1.clone(), LeaseTimes::default(), Vec::new()).await.unwrap();
    watch.renewed(beat().await.own, Time(0));
    sql(&store, "UPDATE lease SET beat = beat - 1 WHERE node = 'c1'").await;
    let beat = beat().await;
    assert!(watch.note(beat.leases, Time(10_000), &LeaseTimes::default()));
}

async fn onloss_fail_ends_the_jobs(site: Site) {
    let (store, c1) = site.ready().await;
    let c2 = start(&store, "c2").await;
    let id = submit(&store, "u1").await;
    place(&store, &c1).await;
    take_over(&store, &c2, "c1", OnLoss::Fail).await;
    let job = store.job(id).await.unwrap();
    assert_eq!((job.state, job.fence), (JobState::Failed, Some(c2)));
}

async fn an_instance_that_nobody_sees_is_lost_with_its_attempts(site: Site) {
    let (store, c1) = site.ready().await;
    let id = submit(&store, "u1").await;
    place(&store, &c1).await;
    accept(&store, &c1, id).await.unwrap();
    let node = store.job(id).await.unwrap().current().unwrap().node.clone().unwrap();
    let others: Vec<_> = ["c1", "c2", "e1", "e2"].into_iter().filter(|name| *name != node.as_str()).collect();
    let mut patience = Patience { lost_after: Duration::from_secs(180), ..Patience::default() };
    let mut losses = Losses::default();
    for at in (0..=190).step_by(10) {
        assert_eq!(losses, Losses::default(), "before {at} s");
        // The times in the store must not matter.
        sql(&store, "UPDATE seen SET at = 1").await;
        let seen =
            others.iter().map(|name| Observed { instance: (*name).into(), reachable: true, again: true });
        let beat = store.heartbeat(c1.clone(), LeaseTimes::default(), seen.collect()).await.unwrap();
        patience.now = Time(at * 1000);
        patience.sightings.note(beat.sightings, patience.now, Duration::from_secs(20));
        losses = store.judge_losses(c1.clone(), patience.clone(), BTreeMap::new()).await.unwrap();
    }
    assert_eq!(losses.instances, std::slice::from_ref(&node));
    assert_eq!(losses.attempts, [(id, AttemptNo(1))]);
    assert_eq!(store.job(id).await.unwrap().state, JobState::Failed);
    let state = |registry: InstanceRegistry| {
        let found = registry.instances.into_iter().find(|record| record.instance.name == node);
        found.map(|record| (record.instance.node_state, record.instance.health_due.is_some()))
    };
    assert_eq!(state(store.registry().await.unwrap()), Some((NodeState::Unavailable, false)));
    assert_eq!(store.judge_losses(c1.clone(), patience, BTreeMap::new()).await.unwrap(), Losses::default());
    // The node is seen again: its health is to be checked.
    beat(&store, &c1, &[node.as_str()]).await;
    assert_eq!(state(store.registry().await.unwrap()), Some((NodeState::Unavailable, true)));
}

async fn a_payload_without_a_live_holder_waits(site: Site) {
    let (store, _) = site.ready().await;
    let c2 = start(&store, "c2").await;
    let id = submit(&store, "u1").await;
    take_over(&store, &c2, "c1", OnLoss::TakeOver).await;
    assert_eq!(place(&store, &c2).await, []);
    assert_eq!(store.job(id).await.unwrap().explanation, "waiting for a control node that holds its payload");
    store.hold(id, "c2".into(), "copy".into(), Kept::Payload).await.unwrap();
    assert_eq!(place(&store, &c2).await, [id]);
    assert_eq!(store.job(id).await.unwrap().fence, Some(c2));
}
