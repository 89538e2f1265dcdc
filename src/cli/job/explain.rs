//! `meshctl job explain`: why a job waits, or what has become of the node that runs it. The controller gives the facts;
//! this module words them, also for [`tell`](super::tell).

use clap::Args;
use jiff::Zoned;

use super::follow::JobNumber;
use crate::cli::CliContext;
use crate::cli::completion::jobs;
use crate::cli::exit::{Exit, Failure};
use crate::cli::operation::show;
use crate::cli::table::{self, given};
use crate::cli::times::clock;
use crate::rpc::operation::{self, ById, JobFilter};
use crate::rpc::report::JobState;
use crate::rpc::report::controller::{Explained, ExplainedGroup, PlaceHolder, SilentNode};

/// Jobs on a page while a name is searched for.
const PAGE: u32 = 1000;

#[derive(Debug, Args)]
pub(in crate::cli) struct ExplainFlags {
    /// Number or name of the job: of that name the newest that has not ended, or else the newest
    #[arg(value_name = "ID|NAME", add = jobs())]
    job: String,
}

impl ExplainFlags {
    pub(super) async fn run(self, context: &CliContext) -> Result<Exit, Failure> {
        let id = match self.job.parse() {
            Ok(id) => id,
            Err(_) => named(context, &self.job).await?,
        };
        let explain = operation::explain_job(ById { id });
        show(context, explain, |explained| explanation(explained, &context.output.now())).await
    }
}

/// The newest job of that name that has not ended, else the newest of that name.
async fn named(context: &CliContext, name: &str) -> Result<JobNumber, Failure> {
    for state in [vec![JobState::Pending, JobState::Waiting, JobState::Running], Vec::new()] {
        let mut filter =
            JobFilter { name: Some(name.to_owned()), state, limit: Some(PAGE), ..JobFilter::default() };
        loop {
            let page = operation::list_jobs(filter.clone()).ask(&context.client).await?.report;
            // The node also lists jobs whose names only begin with this one.
            if let Some(job) = page.jobs.iter().find(|job| job.name == name) {
                return Ok(job.id);
            }
            let Some(next) = page.next else { break };
            filter.before = Some(next);
        }
    }
    Err(Failure::new(Exit::Failed, format!("there is no job {name}")))
}

/// Why a job waits, for people: the summary, what holds it up, its place in the queue, and each instance that it could
/// run on.
fn explanation(explained: &Explained, now: &Zoned) -> String {
    let Explained { id, state, summary, checks, groups, queue, silent } = explained;
    let mut lines = vec![format!("Job {id} is {state}: {summary}")];
    let failed = checks.iter().filter(|check| !check.ok);
    lines.extend(failed.map(|check| format!("  {}: {}", check.check, check.detail)));
    lines
        .extend(queue.as_ref().map(|queue| format!("  place in the queue: {} of {}", queue.place, queue.of)));
    lines.extend(groups.iter().filter_map(|group| Some(format!("  {}: {}", group.name, holders(group)?))));
    lines.extend(silent.iter().map(|silent| format!("  {}", silence(silent, now))));
    let fits = |ok: bool, why: &Option<String>| if ok { "fits".to_owned() } else { given(why) };
    let mut rows = Vec::new();
    for group in groups {
        let (none, why) = (String::new(), fits(group.ok, &group.why));
        rows.push([group.name.clone(), none.clone(), why, none.clone(), none]);
        // If the group itself is full, its instances do not matter.
        let is_full = !group.ok && group.instances.iter().any(|one| one.ok);
        rows.extend(group.instances.iter().filter(|_| !is_full).map(|one| {
            let of = Some(one.capacity).filter(|capacity| *capacity > 0);
            let of = of.map(|capacity| format!(" of {capacity}")).unwrap_or_default();
            let remaining = format!("{}{of}", one.remaining);
            [group.name.clone(), one.name.clone(), fits(one.ok, &one.why), one.needs.to_string(), remaining]
        }));
    }
    if !rows.is_empty() {
        lines.push(table::render(["GROUP", "INSTANCE", "WHY", "NEEDS", "REMAINING"], rows));
    }
    lines.join("\n")
}

