//! The operations of a controller: each with its arguments, its answer, and the code of a refusal. Owns the JSON of
//! both directions; the controller knows what an operation does.

mod arguments;
mod question;

use std::marker::PhantomData;

use bytes::Bytes;
use futures_util::stream::BoxStream;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

pub use self::arguments::*;
pub use self::question::{Answered, OperationError, Question};
use super::report::Lenient;
use super::report::controller::{
    AuditRows, BackupReport, Cleanup, ClockReport, ControllerReport, DeletedGroup, DeletedJob, EndedJobs,
    EventsBegin, Explained, GroupReport, Groups, Hosts, InstanceReport, Instances, JobCounts, JobDetail,
    Jobs, NotifyList, NotifyTested, OutputBegins, Paused, Policies, Removed,
};
use super::report::enrolment::{EnrolmentReport, NodeActed};
use super::report::names::names;
use super::report::saved::{SavedPage, SavedReport, SchedulePage, ScheduleReport, StartedJob};
use super::strict;

/// The key that names an operation.
const OP: &str = "op";

/// The answer to an operation, and the bytes that follow it to the end of the connection, in pieces of bounded size.
pub type Operated = Result<(Answer, Option<BoxStream<'static, Bytes>>), OperationRefusal>;

macro_rules! operations {
    ($($(#[$doc:meta])* $op:ident $name:literal $ask:ident($arguments:ty) -> $answer:ident;)*) => {
        /// An operation with its arguments.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Operation {
            $($(#[$doc])* $op($arguments),)*
        }

        /// The answer to an operation.
        #[derive(Debug, Clone, PartialEq, Serialize)]
        #[serde(untagged)]
        #[expect(missing_docs, reason = "each is named as its operation")]
        pub enum Answer {
            $($op($answer),)*
        }

        impl Operation {
            /// Its name.
            pub const fn name(&self) -> &'static str {
                match self {
                    $(Self::$op(_) => $name,)*
                }
            }

            /// Reads a request: its name first, so that an error can say which of its arguments is wrong.
            ///
            /// # Errors
            /// There is no such operation, or it does not take these arguments.
            pub fn parse(mut request: Map<String, Value>) -> Result<Self, OperationRefusal> {
                let Some(Value::String(name)) = request.remove(OP) else {
                    return Err(OperationRefusal::new(OperationCode::BadRequest, "op: it is missing"));
                };
                match name.as_str() {
                    $($name => read($name, request).map(Self::$op),)*
                    _ => Err(OperationRefusal::new(OperationCode::UnknownOp, format!("there is no operation {name}"))),
                }
            }

            /// What the operation changes, for the audit: its first required argument.
            pub fn target(&self) -> String {
                match self {
                    $(Self::$op(arguments) => arguments.target(),)*
                }
            }

            /// The request.
            pub fn to_request(&self) -> Map<String, Value> {
                let mut request = Map::from_iter([(OP.to_owned(), self.name().into())]);
                let arguments = match self {
                    $(Self::$op(arguments) => serde_json::to_value(arguments),)*
                };
                if let Ok(Value::Object(arguments)) = arguments {
                    request.extend(arguments);
                }
                request
            }
        }

        $(
            $(#[$doc])*
            pub const fn $ask(arguments: $arguments) -> Question<$answer> {
                Question { operation: Operation::$op(arguments), answer: PhantomData }
            }
        )*
    };
}

operations! {
    /// The controller's status.
    Ping "ping" ping(Nothing) -> ControllerReport;
    /// Starts no more jobs.
    Pause "pause" pause(Nothing) -> Paused;
    /// Starts jobs again.
    Resume "resume" resume(Nothing) -> Paused;
    /// Accepts the clock as it is.
    ConfirmClock "clock.confirm" confirm_clock(Nothing) -> ClockReport;
    /// Deletes what runners have left.
    CleanUp "cleanup" clean_up(Nothing) -> Cleanup;
    /// What operators have requested, the latest first.
    ListAudit "audit.list" list_audit(AuditPage) -> AuditRows;
    /// Copies the store.
    BackUp "backup" back_up(BackupPath) -> BackupReport;
    /// Computes which instances belong to which group.
    RunPolicies "policy.run" run_policies(PolicyRun) -> Policies;
    /// The instances, or the nodes that could become instances.
    ListInstances "instance.list" list_instances(InstanceFilter) -> Instances;
    /// One instance.
    GetInstance "instance.get" get_instance(ByName) -> InstanceReport;
    /// Registers a node.
    AddInstance "instance.add" add_instance(NewInstance) -> InstanceReport;
    /// Changes how an instance is used.
    SetInstance "instance.set" set_instance(InstanceSettings) -> InstanceReport;
    /// Lets jobs start on an instance, also on a node that discovery found.
    EnableInstance "instance.enable" enable_instance(ByName) -> InstanceReport;
    /// Starts no more jobs on an instance.
    DisableInstance "instance.disable" disable_instance(ByName) -> InstanceReport;
    /// Checks an instance.
    CheckHealth "instance.health" check_health(HealthCheck) -> InstanceReport;
    /// Removes an instance.
    RemoveInstance "instance.remove" remove_instance(InstanceRemoval) -> Removed;
    /// The groups.
    ListGroups "group.list" list_groups(Nothing) -> Groups;
    /// One group.
    GetGroup "group.get" get_group(ByName) -> GroupReport;
    /// Makes a group.
    CreateGroup "group.create" create_group(GroupSettings) -> GroupReport;
    /// Changes a group.
    SetGroup "group.set" set_group(GroupSettings) -> GroupReport;
    /// Puts an instance on a group's list.
    AddToGroup "group.add" add_to_group(Membership) -> GroupReport;
    /// Takes an instance off a group's list.
    RemoveFromGroup "group.remove" remove_from_group(Membership) -> GroupReport;
    /// Deletes a group.
    DeleteGroup "group.delete" delete_group(ByName) -> DeletedGroup;
    /// Hosts that ask to become nodes, open invitations, and when certificates end.
    ListEnrolment "node.list" list_enrolment(Nothing) -> EnrolmentReport;
    /// Lets a host become a node that asks without a token.
    ApproveHost "node.approve" approve_host(HostApproval) -> NodeActed;
    /// Does not let it.
    RejectHost "node.reject" reject_host(HostRejection) -> NodeActed;
    /// Writes into the audit what was done about a node.
    NoteNode "node.note" note_node(NodeNote) -> NodeActed;
    /// The jobs that this control node has as files, by name.
    ListSaved "saved.list" list_saved(SavedFilter) -> SavedPage;
    /// One of them.
    GetSaved "saved.get" get_saved(ByName) -> SavedReport;
    /// Starts one of them.
    StartSaved "saved.start" start_saved(SavedStart) -> StartedJob;
    /// When saved jobs start by themselves, by name.
    ListSchedules "schedule.list" list_schedules(SavedFilter) -> SchedulePage;
    /// Lets a schedule start nothing.
    PauseSchedule "schedule.pause" pause_schedule(ByName) -> ScheduleReport;
    /// Lets it start jobs again.
    ResumeSchedule "schedule.resume" resume_schedule(ByName) -> ScheduleReport;
    /// Where notices go, and how that stands.
    ListNotify "notify.list" list_notify(Nothing) -> NotifyList;
    /// Tries one of the targets.
    TestNotify "notify.test" test_notify(ByName) -> NotifyTested;
    /// Jobs, newest first.
    ListJobs "job.list" list_jobs(JobFilter) -> Jobs;
    /// How many jobs of each state there are.
    CountJobs "job.count" count_jobs(JobFilter) -> JobCounts;
    /// All that is known of a job.
    GetJob "job.get" get_job(ById) -> JobDetail;
    /// What a job did on its hosts.
    ListHosts "job.hosts" list_hosts(HostPage) -> Hosts;
    /// Jobs that have ended, each once.
    ExportJobs "job.export" export_jobs(ExportFrom) -> EndedJobs;
    /// Why a job waits.
    ExplainJob "job.explain" explain_job(ById) -> Explained;
    /// The output of a job's runner; the bytes follow the answer.
    ReadOutput "job.output" read_output(OutputPart) -> OutputBegins;
    /// A job's events; they follow the answer, one per line.
    ReadEvents "job.events" read_events(EventFilter) -> EventsBegin;
    /// Cancels a job.
    CancelJob "job.cancel" cancel_job(ById) -> JobDetail;
    /// Runs a job again as a new one.
    RerunJob "job.rerun" rerun_job(Rerun) -> JobDetail;
    /// Says that a lost attempt of a job does not run and will not.
    ConfirmLost "job.confirm_lost" confirm_lost(LostAttempt) -> JobDetail;
    /// Deletes a job that has ended.
    DeleteJob "job.delete" delete_job(ById) -> DeletedJob;
}

names! {
    /// Why an operation was not carried out, for programs.
    enum OperationCode {
        /// An argument is missing, unknown, or not what it has to be.
        BadRequest = "bad_request",
        /// There is no such operation.
        UnknownOp = "unknown_op",
        /// There is no such thing, or it is not kept any more.
        NotFound = "not_found",
        /// It cannot be done in this state.
        Conflict = "conflict",
        /// Everything else.
        Refused = "refused",
        /// The store cannot be reached now.
        StoreAway = "store_away",
        /// Another control node would have to answer and cannot be reached.
        OwnerAway = "owner_away",
    }
}

/// Why an operation was not carried out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct OperationRefusal {
    /// For programs.
    pub code: Lenient<OperationCode>,
    /// For people.
    pub message: String,
}

impl OperationRefusal {
    /// A refusal in words.
    pub fn new(code: OperationCode, message: impl Into<String>) -> Self {
        Self { code: Lenient::Known(code), message: message.into() }
    }
}

/// The line that answers an operation.
pub fn line(answered: &Result<Answer, OperationRefusal>) -> Value {
    match answered {
        Ok(answer) => json!({"ok": true, "result": answer}),
        Err(refused) => json!({"ok": false, "error": refused}),
    }
}

/// The arguments of the operation `op`.
fn read<T: DeserializeOwned>(op: &str, request: Map<String, Value>) -> Result<T, OperationRefusal> {
    strict::read(request)
        .map_err(|misfit| OperationRefusal::new(OperationCode::BadRequest, format!("{op}: {misfit}")))
}
