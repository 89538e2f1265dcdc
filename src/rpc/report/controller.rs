//! What a controller says of its instances, groups and jobs, and of itself. docs/controller-reference.md specifies the
//! keys.

#![expect(missing_docs, reason = "the keys are specified in docs/controller-reference.md")]

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{JobKind, JobState, Lenient};

/// Declares reports: every key may be missing.
macro_rules! reports {
    ($($(#[$doc:meta])* struct $type:ident { $($(#[$about:meta])* $key:ident: $value:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
            #[serde(default)]
            pub struct $type {
                $($(#[$about])* pub $key: $value,)*
            }
        )*
    };
}

impl CheckReport {
    /// The check whose detail names the nodes that could run a job but that nobody has enabled.
    pub const INSTANCES: &str = "instances";
}

reports! {
    /// A node to which jobs go.
    struct InstanceReport {
        name: String,
        node_type: String,
        node_state: String,
        enabled: bool,
        managed_by_policy: bool,
        draining: bool,
        reachable: bool,
        why: Option<String>,
        capacity: u32,
        /// How many jobs fit into the capacity at a time that ask for as many forks as ansible takes by itself.
        usual_jobs: u32,
        cpu_capacity: u32,
        mem_capacity: u32,
        cpu: f64,
        memory: u64,
        capacity_adjustment: f64,
        consumed_capacity: u32,
        remaining_capacity: u32,
        jobs_running: u32,
        groups: Vec<String>,
        version: Option<String>,
        uuid: Option<String>,
        errors: Vec<String>,
        last_seen: Option<String>,
        last_health_check: Option<String>,
    }

    /// A node that could become an instance.
    struct CandidateReport {
        name: String,
        node_type: String,
        runner: bool,
        secure: bool,
        tls: bool,
        last_seen: String,
    }

    /// A list of instances.
    struct Instances {
        #[serde(skip_serializing_if = "Option::is_none")]
        instances: Option<Vec<InstanceReport>>,
        found: Candidates,
    }

    /// A group of instances.
    struct GroupReport {
        name: String,
        reserved: bool,
        is_container_group: bool,
        policy_instance_percentage: u32,
        policy_instance_minimum: usize,
        policy_instance_list: Vec<String>,
        members: Vec<MemberReport>,
        capacity: u32,
        consumed_capacity: u32,
        remaining_capacity: u32,
        jobs_running: u32,
        max_concurrent_jobs: u32,
        max_forks: u32,
        cluster: Option<String>,
        namespace: Option<String>,
        pod_spec_override: Option<String>,
        registry: Option<String>,
    }

    /// An instance of a group, and why it belongs there.
    struct MemberReport {
        name: String,
        origin: String,
    }

    /// A list of groups.
    struct Groups {
        groups: Vec<GroupReport>,
    }

    /// A job in a list.
    struct JobReport {
        id: i64,
        key: Option<String>,
        kind: Lenient<JobKind>,
        name: String,
        state: Lenient<JobState>,
        priority: i8,
        controller_node: Option<String>,
        execution_node: Option<String>,
        instance_group: Option<String>,
        attempt: u32,
        impact: u32,
        hosts: Option<u32>,
        forks: u32,
        created: String,
        started: Option<String>,
        finished: Option<String>,
        elapsed: Option<f64>,
        cancel_requested: bool,
        explanation: String,
        events: u64,
        rc: Option<i32>,
        labels: BTreeMap<String, String>,
        launched_by: String,
        playbook: Option<String>,
        module: Option<String>,
        limit: Option<String>,
        tags: Option<String>,
        skip_tags: Option<String>,
        check: bool,
        rerun_of: Option<i64>,
        silent: Option<SilentNode>,
    }

    /// A page of jobs, newest first.
    struct Jobs {
        jobs: Vec<JobReport>,
        next: Option<i64>,
    }

    /// How many jobs there are.
    struct JobCounts {
        /// By state; states without jobs are left out.
        states: BTreeMap<String, u64>,
        oldest: Option<OldestJob>,
    }

    /// The first of some jobs.
    struct OldestJob {
        id: i64,
        created: String,
    }

    /// All that is known of a job, with the first of its hosts.
    struct JobDetail {
        #[serde(flatten)]
        job: JobReport,
        header: Value,
        unit: Option<String>,
        attempts: Vec<AttemptReport>,
        #[serde(with = "in_order")]
        #[schemars(with = "BTreeMap<String, HostStats>")]
        host_stats: Vec<(String, HostStats)>,
        host_counts: Option<HostCounts>,
        depends_on: Vec<i64>,
        output_bytes: u64,
        output_hash: Option<String>,
        output_on: Vec<String>,
        output_lost: Option<String>,
        payload_until: Option<String>,
        revision: Option<String>,
        failure: Option<FailureReport>,
    }

    /// A job that has ended, with its place in the order of ends.
    struct ExportedJob {
        cursor: i64,
        #[serde(flatten)]
        job: JobDetail,
    }

    /// A page of jobs that have ended, in the order of their cursors.
    struct EndedJobs {
        jobs: Vec<ExportedJob>,
        next: i64,
    }

    /// One try to run a job.
    struct AttemptReport {
        n: u32,
        node: Option<String>,
        unit: String,
        work_type: String,
        detail: Option<String>,
        placed: String,
        started: Option<String>,
        ended: Option<String>,
        outcome: Option<String>,
        confirmed: bool,
    }

    /// How many hosts a job has.
    struct HostCounts {
        hosts: u64,
        failed: u64,
        unreachable: u64,
        kept: u64,
    }

    /// What a job did on one host.
    struct HostReport {
        #[serde(flatten)]
        stats: HostStats,
        host: String,
    }

    /// A page of the hosts of a job: those that failed or were not reached first, then by name.
    struct Hosts {
        id: i64,
        hosts: Vec<HostReport>,
        next: Option<u64>,
        host_counts: Option<HostCounts>,
    }

    /// Why a job does not run.
    struct Explained {
        id: i64,
        state: Lenient<JobState>,
        summary: String,
        checks: Vec<CheckReport>,
        groups: Vec<ExplainedGroup>,
        queue: Option<QueuePlace>,
        silent: Option<SilentNode>,
    }

    /// The place of a job among those that wait for room where it does.
    struct QueuePlace {
        place: usize,
        of: usize,
    }

    /// A node that does not answer, and on which a job runs or may still run.
    struct SilentNode {
        node: String,
        attempt: u32,
        since: Option<String>,
        lost_at: String,
        lost: bool,
    }

    /// One condition.
    struct CheckReport {
        check: String,
        ok: bool,
        detail: String,
    }

    /// Whether a group takes the job.
    struct ExplainedGroup {
        name: String,
        level: String,
        ok: bool,
        why: Option<String>,
        jobs_running: u32,
        max_concurrent_jobs: u32,
        forks_running: u32,
        max_forks: u32,
        held_by: Vec<PlaceHolder>,
        instances: Vec<ExplainedInstance>,
    }

    /// A job that has a place for which another one waits.
    struct PlaceHolder {
        job: i64,
        node: Option<String>,
        impact: u32,
    }

    /// Whether an instance of the group does.
    struct ExplainedInstance {
        name: String,
        ok: bool,
        why: Option<String>,
        needs: u32,
        remaining: u32,
        capacity: u32,
        jobs_running: u32,
    }

    /// The controller as a whole; without its store there are no nodes and groups.
    struct ControllerReport {
        version: String,
        node: String,
        active_node: String,
        install: Option<String>,
        paused: Option<bool>,
        clock: Option<ClockReport>,
        store: StoreReport,
        nodes: Vec<NodeSummary>,
        groups: Vec<GroupSummary>,
    }

    /// The store's clock, and whether it is believed.
    struct ClockReport {
        now: String,
        latest: String,
        doubted: bool,
    }

    /// How the store stands.
    struct StoreReport {
        kind: String,
        up: bool,
        error: Option<String>,
        times_away: u64,
    }

    /// An instance, in short.
    struct NodeSummary {
        node: String,
        node_type: String,
        node_state: String,
        uuid: Option<String>,
        heartbeat: Option<String>,
        capacity: u32,
        consumed: u32,
        version: Option<String>,
        errors: Vec<String>,
    }

    /// A group, in short.
    struct GroupSummary {
        name: String,
        capacity: u32,
        consumed: u32,
        running: u32,
        members: Vec<String>,
    }

    /// What an instance's removal has come to.
    struct Removed {
        name: String,
        removed: bool,
    }

    /// A group that is gone.
    struct DeletedGroup {
        name: String,
        deleted: bool,
    }

    /// A job that is gone.
    struct DeletedJob {
        id: i64,
        deleted: bool,
    }

    /// The members of groups by their policies.
    struct Policies {
        groups: Vec<PolicyReport>,
        dry_run: bool,
    }

    /// The members of a group by its policy, and those before.
    struct PolicyReport {
        name: String,
        members: Vec<String>,
        was: Vec<String>,
    }

    /// Whether jobs start.
    struct Paused {
        paused: bool,
    }

    /// Instances where runners' leftovers are being deleted.
    struct Cleanup {
        instances: Vec<String>,
    }

    /// What operators have requested, the latest first, or after a number the first of them first.
    struct AuditRows {
        rows: Vec<AuditRow>,
    }

    /// One request that changed something.
    struct AuditRow {
        /// Rises, not always by one.
        id: i64,
        at: String,
        who: String,
        op: String,
        target: String,
    }

    /// A copy of the store.
    struct BackupReport {
        path: String,
        bytes: u64,
    }

    /// Where notices go.
    struct NotifyList {
        targets: Vec<NotifyReport>,
    }

    /// A target of notices.
    struct NotifyReport {
        name: String,
        /// The host of its address, or its program.
        to: String,
        events: Vec<String>,
        /// `all` or `named`.
        jobs: String,
        /// The last delivery.
        delivered: Option<String>,
        /// Up to which of the jobs of `job.export` it was told.
        cursor: Option<i64>,
        behind: u64,
        dropped: u64,
        failing_since: Option<String>,
        error: Option<String>,
        next: Option<String>,
    }

    /// What came of a notice that was only a test.
    struct NotifyTested {
        name: String,
        delivered: bool,
        answer: String,
    }

    /// What stands before a job's output.
    struct OutputBegins {
        id: i64,
        from: u64,
        size: u64,
        missing: Option<String>,
    }

    /// What stands before a job's events.
    struct EventsBegin {
        id: i64,
    }
}

/// What went wrong in the playbook of a job's latest attempt.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct FailureReport {
    pub line: String,
    pub tasks: Vec<FailedTask>,
    pub others: u64,
}

/// A task that failed on hosts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct FailedTask {
    pub task: String,
    pub unreachable: bool,
    pub hosts: Vec<String>,
    pub count: u64,
    pub message: String,
    pub offset: u64,
}

/// The counters of one host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct HostStats {
    pub ok: u64,
    pub changed: u64,
    pub failures: u64,
    pub dark: u64,
    pub skipped: u64,
    pub rescued: u64,
    pub ignored: u64,
}

