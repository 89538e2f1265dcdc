//! The children of jobs as units of this node's registry.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::core::{ChildEnd, ChildId, InstanceName, JobId, Known};
use super::driver::world::{ChildInput, ChildNews, ChildRequest, ChildStream, Children, PodChild};
use crate::os::back_off::BackOff;
use crate::pods::place::{ClusterError, KUBE_CONFIG, KUBE_NAMESPACE, POD_NAME, PodPlace};
use crate::rpc::UnitState;
use crate::rpc::request::{AdoptRequest, SubmitRequest};
use crate::work::jobs::{Act, JobUnit};
use crate::work::run_dir::FALLBACK;
use crate::work::{
    AttemptPayload, Caller, ChildStatus, ChildUnit, ChildWatch, FarOutput, Leftovers, Outcome, Registry,
    ResultStream, WorkError,
};

/// Bytes of a payload that are written to a unit at a time.
const CHUNK: usize = 128 * 1024;
/// The parameter that holds a command's arguments.
const PARAMS: &str = "params";
/// How often the output of a running child is read again after an error, and the pause before.
const REREADS: u32 = 10;
const REREAD: Duration = Duration::from_secs(1);
/// The pause between two searches for a pod.
const POD_RETRY: BackOff = BackOff::new(Duration::from_secs(1), Duration::from_secs(30));

/// The units of this node.
#[derive(Debug, Clone)]
pub struct RegistryChildren(pub Registry);

impl RegistryChildren {
    /// Has another node start an attempt.
    async fn send_away(&self, mut request: ChildRequest, input: ChildInput) -> Result<(), WorkError> {
        let (far, max_stdout) = (request.far.take(), request.max_stdout.clone());
        let payload = open(input).await?;
        self.0.begin_attempt(submission(request), far, payload, max_stdout).await
    }

    /// Makes an ordinary unit: one that runs here or in a cluster, or a health check elsewhere.
    async fn submit(&self, request: ChildRequest, input: ChildInput) -> Result<(), WorkError> {
        let max_stdout = request.max_stdout.clone();
        let mut submission = self.0.submit_child(submission(request), max_stdout).await?;
        let sent = async {
            if let ([], [(payload, 0)]) = (&*input.head, &*input.files)
                && submission.link(payload.clone()).await.is_ok()
            {
                return Ok(());
            }
            let mut payload = Arc::new(open(input).await?).reader();
            loop {
                let read = tokio::task::spawn_blocking(move || {
                    let mut bytes = vec![0; CHUNK];
                    payload.read(&mut bytes).map(|count| {
                        bytes.truncate(count);
                        (payload, bytes)
                    })
                });
                let read = read.await.map_err(std::io::Error::other).flatten();
                let (rest, bytes) = read.map_err(unreadable)?;
                submission.write(&bytes).await?;
                if bytes.len() < CHUNK {
                    return Ok::<_, WorkError>(());
                }
                payload = rest;
            }
        };
        match sent.await {
            Ok(()) => submission.finish().await.map(drop),
            Err(error) => {
                submission.abort(error.to_string()).await;
                Err(error)
            }
        }
    }
}

/// The request that makes the unit of an attempt.
fn submission(request: ChildRequest) -> SubmitRequest {
    let ChildRequest { unit, node, work_type, params, run_dir, signed, tls, ttl, pod, .. } = request;
    SubmitRequest {
        node: node.to_string(),
        work_type,
        params: match pod {
            Some(pod) => pod.place.params,
            None => with_run_dir(params, run_dir),
        },
        tls_client: tls,
        ttl: ttl.map(|ttl| format!("{}s", ttl.as_secs())),
        sign_work: signed,
        unit_id: Some(unit),
        ..SubmitRequest::default()
    }
}

/// Opens the input of an attempt's unit. Its files may be moved or deleted from then on.
async fn open(input: ChildInput) -> Result<AttemptPayload, WorkError> {
    let opened = tokio::task::spawn_blocking(|| AttemptPayload::open(input.head, input.files)).await;
    opened.map_err(std::io::Error::other).flatten().map_err(unreadable)
}

