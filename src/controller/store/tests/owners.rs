//! Leases, fencing, loss and takeover.

use std::collections::BTreeMap;

use super::*;
use crate::controller::core::AttemptNo;

both![
    a_second_start_fences_the_first,
    a_lost_owner_is_taken_over_and_fenced,
    a_former_owner_sends_nothing,
    nothing_is_taken_while_the_lease_is_valid,
    an_expired_lease_stops_its_holder_until_it_is_renewed,
    onloss_fail_ends_the_jobs,
    an_instance_that_nobody_sees_is_lost_with_its_attempts,
    a_payload_without_a_live_holder_waits,
    a_fenced_owner_learns_who_has_its_lease,
];

/// Makes a lease expire, as time would.
async fn expire(store: &Store, node: &'static str) {
    let update = "UPDATE lease SET expires = 1 WHERE node = $1";
    let changed = store.write(move |sql| sql.execute(update, sql::values![node])).await.unwrap();
    assert_eq!(changed, 1);
}

async fn a_second_start_fences_the_first(site: Site) {
    let (store, old) = site.ready().await;
    let id = submit(&store, "u1").await;
    place(&store, &old).await;
    accept(&store, &old, id).await.unwrap();
    let new = start(&store, "c1").await;
    assert_eq!(new.epoch.0, old.epoch.0 + 1);
    let job = store.job(id).await.unwrap();
    assert_eq!((job.fence.as_ref(), job.state), (Some(&new), JobState::Running));
    assert!(matches!(end(&store, &old, id, FinalStatus::Failed).await, Err(Error::Fenced(_))));
    assert!(matches!(store.count(old.clone(), id, figures_of(1)).await, Err(Error::Fenced(_))));
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
    expire(&store, "c1").await;
    let patience = Patience { started: Time(0), lost_after: Duration::from_secs(180) };
    let losses = store.judge_losses(c2.clone(), patience, BTreeMap::new()).await.unwrap();
    assert_eq!((losses.owners, losses.instances), (vec!["c1".into()], vec![]));
    let mut moved = store.take_over(c2.clone(), "c1".into(), OnLoss::TakeOver).await.unwrap();
    moved.sort();
    assert_eq!(moved, [(running, c2.clone()), (sent, c2.clone())]);
    assert_eq!(store.job(running).await.unwrap().state, JobState::Running);
    assert_eq!(store.job(sent).await.unwrap().state, JobState::Waiting);
    // It comes back: whatever it writes changes nothing.
    assert!(matches!(end(&store, &c1, running, FinalStatus::Failed).await, Err(Error::Fenced(_))));
    let beat = store.heartbeat(c1.clone(), LeaseTimes::default(), Vec::new()).await;
    assert!(matches!(beat, Err(Error::Fenced(_))));
    let again = start(&store, "c1").await;
    assert!(again.epoch.0 > c1.epoch.0 + 1);
    assert!(matches!(accept(&store, &again, sent).await, Err(Error::Fenced(_))));
    assert_eq!(end(&store, &c2, running, FinalStatus::Successful).await.unwrap().state, JobState::Successful);
    assert_eq!(store.judge_losses(c2, patience, BTreeMap::new()).await.unwrap(), Losses::default());
}

async fn a_former_owner_sends_nothing(site: Site) {
    let (store, c1) = site.ready().await;
    let c2 = start(&store, "c2").await;
    let id = submit(&store, "u1").await;
    place(&store, &c1).await;
    let job = store.job(id).await.unwrap();
    assert_eq!(store.before_sending(c1.clone(), id).await.unwrap(), job, "it changes nothing");
    expire(&store, "c1").await;
    store.take_over(c2.clone(), "c1".into(), OnLoss::TakeOver).await.unwrap();
    assert!(matches!(store.before_sending(c1, id).await, Err(Error::Fenced(_))));
    store.before_sending(c2, id).await.unwrap();
}

async fn nothing_is_taken_while_the_lease_is_valid(site: Site) {
    let (store, c1) = site.ready().await;
    let c2 = start(&store, "c2").await;
    let id = submit(&store, "u1").await;
    place(&store, &c1).await;
    assert_eq!(store.take_over(c2.clone(), "c1".into(), OnLoss::TakeOver).await.unwrap(), []);
    assert_eq!(store.take_over(c2, "nobody".into(), OnLoss::TakeOver).await.unwrap(), []);
    assert!(accept(&store, &c1, id).await.is_ok());
}

