//! The life of a job in the store.

use super::*;
use crate::controller::core::{AttemptNo, ChildId, Ending, Refused};
use crate::controller::stream::RunSummary;
use crate::rpc::report::controller::QueuePlace;

both![
    what_is_asked_for_again_as_its_answer_was_lost_is_one_job_and_one_row_of_the_audit,
    a_job_is_submitted_once,
    a_submission_that_cannot_be_is_refused_and_leaves_nothing,
    a_caller_without_all_rights_leaves_as_much_room_as_it_has,
    a_job_is_placed_runs_and_ends,
    a_final_state_stays,
    a_further_attempt_begins_without_the_result_of_the_former,
    a_cancel_is_saved,
    a_lost_attempt_holds_the_job_until_it_is_known_to_have_ended,
    an_operator_confirms_a_lost_attempt,
    a_quota_makes_the_job_wait,
    dependencies_and_words_hold_jobs_back,
    a_pending_job_is_explained,
    a_pause_places_nothing,
    a_pass_is_bounded_and_says_that_there_is_more,
    what_has_ended_is_deleted_in_time,
];

async fn what_is_asked_for_again_as_its_answer_was_lost_is_one_job_and_one_row_of_the_audit(site: Site) {
    let (store, _) = site.ready().await;
    let before = store.audit(None, 100).await.unwrap().len();
    let again = async || store.submit_for(audit("job.rerun"), submission("u1"), 9).await.unwrap();
    let first = again().await;
    assert!(matches!(first, Submitted::New(_)));
    assert_eq!(again().await, Submitted::Known(first.id()));
    assert_eq!(store.audit(None, 100).await.unwrap().len(), before + 1);
}

async fn a_job_is_submitted_once(site: Site) {
    let (store, _) = site.ready().await;
    let mut first = submission("u1");
    first.key = Some("ci-1".into());
    let id = store.submit(first.clone(), 9).await.unwrap();
    assert!(matches!(id, Submitted::New(_)));
    let known = Submitted::Known(id.id());
    // The same unit again, for instance because the answer was lost.
    assert_eq!(store.submit(first.clone(), 9).await.unwrap(), known);
    let second = Submission { unit: "u2".into(), ..first.clone() };
    assert_eq!(store.submit(second.clone(), 9).await.unwrap(), known);
    for launched_by in ["mesh:c9", "unix:0"] {
        let over_the_mesh = Submission { launched_by: launched_by.into(), is_admin: false, ..second.clone() };
        let refused = match store.submit(over_the_mesh.clone(), 9).await {
            Ok(found) => {
                assert_eq!((launched_by, found), ("unix:0", known));
                continue;
            }
            Err(refused) => refused.to_string(),
        };
        assert_eq!(refused, "the key \"ci-1\" belongs to the job of another caller: choose another one");
        let of_another_kind = Submission { kind: JobKind::AdHoc, ..over_the_mesh };
        assert_eq!(store.submit(of_another_kind, 9).await.unwrap_err().to_string(), refused);
    }
    let other = Submission { kind: JobKind::AdHoc, ..second };
    let refused = store.submit(other, 9).await.unwrap_err();
    assert!(matches!(refused, Error::KeyTaken { kind: JobKind::Job, .. }), "{refused}");
    assert_eq!(store.list(JobSelection::default(), 50).await.unwrap().jobs.len(), 1);
    assert_eq!(store.holders(id.id(), Kept::Payload).await.unwrap(), [("c1".into(), "u1".into())]);
}

