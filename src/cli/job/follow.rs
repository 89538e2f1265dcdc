//! Reads a job's output over the control socket to its end, across restarts of the node, and says how a job ended. It
//! does not look into what it reads.

use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::io::AsyncReadExt;
use tokio::time::sleep;

use crate::cli::Context;
use crate::cli::exit::{Exit, Failure};
use crate::cli::operation::Operation;
use crate::cli::output::Output;
use crate::controller::core::JobState;
use crate::rpc::{Client, ControlConnection, Deadlines};

/// Time between two attempts to reach a node, and between two questions for a job's end.
const POLL: Duration = Duration::from_millis(500);
const CHUNK: usize = 256 << 10;
/// The code of a playbook that ran and failed; others are the runner's.
const PLAYBOOK_CODES: std::ops::RangeInclusive<u64> = 1..=63;

/// The number of a job.
pub(super) type JobId = i64;

/// What a job's runner writes, from its beginning to its end.
pub(super) struct OutputOf {
    client: Client,
    output: Output,
    id: JobId,
    follow: bool,
    attempt: Option<u32>,
    position: u64,
    connection: Option<ControlConnection>,
    /// Where the output ended when it was asked for first.
    size: Option<u64>,
    /// Nothing came since the last connection was opened.
    is_idle: bool,
}

impl OutputOf {
    /// All of it; with `follow` until the job has ended.
    pub(super) fn new(context: &Context, id: JobId, follow: bool) -> Self {
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
            is_idle: false,
        }
    }

    /// That of one attempt alone, if one is named.
    pub(super) fn of_attempt(mut self, attempt: Option<u32>) -> Self {
        self.attempt = attempt;
        self
    }

    /// The next bytes; `None` at the end.
    ///
    /// # Errors
    /// The node refuses, or stays away.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        loop {
            if self.connection.is_none() {
                let (answer, connection) = begin(&self.client, self.output, &self.question()).await?;
                self.size = self.size.or(answer["size"].as_u64());
                self.connection = Some(connection);
                self.is_idle = true;
            }
            let Some(connection) = &mut self.connection else { continue };
            let mut buffer = Vec::with_capacity(CHUNK);
            // An error is an end as well: what is missing is asked for again.
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

    fn question(&self) -> Operation {
        let question = Operation::new("job.output").with("id", self.id).with("from", self.position);
        question.with("attempt", self.attempt).with("follow", self.follow)
    }

    /// Whether a connection that closed was the last one.
    async fn has_ended(&mut self) -> Result<bool, Failure> {
        if !self.follow {
            let size = self.size.unwrap_or(0);
            if self.position < size && self.is_idle {
                let text = format!("the output is cut off after {} of {size} bytes", self.position);
                return Err(Failure::new(Exit::Unreachable, text));
            }
            return Ok(self.position >= size);
        }
        let job = ask(&self.client, self.output, &Operation::new("job.get").with("id", self.id)).await?;
        let size = job["output_bytes"].as_u64().unwrap_or(0);
        // What still did not come over a second connection will not come.
        Ok(is_final(&job) && (self.is_idle || self.attempt.is_some() || self.position >= size))
    }
}

/// Whether a job has ended.
///
/// # Errors
/// There is none of that number, or the node stays away.
pub(super) async fn has_ended(context: &Context, id: JobId) -> Result<bool, Failure> {
    let get = Operation::new("job.get").with("id", id);
    Ok(is_final(&ask(&context.client, context.output, &get).await?))
}

/// Requests a cancel, again and again while the node or its store is away.
///
/// # Errors
/// It is refused, or the node stays away.
pub(super) async fn cancel(context: &Context, id: JobId) -> Result<Value, Failure> {
    ask(&context.client, context.output, &Operation::new("job.cancel").with("id", id)).await
}

/// A job once it has ended.
///
/// # Errors
/// There is none of that number, or the node stays away.
pub(super) async fn final_job(context: &Context, id: JobId) -> Result<Value, Failure> {
    let get = Operation::new("job.get").with("id", id);
    loop {
        let job = ask(&context.client, context.output, &get).await?;
        if is_final(&job) {
            return Ok(job);
        }
        sleep(POLL).await;
    }
}

/// The exit code of a job that has ended.
pub(super) fn exit_of(job: &Value) -> Exit {
    match state(job) {
        Some(JobState::Successful) => Exit::Success,
        Some(JobState::Failed) => {
            let code = job["rc"].as_u64().filter(|code| PLAYBOOK_CODES.contains(code));
            code.and_then(|code| u8::try_from(code).ok()).map_or(Exit::Failed, Exit::Playbook)
        }
        None
        | Some(
            JobState::Pending | JobState::Waiting | JobState::Running | JobState::Error | JobState::Canceled,
        ) => Exit::Failed,
    }
}

/// How a job ended and where, for people.
pub(super) fn ending(id: JobId, job: &Value) -> String {
    let text = |key: &str| job[key].as_str().filter(|text| !text.is_empty());
    let node = text("execution_node").map(|node| format!(" on {node}")).unwrap_or_default();
    let why = text("explanation").map(|why| format!(": {why}")).unwrap_or_default();
    format!("Job {id} {}{node}{why}", text("state").unwrap_or("ended"))
}

/// The state of a job; `None` for one that we do not know.
pub(super) fn state(job: &Value) -> Option<JobState> {
    JobState::ALL.into_iter().find(|state| job["state"] == state.name())
}

fn is_final(job: &Value) -> bool {
    state(job).is_none_or(JobState::is_final)
}

/// Asks until the node is back, for as long as a node may be away.
async fn ask(client: &Client, output: Output, what: &Operation) -> Result<Value, Failure> {
    begin(client, output, what).await.map(|(result, _)| result)
}

async fn begin(
    client: &Client,
    output: Output,
    what: &Operation,
) -> Result<(Value, ControlConnection), Failure> {
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
            assert_eq!(exit_of(&json!({"state": state, "rc": rc})).code(), code, "{state} {rc}");
        }
    }
}
