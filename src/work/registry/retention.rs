//! Releases units that are kept only for a limited time: finished units of types that limit it, and units whose
//! submission was refused, because perhaps no client knows them. One task checks all of them from time to time. The
//! time of a unit's end is that of its status file, so that a restart changes nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use super::Registry;
use crate::work::executor::Executor;
use crate::work::unit::UnitId;
use crate::work::units::{Entry, Leftovers, Units};

/// The time between checks is one part in [`PART`] of the shortest time to keep, within these bounds.
const PART: u32 = 10;
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// How long a unit is kept if its submission was refused. Its client was told why.
const REFUSED_FOR: Duration = Duration::from_secs(3600);

impl Registry {
    /// Starts the task. It ends with the registry.
    pub(super) fn start_retention(&self) {
        tokio::spawn(watch_over(Arc::downgrade(&self.executor)));
    }
}

/// The finished units that are kept only for a limited time, each with that time.
fn perishable(units: &Units, kept_for: &BTreeMap<String, Duration>) -> Vec<(Arc<Entry>, Duration)> {
    let limited = |entry: Arc<Entry>| {
        let status = entry.status();
        let of_type = kept_for.get(&*status.work_type).copied();
        let kept = of_type.into_iter().chain(status.refused.then_some(REFUSED_FOR)).min()?;
        status.life.state.is_final().then_some((entry, kept))
    };
    units.all().into_iter().filter_map(limited).collect()
}

async fn watch_over(executor: Weak<Executor>) {
    let mut ended: BTreeMap<UnitId, SystemTime> = BTreeMap::new();
    loop {
        let Some(kept_for) = executor.upgrade().map(|executor| executor.local.kept_for()) else { return };
        let shortest = kept_for.values().min();
        tokio::time::sleep(
            shortest
                .map_or(LONGEST_PAUSE, |shortest| (*shortest / PART).clamp(SHORTEST_PAUSE, LONGEST_PAUSE)),
        )
        .await;
        let Some(executor) = executor.upgrade() else { return };
        let units = &executor.units;
        let perishable = perishable(units, &kept_for);
        ended.retain(|id, _| perishable.binary_search_by(|(entry, _)| entry.id.cmp(id)).is_ok());
        for (entry, kept) in perishable {
            let end = match ended.get(&entry.id) {
                Some(end) => Some(*end),
                None => {
                    let dir = entry.dir.clone();
                    units.store().blocking(move || dir.status_time()).await
                }
            };
            let Some(end) = end else { continue };
            ended.insert(entry.id.clone(), end);
            if end.elapsed().is_ok_and(|age| age >= kept) {
                release(&executor, &entry).await;
            }
        }
    }
}

async fn release(executor: &Arc<Executor>, entry: &Arc<Entry>) {
    let released = executor.release(entry.clone(), false, Leftovers::Stay);
    let why = if entry.status().refused { "its submission was refused" } else { "releaseafter" };
    match released.await {
        Ok(_) => tracing::info!(unit = %entry.id, why, "released a unit whose time is up"),
        Err(error) => tracing::warn!(unit = %entry.id, %error, why, "cannot release a unit yet"),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::rpc::request::SubmitRequest;
    use crate::wire::{NodeId, ServiceName};
    use crate::work::{Caller, Dialer, Options, State, StreamDialing, StreamFailure};

    /// A dialer without a usable TLS profile.
    struct Unfit(NodeId);

    impl Dialer for Unfit {
        fn dial(&self, _node: NodeId, _service: ServiceName, _tls: Option<String>) -> StreamDialing {
            Box::pin(async { Err(StreamFailure::OwnProfile("no certificate".into())) })
        }

        fn knows_profile(&self, _name: &str) -> bool {
            true
        }

        fn node_id(&self) -> &NodeId {
            &self.0
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_submission_goes_after_an_hour_and_other_failures_stay() {
        let temp = tempfile::tempdir().unwrap();
        let node = NodeId::new("n1").unwrap();
        let opened = async || {
            let options = Options::new(temp.path().to_owned(), node.clone(), Vec::new()).unwrap();
            Registry::open(options, Arc::new(Unfit(node.clone()))).await.unwrap()
        };
        let registry = opened().await;
        let submit = async || {
            let request =
                SubmitRequest { node: "n2".into(), work_type: "sh".into(), ..SubmitRequest::default() };
            registry.submit(request, Caller::local()).await.unwrap()
        };
        let (cut, refused, kept) = (submit().await, submit().await, submit().await);
        let [cut_id, refused_id, kept_id] = [&cut, &refused, &kept].map(|unit| unit.id().to_string());
        cut.abort("the client went away".into()).await;
        refused.finish().await.unwrap_err();
        // Its client knows this unit, and cancels it.
        registry.cancel(&kept_id, &Caller::local()).await.unwrap();
        drop(kept);
        tokio::time::sleep(Duration::from_secs(30)).await;
        drop(registry);

        let registry = opened().await;
        let all = [&cut_id, &refused_id, &kept_id];
        for id in all {
            assert_eq!(registry.status(id).await.unwrap().state, State::Failed, "{id}");
        }
        let age = |seconds| {
            for id in all {
                let status = File::open(temp.path().join("n1").join(id).join("status")).unwrap();
                status.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
            }
        };
        age(3500);
        tokio::time::sleep(Duration::from_secs(90)).await;
        assert_eq!(registry.count(), 3);
        drop(registry);

        age(3601);
        let registry = opened().await;
        tokio::time::sleep(Duration::from_secs(90)).await;
        let left: Vec<_> = registry.list(None).await.unwrap().into_keys().map(|id| id.to_string()).collect();
        assert_eq!(left, [kept_id]);
    }
}
