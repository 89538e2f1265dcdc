//! Reads a job's output over the control socket to its end, across restarts of the node, and says how a job ended. Does
//! not interpret the output.

use std::time::Instant;

use jiff::Zoned;
use serde::de::DeserializeOwned;
use tokio::io::AsyncReadExt;
use tokio::time::sleep;

use super::report::why;
use crate::cli::CliContext;
use crate::cli::exit::{Exit, Failure};
use crate::cli::output::Output;
use crate::cli::wait::{POLL, until};
use crate::rpc::operation::{self, Answered, ById, OutputPart, Question};
use crate::rpc::report::JobState;
use crate::rpc::report::controller::{JobDetail, JobReport, OutputBegins};
use crate::rpc::{Client, ControlConnection, Deadlines};

const CHUNK: usize = 256 << 10;
/// Codes of a playbook that ran and failed; other codes are the runner's.
const PLAYBOOK_CODES: std::ops::RangeInclusive<u8> = 1..=63;

/// The number of a job.
pub(super) type JobNumber = i64;

/// A job's output, as its runner writes it, from beginning to end.
pub(super) struct OutputOf {
    client: Client,
    output: Output,
    id: JobNumber,
    follow: bool,
    attempt: Option<u32>,
    position: u64,
    connection: Option<ControlConnection>,
    /// Length of the output at the first request.
    size: Option<u64>,
    /// Why a part of the output is missing.
    missing: Option<String>,
    /// Nothing came since the last connection was opened.
    is_idle: bool,
}

impl OutputOf {
    /// All output so far; with `follow`, until the job has ended.
    pub(super) fn new(context: &CliContext, id: JobNumber, follow: bool) -> Self {
        let (client, output) = (context.client.clone(), context.output);
        Self {
            client,
            output,
            id,
            follow,
            attempt: None,
            position: 0,
            connection: None,
            size: None,
            missing: None,
            is_idle: false,
        }
    }

    /// Only the output of this attempt, if one is given.
    pub(super) fn of_attempt(mut self, attempt: Option<u32>) -> Self {
        self.attempt = attempt;
        self
    }

    /// The next bytes; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        loop {
            if self.connection.is_none() {
                let (answer, connection) = begin(&self.client, self.output, &self.question()).await?;
                self.size = self.size.or(Some(answer.report.size));
                self.missing = answer.report.missing;
                self.connection = Some(connection);
                self.is_idle = true;
            }
            let Some(connection) = &mut self.connection else { continue };
            let mut buffer = Vec::with_capacity(CHUNK);
            // An error counts as an end, because the rest is requested again.
            let count = connection.reader().read_buf(&mut buffer).await.unwrap_or(0);
            if count > 0 {
                self.position += count as u64;
                self.is_idle = false;
                return Ok(Some(buffer));
            }
            self.connection = None;
            if self.has_ended().await? {
                return Ok(None);
            }
            sleep(POLL).await;
        }
    }

    fn question(&self) -> Question<OutputBegins> {
        let (id, from, attempt, follow) = (self.id, self.position, self.attempt, self.follow);
        operation::read_output(OutputPart { id, from, attempt, follow })
    }

    /// Whether the output is complete, once a connection has closed.
    async fn has_ended(&mut self) -> Result<bool, Failure> {
        if !self.follow {
            let size = self.size.unwrap_or(0);
            if self.position < size && self.is_idle {
                let text = format!("the output is cut off after {} of {size} bytes", self.position);
                return Err(Failure::new(Exit::Unreachable, text));
            }
            return match self.missing.take() {
                Some(why) if self.position >= size => Err(Failure::new(Exit::Unreachable, why)),
                Some(_) | None => Ok(self.position >= size),
            };
        }
        let get = operation::get_job(ById { id: self.id });
        let job = ask(&self.client, self.output, &get).await?.report;
        let (is_over, bytes) = (is_final(&job.job), job.output_bytes);
        if !is_over || self.attempt.is_some() || self.position >= bytes {
            return Ok(is_over);
        }
        let after = format!("after {} of {bytes} bytes", self.position);
        match job.output_lost {
            Some(node) => {
                Err(Failure::new(Exit::Unreachable, format!("the output was lost with {node} {after}")))
            }
            // A new connection brought nothing, so the rest will not come.
            None if self.is_idle => {
                Err(Failure::new(Exit::Unreachable, format!("the output is cut off {after}")))
            }
            None => Ok(false),
        }
    }
}

