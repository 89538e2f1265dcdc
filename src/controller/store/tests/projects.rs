//! Syncs that owners begin themselves, and the projects that they fill.

use super::*;
use crate::controller::core::{AttemptNo, ChildType};

both![a_sync_runs_at_once_one_for_each_project_and_attempt, the_first_sync_is_the_projects];

const URL: &str = "https://git.example.org/site.git";

fn sync(unit: &str) -> NewSync {
    NewSync {
        unit: unit.into(),
        word: "project a".into(),
        name: URL.into(),
        header: r#"{"controller": 1}"#.into(),
    }
}

async fn begin(store: &Store, by: &Fence, unit: &str) -> BegunSync {
    store.begin_sync(by.clone(), sync(unit)).await.unwrap()
}

async fn a_sync_runs_at_once_one_for_each_project_and_attempt(site: Site) {
    let (store, fence) = site.ready().await;
    let BegunSync::Job(first) = begin(&store, &fence, "u1").await else { panic!("nothing runs yet") };
    let job = store.job(first).await.unwrap();
    assert_eq!(
        (job.kind, job.state, job.fence.as_ref()),
        (JobKind::ProjectSync, JobState::Waiting, Some(&fence))
    );
    let attempt = job.current().unwrap();
    assert_eq!(
        (attempt.n, attempt.child, attempt.node.clone()),
        (AttemptNo(1), ChildType::Local, Some("c1".into()))
    );
    assert!(store.driven(fence.clone()).await.unwrap().iter().any(|job| job.id == first));
    assert!(place(&store, &fence).await.is_empty());

    assert_eq!(begin(&store, &fence, "u1").await, BegunSync::Job(first), "as after a restart");
    assert_eq!(begin(&store, &fence, "u2").await, BegunSync::After(first));
    let other = NewSync { word: "project b".into(), ..sync("u3") };
    assert!(matches!(store.begin_sync(fence.clone(), other).await.unwrap(), BegunSync::Job(_)));
    let elsewhere = start(&store, "c2").await;
    assert!(
        matches!(begin(&store, &elsewhere, "u4").await, BegunSync::Job(_)),
        "each node has its own mirror"
    );

    end(&store, &fence, first, FinalStatus::Failed).await.unwrap();
    assert_eq!(begin(&store, &fence, "u1").await, BegunSync::Job(first), "its end is asked for");
    assert!(matches!(begin(&store, &fence, "u2").await, BegunSync::Job(second) if second > first));

    let newer = start(&store, "c1").await;
    assert!(matches!(store.begin_sync(fence, sync("u5")).await, Err(Error::Fenced(_))));
    assert!(matches!(begin(&store, &newer, "u5").await, BegunSync::After(_)));
}

async fn the_first_sync_is_the_projects(site: Site) {
    let (store, fence) = site.ready().await;
    let project = || store.project(URL.into(), "c1".into());
    submit(&store, "unit").await;
    let job = place(&store, &fence).await[0];
    store.end_sync(fence.clone(), job, None, URL.into(), "zero".into()).await.unwrap();
    assert_eq!(store.detail(job).await.unwrap().revision.as_deref(), Some("zero"));
    assert_eq!(project().await.unwrap(), None, "nothing was fetched");
    for commit in ["one", "two"] {
        let BegunSync::Job(sync) = begin(&store, &fence, commit).await else {
            panic!("the former has ended")
        };
        end(&store, &fence, sync, FinalStatus::Successful).await.unwrap();
        store.end_sync(fence.clone(), job, Some(sync), URL.into(), commit.into()).await.unwrap();
        for id in [job, sync] {
            assert_eq!(store.detail(id).await.unwrap().revision.as_deref(), Some(commit));
        }
        assert!(store.holders(sync, Kept::Payload).await.unwrap().is_empty());
    }
    let project = project().await.unwrap().unwrap();
    assert_eq!((project.commit.as_str(), project.status.as_str()), ("one", "successful"));
    start(&store, "c1").await;
    let fenced = store.end_sync(fence, job, None, URL.into(), "three".into()).await;
    assert!(matches!(fenced, Err(Error::Fenced(_))));
}
