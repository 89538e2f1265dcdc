//! The hosts of jobs: bounded, written as a whole, read by pages.

use super::*;
use crate::controller::core::{AttemptNo, Ending};

both![
    a_recap_replaces_the_one_before_and_is_read_by_pages,
    a_job_that_is_refused_again_and_again_keeps_its_latest_attempts,
    old_requests_leave_the_audit,
];

fn recap(hosts: impl IntoIterator<Item = (&'static str, HostStats)>, left_out: u64) -> Recap {
    let hosts: BTreeMap<String, HostStats> =
        hosts.into_iter().map(|(host, stats)| (host.to_owned(), stats)).collect();
    let counts = RecapCounts { hosts: hosts.len() as u64 + 5, failed: 1, unreachable: 1, left_out };
    Recap { counts, hosts }
}

fn names(page: &RecapPage) -> Vec<&str> {
    page.hosts.iter().map(|(host, _)| host.as_str()).collect()
}

async fn a_recap_replaces_the_one_before_and_is_read_by_pages(site: Site) {
    let (store, c1) = site.ready().await;
    let id = submit(&store, "u1").await;
    assert_eq!(store.recap(id, 0, 9).await.unwrap(), RecapPage::default());
    assert!(matches!(store.recap(JobId(99), 0, 9).await, Err(Error::NoJob(_))));
    place(&store, &c1).await;
    accept(&store, &c1, id).await.unwrap();
    let plain = HostStats { ok: 3, ..HostStats::default() };
    let (failed, dark) = (HostStats { failures: 1, ..plain }, HostStats { dark: 1, ..plain });
    let count = |recap| store.count(c1.clone(), id, Figures { recap, ..figures_of(1) });
    count(Some(recap([("gone", plain)], 0))).await.unwrap();
    let second = recap([("a", plain), ("b", failed), ("c", plain), ("d", dark), ("e", plain)], 7);
    count(Some(second.clone())).await.unwrap();
    // Figures without a recap leave the saved one.
    count(None).await.unwrap();
    let page = store.recap(id, 0, 3).await.unwrap();
    assert_eq!((page.counts, page.kept), (Some(second.counts), 5));
    assert_eq!(page.hosts[..2], [("b".to_owned(), failed), ("d".to_owned(), dark)]);
    assert_eq!(names(&store.recap(id, 2, 9).await.unwrap()), ["a", "c", "e"]);
    assert!(store.recap(id, 5, 9).await.unwrap().hosts.is_empty());
    let (counts, hosts) = store.failed_hosts(id).await.unwrap();
    assert_eq!((counts, hosts), (Some(second.counts), vec!["b".to_owned(), "d".to_owned()]));
    // The hosts are deleted with their job.
    end(&store, &c1, id, FinalStatus::Failed).await.unwrap();
    sweep(&store, &c1, id).await;
    store.delete_job(audit("job.delete"), id).await.unwrap();
    assert_eq!(number(&store, "SELECT count(*) FROM stat").await, 0);
}

async fn a_job_that_is_refused_again_and_again_keeps_its_latest_attempts(site: Site) {
    let (store, c1) = site.ready().await;
    let id = submit(&store, "u1").await;
    for n in 1..=30 {
        assert_eq!(place(&store, &c1).await, [id]);
        let refused =
            move |driven: &mut crate::controller::core::Driven<'_>, now| driven.on_unknown(AttemptNo(n), now);
        store.drive(c1.clone(), id, refused).await.unwrap();
    }
    place(&store, &c1).await;
    let job = store.job(id).await.unwrap();
    let kept: Vec<u32> = job.attempts.iter().map(|attempt| attempt.n.0).collect();
    assert_eq!(kept, (11..=31).collect::<Vec<_>>());
    assert_eq!(job.attempts[0].ending(), Some(Ending::NotAccepted));
    assert_eq!(number(&store, "SELECT count(*) FROM attempt").await, 21);
}

async fn old_requests_leave_the_audit(site: Site) {
    let store = site.open().await;
    for op in ["one", "two", "three"] {
        store.record(audit(op)).await.unwrap();
    }
    sql(&store, "UPDATE audit SET at = at - 1000000 WHERE op <> 'three'").await;
    let before = Time(store.now().await.unwrap().0 - 500_000);
    assert_eq!(store.cut_audit(before, 1).await.unwrap(), 1);
    assert_eq!(store.cut_audit(before, 9).await.unwrap(), 1);
    let left: Vec<String> = store.audit(None, 9).await.unwrap().into_iter().map(|(.., row)| row.op).collect();
    assert_eq!(left, ["three"]);
}