async fn a_submission_that_cannot_be_is_refused_and_leaves_nothing(site: Site) {
    let (store, _) = site.ready().await;
    let mut unknown = submission("u1");
    unknown.terms.groups = vec![("nowhere".into(), Level::Launch)];
    assert!(matches!(store.submit(unknown, 9).await, Err(Error::NoGroup(_))));
    let lost = Submission { needs: vec![Dependency::Key { key: "ci-1".into() }], ..submission("u1") };
    let own = Submission { key: Some("ci-1".into()), ..lost.clone() };
    for wrong in [lost, own, Submission { needs: vec![Dependency::Job(JobId(77))], ..submission("u1") }] {
        assert!(matches!(store.submit(wrong, 9).await, Err(Error::NoDependency(_))));
    }
    submit(&store, "u1").await;
    let full = store.submit(submission("u2"), 1).await;
    assert!(matches!(full, Err(Error::Full(1))));
    assert_eq!(number(&store, "SELECT count(*) FROM job").await, 1);
    // One row for its payload, and one for its output.
    assert_eq!(number(&store, "SELECT count(*) FROM holder").await, 2);
}

async fn a_caller_without_all_rights_leaves_as_much_room_as_it_has(site: Site) {
    let (store, _) = site.ready().await;
    let mut units = 0;
    let mut submit = async |who: &str, is_admin: bool| {
        units += 1;
        let launched_by = who.to_owned();
        let new = Submission { launched_by, is_admin, ..submission(&format!("u{units}")) };
        store.submit(new, 6).await
    };
    for who in ["a", "a", "a"] {
        submit(who, false).await.unwrap();
    }
    let refused = submit("a", false).await.unwrap_err();
    assert!(matches!(refused, Error::FullForOne(3)), "{refused}");
    for who in ["b", "b"] {
        submit(who, false).await.unwrap();
    }
    assert!(matches!(submit("b", false).await, Err(Error::FullForOne(1))));
    submit("a", true).await.unwrap();
    assert!(matches!(submit("c", false).await, Err(Error::Full(6))));
    assert!(matches!(submit("a", true).await, Err(Error::Full(6))));
}

async fn a_job_is_placed_runs_and_ends(site: Site) {
    let (store, c1) = site.ready().await;
    let mut new = submission("u1");
    new.header = r#"{"controller": 1, "name": "köln"}"#.into();
    new.labels = [("env".to_owned(), "test".to_owned())].into();
    new.terms.retry = Retry { max: 3, on_error: true, ..Retry::default() };
    new.terms.lost_after = Some(Duration::from_secs(77));
    new.terms.run = RunSummary { playbook: Some("site.yml".into()), check: true, ..RunSummary::default() };
    new.terms.rerun_of = Some(3);
    let id = store.submit(new.clone(), 9).await.unwrap().id();
    assert_eq!(place(&store, &c1).await, [id]);
    let job = store.job(id).await.unwrap();
    assert_eq!((job.state, job.fence.clone()), (JobState::Waiting, Some(c1.clone())));
    assert_eq!((job.retry, job.lost_after), (new.terms.retry, new.terms.lost_after));
    assert_eq!(store.detail(id).await.unwrap().row.terms, new.terms);
    let unit = &job.current().unwrap().unit;
    assert_eq!((unit.job, unit.attempt), (id, AttemptNo(1)));
    assert!(store.install_id().await.unwrap().starts_with(&format!("{:08x}", unit.install)));
    assert_eq!(ChildId::parse(&unit.to_string()).as_ref(), Some(unit));
    assert_eq!(place(&store, &c1).await, []);

    assert_eq!(accept(&store, &c1, id).await.unwrap().state, JobState::Running);
    let mut figures = Figures { events: 7, output_bytes: 900, ..figures_of(1) };
    store.count(c1.clone(), id, figures.clone()).await.unwrap();
    figures = Figures { events: 8, rc: Some(2), revision: Some("abc".into()), ..figures };
    let evidence = evidence(FinalStatus::Failed);
    let report = move |driven: &mut crate::controller::core::Driven<'_>, now| {
        driven.on_ended(AttemptNo(1), &evidence, now)
    };
    let job = store
        .drive_to_end(c1.clone(), (id, AttemptNo(1)), Some(figures.clone()), None, report)
        .await
        .unwrap()
        .job;
    assert_eq!(job.state, JobState::Failed);

    let detail = store.detail(id).await.unwrap();
    assert_eq!(detail.header, new.header);
    assert_eq!((detail.row.events, detail.output_bytes, detail.row.rc), (8, 900, Some(2)));
    assert_eq!((detail.revision.as_deref(), detail.job.attempts), (Some("abc"), job.attempts.clone()));
    assert_eq!((detail.row.state, detail.row.labels), (JobState::Failed, new.labels));
    assert_eq!(detail.row.execution_node, job.attempts[0].node);
    assert_eq!((detail.row.finished, detail.row.attempt), (job.finished, 1));
    assert_eq!(store.driven(c1.clone()).await.unwrap(), [job]);
    sweep(&store, &c1, id).await;
    assert_eq!(store.driven(c1).await.unwrap(), []);
}

