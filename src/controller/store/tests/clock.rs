//! What the store remembers of its clock, and what is not decided by one that it does not believe.

use super::*;
use crate::controller::core::ClockRecord;
use crate::controller::store::schema::STEPS;

both![
    a_clock_far_ahead_is_doubted_until_an_operator_confirms_it,
    nobody_times_out_by_a_clock_that_is_doubted,
    the_history_of_a_store_of_before_says_what_time_it_was,
];

/// As if the store had last been used that long ago.
async fn age(store: &Store, days: i64) {
    let back = days * 24 * 60 * 60 * 1000;
    store
        .write(move |sql| {
            let record = ClockRecord::believed(Time(sql.now().0 - back));
            schema::set(sql, "clock", &serde_json::to_string(&record).unwrap())
        })
        .await
        .unwrap();
}

async fn a_clock_far_ahead_is_doubted_until_an_operator_confirms_it(site: Site) {
    let store = site.open().await;
    let clock = store.look_at_clock().await.unwrap();
    assert!(!clock.is_doubted() && clock.record.latest == clock.now);
    age(&store, 400).await;
    assert!(store.clock().await.unwrap().is_doubted(), "before anybody has looked");
    for _ in 0..2 {
        assert!(store.look_at_clock().await.unwrap().is_doubted());
    }
    // The next process doubts it as well.
    drop(store);
    let store = site.open().await;
    assert!(store.clock().await.unwrap().record.doubt.is_some());
    assert!(!store.confirm_clock(audit("clock.confirm")).await.unwrap().is_doubted());
    assert!(!store.look_at_clock().await.unwrap().is_doubted());
    assert_eq!(store.audit(1).await.unwrap()[0].1.op, "clock.confirm");
}

async fn nobody_times_out_by_a_clock_that_is_doubted(site: Site) {
    let (store, c1) = site.ready().await;
    store.set_paused(audit("pause"), true).await.unwrap();
    let mut new = submission("u1");
    new.terms.pending_timeout = Some(Duration::from_secs(3600));
    let id = store.submit(new, 9).await.unwrap().id();
    sql(&store, "UPDATE job SET pending_since = pending_since - 100000000000").await;
    age(&store, 1200).await;
    place(&store, &c1).await;
    assert_eq!(store.job(id).await.unwrap().state, JobState::Pending);
    store.confirm_clock(audit("clock.confirm")).await.unwrap();
    place(&store, &c1).await;
    assert_eq!(store.job(id).await.unwrap().state, JobState::Failed);
}

async fn the_history_of_a_store_of_before_says_what_time_it_was(site: Site) {
    let store = Store::open_with(&site.options, &"c1".into(), &STEPS[..2]).await.unwrap();
    let id = submit(&store, "u1").await;
    sql(&store, "UPDATE job SET created = created - 1000000000").await;
    drop(store);
    let store = site.open().await;
    let created = store.detail(id).await.unwrap().row.created;
    let clock = store.look_at_clock().await.unwrap();
    assert!(clock.is_doubted() && clock.record.latest == created, "{clock:?}");
}
