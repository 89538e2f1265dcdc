//! What people read of jobs: the columns of their lists, and the description of one job.

use jiff::Zoned;

use super::explain::silence;
use crate::cli::table::{
    self, Column, Layout, above_zero, alone, always, given, of_lists, said, size, telling, wide,
};
use crate::cli::times::{ago, at, span};
use crate::rpc::report::JobState;
use crate::rpc::report::controller::{AttemptReport, FailedTask, HostReport, JobDetail, JobReport};

pub(super) const JOBS: &[Column<JobReport>] = &[
    always("ID", |job, _| job.id.to_string()),
    of_lists(always("NAME", |job, _| what(job))),
    alone("NAME", |job, _| job.name.clone()),
    alone("PLAYBOOK", |job, _| given(&job.playbook)),
    alone("MODULE", |job, _| given(&job.module)),
    alone("LIMIT", |job, _| given(&job.limit)),
    alone("TAGS", |job, _| given(&job.tags)),
    alone("SKIP TAGS", |job, _| given(&job.skip_tags)),
    alone("CHECK", |job, _| if job.check { "yes".to_owned() } else { String::new() }),
    always("STATE", |job, _| state(job)),
    of_lists(said("WHY", why)),
    telling("NODE", |job, _| given(&job.execution_node)),
    of_lists(always("AGE", |job, now| ago(&job.created, now))),
    telling("TOOK", |job, _| job.elapsed.map_or_else(String::new, |seconds| span(seconds.round() as u64))),
    telling("GROUP", |job, _| given(&job.instance_group)),
    telling("KIND", |job, _| job.kind.to_string()),
    telling("BY", |job, _| job.launched_by.clone()),
    telling("RERUN OF", |job, _| job.rerun_of.map_or_else(String::new, |id| id.to_string())),
    wide("LABELS", |job, _| {
        job.labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(", ")
    }),
    wide("IMPACT", |job, _| job.impact.to_string()),
    wide("FORKS", |job, _| above_zero(job.forks)),
    wide("HOSTS", |job, _| job.hosts.map_or_else(String::new, |hosts| hosts.to_string())),
    wide("PRIORITY", |job, _| job.priority.to_string()),
    wide("ATTEMPT", |job, _| job.attempt.to_string()),
    wide("OWNER", |job, _| given(&job.controller_node)),
    wide("KEY", |job, _| given(&job.key)),
    alone("CODE", |job, _| job.rc.map_or_else(String::new, |code| code.to_string())),
    alone("CREATED", |job, now| at(&job.created, now)),
    alone("STARTED", |job, now| at(&given(&job.started), now)),
    alone("FINISHED", |job, now| at(&given(&job.finished), now)),
    alone("EVENTS", |job, _| above_zero(job.events)),
];
/// More lines where one job is shown.
const DETAILS: &[Column<JobDetail>] = &[
    always("OUTPUT", |one, _| match &one.output_lost {
        Some(node) => format!("{}, lost with {node}", size(one.output_bytes)),
        None => size(one.output_bytes),
    }),
    wide("OUTPUT HASH", |one, _| given(&one.output_hash)),
    wide("OUTPUT ON", |one, _| one.output_on.join(", ")),
    always("RERUN UNTIL", |one, now| at(&given(&one.payload_until), now)),
    always("AFTER JOBS", |one, _| {
        one.depends_on.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    }),
    always("REVISION", |one, _| given(&one.revision)),
    always("UNIT", |one, _| given(&one.unit)),
    always("EXPLANATION", |one, _| one.job.explanation.clone()),
    // Several attempts are listed with theirs.
    always("AT THE MOMENT", |one, _| match one.attempts.as_slice() {
        [only] => given(&only.detail),
        _ => String::new(),
    }),
];
const ATTEMPTS: &[Column<AttemptReport>] = &[
    always("ATTEMPT", |one, _| one.n.to_string()),
    always("NODE", |one, _| given(&one.node)),
    always("OUTCOME", |one, _| match (&one.outcome, one.confirmed) {
        (Some(outcome), true) => outcome.clone(),
        (Some(outcome), false) => format!("{outcome}, and may still run"),
        (None, _) => String::new(),
    }),
    always("PLACED", |one, now| ago(&one.placed, now)),
    always("UNIT", |one, _| one.unit.clone()),
    said("AT THE MOMENT", |one, _| given(&one.detail)),
];
const FAILED: &[Column<FailedTask>] = &[
    always("FAILED TASK", |one, _| one.task.clone()),
    always("HOSTS", |one, _| {
        let more = one.count.saturating_sub(one.hosts.len() as u64);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        one.hosts.join(", ") + &more
    }),
    said("MESSAGE", |one, _| if one.unreachable { "unreachable: " } else { "" }.to_owned() + &one.message),
];
pub(super) const HOSTS: &[Column<HostReport>] = &[
    always("HOST", |one, _| one.host.clone()),
    always("OK", |one, _| one.stats.ok.to_string()),
    always("CHANGED", |one, _| one.stats.changed.to_string()),
    always("UNREACHABLE", |one, _| one.stats.dark.to_string()),
    always("FAILED", |one, _| one.stats.failures.to_string()),
    always("SKIPPED", |one, _| one.stats.skipped.to_string()),
    always("RESCUED", |one, _| one.stats.rescued.to_string()),
    always("IGNORED", |one, _| one.stats.ignored.to_string()),
];