async fn a_further_attempt_begins_without_the_result_of_the_former(site: Site) {
    let (store, c1) = site.ready().await;
    let mut new = submission("u1");
    new.terms.retry = Retry { max: 1, on_error: true, ..Retry::default() };
    let id = store.submit(new, 9).await.unwrap().id();
    place(&store, &c1).await;
    accept(&store, &c1, id).await.unwrap();
    let hosts = [("web".to_owned(), HostStats { failures: 1, ..HostStats::default() })].into();
    let recap = Some(Recap { counts: RecapCounts { hosts: 1, ..RecapCounts::default() }, hosts });
    let figures = Figures { rc: Some(4), recap: recap.clone(), ..figures_of(1) };
    let evidence = evidence(FinalStatus::Error);
    let report = move |driven: &mut crate::controller::core::Driven<'_>, now| {
        driven.on_ended(AttemptNo(1), &evidence, now)
    };
    store.drive_to_end(c1.clone(), (id, AttemptNo(1)), Some(figures), None, report).await.unwrap();
    sweep(&store, &c1, id).await;
    let former = store.detail(id).await.unwrap();
    assert_eq!((former.row.state, former.row.rc), (JobState::Pending, Some(4)));
    assert_eq!(store.recap(id, 0, 9).await.unwrap().hosts.len(), 1);
    assert_eq!(place(&store, &c1).await, [id]);
    // Late figures of the former attempt are not those of this one.
    let late = Figures { rc: Some(4), recap, events: 9, ..figures_of(1) };
    assert!(matches!(store.count(c1.clone(), id, late).await, Err(Error::Fenced(_))));
    store.count(c1, id, Figures { events: 3, ..figures_of(2) }).await.unwrap();
    let detail = store.detail(id).await.unwrap();
    assert_eq!((detail.row.attempt, detail.row.rc), (2, None));
    assert_eq!(store.recap(id, 0, 9).await.unwrap(), RecapPage::default());
    assert_eq!(detail.row.events, 3);
}

async fn a_final_state_stays(site: Site) {
    let (store, c1) = site.ready().await;
    let id = submit(&store, "u1").await;
    place(&store, &c1).await;
    accept(&store, &c1, id).await.unwrap();
    let ended = end(&store, &c1, id, FinalStatus::Successful).await.unwrap();
    assert_eq!(ended.state, JobState::Successful);
    assert_eq!(store.cancel(None, id).await.unwrap(), ended);
    assert_eq!(end(&store, &c1, id, FinalStatus::Failed).await.unwrap(), ended);
    assert_eq!(accept(&store, &c1, id).await.unwrap(), ended);
    let late = store.count(c1.clone(), id, Figures { events: 9, ..figures_of(1) }).await;
    assert!(matches!(late, Err(Error::Fenced(_))));
    // A save that began with an older state, which no verb makes.
    let before = Job { state: JobState::Running, finished: None, ..ended.clone() };
    let after = Job { state: JobState::Canceled, ..before.clone() };
    assert!(
        !store.write(move |sql| crate::controller::store::jobs::save(sql, &before, &after)).await.unwrap()
    );
    assert_eq!(store.job(id).await.unwrap(), ended);
    assert_eq!(store.detail(id).await.unwrap().row.events, 0);
}