/// Whether a job has ended.
pub(super) async fn has_ended(context: &CliContext, id: JobNumber) -> Result<bool, Failure> {
    let get = operation::get_job(ById { id });
    Ok(is_final(&ask(&context.client, context.output, &get).await?.report.job))
}

/// Requests a cancel, and repeats that while the node or its store is away.
pub(super) async fn cancel(context: &CliContext, id: JobNumber) -> Result<(), Failure> {
    ask(&context.client, context.output, &operation::cancel_job(ById { id })).await.map(drop)
}

/// Waits until a job has ended, and returns it.
pub(super) async fn final_job(context: &CliContext, id: JobNumber) -> Result<Answered<JobDetail>, Failure> {
    let get = operation::get_job(ById { id });
    until(POLL, async || {
        let job = ask(&context.client, context.output, &get).await?;
        Ok(Some(job).filter(|job| is_final(&job.report.job)))
    })
    .await
}

/// The exit code of a job that has ended.
pub(super) fn exit_of(detail: &JobDetail) -> Exit {
    let job = &detail.job;
    match job.state.known() {
        Some(JobState::Successful) if detail.output_lost.is_some() => Exit::Unreachable,
        Some(JobState::Successful) => Exit::Success,
        Some(JobState::Failed) => {
            let code = job.rc.and_then(|code| u8::try_from(code).ok());
            code.filter(|code| PLAYBOOK_CODES.contains(code)).map_or(Exit::Failed, Exit::Playbook)
        }
        None
        | Some(
            JobState::Pending | JobState::Waiting | JobState::Running | JobState::Error | JobState::Canceled,
        ) => Exit::Failed,
    }
}

/// How a job ended and where, for people.
pub(super) fn ending(detail: &JobDetail, now: &Zoned) -> String {
    let job = &detail.job;
    let lost = detail.output_lost.as_ref().map(|node| format!(", output lost with {node}"));
    let lost = lost.unwrap_or_default();
    let node = job.execution_node.as_ref().filter(|node| !node.is_empty());
    let node = node.map(|node| format!(" on {node}")).unwrap_or_default();
    let why = Some(why(job, now)).filter(|why| !why.is_empty());
    let why = why.map(|why| format!(": {why}")).unwrap_or_default();
    format!("Job {} {}{lost}{node}{why}", job.id, job.state)
}

/// Whether a job has ended. An unknown state comes from a newer node, and counts as an end.
fn is_final(job: &JobReport) -> bool {
    job.state.known().is_none_or(JobState::is_final)
}

/// Asks, and asks again while the node is away, for as long as a node may be away.
pub(super) async fn ask<A: DeserializeOwned>(
    client: &Client,
    output: Output,
    what: &Question<A>,
) -> Result<Answered<A>, Failure> {
    begin(client, output, what).await.map(|(answer, _)| answer)
}

async fn begin<A: DeserializeOwned>(
    client: &Client,
    output: Output,
    what: &Question<A>,
) -> Result<(Answered<A>, ControlConnection), Failure> {
    let mut since = None;
    loop {
        match what.begin(client).await {
            Ok(answer) => {
                if since.is_some() {
                    output.note("meshctl: the node is back");
                }
                return Ok(answer);
            }
            Err(error) if error.is_temporary() => {
                let since = since.get_or_insert_with(|| {
                    output.note(&format!("meshctl: {error}; waiting for the node ..."));
                    Instant::now()
                });
                if since.elapsed() >= Deadlines::default().absence {
                    return Err(error.into());
                }
                sleep(POLL).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::report;
    use serde_json::json;

    #[test]
    fn a_job_ends_us_with_the_code_of_its_playbook() {
        for (state, rc, code) in [
            ("successful", json!(0), 0),
            ("failed", json!(2), 2),
            ("failed", json!(63), 63),
            ("failed", json!(254), 1),
            ("failed", json!(0), 1),
            ("failed", json!(null), 1),
            ("error", json!(4), 1),
            ("canceled", json!(null), 1),
            ("of tomorrow", json!(null), 1),
        ] {
            let job: JobDetail = report::read(&json!({"state": state, "rc": rc})).unwrap();
            assert_eq!(exit_of(&job).code(), code, "{state} {rc}");
        }
        let lost =
            json!({"id": 7, "state": "successful", "rc": 0, "execution_node": "e1", "output_lost": "c1"});
        let lost: JobDetail = report::read(&lost).unwrap();
        assert_eq!(
            (exit_of(&lost).code(), ending(&lost, &Zoned::now()).as_str()),
            (69, "Job 7 successful, output lost with c1 on e1")
        );
    }
}
