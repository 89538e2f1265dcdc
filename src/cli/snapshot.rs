//! Looks at a node again and again: at its mesh, and at its controller if it has one. Owns which requests that takes,
//! and that a node without a controller gets no requests for one.

use std::cmp::Reverse;

use jiff::Timestamp;

use super::status;
use crate::rpc::operation::{self, InstanceFilter, JobFilter, Nothing, OperationCode};
use crate::rpc::report::JobState;
use crate::rpc::report::events::Snapshot;
use crate::rpc::report::node::Section;
use crate::rpc::request::Request;
use crate::rpc::{CallError, Client};

/// Sections to read besides those that events are made of.
const MORE: [Section; 2] = [Section::Version, Section::Links];

/// Takes snapshots of one node, and remembers whether it has a controller.
pub(super) struct SnapshotWatcher<'a> {
    client: &'a Client,
    has_no_controller: bool,
}

impl<'a> SnapshotWatcher<'a> {
    pub(super) fn new(client: &'a Client) -> Self {
        Self { client, has_no_controller: false }
    }

    /// Takes a snapshot. What a controller does not answer is missing in it.
    ///
    /// # Errors
    /// The node does not answer.
    pub(super) async fn look(&mut self) -> Result<Snapshot, CallError> {
        let sections = Snapshot::SECTIONS.into_iter().chain(MORE);
        let fields = Some(sections.map(|section| section.to_string()).collect());
        let mesh = status::read(&self.client.command(&Request::Status { fields }).await?)?;
        let mut snapshot = Snapshot { time: Timestamp::now(), mesh, ..Snapshot::default() };
        if self.has_no_controller {
            return Ok(snapshot);
        }
        let (ping, instances) =
            (operation::ping(Nothing {}), operation::list_instances(InstanceFilter::default()));
        match ping.ask(self.client).await {
            Ok(answer) => snapshot.controller = Some(answer.report),
            Err(error) => {
                // A node that is no control node refuses every operation, and a receptor node knows no operations.
                self.has_no_controller =
                    !error.is_temporary() && error.code().is_none_or(|code| code == OperationCode::Refused);
                return Ok(snapshot);
            }
        }
        snapshot.instances = instances.ask(self.client).await.ok().and_then(|answer| answer.report.instances);
        let enrolment = operation::list_enrolment(Nothing {}).ask(self.client).await;
        snapshot.enrolment = enrolment.ok().map(|answer| answer.report).filter(|report| report.authority);
        // The newest jobs, then those that have not ended, however old they are.
        for state in [Vec::new(), JobState::ALL.into_iter().filter(|state| !state.is_final()).collect()] {
            let jobs = JobFilter { state, limit: Some(Snapshot::JOBS), ..JobFilter::default() };
            let Ok(answer) = operation::list_jobs(jobs).ask(self.client).await else { return Ok(snapshot) };
            snapshot.jobs.get_or_insert_default().extend(answer.report.jobs);
        }
        if let Some(jobs) = &mut snapshot.jobs {
            jobs.sort_by_key(|job| Reverse(job.id));
            jobs.dedup_by_key(|job| job.id);
        }
        Ok(snapshot)
    }
}