async fn a_cancel_is_saved(site: Site) {
    let (store, c1) = site.ready().await;
    let (pending, running) = (submit(&store, "u1").await, submit(&store, "u2").await);
    let job = store.cancel(Some(audit("job.cancel")), pending).await.unwrap();
    assert_eq!((job.state, job.cancel_requested), (JobState::Canceled, true));
    assert_eq!(place(&store, &c1).await, [running]);
    accept(&store, &c1, running).await.unwrap();
    let job = store.cancel(None, running).await.unwrap();
    assert_eq!((job.state, job.cancel_requested), (JobState::Running, true));
    let job = end(&store, &c1, running, FinalStatus::Successful).await.unwrap();
    assert_eq!(job.state, JobState::Canceled);
    assert!(matches!(store.cancel(None, JobId(99)).await, Err(Error::NoJob(JobId(99)))));
    let requests = store.audit(None, 9).await.unwrap();
    assert_eq!(requests.into_iter().map(|(.., audit)| audit).collect::<Vec<_>>(), [audit("job.cancel")]);
}

async fn a_lost_attempt_holds_the_job_until_it_is_known_to_have_ended(site: Site) {
    let (store, c1) = site.ready().await;
    let mut new = submission("u1");
    new.terms.retry.max = 1;
    let id = store.submit(new, 9).await.unwrap().id();
    place(&store, &c1).await;
    accept(&store, &c1, id).await.unwrap();
    let lose = |driven: &mut crate::controller::core::Driven<'_>, now| {
        driven.on_lost(AttemptNo(1), now);
        Ok(())
    };
    let job = store.drive(c1.clone(), id, lose).await.unwrap().job;
    assert_eq!((job.state, job.attempts[0].progress), (JobState::Pending, Progress::Lost));
    assert_eq!(store.job(id).await.unwrap(), job);
    assert_eq!(place(&store, &c1).await, []);
    assert!(store.job(id).await.unwrap().explanation.contains("is lost and may still run"));
    store.drive(c1.clone(), id, |driven, now| driven.on_unknown(AttemptNo(1), now)).await.unwrap();
    assert_eq!(place(&store, &c1).await, [id]);
    let job = store.job(id).await.unwrap();
    assert_eq!((job.attempts.len(), job.attempts[1].n), (2, AttemptNo(2)));
    assert_ne!(job.attempts[0].unit, job.attempts[1].unit);
}

async fn an_operator_confirms_a_lost_attempt(site: Site) {
    let (store, c1) = site.ready().await;
    let id = submit(&store, "u1").await;
    place(&store, &c1).await;
    let confirm = |id, n| store.confirm_lost(audit("job.confirm_lost"), id, AttemptNo(n));
    assert!(matches!(confirm(id, 1).await, Err(Error::Job(Refused::NotLost(_, _)))));
    store.drive(c1.clone(), id, |driven, now| driven.on_missing(AttemptNo(1), now)).await.unwrap();
    assert_eq!(place(&store, &c1).await, []);
    assert!(matches!(confirm(id, 2).await, Err(Error::Job(Refused::NoAttempt(_, _)))));
    assert!(matches!(confirm(JobId(99), 1).await, Err(Error::NoJob(_))));
    let job = confirm(id, 1).await.unwrap();
    assert_eq!((job.state, job.attempts[0].progress), (JobState::Pending, Progress::Over(Ending::Lost)));
    let requests = store.audit(None, 9).await.unwrap();
    assert_eq!(requests.into_iter().map(|(.., audit)| audit.op).collect::<Vec<_>>(), ["job.confirm_lost"]);
    assert_eq!(place(&store, &c1).await, [id]);
}