fn unreadable(error: std::io::Error) -> WorkError {
    WorkError::Job(format!("its payload cannot be read: {error}"))
}

impl Children for RegistryChildren {
    fn known(&self, unit: &str) -> Known {
        match self.0.lacks_payload(unit) {
            Ok(true) => Known::Unsent,
            Ok(false) => Known::Here,
            Err(_) => Known::Unknown,
        }
    }

    fn detail(&self, unit: &str) -> Option<String> {
        let ChildStatus { detail, carried, .. } = self.0.watch_child(unit).ok()?.now();
        let mebi = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        Some(match carried {
            None => detail,
            Some((sent, saved)) => {
                format!("{detail}; payload: {:.1} MiB sent, {:.1} MiB saved", mebi(sent), mebi(saved))
            }
        })
    }

    fn unanswering(&self, limit: Duration) -> BTreeSet<InstanceName> {
        self.0.unanswering(limit).iter().map(|node| node.as_str().into()).collect()
    }

    fn room(&self) -> Act<'_, ()> {
        Box::pin(self.0.has_room())
    }

    fn send(&self, request: ChildRequest, input: ChildInput) -> Act<'_, Result<bool, String>> {
        Box::pin(async move {
            let unit = request.unit.clone();
            if request.is_inherited() && self.adopt_pod(&request).await?.is_some() {
                return Ok(true);
            }
            // Only attempts have a row in the store. After a restart a health check's unit is found by its directory
            // alone.
            let is_attempt = request.pod.is_none() && ChildId::parse(&unit).is_some();
            let sent = match is_attempt && !self.0.is_own_node(request.node.as_str()) {
                true => self.send_away(request, input).await,
                false => self.submit(request, input).await,
            };
            match sent {
                Ok(()) => Ok(true),
                Err(WorkError::Disclaimed(_)) => Ok(false),
                // A unit that was made but could not be started is followed, because its Detail says why.
                Err(_) if self.known(&unit) == Known::Here => Ok(true),
                Err(error) => Err(error.to_string()),
            }
        })
    }

    fn adopt(&self, request: ChildRequest) -> Act<'_, Result<bool, String>> {
        Box::pin(async move {
            if request.pod.is_some() {
                return self.adopt_pod(&request).await.map(|adopted| adopted.is_some());
            }
            let ChildRequest { unit, node, work_type, params, run_dir, signed, tls, max_stdout, far, .. } =
                request;
            let (node, params) = (node.to_string(), with_run_dir(params, run_dir));
            let request = AdoptRequest { node, unit, tls_client: tls, sign_work: signed, signature: None };
            let adopted = self.0.adopt_attempt(request, far, &work_type, params, max_stdout).await;
            adopted.map(|()| true).map_err(|error| error.to_string())
        })
    }

    fn disclaim(&self, unit: String) -> Act<'_, Result<bool, String>> {
        Box::pin(async move { self.0.disclaim_child(&unit).await.map_err(|error| error.to_string()) })
    }

    fn follow(&self, unit: String, from: u64) -> Act<'_, Box<dyn ChildStream>> {
        Box::pin(async move {
            let watch = self.0.watch_child(&unit).ok();
            let results = match self.0.read_attempt(&unit, from) {
                Some(output) => Some(ChildOutput::Attempt(output)),
                None => self.0.results(&unit, from, &Caller::local()).await.ok().map(ChildOutput::Unit),
            };
            let stream = Followed {
                watch,
                results,
                told: None,
                is_missing: false,
                unit,
                unreadable: 0,
                is_cut: false,
            };
            Box::new(stream) as Box<dyn ChildStream>
        })
    }

    fn cancel(&self, unit: String) -> Act<'_, bool> {
        Box::pin(async move {
            match self.0.cancel_child(&unit).await {
                Ok(_) | Err(WorkError::UnknownUnit(_) | WorkError::Released { .. }) => true,
                Err(error) => {
                    tracing::debug!(unit, %error, "cannot cancel a child yet");
                    false
                }
            }
        })
    }

    fn withhold(&self, unit: String) -> Act<'_, ()> {
        Box::pin(async move {
            if let Err(error) = self.0.withhold_child(&unit).await {
                tracing::warn!(unit, %error, "cannot block the start of a cancelled unit");
            }
        })
    }

    fn release(&self, unit: String, leftovers: Leftovers) -> Act<'_, bool> {
        Box::pin(async move {
            match self.0.release_child(&unit, leftovers).await {
                // After a restart only the store knows of the attempt.
                Ok(Outcome::Pending) if self.0.is_attempt(&unit) => false,
                // The registry completes pending releases of other units itself, even after a restart.
                Ok(_) | Err(WorkError::UnknownUnit(_) | WorkError::Released { .. }) => true,
                Err(error) => {
                    tracing::debug!(unit, %error, "cannot release a child yet");
                    false
                }
            }
        })
    }

    fn check_pod(&self, place: &PodPlace) -> Act<'_, Result<(), String>> {
        let place = place.clone();
        Box::pin(async move { self.0.check_pods(&place).await.map_err(|error| error.to_string()) })
    }

    fn prepare_pod(&self, pod: &PodChild) -> Act<'_, Result<(), ClusterError>> {
        let PodChild { place, pull_secret, is_inherited: _ } = pod.clone();
        Box::pin(async move {
            match pull_secret {
                Some(secret) => self.0.write_secret(&place, secret.expose()).await,
                None => Ok(()),
            }
        })
    }

    fn delete_secret(&self, place: PodPlace, name: String) -> Act<'_, Result<(), ClusterError>> {
        Box::pin(async move { self.0.delete_secret(&place, &name).await })
    }

    fn list(&self) -> Vec<ChildUnit<ChildId>> {
        self.0.children(|unit| ChildId::parse(unit.as_str()))
    }

    fn of_job(&self, child: &ChildId) -> Vec<ChildId> {
        let units = self.0.units_from(&child.job_prefix());
        units.iter().filter_map(|unit| ChildId::parse(unit.as_str())).collect()
    }

    fn forget(&self, unit: String) -> Act<'_, ()> {
        Box::pin(async move {
            if let Err(error) = self.0.forget_child(&unit).await {
                tracing::warn!(unit, %error, "cannot forget a child");
            }
        })
    }

    fn let_act(&self, may_act: bool) {
        self.0.let_children_act(may_act);
    }

    fn job_unit(&self, unit: &str) -> Option<JobUnit> {
        self.0.job_unit(unit)
    }

    fn adopt_job(&self, job: JobId) -> Act<'_, Option<JobUnit>> {
        Box::pin(async move {
            let made = self.0.adopt_job(job.0).await;
            made.inspect_err(
                |error| tracing::warn!(%job, %error, "cannot create a unit for a job that was taken over"),
            )
            .ok()
        })
    }
}

