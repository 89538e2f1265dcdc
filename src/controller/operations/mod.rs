//! Carries out what operators ask of a controller: lists, explanations, cancels, and changes of instances and groups.
//! `rpc` defines the operations, and `answers` the shapes of their answers.

mod backup;
mod groups;
mod hook;
mod instances;
mod jobs;
mod notify;
mod saved;
mod schedules;
mod streams;

pub(super) use self::saved::LaunchTerms;
use super::answers;
use super::core::JobId;
use super::driver::rfc3339;
use super::service::Service;
use super::store::{Audit, Error, PAGE_MAX};
use crate::rpc::operation::{
    Answer, AuditPage, NodeNote, Operated, Operation, OperationCode, OperationRefusal,
};
use crate::rpc::report::Lenient;
use crate::rpc::report::controller::{
    AuditRow, AuditRows, Cleanup, ClockReport, ControllerReport, GroupSummary, NodeSummary, Paused,
    StoreReport,
};
use crate::rpc::report::enrolment::{EnrolmentReport, NodeActed};
use crate::work::{Caller, Rights};

/// Rows of the audit that are listed unless the caller asks for another number.
const AUDIT_PAGE: u32 = 50;

fn bad(message: impl Into<String>) -> OperationRefusal {
    OperationRefusal::new(OperationCode::BadRequest, message)
}

fn conflict(message: impl Into<String>) -> OperationRefusal {
    OperationRefusal::new(OperationCode::Conflict, message)
}

fn missing(message: impl Into<String>) -> OperationRefusal {
    OperationRefusal::new(OperationCode::NotFound, message)
}

impl From<Error> for OperationRefusal {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::Away(_) => OperationCode::StoreAway,
            Error::Fenced(_) | Error::Unready(_) => OperationCode::OwnerAway,
            Error::NoJob(_) | Error::NoInstance(_) | Error::NoGroup(_) | Error::NoDependency(_) => {
                OperationCode::NotFound
            }
            Error::Conflict(_) | Error::Job(_) | Error::KeyTaken { .. } => OperationCode::Conflict,
            Error::Full(_)
            | Error::FullForOne(_)
            | Error::Refused(_)
            | Error::TooOld { .. }
            | Error::Held { .. }
            | Error::Settings(_)
            | Error::File { .. }
            | Error::Corrupt(_)
            | Error::Raced => OperationCode::Refused,
        };
        Self::new(code, error.to_string())
    }
}

impl Service {
    /// Carries out one operation for a caller who may ask for it. What it starts gets no more rights than the caller
    /// has.
    pub async fn operate(&self, operation: Operation, who: &Caller) -> Operated {
        let (op, target) = (operation.name().to_owned(), operation.target());
        let audit = Audit { who: who.credentials.to_string(), op, target };
        let answer = match operation {
            Operation::Ping(_) => Answer::Ping(self.ping().await),
            Operation::Pause(_) => Answer::Pause(self.set_paused(true, audit).await?),
            Operation::Resume(_) => Answer::Resume(self.set_paused(false, audit).await?),
            Operation::ConfirmClock(_) => Answer::ConfirmClock(self.confirm_clock(audit).await?),
            Operation::CleanUp(_) => Answer::CleanUp(self.clean_up_now(audit).await?),
            Operation::ListAudit(it) => Answer::ListAudit(self.list_audit(it).await?),
            Operation::BackUp(it) => Answer::BackUp(self.back_up(it, audit).await?),
            Operation::RunPolicies(it) => Answer::RunPolicies(self.run_policies(it, audit).await?),
            Operation::ListInstances(it) => Answer::ListInstances(self.list_instances(it).await?),
            Operation::GetInstance(it) => Answer::GetInstance(self.instance(&it.name).await?),
            Operation::AddInstance(it) => Answer::AddInstance(self.add_instance(it, audit).await?),
            Operation::SetInstance(it) => Answer::SetInstance(self.set_instance(it, audit).await?),
            Operation::EnableInstance(it) => Answer::EnableInstance(self.enable_instance(it, audit).await?),
            Operation::DisableInstance(it) => {
                Answer::DisableInstance(self.disable_instance(it, audit).await?)
            }
            Operation::CheckHealth(it) => Answer::CheckHealth(self.check_health(it, audit).await?),
            Operation::RemoveInstance(it) => Answer::RemoveInstance(self.remove_instance(it, audit).await?),
            Operation::ListGroups(_) => Answer::ListGroups(self.list_groups().await?),
            Operation::GetGroup(it) => Answer::GetGroup(self.group(&it.name).await?),
            Operation::CreateGroup(it) => Answer::CreateGroup(self.change_group(it, true, audit).await?),
            Operation::SetGroup(it) => Answer::SetGroup(self.change_group(it, false, audit).await?),
            Operation::AddToGroup(it) => Answer::AddToGroup(self.change_member(it, true, audit).await?),
            Operation::RemoveFromGroup(it) => {
                Answer::RemoveFromGroup(self.change_member(it, false, audit).await?)
            }
            Operation::DeleteGroup(it) => Answer::DeleteGroup(self.delete_group(it, audit).await?),
            Operation::ListEnrolment(_) => Answer::ListEnrolment(EnrolmentReport::default()),
            Operation::ApproveHost(_) | Operation::RejectHost(_) => {
                return Err(missing(
                    "this node gives no certificates: ask one whose enrolment has an authority",
                ));
            }
            Operation::NoteNode(it) => Answer::NoteNode(self.note_node(it, audit).await?),
            Operation::ListSaved(it) => Answer::ListSaved(self.list_saved(it)),
            Operation::GetSaved(it) => Answer::GetSaved(self.saved_job(&it.name).await?),
            Operation::StartSaved(it) => Answer::StartSaved(self.start_saved(it, who).await?),
            Operation::ListSchedules(it) => Answer::ListSchedules(self.list_schedules(it).await?),
            Operation::PauseSchedule(it) => {
                Answer::PauseSchedule(self.pause_schedule(&it.name, true, audit).await?)
            }
            Operation::ResumeSchedule(it) => {
                Answer::ResumeSchedule(self.pause_schedule(&it.name, false, audit).await?)
            }
            Operation::ListNotify(_) => Answer::ListNotify(self.list_notify().await?),
            Operation::TestNotify(it) => Answer::TestNotify(self.test_notify(it.name, audit).await?),
            Operation::ListJobs(it) => Answer::ListJobs(self.list_jobs(it).await?),
            Operation::CountJobs(it) => Answer::CountJobs(self.count_jobs(it).await?),
            Operation::GetJob(it) => Answer::GetJob(self.job(JobId(it.id)).await?),
            Operation::ListHosts(it) => Answer::ListHosts(self.list_hosts(it).await?),
            Operation::ExportJobs(it) => Answer::ExportJobs(self.export_jobs(it).await?),
            Operation::ExplainJob(it) => Answer::ExplainJob(self.explain_job(JobId(it.id)).await?),
            Operation::ReadOutput(it) => return self.stream_output(it).await,
            Operation::ReadEvents(it) => return self.stream_events(it).await,
            Operation::CancelJob(it) => Answer::CancelJob(self.cancel_job(JobId(it.id), audit).await?),
            Operation::RerunJob(it) => {
                Answer::RerunJob(self.rerun_job(it, who.may(Rights::Admin), audit).await?)
            }
            Operation::ConfirmLost(it) => Answer::ConfirmLost(self.confirm_lost(it, audit).await?),
            Operation::DeleteJob(it) => Answer::DeleteJob(self.delete_job(JobId(it.id), audit).await?),
        };
        Ok((answer, None))
    }

