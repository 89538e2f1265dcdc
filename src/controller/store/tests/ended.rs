//! Jobs that have ended: in one order for all who read them, none missed and none twice.

use super::*;
use crate::controller::store::schema::STEPS;

both![
    who_follows_the_cursor_gets_each_end_once,
    numbers_rise_though_the_clock_goes_back_and_jobs_are_deleted,
    jobs_that_had_ended_before_the_upgrade_come_first,
    a_job_whose_node_was_lost_says_so,
    what_is_behind_is_counted_up_to_a_bound,
    the_job_before_is_that_of_the_same_saved_job_or_else_of_the_same_name,
];

async fn cancelled(store: &Store, unit: &str) -> JobId {
    let id = submit(store, unit).await;
    store.cancel(None, id).await.unwrap();
    id
}

async fn ids(store: &Store, after: i64) -> Vec<JobId> {
    store.ended(after, 999).await.unwrap().iter().map(|ended| ended.row.id).collect()
}

/// On PostgreSQL, another control node's handle; SQLite has one handle for all.
async fn another(site: &Site, store: &Store) -> Store {
    match &site.options {
        Options::Sqlite(_) => store.clone(),
        Options::Postgres(_) => Store::open(&site.options, &"c2".into()).await.unwrap(),
    }
}

async fn follow(store: Store, all: usize) -> Vec<(i64, JobId)> {
    let mut read: Vec<(i64, JobId)> = Vec::new();
    while read.len() < all {
        let after = read.last().map_or(0, |(number, _)| *number);
        read.extend(store.ended(after, 3).await.unwrap().iter().map(|ended| (ended.number, ended.row.id)));
        tokio::task::yield_now().await;
    }
    read
}

async fn who_follows_the_cursor_gets_each_end_once(site: Site) {
    const ALL: usize = 60;
    let (store, _) = site.ready().await;
    submit(&store, "goes on").await;
    let second = another(&site, &store).await;
    let end = async |store: &Store, word: &str| {
        for n in 0..ALL / 2 {
            cancelled(store, &format!("{word}{n}")).await;
        }
    };
    let readers = [tokio::spawn(follow(store.clone(), ALL)), tokio::spawn(follow(second.clone(), ALL))];
    tokio::join!(end(&store, "a"), end(&second, "b"));
    let [one, other] = readers;
    let (one, other) = (one.await.unwrap(), other.await.unwrap());
    assert_eq!(one, other, "both read the same order");
    assert!(one.is_sorted_by(|a, b| a.0 < b.0), "{one:?}");
    assert_eq!(one.iter().map(|(_, id)| *id).collect::<BTreeSet<_>>().len(), ALL);
    assert_eq!(store.ended(0, 2).await.unwrap().len(), 2);
    assert_eq!(ids(&store, one.last().unwrap().0).await, []);
}

async fn numbers_rise_though_the_clock_goes_back_and_jobs_are_deleted(site: Site) {
    let (store, _) = site.ready().await;
    let now = store.now().await.unwrap();
    let first = cancelled(&store, "u1").await;
    let number = store.ended(0, 9).await.unwrap()[0].number;
    assert!(number >= now.0, "above all of a store that lost its last commits");
    store.delete_job(audit("job.delete"), first).await.unwrap();
    sql(&store, "UPDATE meta SET value = '9000000000000000' WHERE key = 'ended'").await;
    let later = [cancelled(&store, "u2").await, cancelled(&store, "u3").await];
    let read = store.ended(number, 9).await.unwrap();
    assert_eq!(read.iter().map(|ended| ended.row.id).collect::<Vec<_>>(), later);
    assert_eq!([read[0].number, read[1].number], [9_000_000_000_000_001, 9_000_000_000_000_002]);
}

async fn jobs_that_had_ended_before_the_upgrade_come_first(site: Site) {
    let older = Store::open_with(&site.options, &"c1".into(), &STEPS[..4]).await.unwrap();
    let open = submit(&older, "open").await;
    let before = [cancelled(&older, "u1").await, cancelled(&older, "u2").await];
    drop(older);
    let newer = site.open().await;
    assert_eq!(ids(&newer, 0).await, before);
    drop(newer);
    // A control node that is not upgraded yet.
    let older = Store::open_with(&site.options, &"c1".into(), &STEPS[..4]).await.unwrap();
    older.cancel(None, open).await.unwrap();
    drop(older);
    let newer = site.open().await;
    assert_eq!(ids(&newer, before[1].0).await, [open]);
}

async fn a_job_whose_node_was_lost_says_so(site: Site) {
    let (store, c1) = site.ready().await;
    let lost = submit(&store, "u1").await;
    assert_eq!(place(&store, &c1).await, [lost]);
    accept(&store, &c1, lost).await.unwrap();
    let c2 = start(&store, "c2").await;
    take_over(&store, &c2, "c1", OnLoss::Fail).await;
    let other = cancelled(&store, "u2").await;
    let read = store.ended(0, 9).await.unwrap();
    assert_eq!(
        read.iter().map(|one| (one.row.id, one.is_lost)).collect::<Vec<_>>(),
        [(lost, true), (other, false)]
    );
}

async fn what_is_behind_is_counted_up_to_a_bound(site: Site) {
    let store = site.open().await;
    assert_eq!(store.ended_behind(store.last_ended().await.unwrap(), 5).await.unwrap(), (0, None));
    for n in 0..7 {
        cancelled(&store, &format!("u{n}")).await;
    }
    let last = store.last_ended().await.unwrap();
    let numbers: Vec<i64> = store.ended(0, 9).await.unwrap().iter().map(|one| one.number).collect();
    assert_eq!((numbers.len(), numbers[6]), (7, last));
    assert_eq!(store.ended_behind(0, 7).await.unwrap(), (7, None));
    assert_eq!(store.ended_behind(0, 5).await.unwrap(), (5, Some((numbers[1], 2))));
    assert_eq!(store.ended_behind(numbers[1], 5).await.unwrap(), (5, None));
}

async fn the_job_before_is_that_of_the_same_saved_job_or_else_of_the_same_name(site: Site) {
    let store = site.open().await;
    let saved = |name: &str| BTreeMap::from([("meshd/saved".to_owned(), name.to_owned())]);
    let jobs = [
        ("a", saved("s1")),
        ("b", saved("s1")),
        ("b", saved("s2")),
        ("b", BTreeMap::new()),
        ("c", saved("s1")),
    ];
    for (n, (name, labels)) in jobs.into_iter().enumerate() {
        let name = name.to_owned();
        store.submit(Submission { name, labels, ..submission(&format!("u{n}")) }, 99).await.unwrap();
    }
    sql(
        &store,
        "UPDATE job SET finished = id, state = CASE WHEN id = 2 THEN 'canceled' WHEN id = 1 THEN 'failed' \
                 ELSE 'successful' END",
    )
    .await;
    let mut before = Vec::new();
    for ended in store.ended(0, 9).await.unwrap() {
        before.push(store.ended_before(&ended).await.unwrap());
    }
    let (failed, successful) = (Some(JobState::Failed), Some(JobState::Successful));
    assert_eq!(before, [None, failed, None, successful, failed]);
}