impl RegistryChildren {
    /// Follows the pod that another control node made for a unit, from its first byte on; `None` if there is no such
    /// pod. It waits for a cluster that does not answer, because until then nobody knows whether the pod runs.
    async fn adopt_pod(&self, request: &ChildRequest) -> Result<Option<()>, String> {
        let Some(PodChild { place, .. }) = &request.pod else { return Ok(None) };
        let mut pauses = POD_RETRY;
        let found = loop {
            match self.0.find_pod(place, &request.unit).await {
                Ok(found) => break found,
                Err(ClusterError::Refused(cause)) => return Err(cause),
                Err(ClusterError::Passing(cause)) => {
                    tracing::warn!(unit = request.unit, cause, "cannot look for a pod, trying again");
                    tokio::time::sleep(pauses.next()).await;
                }
            }
        };
        let Some((name, namespace)) = found else { return Ok(None) };
        let mut adopted = place.clone();
        adopted.params.retain(|key, _| key == KUBE_CONFIG);
        adopted.params.extend([(POD_NAME.to_owned(), name), (KUBE_NAMESPACE.to_owned(), namespace)]);
        let pod = Some(PodChild { place: adopted, pull_secret: None, is_inherited: false });
        let input = ChildInput { head: Vec::new(), files: Vec::new() };
        let request = ChildRequest { pod, ..request.clone() };
        self.submit(request, input).await.map(Some).map_err(|error| error.to_string())
    }
}

