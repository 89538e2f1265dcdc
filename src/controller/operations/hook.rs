//! Starts saved jobs for what comes to their hooks. A delivery whose ID has started a job starts none again. Knows nothing of
//! forges: the saved job judges the delivery.

use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use super::saved::parsed;
use super::{LaunchTerms, bad, conflict};
use crate::controller::saved::Judged;
use crate::controller::service::Service;
use crate::rpc::operation::{GivenVars, OperationRefusal, SavedStart};
use crate::rpc::report::saved::HookAnswer;
use crate::work::jobs::{HookDelivery, Hooked};
use crate::work::{Caller, CallerName};

/// Deliveries that are judged at a time, aside from the threads that carry links: a body may have a MiB of JSON.
static JUDGING: Semaphore = Semaphore::const_new(2);

impl Service {
    /// As [`crate::work::jobs::Operations::deliver`].
    pub(in crate::controller) async fn deliver(
        &self,
        delivery: HookDelivery,
    ) -> Result<Hooked, OperationRefusal> {
        let name = delivery.name.clone();
        let loaded = self.saved.now().entries().get(&name).and_then(|entry| entry.job.clone());
        let Some(loaded) = loaded else { return Ok(Hooked::Stranger) };
        let Ok(job) = parsed(&loaded).await else { return Ok(Hooked::Stranger) };
        // The semaphore is never closed. A disk that hangs keeps its turn.
        let turn = JUDGING.acquire().await.map_err(|error| conflict(error.to_string()))?;
        let judge = move || {
            let _turn = turn;
            job.judge(&delivery)
        };
        let (vars, id) = match spawn_blocking(judge).await.map_err(|error| conflict(error.to_string()))? {
            Judged::Meant(vars, id) => (vars, id),
            Judged::Unfit(why) => return Err(bad(format!("{name}: {why}"))),
            Judged::Unmeant(why) => {
                return Ok(Hooked::Heard(HookAnswer { why: Some(why), ..HookAnswer::default() }));
            }
            Judged::Stranger(why) => {
                tracing::warn!(saved = name, why, "rejected a delivery to a hook");
                return Ok(Hooked::Stranger);
            }
        };
        if !self.hooks.lock().take(&name, Instant::now()) {
            return Ok(Hooked::TooMany);
        }
        let key = id.map(|id| format!("meshd/hook/{name}/{id}"));
        let who = Caller::of_file(CallerName::Hook(name.clone()));
        let asked = SavedStart { name, vars: GivenVars(vars) };
        let terms = LaunchTerms { key, ..LaunchTerms::default() };
        let started = self.start_saved_once(asked, &who, terms).await?;
        let repeated = started.is_err();
        let job = started.map_or_else(|known| Some(known.0), |started| started.id);
        Ok(Hooked::Heard(HookAnswer { started: true, job, repeated, why: None }))
    }
}
