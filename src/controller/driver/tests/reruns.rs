//! A job that runs again here while only another control node has its payload.

use serde_json::{Value, json};

use super::elsewhere::{Answers, Elsewhere, OTHER};
use super::site::stream;
use super::streams::whole;
use super::*;
use crate::controller::core::JobId;
use crate::controller::store::Kept;
use crate::rpc::UnitState;
use crate::rpc::operation::{Answer, Operation, OperationRefusal, Rerun};
use crate::work::Caller;
use crate::work::jobs::{JobUnit, ShownJob};

/// How many bytes of a payload arrive.
const HALF: usize = 300_000;

/// A job that has ended and whose payload is no longer here.
fn ended_elsewhere(site: &Site, header: Value) -> JobId {
    let (unit, job) = site.submit(header);
    let child = site.running(job);
    site.fabric.write(&child, &whole(1, "successful"));
    site.fabric.end(&child, ChildEnd::Succeeded, "exit status 0");
    site.ended(job);
    site.run(async {
        let driver = site.driver();
        let unit = site.service().registry.job_unit(&unit).unwrap();
        driver.publisher.drop_payload(job, &unit).await.unwrap();
        driver.store.hold(job, OTHER.into(), "theirs".into(), Kept::Payload).await.unwrap();
    });
    job
}

fn rerun(site: &Site, job: JobId) -> Result<JobId, OperationRefusal> {
    let request = Operation::RerunJob(Rerun { id: job.0, failed_hosts: false });
    let service = site.service().clone();
    let mut asked = None;
    site.run(async {
        asked = Some(tokio::spawn(async move { service.operate(request, &Caller::local()).await }))
    });
    let asked = asked.unwrap();
    site.until("the answer", || asked.is_finished());
    match site.run(asked).unwrap()? {
        (Answer::RerunJob(job), None) => Ok(JobId(job.job.id)),
        (answer, _) => panic!("{answer:?}"),
    }
}

#[test]
fn a_rerun_whose_payload_does_not_come_leaves_nothing() {
    use Answers::{Missing, Never, Stalling, Whole};
    let site = Site::ready(&["e1"]);
    let elsewhere = Elsewhere::open(&site);
    let job = ended_elsewhere(&site, json!({}));
    let there = |site: &Site| (site.units(), site.on_disk(), site.jobs().len());
    let before = there(&site);
    let half = vec![b'x'; HALF];
    for (answers, size, code, words) in [
        (Never, 0, "owner_away", "control node c2 cannot be reached: no route"),
        (Missing, 0, "not_found", "is not kept any more"),
        (Whole, HALF + 1, "owner_away", "300000 of its 300001 bytes arrived"),
        (Whole, HALF - 1, "owner_away", "more than its 299999 bytes arrived"),
        (Stalling, HALF + 1, "owner_away", "stopped sending"),
    ] {
        elsewhere.says(answers, &half, size);
        let refused = rerun(&site, job).unwrap_err();
        assert_eq!(refused.code.to_string(), code, "{answers:?}: {}", refused.message);
        assert!(refused.message.contains(words), "{answers:?}: {}", refused.message);
        assert_eq!(there(&site), before, "{answers:?}");
    }
}

#[test]
fn a_rerun_and_its_row_in_the_audit_are_one_transaction() {
    let site = Site::ready(&["e1"]);
    let (_, job) = site.submit(json!({}));
    let child = site.running(job);
    site.fabric.write(&child, &whole(1, "successful"));
    site.fabric.end(&child, ChildEnd::Succeeded, "exit status 0");
    site.ended(job);
    let execute = |statement: &'static str| {
        let store = rusqlite::Connection::open(site.directory("../store.db")).unwrap();
        store.busy_timeout(seconds(5)).unwrap();
        store.execute_batch(statement).unwrap();
    };
    let ops = || {
        let rows = site.run(site.driver().store.audit(None, 100)).unwrap();
        rows.into_iter().map(|(.., row)| (row.op, row.who, row.target)).collect::<Vec<_>>()
    };
    let before = (site.jobs().len(), ops(), site.units(), site.on_disk());
    execute("CREATE TRIGGER full BEFORE INSERT ON audit BEGIN SELECT RAISE(ABORT, 'no room'); END");
    let refused = rerun(&site, job).unwrap_err();
    assert!(refused.message.contains("no room"), "{}", refused.message);
    assert_eq!((site.jobs().len(), ops(), site.units(), site.on_disk()), before);
    execute("DROP TRIGGER full");
    let again = rerun(&site, job).unwrap();
    assert_eq!(ops()[0], ("job.rerun".to_owned(), "unix:0".to_owned(), job.to_string()));
    assert_eq!(site.job(again).row.launched_by, "unix:0");
}