/// Which jobs hold the capacity that a job lacks in a group, and how much of each limit is used; `None` if none do.
fn holders(group: &ExplainedGroup) -> Option<String> {
    if group.held_by.is_empty() {
        return None;
    }
    let limit = |used: u32, most: u32, what: &str| (most > 0).then(|| format!("{used} of {most} {what}"));
    let jobs = limit(group.jobs_running, group.max_concurrent_jobs, "jobs");
    let forks = limit(group.forks_running, group.max_forks, "forks");
    let used: Vec<String> = jobs.into_iter().chain(forks).collect();
    let used = if used.is_empty() { String::new() } else { format!("{} run; ", used.join(", ")) };
    let held = |held: &PlaceHolder| match &held.node {
        Some(node) => format!("{} on {node}", held.job),
        None => held.job.to_string(),
    };
    let list: Vec<String> = group.held_by.iter().map(held).collect();
    let noun = if list.len() == 1 { "job" } else { "jobs" };
    Some(format!("{used}held by {noun} {}", list.join(", ")))
}

/// What is known of a node that does not answer.
pub(super) fn silence(silent: &SilentNode, now: &Zoned) -> String {
    let SilentNode { node, attempt, since, lost_at, lost } = silent;
    let since = since.as_ref().map(|since| format!(" since {}", clock(since, now))).unwrap_or_default();
    let lost_at = clock(lost_at, now);
    match lost {
        false => format!("{node} is out of reach{since}, lost at {lost_at}"),
        true => format!(
            "{node} is out of reach{since}, lost at {lost_at}: attempt {attempt} may still run there. If the node \
             never comes back: meshctl instance remove {node} --dead"
        ),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use jiff::Timestamp;

    use super::*;
    use crate::cli::job::tests::silent_node;
    use crate::rpc::report;

    fn told(explained: Value) -> String {
        explanation(&report::read(&explained).unwrap(), &Zoned::now())
    }

    #[test]
    fn an_explanation_names_what_holds_a_job_up() {
        let explained = json!({"id": 42, "state": "pending", "summary": "waiting for capacity in east",
            "checks": [{"check": "dependencies", "ok": true, "detail": ""},
                {"check": "paused", "ok": false, "detail": "resume it"}],
            "groups": [{"name": "east", "level": "template", "ok": false, "why": "capacity",
                "held_by": [{"job": 40, "node": "e1", "impact": 21}], "instances":
                [{"name": "e1", "ok": false, "why": "capacity", "needs": 21, "remaining": 9, "capacity": 30}]}],
            "queue": {"place": 1, "of": 3}});
        let expected = "\
Job 42 is pending: waiting for capacity in east
  paused: resume it
  place in the queue: 1 of 3
  east: held by job 40 on e1
GROUP  INSTANCE  WHY       NEEDS  REMAINING
east             capacity
east   e1        capacity  21     9 of 30";
        assert_eq!(told(explained), expected);
    }

    #[test]
    fn a_full_group_says_how_many_of_how_many_run() {
        let explained = json!({"id": 42, "state": "pending", "summary": "waiting for fewer running jobs in pods",
            "groups": [{"name": "pods", "level": "launch", "ok": false, "why": "group_jobs", "jobs_running": 2,
                "max_concurrent_jobs": 2, "forks_running": 11, "max_forks": 40,
                "held_by": [{"job": 40, "node": "e1"}, {"job": 41, "node": null}],
                "instances": [{"name": "e1", "ok": true, "needs": 6, "remaining": 9, "capacity": 30}]}]});
        let expected = "\
Job 42 is pending: waiting for fewer running jobs in pods
  pods: 2 of 2 jobs, 11 of 40 forks run; held by jobs 40 on e1, 41
GROUP  INSTANCE  WHY         NEEDS  REMAINING
pods             group_jobs";
        assert_eq!(told(explained), expected);
    }

    #[test]
    fn a_silent_node_is_told_with_its_times_and_the_command_that_helps() {
        let now = |text: &str| text.parse::<Timestamp>().unwrap().to_zoned(jiff::tz::TimeZone::UTC);
        let today = now("2026-11-25T12:09:00Z");
        let expected = "e1 is out of reach since 12:04:00 UTC, lost at 12:07:00 UTC";
        assert_eq!(silence(&silent_node(false), &today), expected);
        let helps =
            "attempt 1 may still run there. If the node never comes back: meshctl instance remove e1 --dead";
        assert_eq!(silence(&silent_node(true), &today), format!("{expected}: {helps}"));
        let tomorrow = now("2026-11-26T00:00:01Z");
        let dated = "e1 is out of reach since 2026-11-25 12:04:00 UTC, lost at 2026-11-25 12:07:00 UTC";
        assert_eq!(silence(&silent_node(false), &tomorrow), dated);
    }
}
