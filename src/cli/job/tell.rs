//! What `meshctl job run` says of its job on standard error: why it waits, even after an attempt, that its node is out
//! of reach, and that it runs again. Says each of these once, and nothing while all goes well.

use std::time::Duration;

use jiff::Zoned;
use tokio::time::sleep;

use super::explain::silence;
use super::follow::JobNumber;
use crate::cli::CliContext;
use crate::rpc::operation::{self, ById};
use crate::rpc::report::JobState;
use crate::rpc::report::controller::{CheckReport, JobDetail};

/// How often a job that does not run is looked at.
const WAITING: Duration = Duration::from_secs(2);
/// How often a job that runs is looked at.
const RUNNING: Duration = Duration::from_secs(5);

/// Says what happens to a job. Never returns; ends when dropped.
pub(super) async fn tell(context: &CliContext, id: JobNumber) {
    if context.output.json || context.output.quiet {
        return std::future::pending().await;
    }
    let (get, explain) = (operation::get_job(ById { id }), operation::explain_job(ById { id }));
    let (mut told, mut pause) = (Told::default(), WAITING);
    loop {
        sleep(pause).await;
        // The reader of the output says that the node is away.
        let Ok(job) = get.ask(&context.client).await else { continue };
        let job = job.report;
        let news = told.news(&job, &context.output.now());
        news.iter().for_each(|news| context.output.note(news));
        if !news.is_empty() && is_in(&job, &[JobState::Pending]) {
            let Ok(explained) = explain.ask(&context.client).await else { continue };
            let checks = explained.report.checks.into_iter();
            let could_run = checks.filter(|check| check.check == CheckReport::INSTANCES);
            could_run.for_each(|check| context.output.note(&check.detail));
        }
        pause = if is_in(&job, &[JobState::Running]) { RUNNING } else { WAITING };
    }
}

fn is_in(job: &JobDetail, states: &[JobState]) -> bool {
    job.job.state.known().is_some_and(|state| states.contains(&state))
}

/// What was said so far.
#[derive(Debug, Default)]
struct Told {
    why: String,
    attempt: u32,
    silent: Option<String>,
}

impl Told {
    /// What is new about a job.
    fn news(&mut self, job: &JobDetail, now: &Zoned) -> Vec<String> {
        let (id, silent, mut news) = (job.job.id, job.job.silent.as_ref(), Vec::new());
        if is_in(job, &[JobState::Pending]) {
            let why = silent.map_or_else(|| job.job.explanation.clone(), |silent| silence(silent, now));
            if !why.is_empty() && why != self.why {
                news.push(format!("Job {id} waits: {why}"));
                self.why = why;
            }
            self.silent = None;
            return news;
        }
        let has_run = |n| job.attempts.iter().any(|attempt| attempt.n < n && attempt.started.is_some());
        if let Some(attempt) = job.attempts.last().filter(|attempt| attempt.n > self.attempt) {
            if has_run(attempt.n) {
                let node = attempt.node.as_ref().or(job.job.instance_group.as_ref());
                let place = node.map(|node| format!(" on {node}")).unwrap_or_default();
                news.push(format!("Job {id} runs again{place} (attempt {})", attempt.n));
            }
            (self.attempt, self.silent) = (attempt.n, None);
        }
        match (silent, &self.silent) {
            (Some(silent), None) => {
                news.push(format!("Job {id}: {}", silence(silent, now)));
                self.silent = Some(silent.node.clone());
            }
            (None, Some(node)) if is_in(job, &[JobState::Waiting, JobState::Running]) => {
                news.push(format!("Job {id}: {node} is back"));
                self.silent = None;
            }
            (Some(_), Some(_)) | (None, _) => {}
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use jiff::tz::TimeZone;
    use serde_json::{Value, json};

    use super::*;
    use crate::cli::job::tests::silent_node;
    use crate::rpc::report;
    use crate::rpc::report::controller::JobReport;

    fn job(state: &str, explanation: &str, attempts: &[(u32, &str, bool)]) -> JobDetail {
        let attempts: Vec<Value> = attempts
            .iter()
            .map(|(n, node, started)| json!({"n": n, "node": node, "started": started.then_some("2026-11-25T12:00:00Z")}))
            .collect();
        report::read(&json!({"id": 7, "state": state, "explanation": explanation, "attempts": attempts}))
            .unwrap()
    }

    #[test]
    fn a_lost_node_and_the_next_attempt_are_told_once() {
        let now = "2026-11-25T12:09:00Z".parse::<Timestamp>().unwrap().to_zoned(TimeZone::UTC);
        let mut told = Told::default();
        let mut news = |job: JobDetail, lost: Option<bool>| {
            let job = JobDetail { job: JobReport { silent: lost.map(silent_node), ..job.job }, ..job };
            told.news(&job, &now)
        };
        let nothing: [&str; 0] = [];
        assert_eq!(news(job("pending", "", &[]), None), nothing);
        let waits = || job("pending", "waiting for capacity in east", &[]);
        assert_eq!(news(waits(), None), ["Job 7 waits: waiting for capacity in east"]);
        assert_eq!(news(waits(), None), nothing);
        assert_eq!(
            news(job("waiting", "Starting on e1", &[(1, "e1", false)]), None),
            nothing,
            "it does not wait"
        );
        let runs = || job("running", "Running on e1", &[(1, "e1", true)]);
        assert_eq!(news(runs(), None), nothing);
        let away = "Job 7: e1 is out of reach since 12:04:00 UTC, lost at 12:07:00 UTC";
        assert_eq!(news(runs(), Some(false)), [away]);
        assert_eq!(news(runs(), Some(false)), nothing);
        assert_eq!(news(runs(), None), ["Job 7: e1 is back"]);
        assert_eq!(news(runs(), Some(false)), [away]);
        let lost = || job("pending", "attempt 1 on e1 is lost and may still run", &[(1, "e1", true)]);
        let lines = news(lost(), Some(true));
        let [line] = &lines[..] else { panic!("{lines:?}") };
        assert!(line.starts_with(
            "Job 7 waits: e1 is out of reach since 12:04:00 UTC, lost at 12:07:00 UTC: attempt 1 may"
        ));
        assert!(line.ends_with("meshctl instance remove e1 --dead"), "{line}");
        assert_eq!(news(lost(), Some(true)), nothing);
        let again = || job("running", "Running on e2", &[(1, "e1", true), (2, "e2", false)]);
        assert_eq!(news(again(), None), ["Job 7 runs again on e2 (attempt 2)"]);
        assert_eq!(news(again(), None), nothing);
        assert_eq!(news(job("successful", "Finished", &[(2, "e2", true)]), None), nothing);
    }

    #[test]
    fn an_attempt_after_one_that_never_ran_is_no_news() {
        let now = Timestamp::UNIX_EPOCH.to_zoned(TimeZone::UTC);
        let runs = job("running", "Running on e2", &[(1, "e1", false), (2, "e2", true)]);
        assert_eq!(Told::default().news(&runs, &now), [""; 0]);
    }
}