    async fn set_paused(&self, paused: bool, audit: Audit) -> Result<Paused, OperationRefusal> {
        self.driver.store.set_paused(audit, paused).await?;
        Ok(Paused { paused })
    }

    async fn confirm_clock(&self, audit: Audit) -> Result<ClockReport, OperationRefusal> {
        Ok(ClockReport::from(&self.driver.store.confirm_clock(audit).await?))
    }

    async fn list_audit(&self, asked: AuditPage) -> Result<AuditRows, OperationRefusal> {
        let limit = asked.limit.unwrap_or(AUDIT_PAGE).clamp(1, PAGE_MAX);
        let rows = self.driver.store.audit(asked.after, limit).await?.into_iter();
        let row = |(id, at, Audit { who, op, target })| AuditRow { id, at: rfc3339(at), who, op, target };
        Ok(AuditRows { rows: rows.map(row).collect() })
    }

    /// Records what was done about a node under its own name: this request is only its messenger.
    async fn note_node(
        &self,
        NodeNote { node, act }: NodeNote,
        audit: Audit,
    ) -> Result<NodeActed, OperationRefusal> {
        self.driver.store.record(Audit { op: act.name().to_owned(), ..audit }).await?;
        Ok(NodeActed { node, act: Lenient::Known(act) })
    }

    async fn clean_up_now(&self, audit: Audit) -> Result<Cleanup, OperationRefusal> {
        self.driver.store.record(audit).await?;
        Ok(Cleanup { instances: self.clean_up().await? })
    }

    /// The state of this controller, with nodes and groups by name; without nodes and groups while the store is away.
    async fn ping(&self) -> ControllerReport {
        let store = &self.driver.store;
        let seen = async {
            Ok::<_, Error>((store.is_paused().await?, store.overview().await?, store.clock().await?))
        };
        let (seen, error) = match seen.await {
            Ok(seen) => (Some(seen), None),
            Err(error) => (None, Some(error.to_string())),
        };
        let error = self.driver.lease.halted().or(error);
        let mut report = ControllerReport {
            install: Some(format!("{:08x}", self.driver.install)),
            store: StoreReport {
                times_away: store.times_away(),
                ..answers::store_report(&self.driver.options(), error)
            },
            ..answers::unopened(&self.driver.node)
        };
        report.store.error = report.store.error.or_else(|| self.driver.placer.no_turn());
        if let Some((paused, overview, clock)) = seen {
            report.paused = Some(paused);
            report.clock = Some(ClockReport::from(&clock));
            report.nodes =
                answers::instances(&overview, &self.driver).iter().map(NodeSummary::from).collect();
            report.nodes.sort_by(|one, other| one.node.cmp(&other.node));
            report.groups = answers::groups(&overview).iter().map(GroupSummary::from).collect();
            report.groups.sort_by(|one, other| one.name.cmp(&other.name));
        }
        report
    }
}
