//! The end of an output: its length and hash, who has all of it, and who may release the unit that made it.

use super::*;
use crate::controller::core::{AttemptNo, OutputEnd};

both![
    an_end_names_the_output_and_who_has_it,
    an_owner_that_never_got_the_output_does_not_name_its_own,
    the_output_is_lost_with_the_last_complete_copy,
    a_job_stays_while_another_control_node_fetches_its_output,
];

const N: AttemptNo = AttemptNo(1);
const END: OutputEnd = OutputEnd { bytes: 70, hash: Some(u64::MAX - 4) };

fn held(unit: &str, end: OutputEnd) -> Option<HeldOutput> {
    Some(HeldOutput { unit: unit.into(), end })
}

/// Ends a job's first attempt with success, and with the output that its owner has.
async fn succeed(store: &Store, by: &Fence, id: JobId, output: Option<HeldOutput>) -> Result<Job, Error> {
    let (ended, figures) = (evidence(FinalStatus::Successful), Figures { output_bytes: 70, ..figures_of(1) });
    let report = move |job: &mut crate::controller::core::Driven<'_>, now| job.on_ended(N, &ended, now);
    store.drive_to_end(by.clone(), (id, N), Some(figures), output, report).await.map(|now| now.job)
}

/// A job that runs.
async fn running(store: &Store, by: &Fence, unit: &str) -> JobId {
    let id = submit(store, unit).await;
    assert_eq!(place(store, by).await, [id]);
    accept(store, by, id).await.unwrap();
    id
}

async fn an_end_names_the_output_and_who_has_it(site: Site) {
    let (store, former) = site.ready().await;
    let id = running(&store, &former, "u1").await;
    let c1 = start(&store, "c1").await;
    assert!(matches!(succeed(&store, &former, id, held("u1", END)).await, Err(Error::Fenced(_))));
    assert_eq!(store.detail(id).await.unwrap().complete, [], "who is fenced names nobody");
    let job = succeed(&store, &c1, id, held("u1", END)).await.unwrap();
    let last = job.current().unwrap();
    assert_eq!((last.output, last.released_by.clone()), (Some(END), Some("c1".into())));
    assert!(!last.has_unread_output());
    assert_eq!(store.job(id).await.unwrap(), job, "every column comes back");
    let detail = store.detail(id).await.unwrap();
    assert_eq!((detail.complete.clone(), detail.output_end()), (vec![("c1".into(), "u1".into())], Some(END)));
    let is_whole = |node: &str, size| detail.is_whole(&node.into(), "u1", size);
    assert!(is_whole("c1", 70) && !is_whole("c1", 69) && !is_whole("c2", 70));
    // An end that is known stays.
    let other = OutputEnd { bytes: 71, hash: None };
    let again =
        store.drive_to_end(c1.clone(), (id, N), None, held("u1", other), |_, _| Ok(())).await.unwrap();
    assert_eq!(again.job.current().unwrap().output, Some(END));
}

async fn an_owner_that_never_got_the_output_does_not_name_its_own(site: Site) {
    let (store, c1) = site.ready().await;
    let id = running(&store, &c1, "u1").await;
    store.count(c1.clone(), id, Figures { output_bytes: 70, ..figures_of(1) }).await.unwrap();
    let c2 = start(&store, "c2").await;
    take_over(&store, &c2, "c1", OnLoss::TakeOver).await;
    let empty = held("new", OutputEnd { bytes: 0, hash: Some(1) });
    let unknown = |job: &mut crate::controller::core::Driven<'_>, now| job.on_unknown(N, now);
    let job = store.drive_to_end(c2, (id, N), None, empty, unknown).await.unwrap().job;
    assert_eq!(job.current().unwrap().output, Some(OutputEnd { bytes: 70, hash: None }));
    let detail = store.detail(id).await.unwrap();
    assert_eq!(detail.complete, []);
    assert!(detail.is_whole(&"c1".into(), "u1", 75) && !detail.is_whole(&"c2".into(), "new", 0));
}

async fn the_output_is_lost_with_the_last_complete_copy(site: Site) {
    let (store, c1) = site.ready().await;
    let (dead, released) = (running(&store, &c1, "u1").await, running(&store, &c1, "u2").await);
    for (id, unit) in [(dead, "u1"), (released, "u2")] {
        store.hold(id, "c2".into(), format!("copy of {unit}"), Kept::Output).await.unwrap();
        succeed(&store, &c1, id, held(unit, END)).await.unwrap();
        sweep(&store, &c1, id).await;
    }
    let lost = async |id| store.detail(id).await.unwrap().output_lost;
    // Output that its user releases is not lost.
    store.let_go_unit("c1".into(), "u2".into(), &Kept::ALL).await.unwrap();
    sql(&store, "UPDATE lease SET epoch = epoch / 4294967296 * 4294967296 WHERE node = 'c1'").await;
    store.declare_dead(audit("instance.remove"), "c1".into()).await.unwrap();
    assert_eq!((lost(released).await, lost(dead).await), (None, Some("c1".into())));
    // The other copy was complete after all, so the output is not lost.
    store.hold_complete((dead, N), "c2".into(), vec!["copy of u1".into()]).await.unwrap();
    assert_eq!(lost(dead).await, None);
    sql(&store, "UPDATE lease SET epoch = epoch / 4294967296 * 4294967296 WHERE node = 'c2'").await;
    store.declare_dead(audit("instance.remove"), "c2".into()).await.unwrap();
    assert_eq!((lost(released).await, lost(dead).await), (None, Some("c2".into())));
}

async fn a_job_stays_while_another_control_node_fetches_its_output(site: Site) {
    let (store, c1) = site.ready().await;
    let id = running(&store, &c1, "u1").await;
    store.hold(id, "c2".into(), "copy".into(), Kept::Output).await.unwrap();
    succeed(&store, &c1, id, held("u1", END)).await.unwrap();
    sweep(&store, &c1, id).await;
    let refused = store.delete_job(audit("job.delete"), id).await.unwrap_err();
    assert!(refused.to_string().contains("on c2 has not got all of its output yet"), "{refused}");
    store.hold_complete((id, N), "c2".into(), vec!["copy".into()]).await.unwrap();
    store.delete_job(audit("job.delete"), id).await.unwrap();
}
