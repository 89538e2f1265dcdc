//! Copies of a store into another one.

use super::*;
use crate::controller::store::sql::{Row, Sql, SqlValue};

/// All rows of all tables, in a form in which two databases can be compared.
async fn rows(store: &Store) -> Vec<(&'static str, Vec<Vec<SqlValue>>)> {
    let read = |sql: &mut dyn Sql| {
        let tables = [
            "instance", "seen", "grp", "member", "job", "attempt", "holder", "dep", "lock", "label", "stat",
            "project", "lease", "audit", "meta",
        ];
        let mut all = Vec::new();
        for table in tables {
            let mut rows: Vec<_> = sql
                .query(&format!("SELECT * FROM {table}"), &[])?
                .into_iter()
                .map(Row::into_values)
                .collect();
            for value in rows.iter_mut().flatten() {
                // SQLite does not tell the type of a null.
                if *value == SqlValue::Text(None) {
                    *value = SqlValue::Int(None);
                }
            }
            rows.sort_by_key(|row| format!("{row:?}"));
            all.push((table, rows));
        }
        Ok(all)
    };
    store.read(read).await.unwrap()
}

/// Fills a store with more rows than one part of a copy has, closes it, and returns its rows.
async fn filled(site: &Site) -> Vec<(&'static str, Vec<Vec<SqlValue>>)> {
    let (store, c1) = site.ready().await;
    // More jobs than one part has.
    for n in 0..120 {
        submit(&store, &format!("u{n}")).await;
    }
    place(&store, &c1).await;
    let audit = |n: u32| Audit { who: "unix:0".into(), op: "pause".into(), target: n.to_string() };
    for n in 0..1_200 {
        store.record(audit(n)).await.unwrap();
    }
    // The job with the highest number is deleted.
    let last = submit(&store, "last").await;
    store.cancel(None, last).await.unwrap();
    store
        .delete_job(Audit { who: "unix:0".into(), op: "job.delete".into(), target: last.to_string() }, last)
        .await
        .unwrap();
    rows(&store).await
}

async fn goes_round(first: Site, second: Site) {
    let before = filled(&first).await;
    forget_leases(&first).await;
    let jobs = before.iter().find(|(table, _)| *table == "job").unwrap().1.len() as u64;
    assert_eq!(copy_store(&first.options, &second.options).await.unwrap(), jobs);
    let copy = second.open().await;
    let leases = |(table, _): &&(&str, _)| *table != "lease";
    let (now, was) = (rows(&copy).await, before);
    assert_eq!(now.iter().filter(leases).collect::<Vec<_>>(), was.iter().filter(leases).collect::<Vec<_>>());
    // The number of the deleted job is not used again.
    assert_eq!(submit(&copy, "later").await, JobId(122));
}

/// Deletes all leases, so that a copy waits for nobody.
async fn forget_leases(site: &Site) {
    let store = site.open().await;
    store.write(|sql| sql.execute("DELETE FROM lease", &[]).map(drop)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn all_rows_come_along_from_sqlite_to_postgresql() {
    let Some(server) = Site::postgres().await else { return };
    goes_round(Site::sqlite(), server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_rows_come_along_from_postgresql_to_sqlite() {
    let Some(server) = Site::postgres().await else { return };
    goes_round(server, Site::sqlite()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_was_interrupted_is_no_store_until_it_is_repeated() {
    let (first, second) = (Site::sqlite(), Site::sqlite());
    filled(&first).await;
    let half = second.open().await;
    submit(&half, "of the copy").await;
    half.write(|sql| schema::set(sql, "unfinished_copy", "")).await.unwrap();
    drop(half);
    let error = Store::open(&second.options, &"c1".into()).await.unwrap_err().to_string();
    assert!(error.contains("was not finished: repeat `meshctl controller copy`"), "{error}");
    assert_eq!(copy_store(&first.options, &second.options).await.unwrap(), 120);
    assert_eq!(rows(&second.open().await).await, rows(&first.open().await).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_with_jobs_is_not_replaced() {
    let (first, second) = (Site::sqlite(), Site::sqlite());
    filled(&first).await;
    let other = second.open().await;
    submit(&other, "mine").await;
    drop(other);
    let error = copy_store(&first.options, &second.options).await.unwrap_err().to_string();
    assert_eq!(error, "it has 1 jobs: a store can only be copied into an empty one");
}