async fn a_quota_makes_the_job_wait(site: Site) {
    let (store, c1) = site.ready().await;
    let id = submit(&store, "u1").await;
    place(&store, &c1).await;
    let refused =
        Evidence { status: None, detail: "exceeded quota: pods".into(), ..evidence(FinalStatus::Error) };
    let report = move |driven: &mut crate::controller::core::Driven<'_>, now| {
        driven.on_ended(AttemptNo(1), &refused, now)
    };
    let job = store.drive(c1.clone(), id, report).await.unwrap().job;
    assert_eq!(job.quota.as_ref().map(|quota| quota.refusals), Some(1));
    assert_eq!(store.job(id).await.unwrap(), job);
    assert_eq!(place(&store, &c1).await, []);
    assert_eq!(store.job(id).await.unwrap().explanation, "waiting for a quota: exceeded quota: pods");
    // The clock of the process that makes the pass decides, not the store's clock.
    let mut waits = Waits::default();
    let mut placed_at = async |seconds: i64| {
        waits.now = Time(seconds * 1000);
        let limits = PassLimits { waits: waits.clone(), ..PassLimits::default() };
        !store.pass(c1.clone(), limits.clone()).await.unwrap().placed.is_empty()
    };
    assert!(!placed_at(0).await && !placed_at(29).await && placed_at(30).await);
}

async fn dependencies_and_words_hold_jobs_back(site: Site) {
    let (store, c1) = site.ready().await;
    let first = Submission { key: Some("a".into()), exclusive: vec!["site".into()], ..submission("u1") };
    let first = store.submit(first, 9).await.unwrap().id();
    let needs = vec![Dependency::Key { key: "a".into() }, Dependency::Job(first)];
    let second = store.submit(Submission { needs, ..submission("u2") }, 9).await.unwrap().id();
    let third = Submission { exclusive: vec!["site".into()], ..submission("u3") };
    let third = store.submit(third, 9).await.unwrap().id();
    assert_eq!(store.detail(second).await.unwrap().depends_on, [first]);
    assert_eq!(place(&store, &c1).await, [first]);
    assert_eq!(place(&store, &c1).await, []);
    assert_eq!(
        store.job(third).await.unwrap().explanation,
        format!("waiting for job {first}, which holds \"site\"")
    );
    accept(&store, &c1, first).await.unwrap();
    end(&store, &c1, first, FinalStatus::Failed).await.unwrap();
    let passed = store.pass(c1.clone(), PassLimits::default()).await.unwrap();
    assert_eq!((passed.failed, passed.placed), (vec![second], vec![(third, c1)]));
    assert_eq!(store.job(second).await.unwrap().state, JobState::Failed);
}

async fn a_pending_job_is_explained(site: Site) {
    let (store, c1) = site.ready().await;
    let large = store.submit(Submission { impact: 500, ..submission("u1") }, 9).await.unwrap().id();
    let large2 = store.submit(Submission { impact: 500, ..submission("u2") }, 9).await.unwrap().id();
    let waits = store.submit(Submission { impact: 500, ..submission("u3") }, 9).await.unwrap().id();
    // An idle instance takes a job that is too large for it.
    assert_eq!(place(&store, &c1).await, [large, large2]);
    assert_eq!(store.job(waits).await.unwrap().explanation, "waiting for capacity in default");
    let patience = Patience::default;
    let explanation = store.explain(waits, false, patience()).await.unwrap().waits.unwrap();
    assert_eq!(explanation.summary, "waiting for capacity in default");
    assert_eq!(explanation.groups[0].instances.len(), 2);
    assert_eq!(explanation.queue, Some(QueuePlace { place: 1, of: 1 }));
    let runs = store.explain(large, false, patience()).await.unwrap();
    assert_eq!((runs.job.id, runs.waits, runs.silence), (large, None, None));
    assert!(matches!(store.explain(JobId(99), false, patience()).await, Err(Error::NoJob(_))));
}

