//! The units of container groups, and what they need in their cluster. Decides how long to wait for a cluster that does
//! not answer, and which control node's pod to follow. `clusters` knows what a pod looks like.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::base::Base;
use super::world::{ChildRequest, PodChild};
use crate::controller::clusters::{GroupFault, PodSetup};
use crate::controller::core::{Attempt, Duty, JobId, Known, Progress};
use crate::controller::credentials::Credentials;
use crate::controller::header::Header;
use crate::controller::store::{Error, GroupRecord};
use crate::os::back_off::BackOff;
use crate::pods::place::{ClusterError, PodPlace};
use crate::rpc::OutputBound;

/// The pauses between tries to write a secret.
const SECRET_RETRY: BackOff = BackOff::new(Duration::from_secs(1), Duration::from_secs(30));
/// How long to try to write a secret: as long as a pod may wait for its start.
const SECRET_WITHIN: Duration = Duration::from_secs(2 * 3600);

/// Prepares what pods need.
pub(in crate::controller) struct PodNeeds {
    base: Arc<Base>,
}

impl PodNeeds {
    pub(super) fn new(base: Arc<Base>) -> Self {
        Self { base }
    }

    /// The unit of an attempt in a container group, with this limit on its output, or why there can be none.
    pub(super) async fn request(
        &self,
        job: JobId,
        attempt: &Attempt,
        header: &Header,
        max_stdout: OutputBound,
    ) -> Result<Result<ChildRequest, String>, Error> {
        let request = ChildRequest {
            unit: attempt.unit.to_string(),
            node: self.base.node.clone(),
            work_type: self.base.child_type(attempt).await?,
            params: String::new(),
            run_dir: None,
            signed: false,
            tls: None,
            ttl: None,
            max_stdout,
            far: None,
            pod: None,
        };
        // A unit that runs already needs neither the credential nor the definition, which may have changed.
        if self.base.children.known(&request.unit) == Known::Here {
            return Ok(Ok(request));
        }
        let group = match self.base.store.registry().await?.group_mut(&attempt.group) {
            Ok(group) => group.clone(),
            Err(Error::NoGroup(group)) => return Ok(Err(format!("container group {group} is deleted"))),
            Err(error) => return Err(error),
        };
        let setup = self.pod_setup();
        // If the attempt is more than placed, its unit was sent, perhaps from here before another control node drove
        // the job for a while.
        let is_inherited = attempt.sender != self.base.node || attempt.progress != Progress::Placed;
        let runner = header.runner.clone();
        let made = in_background(move || setup.child(&group, job, runner.as_ref())).await;
        let named = |fault| format!("container group {}: {fault}", attempt.group);
        Ok(made
            .map(|pod| ChildRequest { pod: Some(PodChild { is_inherited, ..pod }), ..request })
            .map_err(named))
    }

    /// Ensures that what a pod needs is in its cluster. Returns early if the attempt is to be cancelled.
    ///
    /// # Errors
    /// The cluster refuses it, or its API server was away for too long.
    pub(super) async fn prepare(
        &self,
        request: &ChildRequest,
        duty: &mut watch::Receiver<Duty>,
    ) -> Result<(), String> {
        let Some(pod) = &request.pod else { return Ok(()) };
        let give_up = Instant::now() + SECRET_WITHIN;
        let prepare = async {
            let mut pauses = SECRET_RETRY;
            loop {
                match self.base.children.prepare_pod(pod).await {
                    Err(ClusterError::Passing(cause)) if Instant::now() < give_up => {
                        tracing::warn!(
                            unit = request.unit,
                            cause,
                            "cannot write a pull secret, trying again"
                        );
                        sleep(pauses.next()).await;
                    }
                    done => return done.map_err(|error| format!("its pull secret: {error}")),
                }
            }
        };
        let cancelled = async {
            while *duty.borrow_and_update() != Duty::Cancel {
                if duty.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        tokio::select! {
            prepared = prepare => prepared,
            () = cancelled => Ok(()),
        }
    }

    /// Whether a group could run jobs: its settings, its credentials, and the work type of its units.
    ///
    /// # Errors
    /// What to change.
    pub(in crate::controller) async fn check_group(&self, group: GroupRecord) -> Result<(), String> {
        let setup = self.pod_setup();
        let method = if group.cluster.is_some() { "runtime" } else { "incluster" };
        let pod = in_background(move || setup.trial(&group)).await.map_err(|fault| fault.to_string())?;
        self.base.children.check_pod(&pod.place).await.map_err(|cause| {
            let work_type = &pod.place.work_type;
            format!(
                "this node's work type {work_type} does not take its pods: {cause} (container groups need a \
                 directive work-kubernetes with worktype {work_type}, authmethod {method}, allowruntimeauth, \
                 allowruntimepod and allowruntimeparams)"
            )
        })
    }

    /// The place and name of the secret that a group used before, if no group needs this secret any more.
    ///
    /// # Errors
    /// Those of the store, and why the place is not known.
    pub(in crate::controller) async fn unneeded_secret(
        &self,
        former: GroupRecord,
    ) -> Result<Result<Option<(PodPlace, String)>, GroupFault>, Error> {
        let groups = self.base.store.registry().await?.groups;
        let setup = self.pod_setup();
        Ok(in_background(move || {
            let Some((place, name)) = setup.secret(&former)? else { return Ok(None) };
            let is_needed = groups.iter().filter(|group| group.cluster == former.cluster).any(|group| {
                let used = setup.secret(group).ok().flatten();
                used.is_some_and(|(at, used)| used == name && at.namespace == place.namespace)
            });
            Ok((!is_needed).then_some((place, name)))
        })
        .await)
    }

    /// Deletes a secret.
    pub(in crate::controller) async fn delete_secret(
        &self,
        place: PodPlace,
        name: String,
    ) -> Result<(), ClusterError> {
        self.base.children.delete_secret(place, name).await
    }

    fn pod_setup(&self) -> PodSetup {
        PodSetup {
            install: self.base.install,
            credentials: Credentials::new(self.base.options().credentials.clone()),
        }
    }
}

/// Runs a function that reads credentials from disk, on another thread.
async fn in_background<T: Send + 'static>(read: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(read).await {
        Ok(read) => read,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