/// Nodes that could become instances: how many, or which.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Candidates {
    Count(u64),
    These(Vec<CandidateReport>),
}

impl Default for Candidates {
    fn default() -> Self {
        Self::Count(0)
    }
}

impl From<&InstanceReport> for NodeSummary {
    fn from(one: &InstanceReport) -> Self {
        Self {
            node: one.name.clone(),
            node_type: one.node_type.clone(),
            node_state: one.node_state.clone(),
            uuid: one.uuid.clone(),
            heartbeat: one.last_seen.clone(),
            capacity: one.capacity,
            consumed: one.consumed_capacity,
            version: one.version.clone(),
            errors: one.errors.clone(),
        }
    }
}

impl From<&GroupReport> for GroupSummary {
    fn from(one: &GroupReport) -> Self {
        Self {
            name: one.name.clone(),
            capacity: one.capacity,
            consumed: one.consumed_capacity,
            running: one.jobs_running,
            members: one.members.iter().map(|member| member.name.clone()).collect(),
        }
    }
}

/// Keeps the order of a map, because failed hosts come first.
mod in_order {
    use super::{HostStats, Map, Value};
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(rows: &[(String, HostStats)], s: S) -> Result<S::Ok, S::Error> {
        s.collect_map(rows.iter().map(|(host, stats)| (host, stats)))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<(String, HostStats)>, D::Error> {
        let rows = Map::<String, Value>::deserialize(d)?.into_iter();
        rows.map(|(host, stats)| Ok((host, HostStats::deserialize(stats).map_err(D::Error::custom)?)))
            .collect()
    }
}