#[test]
fn a_job_whose_unit_is_gone_for_good_ends() {
    let site = Site::ready(&["e1"]);
    site.operate(json!({"op": "pause"}));
    let (unit, job) = site.submit(json!({}));
    // As if the store had saved a rerun and its answer was lost: the unit fails and is deleted.
    let report = |unit: &JobUnit| ShownJob {
        state: UnitState::Failed,
        detail: "the store is away".to_owned(),
        extra: unit.extra(),
    };
    site.run(async {
        let unit = site.service().registry.job_unit(&unit).unwrap();
        unit.report(report(&unit)).await;
    });
    site.release_unit(&unit);
    site.until("its end", || site.state(job).is_final());
    let ended = site.job(job).row;
    assert_eq!(
        (ended.state, ended.explanation),
        (JobState::Failed, format!("its payload was lost with {OWN}"))
    );
}

#[test]
fn a_rerun_that_the_store_has_lost_ends_and_says_what_to_do() {
    let mut site = Site::ready(&["e1"]);
    let (_, job) = site.submit(json!({"key": "once"}));
    let child = site.running(job);
    site.fabric.write(&child, &whole(1, "successful"));
    site.fabric.end(&child, ChildEnd::Succeeded, "exit status 0");
    site.ended(job);
    site.operate(json!({"op": "instance.disable", "name": "e1"}));
    let files = ["store.db", "store.db-wal"].map(|name| site.directory("..").join(name));
    let older = |path: &std::path::Path| path.with_extension("older");
    site.kill();
    for path in &files {
        std::fs::copy(path, older(path)).unwrap();
    }
    site.boot();
    let before = site.units();
    let again = rerun(&site, job).unwrap();
    let unit = site.units().into_iter().find(|unit| !before.contains(unit)).unwrap();
    site.kill();
    for path in &files {
        std::fs::copy(older(path), path).unwrap();
    }
    site.boot();
    let ended = |site: &Site| site.unit(&unit).is_some_and(|unit| unit.state == UnitState::Failed);
    site.until("its unit to end", || ended(&site));
    let words = format!("the store has lost job {again}, which repeated job {job}: run job {job} again");
    assert_eq!(site.unit(&unit).unwrap().detail, words);
    assert_eq!(site.jobs().len(), 1);
}

#[test]
fn a_rerun_with_a_payload_from_elsewhere_is_a_job_or_leaves_nothing() {
    let mut site = Site::ready(&["e1"]);
    let elsewhere = Elsewhere::open(&site);
    let job = ended_elsewhere(&site, json!({"key": "once"}));
    let payload = stream(json!({"key": "once"}));
    elsewhere.says(Answers::Whole, &payload, payload.len());
    let before = (site.units(), site.on_disk(), site.jobs().len());
    let bounds = site.options.bounds;
    site.options.bounds.max_pending = 0;
    site.set_options();
    let refused = rerun(&site, job).unwrap_err();
    assert_eq!(
        (refused.code.to_string().as_str(), refused.message.as_str()),
        ("refused", "no more than 0 jobs may be pending (maxpending)")
    );
    assert_eq!((site.units(), site.on_disk(), site.jobs().len()), before);
    site.options.bounds = bounds;
    site.set_options();
    let again = rerun(&site, job).unwrap();
    let child = site.running(again);
    let input = site.fabric.look(|units| units.there[&child].input.clone());
    assert_eq!(input, b"{\"kwargs\":{\"ident\":\"x\"}}\n{\"eof\":true}\n");
    site.fabric.write(&child, &whole(1, "successful"));
    site.fabric.end(&child, ChildEnd::Succeeded, "exit status 0");
    let ended = site.ended(again);
    assert_eq!(ended.row.state, JobState::Successful);
    assert!(ended.holders.iter().any(|(node, _, kept)| node.as_str() == OWN && *kept == Kept::Payload));
}
