//! What the store remembers of its clock, and that nothing is decided by a clock that is doubted.

use super::*;
use crate::controller::core::ClockRecord;

both![a_clock_far_ahead_is_doubted_until_an_operator_confirms_it, a_step_of_the_clock_times_out_nobody,];

/// Makes the store look as if it was last used that many days ago.
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
    assert_eq!(store.audit(None, 1).await.unwrap()[0].2.op, "clock.confirm");
}

async fn a_step_of_the_clock_times_out_nobody(site: Site) {
    let (store, c1) = site.ready().await;
    store.set_paused(audit("pause"), true).await.unwrap();
    let mut new = submission("u1");
    new.terms.pending_timeout = Some(Duration::from_secs(3600));
    let id = store.submit(new, 9).await.unwrap().id();
    let mut waits = Waits::default();
    let mut state_at = async |seconds: i64| {
        waits.now = Time(seconds * 1000);
        store.pass(c1.clone(), PassLimits { waits: waits.clone(), ..PassLimits::default() }).await.unwrap();
        store.job(id).await.unwrap().state
    };
    for (at, step) in [(0, "- 100000000000"), (10, "- 3600000"), (20, "+ 200000000000")] {
        let step = format!("UPDATE job SET pending_since = pending_since {step}");
        store.write(move |sql| sql.execute(&step, &[])).await.unwrap();
        assert_eq!(state_at(at).await, JobState::Pending);
    }
    assert_eq!(state_at(3620).await, JobState::Pending);
    assert_eq!(state_at(3621).await, JobState::Failed);
}