async fn an_expired_lease_stops_its_holder_until_it_is_renewed(site: Site) {
    let (store, c1) = site.ready().await;
    let id = submit(&store, "u1").await;
    expire(&store, "c1").await;
    assert!(matches!(store.pass(c1.clone(), PassLimits::default()).await, Err(Error::Expired(_))));
    assert_eq!(store.read(crate::controller::store::owners::live).await.unwrap().len(), 1);
    beat(&store, &c1, &["e1"]).await;
    assert_eq!(place(&store, &c1).await, [id]);
}

async fn onloss_fail_ends_the_jobs(site: Site) {
    let (store, c1) = site.ready().await;
    let c2 = start(&store, "c2").await;
    let id = submit(&store, "u1").await;
    place(&store, &c1).await;
    expire(&store, "c1").await;
    store.take_over(c2.clone(), "c1".into(), OnLoss::Fail).await.unwrap();
    let job = store.job(id).await.unwrap();
    assert_eq!((job.state, job.fence), (JobState::Failed, Some(c2)));
}

async fn an_instance_that_nobody_sees_is_lost_with_its_attempts(site: Site) {
    let (store, c1) = site.ready().await;
    let id = submit(&store, "u1").await;
    place(&store, &c1).await;
    accept(&store, &c1, id).await.unwrap();
    let node = store.job(id).await.unwrap().current().unwrap().node.clone().unwrap();
    let lost = node.clone();
    let silent = move |sql: &mut dyn sql::Sql| {
        sql.execute("UPDATE seen SET at = 1 WHERE instance = $1", sql::values![&lost])
    };
    assert_eq!(store.write(silent).await.unwrap(), 2);
    let patience = Patience { started: Time(0), lost_after: Duration::from_secs(180) };
    let losses = store.judge_losses(c1.clone(), patience, BTreeMap::new()).await.unwrap();
    assert_eq!(losses.instances, std::slice::from_ref(&node));
    assert_eq!(losses.attempts, [(id, AttemptNo(1))]);
    assert_eq!(store.job(id).await.unwrap().state, JobState::Failed);
    let state = |registry: Registry| {
        let found = registry.instances.into_iter().find(|record| record.instance.name == node);
        found.map(|record| (record.instance.node_state, record.instance.health_due.is_some()))
    };
    assert_eq!(state(store.registry().await.unwrap()), Some((NodeState::Unavailable, false)));
    assert_eq!(store.judge_losses(c1.clone(), patience, BTreeMap::new()).await.unwrap(), Losses::default());
    // It is seen again: its health is to be checked.
    beat(&store, &c1, &[node.as_str()]).await;
    assert_eq!(state(store.registry().await.unwrap()), Some((NodeState::Unavailable, true)));
}

async fn a_payload_without_a_live_holder_waits(site: Site) {
    let (store, _) = site.ready().await;
    let c2 = start(&store, "c2").await;
    let id = submit(&store, "u1").await;
    expire(&store, "c1").await;
    assert_eq!(place(&store, &c2).await, []);
    assert_eq!(store.job(id).await.unwrap().explanation, "waiting for a control node that holds its payload");
    store.hold(id, "c2".into(), "copy".into(), Kept::Payload).await.unwrap();
    assert_eq!(place(&store, &c2).await, [id]);
    assert_eq!(store.job(id).await.unwrap().fence, Some(c2));
}

async fn a_fenced_owner_learns_who_has_its_lease(site: Site) {
    let (store, c1) = site.ready().await;
    let c2 = start(&store, "c2").await;
    let (placed, pending) = (submit(&store, "u1").await, submit(&store, "u2").await);
    assert!(place(&store, &c1).await.contains(&placed));
    assert_eq!(store.standing(c1.clone()).await.unwrap(), Standing::Held);
    expire(&store, "c1").await;
    assert_eq!(store.standing(c1.clone()).await.unwrap(), Standing::Held, "it can be renewed");
    store.take_over(c2.clone(), "c1".into(), OnLoss::TakeOver).await.unwrap();
    assert_eq!(store.standing(c1.clone()).await.unwrap(), Standing::TakenOver);
    let again = start(&store, "c1").await;
    assert_eq!(store.standing(c1).await.unwrap(), Standing::Replaced);
    assert_eq!(store.standing(again).await.unwrap(), Standing::Held);
    let owners = store.owners_of(vec![placed, pending, JobId(777)]).await.unwrap();
    assert_eq!(owners.get(&placed), Some(&c2.owner));
    assert_eq!(owners.get(&JobId(777)), None);
}