/// The parameters of a child that may have a private directory.
fn with_run_dir(params: String, run_dir: Option<String>) -> BTreeMap<String, String> {
    let run_dir = run_dir.map(|directory| (FALLBACK.to_owned(), directory));
    [(PARAMS.to_owned(), params)].into_iter().chain(run_dir).collect()
}

struct Followed {
    unit: String,
    /// `None` once the unit is gone.
    watch: Option<ChildWatch>,
    /// `None` once all output was delivered, or it cannot be read.
    results: Option<ChildOutput>,
    /// The number of contacts when its acceptance was last reported; `None` before that.
    told: Option<Option<u64>>,
    /// The last report was that its node does not know it.
    is_missing: bool,
    /// How many reads of its output in a row have failed.
    unreadable: u32,
    /// A part of its output is gone.
    is_cut: bool,
}

/// The output of a unit here, or of an attempt on another node.
enum ChildOutput {
    Unit(ResultStream),
    Attempt(FarOutput),
}

impl ChildOutput {
    /// After its end: whether a part of it never came.
    fn is_cut(&self) -> bool {
        match self {
            Self::Unit(_) => false,
            Self::Attempt(output) => output.is_cut(),
        }
    }

    async fn next(&mut self) -> Result<Option<Bytes>, WorkError> {
        match self {
            Self::Unit(results) => results.next().await,
            Self::Attempt(output) => Ok(output.next().await),
        }
    }
}

impl Followed {
    fn ended(&mut self) -> ChildNews {
        let Some(watch) = &mut self.watch else {
            let detail = format!("unit {} is gone", self.unit);
            return ChildNews::Ended { end: ChildEnd::Released, detail };
        };
        let status = watch.now();
        if self.is_cut {
            let detail = format!("{}; the rest of its output is gone", status.detail);
            return ChildNews::Ended { end: ChildEnd::Released, detail };
        }
        let end = match status.state {
            UnitState::Failed if status.was_released => ChildEnd::Released,
            UnitState::Failed if status.was_refused => ChildEnd::Refused,
            UnitState::Failed if status.was_unsent => ChildEnd::Unsent,
            UnitState::Failed if status.is_gone => ChildEnd::Unknown,
            UnitState::Succeeded => ChildEnd::Succeeded,
            UnitState::Canceled => ChildEnd::Canceled,
            UnitState::Pending | UnitState::Running | UnitState::Failed => ChildEnd::Failed,
        };
        ChildNews::Ended { end, detail: status.detail }
    }
}

impl ChildStream for Followed {
    fn next(&mut self) -> Act<'_, ChildNews> {
        Box::pin(async move {
            loop {
                let (Some(watch), Some(results)) = (&mut self.watch, &mut self.results) else {
                    return self.ended();
                };
                let status = watch.now();
                // An acceptance that is known from an earlier process says nothing about now.
                let is_there = status.is_accepted && status.contacts != Some(0);
                if is_there && !status.state.is_final() && self.told != Some(status.contacts) {
                    (self.told, self.is_missing) = (Some(status.contacts), false);
                    return ChildNews::Accepted;
                }
                if status.is_missing && !std::mem::replace(&mut self.is_missing, true) {
                    return ChildNews::Missing;
                }
                tokio::select! {
                    biased;
                    next = results.next() => match next {
                        Ok(Some(bytes)) => {
                            self.unreadable = 0;
                            return ChildNews::Output(bytes);
                        }
                        Ok(None) => {
                            self.is_cut = results.is_cut();
                            self.results = None;
                        }
                        // The output is read again from where it stopped, because the child may still run.
                        Err(error) if self.unreadable < REREADS && !status.state.is_final() => {
                            tracing::debug!(unit = self.unit, %error, "cannot read the output of a child, trying again");
                            self.unreadable += 1;
                            tokio::time::sleep(REREAD).await;
                        }
                        Err(error) => {
                            tracing::warn!(unit = self.unit, %error, "cannot read the rest of a child's output");
                            self.results = None;
                        }
                    },
                    () = watch.changed() => {}
                }
            }
        })
    }
}