/// What a job runs, as it was typed: its name, and the flags that change what it does.
fn what(job: &JobReport) -> String {
    let runs = given(&job.playbook) + &given(&job.module);
    let flag = |name: &str, value: &Option<String>| value.as_ref().map(|value| format!("{name} {value}"));
    let words = [
        Some(job.name.clone()).filter(|name| !name.is_empty()),
        Some(format!("({runs})")).filter(|_| !runs.is_empty() && !job.name.starts_with(&runs)),
        flag("-l", &job.limit),
        flag("-t", &job.tags),
        flag("--skip-tags", &job.skip_tags),
        job.check.then(|| "-C".to_owned()),
    ];
    words.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

/// Its state, and whether it is being cancelled.
pub(super) fn state(job: &JobReport) -> String {
    let ends = job.cancel_requested && job.state.known().is_some_and(|state| !state.is_final());
    if ends { "cancelling".to_owned() } else { job.state.to_string() }
}

/// What its state does not say: that its node is out of reach, what it waits for, or why it failed.
pub(super) fn why(job: &JobReport, now: &Zoned) -> String {
    if let Some(silent) = &job.silent {
        return silence(silent, now);
    }
    match job.state.known() {
        Some(JobState::Running | JobState::Successful | JobState::Canceled) => String::new(),
        None | Some(JobState::Pending | JobState::Waiting | JobState::Failed | JobState::Error) => {
            job.explanation.clone()
        }
    }
}

/// All that is known of a job, with its attempts if there were several, and its hosts, which may be the first of many.
pub(super) fn described(detail: &JobDetail, width: usize, now: &Zoned) -> String {
    let mut fields = table::fields(&detail.job, JOBS, now);
    fields.extend(table::fields(detail, DETAILS, now));
    let hosts = detail.host_stats.iter();
    let hosts: Vec<_> = hosts.map(|(host, stats)| HostReport { stats: *stats, host: host.clone() }).collect();
    let mut parts = vec![table::described(fields)];
    if detail.attempts.len() > 1 {
        parts.push(table::list(&detail.attempts, ATTEMPTS, Layout::default(), width, now));
    }
    if let Some(failure) = &detail.failure {
        parts.push(table::list(&failure.tasks, FAILED, Layout::default(), width, now));
        parts.push(format!("Each of them whole: meshctl job errors {}", detail.job.id));
    }
    if !hosts.is_empty() {
        parts.push(table::list(&hosts, HOSTS, Layout::default(), width, now));
    }
    let more = more_hosts(detail).map(|more| format!("\n{more}")).unwrap_or_default();
    parts.join("\n\n") + &more
}

/// Says that a job has more hosts than are shown with it, and how to see them.
pub(super) fn more_hosts(detail: &JobDetail) -> Option<String> {
    let (counts, id) = (detail.host_counts.as_ref()?, detail.job.id);
    let shown = detail.host_stats.len() as u64;
    let (more, kept) = (counts.hosts.saturating_sub(shown), counts.kept.saturating_sub(shown));
    let list = match kept {
        0 => "none of them is kept".to_owned(),
        _ if kept < more => format!("{kept} of them are kept: meshctl job hosts {id} --from {shown}"),
        _ => format!("meshctl job hosts {id} --from {shown}"),
    };
    let (failed, unreachable) = (counts.failed, counts.unreachable);
    (more > 0)
        .then(|| format!("and {more} more hosts ({failed} failed, {unreachable} unreachable in all): {list}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::report;
    use serde_json::{Value, json};

    #[test]
    fn a_job_with_many_hosts_says_how_many_more_there_are() {
        let counts = json!({"ok": 1, "changed": 0, "dark": 0, "failures": 1, "skipped": 0, "rescued": 0, "ignored": 0});
        let shown = |job: Value| described(&report::read(&job).unwrap(), 80, &Zoned::now());
        let of = |hosts: u64, kept: u64| {
            let all = json!({"hosts": hosts, "failed": 1, "unreachable": 0, "kept": kept});
            shown(json!({"id": 7, "state": "failed", "host_stats": {"web": counts}, "host_counts": all}))
        };
        let one = of(1, 1);
        assert!(one.starts_with("id        7\nstate     failed\n"), "{one}");
        assert!(one.contains("\n\nHOST  OK  CHANGED"), "{one}");
        assert!(one.ends_with("\nweb   1   0        0            1       0        0        0"), "{one}");
        let more = "\nand 4 more hosts (1 failed, 0 unreachable in all): meshctl job hosts 7 --from 1";
        assert!(of(5, 5).ends_with(more), "{}", of(5, 5));
        assert!(of(5, 3).ends_with("2 of them are kept: meshctl job hosts 7 --from 1"), "{}", of(5, 3));
        assert!(!shown(json!({"id": 7, "host_stats": {}, "host_counts": null})).contains("HOST"));
    }

    #[test]
    fn what_an_attempt_does_is_shown_with_its_job() {
        let attempt = |n: u32, detail: &str| json!({"n": n, "detail": detail});
        let shown = |attempts: Value| {
            let job = report::read(&json!({"id": 7, "state": "waiting", "attempts": attempts})).unwrap();
            described(&job, 80, &Zoned::now())
        };
        let one = shown(json!([attempt(1, "Syncing its project (job 8)")]));
        assert!(one.ends_with("at the moment  Syncing its project (job 8)"), "{one}");
        let two = shown(json!([attempt(1, ""), attempt(2, "Sending payload")]));
        assert!(two.contains("AT THE MOMENT") && !two.contains("at the moment"), "{two}");
    }

    #[test]
    fn a_job_says_what_it_was() {
        let said = |job: Value| what(&report::read(&job).unwrap());
        let flags = |name: &str| json!({"name": name, "playbook": "site.yml", "limit": "web", "tags": "a,b", "skip_tags": "c", "check": true});
        assert_eq!(said(flags("site.yml")), "site.yml -l web -t a,b --skip-tags c -C");
        assert_eq!(said(flags("night")), "night (site.yml) -l web -t a,b --skip-tags c -C");
        assert_eq!(said(json!({"name": "ping data=x", "module": "ping"})), "ping data=x");
        assert_eq!(said(json!({})), "");
    }
}