async fn a_pause_places_nothing(site: Site) {
    let (store, c1) = site.ready().await;
    let id = submit(&store, "u1").await;
    store.set_paused(audit("pause"), true).await.unwrap();
    assert!(store.is_paused().await.unwrap());
    assert_eq!(place(&store, &c1).await, []);
    assert_eq!(store.job(id).await.unwrap().explanation, "the controller is paused");
    store.set_paused(audit("resume"), false).await.unwrap();
    assert_eq!(place(&store, &c1).await, [id]);
}

async fn a_pass_is_bounded_and_says_that_there_is_more(site: Site) {
    let (store, c1) = site.ready().await;
    for at in 0..8 {
        submit(&store, &format!("u{at}")).await;
    }
    let limits = PassLimits { changes: 2, explanations: 1, ..PassLimits::default() };
    let mut placed = 0;
    let mut passes = 0;
    loop {
        let passed = store.pass(c1.clone(), limits.clone()).await.unwrap();
        assert!(passed.placed.len() <= 2);
        placed += passed.placed.len();
        passes += 1;
        if !passed.again {
            assert_eq!(passed.pending, 2);
            break;
        }
    }
    // Two instances of capacity 20 take three jobs of impact 6 each.
    assert_eq!(placed, 6);
    assert_eq!(passes, 3);
    let explained = "SELECT count(*) FROM job WHERE explanation = 'waiting for capacity in default'";
    assert_eq!(number(&store, explained).await, 2);
}

async fn what_has_ended_is_deleted_in_time(site: Site) {
    let (store, c1) = site.ready().await;
    let (old, active) = (submit(&store, "u1").await, submit(&store, "u2").await);
    place(&store, &c1).await;
    accept(&store, &c1, old).await.unwrap();
    store.hold(old, "c1".into(), "u1".into(), Kept::Output).await.unwrap();
    let counted = Figures { output_bytes: 70, ..figures_of(1) };
    store.count(c1.clone(), old, counted).await.unwrap();
    end(&store, &c1, old, FinalStatus::Successful).await.unwrap();
    let later = store.now().await.unwrap() + Duration::from_secs(60);
    let held = store.held("c1".into(), Kept::Output, later, 9).await.unwrap();
    assert_eq!(held.iter().map(|held| (held.job, held.output_bytes)).collect::<Vec<_>>(), [(old, 70)]);
    assert_eq!(store.held("c1".into(), Kept::Payload, later, 9).await.unwrap().len(), 1);
    assert_eq!(store.held("c1".into(), Kept::Output, held[0].finished.unwrap(), 9).await.unwrap(), []);
    let page = async |after, limit| store.payloads_of_ended("c1".into(), after, limit).await.unwrap();
    let all = page((JobId(0), String::new()), 9).await;
    assert_eq!(all.iter().map(|(held, _)| (held.job, held.unit.as_str())).collect::<Vec<_>>(), [(old, "u1")]);
    assert!(all[0].1.contains("controller") && page((old, "u1".into()), 9).await.is_empty());
    assert_eq!((page((old, "u0".into()), 1).await.len(), page((old, "u2".into()), 1).await.len()), (1, 0));
    assert_eq!(store.output_bytes("c1".into()).await.unwrap(), 70);
    assert_eq!(store.output_bytes("c2".into()).await.unwrap(), 0);

    assert_eq!(store.purge(later, 9).await.unwrap(), 0, "its unit is not released");
    sweep(&store, &c1, old).await;
    assert_eq!(store.purge(later, 9).await.unwrap(), 0, "its output is there");
    store.let_go_unit("c1".into(), "u1".into(), &Kept::ALL).await.unwrap();
    assert_eq!(store.purge(later, 9).await.unwrap(), 1);
    assert!(matches!(store.detail(old).await, Err(Error::NoJob(_))));
    assert_eq!(number(&store, "SELECT count(*) FROM attempt").await, 1);
    let refused = store.delete_job(audit("job.delete"), active).await;
    assert!(matches!(refused, Err(Error::Conflict(_))));
    // Numbers are not used again.
    sql(&store, "DELETE FROM job").await;
    assert!(submit(&store, "u9").await > active);
}
