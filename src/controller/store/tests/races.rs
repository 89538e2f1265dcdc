//! Many writers at once, and random histories: what must hold after every step.

use std::collections::BTreeSet;

use super::lists::Dice;
use super::*;
use crate::controller::core::AttemptNo;

both![
    passes_and_submissions_at_once_place_each_job_once,
    histories_keep_the_promises,
    changes_wake_those_who_wait,
];

async fn passes_and_submissions_at_once_place_each_job_once(site: Site) {
    let (store, c1) = site.ready().await;
    let other = store.clone();
    let c2 = start(&other, "c2").await;
    let submit = |store: Store, from: u32| async move {
        for at in from..from + 20 {
            let node = if from == 0 { "c1" } else { "c2" }.into();
            let new = Submission { node, impact: 1, ..submission(&format!("u{at}")) };
            store.submit(new, 1000).await.unwrap();
        }
    };
    let pass = |store: Store, by: Fence| async move {
        let mut placed = Vec::new();
        while placed.len() < 5 {
            let passed = store.pass(by.clone(), PassLimits::default()).await.unwrap();
            placed.extend(passed.placed.into_iter().map(|(job, _)| job));
            if number(&store, "SELECT count(*) FROM job WHERE state = 'waiting'").await >= 40 {
                break;
            }
        }
        placed
    };
    let (first, second) = (tokio::spawn(submit(store.clone(), 0)), tokio::spawn(submit(store.clone(), 100)));
    let (mine, theirs) =
        (tokio::spawn(pass(store.clone(), c1.clone())), tokio::spawn(pass(other.clone(), c2)));
    first.await.unwrap();
    second.await.unwrap();
    let mut placed = mine.await.unwrap();
    placed.extend(theirs.await.unwrap());
    placed.extend(place(&store, &c1).await);
    assert_eq!(placed.len(), 40);
    assert_eq!(placed.iter().collect::<BTreeSet<_>>().len(), 40, "a job was placed twice");
    assert_eq!(number(&store, "SELECT count(*) FROM attempt").await, 40);
    let overview = store.overview().await.unwrap();
    assert!(overview.loads.instances.iter().all(|load| load.consumed <= load.capacity));
}

/// What the steps so far have shown of each job.
#[derive(Default)]
struct Watch {
    finals: BTreeMap<JobId, Job>,
    placed: BTreeSet<(JobId, AttemptNo)>,
    /// Reports that were refused.
    fenced: usize,
}

impl Watch {
    fn check(&mut self, job: &Job) {
        let open = job.attempts.iter().filter(|attempt| attempt.is_open()).count();
        assert!(open <= 1, "two attempts at a time: {job:?}");
        if let Some(ended) = self.finals.get(&job.id) {
            assert_eq!((ended.state, ended.finished), (job.state, job.finished), "a final state changed");
            assert_eq!(ended.attempts.len(), job.attempts.len(), "an attempt after the end");
        } else if job.state.is_final() {
            self.finals.insert(job.id, job.clone());
        }
        let current = job.current().map(|attempt| attempt.progress);
        match job.state {
            JobState::Waiting => assert_eq!(current, Some(Progress::Placed)),
            JobState::Running => assert_eq!(current, Some(Progress::Running)),
            _ => assert!(!matches!(current, Some(Progress::Running)) || job.state.is_final()),
        }
    }
}

async fn histories_keep_the_promises(site: Site) {
    let (store, _) = site.ready().await;
    let mut watch = Watch::default();
    for seed in 0..4 {
        history(&store, &mut watch, Dice(seed)).await;
    }
    assert!(
        watch.finals.len() > 20 && watch.placed.len() > 20,
        "{} {}",
        watch.finals.len(),
        watch.placed.len()
    );
    assert!(watch.fenced > 10, "{}", watch.fenced);
}

