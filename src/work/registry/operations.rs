//! Units that are operations of a controller: one JSON object in, one line out. They are made by callers with all rights
//! alone, never over the mesh, and release themselves.

use std::sync::Arc;
use std::time::Duration;

use super::Registry;
use crate::rpc::request::SubmitRequest;
use crate::work::jobs::{self, Act, JobIntake, JobUnit, Jobs, OPERATION};
use crate::work::unit::State;
use crate::work::units::{Entry, Leftovers, detached};
use crate::work::{Caller, WorkError};

/// The largest operation, in bytes.
const LARGEST: usize = 1 << 20;
/// How long a unit stays after its end, for whoever reads its answer.
const KEPT: Duration = Duration::from_secs(600);

impl Registry {
    /// What takes an operation in, if a submission is one.
    pub(super) fn operation_intake(
        &self,
        request: &SubmitRequest,
        caller: &Caller,
    ) -> Result<Option<Box<dyn JobIntake>>, WorkError> {
        if !self.is_operation(request) {
            return Ok(None);
        }
        let Some(controller) = self.jobs.get() else { return Ok(None) };
        if !jobs::is_admin(caller) {
            let refused =
                "operations need the Unix socket or a client certificate, and are not served over the mesh";
            return Err(WorkError::Job(refused.to_owned()));
        }
        if request.ttl.as_ref().is_some_and(|ttl| !ttl.is_empty()) {
            return Err(WorkError::TtlIsForRemoteWork);
        }
        if let Some(name) = request.params.keys().next() {
            return Err(WorkError::Job(format!("{OPERATION} takes no parameter `{name}`")));
        }
        let (registry, who) = (self.clone(), caller.credentials.to_string());
        Ok(Some(Box::new(OperationIntake { registry, controller, who, operation: Vec::new() })))
    }

    pub(super) fn is_operation(&self, request: &SubmitRequest) -> bool {
        self.is_here(request) && request.work_type == OPERATION && self.jobs.get().is_some()
    }

    /// Releases the unit of an operation some time after its end.
    pub(super) fn release_operation(&self, entry: &Arc<Entry>) {
        let (units, local) = (Arc::downgrade(&self.units), Arc::downgrade(&self.local));
        let entry = entry.clone();
        tokio::spawn(async move {
            entry.finished().await;
            let age = entry.dir.status_time().and_then(|ended| ended.elapsed().ok()).unwrap_or_default();
            tokio::time::sleep(KEPT.saturating_sub(age)).await;
            let (Some(_units), Some(local)) = (units.upgrade(), local.upgrade()) else { return };
            let unit = entry.clone();
            if let Err(error) =
                detached(async move { local.release(&unit, false, Leftovers::Stay).await }).await
            {
                tracing::warn!(unit = %entry.id, %error, "the unit of an operation stays");
            }
        });
    }
}

/// An operation while it comes.
struct OperationIntake {
    registry: Registry,
    controller: Arc<Box<dyn Jobs>>,
    who: String,
    operation: Vec<u8>,
}

impl std::fmt::Debug for OperationIntake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OperationIntake").field("who", &self.who).finish_non_exhaustive()
    }
}

impl JobIntake for OperationIntake {
    fn push(&mut self, bytes: &[u8]) -> Result<(), String> {
        if self.operation.len() + bytes.len() > LARGEST {
            return Err(format!("the operation is longer than {LARGEST} bytes"));
        }
        self.operation.extend_from_slice(bytes);
        Ok(())
    }

    fn finish(self: Box<Self>, unit: JobUnit) -> Act<'static, Result<bool, String>> {
        Box::pin(async move {
            let Self { registry, controller, who, operation } = *self;
            if let Ok(entry) = registry.units.find(unit.id().as_str()) {
                registry.release_operation(&entry);
            }
            tokio::spawn(async move {
                let line = controller.operate(operation, who).await;
                if let Some(output) = unit.write_output(0).await {
                    output.append(format!("{line}\n").into()).await;
                }
                unit.end(State::Succeeded, "Finished").await;
            });
            Ok(true)
        })
    }
}