/// Two control nodes act at random. Each may be fenced without knowing it.
async fn history(store: &Store, watch: &mut Watch, mut dice: Dice) {
    let owners = [start(store, "c1").await, start(store, "c2").await];
    // Former fences stay in use.
    let mut fences: Vec<Fence> = owners.to_vec();
    let first = number(store, "SELECT coalesce(max(id), 0) FROM job").await;
    for step in 0..300 {
        let jobs = number(store, "SELECT coalesce(max(id), 0) FROM job").await - first;
        let latest = fences.len() - 1 - dice.below(3.min(fences.len() as u64)) as usize;
        let fence = fences[latest].clone();
        match dice.below(10) {
            0..3 => {
                let mut new = submission(&format!("u{first}-{step}"));
                new.terms.retry.max = dice.below(2) as u32;
                new.impact = 1 + dice.below(12) as u32;
                new.node = fence.owner;
                store.submit(new, 1000).await.unwrap();
            }
            3..5 => {
                if let Ok(passed) = store.pass(fence, PassLimits::default()).await {
                    for (id, owner) in passed.placed {
                        let job = store.job(id).await.unwrap();
                        assert!(watch.placed.insert((id, job.current().unwrap().n)), "placed twice: {job:?}");
                        assert_eq!(job.fence, Some(owner));
                    }
                }
            }
            5 if step % 4 == 0 => {
                let node = if dice.below(2) == 0 { "c1" } else { "c2" };
                fences.push(start(store, node).await);
            }
            _ if jobs == 0 => {}
            random => {
                let active = "SELECT coalesce(min(id), 0) FROM job WHERE state IN ('waiting', 'running')";
                let id = match number(store, active).await {
                    oldest if oldest > first && dice.below(3) > 0 => JobId(oldest),
                    _ => JobId(first + 1 + dice.below(jobs as u64) as i64),
                };
                watch.fenced += usize::from(act(store, &mut dice, fence, id, random).await);
                let job = store.job(id).await.unwrap();
                watch.check(&job);
            }
        }
    }
    for id in first + 1..=number(store, "SELECT coalesce(max(id), 0) FROM job").await {
        watch.check(&store.job(JobId(id)).await.unwrap());
    }
}

/// Makes one report or request. A report with another fence than the job's must change nothing. Returns whether the
/// report was fenced.
async fn act(store: &Store, dice: &mut Dice, fence: Fence, id: JobId, random: u64) -> bool {
    let before = store.job(id).await.unwrap();
    if random == 9 && dice.below(3) == 0 {
        store.cancel(None, id).await.unwrap();
        return false;
    }
    let Some(n) = before.current().map(|attempt| attempt.n) else { return false };
    let what = dice.below(6);
    let status = [FinalStatus::Successful, FinalStatus::Failed][dice.below(2) as usize];
    let result = store
        .drive(fence.clone(), id, move |driven, now| match what {
            0 | 1 => driven.on_accepted(n, now),
            2 | 3 => driven.on_ended(n, &evidence(status), now),
            4 => driven.on_unknown(n, now),
            _ => {
                driven.on_lost(n, now);
                Ok(())
            }
        })
        .await;
    match result {
        Ok(_) => {
            assert_eq!(before.fence, Some(fence));
            false
        }
        Err(Error::Fenced(_)) => {
            assert_ne!(before.fence, Some(fence));
            assert_eq!(store.job(id).await.unwrap(), before);
            true
        }
        Err(error) => panic!("{error}"),
    }
}

async fn changes_wake_those_who_wait(site: Site) {
    let (store, c1) = site.ready().await;
    let mut changes = store.changes();
    changes.mark_unchanged();
    submit(&store, "u1").await;
    assert!(changes.has_changed().unwrap());
    changes.mark_unchanged();
    // Nothing changed: nobody wakes.
    store.pass(c1.clone(), PassLimits { changes: 0, ..PassLimits::default() }).await.unwrap();
    beat(&store, &c1, &["e1"]).await;
    submit(&store, "u1").await;
    assert!(!changes.has_changed().unwrap());
    place(&store, &c1).await;
    assert!(changes.has_changed().unwrap());
}
