//! `meshctl job`, apart from `run`: submits a runner stream, and asks for and ends jobs.

use std::time::Duration;

use clap::Subcommand;
use serde_json::{Value, json};

use crate::cli::Context;
use crate::cli::exit::{Exit, Failure};
use crate::cli::operation::{operate, print_list};
use crate::cli::work::{payload::Payload, results_of};
use crate::rpc::CallError;
use crate::rpc::request::SubmitRequest;
use crate::work::jobs::CONTROLLER;

/// How often the end of a job is asked for.
const POLL: Duration = Duration::from_millis(500);

/// Verbs of `meshctl job`.
#[derive(Debug, Subcommand)]
pub(in crate::cli) enum JobVerb {
    /// Submit what ansible-runner transmit writes, with a header line before it or without
    Submit {
        /// The stream [default: standard input]
        #[arg(default_value = "-")]
        file: String,
        /// The header as JSON, instead of a header line
        #[arg(long)]
        header: Option<String>,
    },
    /// List jobs, newest first: a table on a terminal, else JSON
    List {
        /// Only those in this state
        #[arg(long)]
        state: Vec<String>,
        /// Only those that ran on this node
        #[arg(long)]
        node: Option<String>,
        /// At most that many
        #[arg(long, default_value_t = 50)]
        limit: u32,
        /// Only older ones than this job
        #[arg(long)]
        before: Option<i64>,
    },
    /// Show all that is known of a job
    Show {
        /// Its number
        id: i64,
    },
    /// Say why a job waits
    Explain {
        /// Its number
        id: i64,
    },
    /// Cancel jobs
    Cancel {
        /// Their numbers
        #[arg(required = true)]
        ids: Vec<i64>,
    },
    /// Wait for the ends of jobs; the exit code is that of the last one that did not succeed
    Wait {
        /// Their numbers
        #[arg(required = true)]
        ids: Vec<i64>,
    },
    /// Print what a job's runner writes, until it ends
    Output {
        /// Its number
        id: i64,
    },
}

impl JobVerb {
    pub(in crate::cli) async fn run(self, context: &Context) -> Result<Exit, Failure> {
        match self {
            Self::Submit { file, header } => submit(context, &file, header).await,
            Self::List { state, node, limit, before } => {
                let arguments = [
                    ("state", json!(state)),
                    ("node", json!(node)),
                    ("limit", json!(limit)),
                    ("before", json!(before)),
                ];
                let answer = operate(context, "job.list", arguments).await?;
                let columns = [
                    ("ID", "id"),
                    ("NAME", "name"),
                    ("KIND", "kind"),
                    ("STATE", "state"),
                    ("NODE", "execution_node"),
                    ("IMPACT", "impact"),
                    ("EXPLANATION", "explanation"),
                ];
                print_list(context, &answer, "jobs", columns)
            }
            Self::Show { id } => show(context, "job.get", id).await,
            Self::Explain { id } => show(context, "job.explain", id).await,
            Self::Cancel { ids } => {
                for id in ids {
                    show(context, "job.cancel", id).await?;
                }
                Ok(Exit::Success)
            }
            Self::Wait { ids } => {
                let mut exit = Exit::Success;
                for id in ids {
                    let job = ended(context, id).await?;
                    context.output.value_line(&json!({"id": id, "state": job["state"], "rc": job["rc"]}))?;
                    if job["state"] != "successful" {
                        exit = Exit::Failed;
                    }
                }
                Ok(exit)
            }
            Self::Output { id } => {
                let job = operate(context, "job.get", [("id", json!(id))]).await?;
                match job["unit"].as_str() {
                    Some(unit) => results_of(context, unit).await,
                    None => {
                        Err(Failure::new(Exit::Failed, format!("the output of job {id} is not kept here")))
                    }
                }
            }
        }
    }
}

async fn show(context: &Context, op: &str, id: i64) -> Result<Exit, Failure> {
    context.output.value(&operate(context, op, [("id", json!(id))]).await?)?;
    Ok(Exit::Success)
}

async fn ended(context: &Context, id: i64) -> Result<Value, Failure> {
    loop {
        let job = operate(context, "job.get", [("id", json!(id))]).await?;
        match job["state"].as_str() {
            Some("pending" | "waiting" | "running") => tokio::time::sleep(POLL).await,
            _ => return Ok(job),
        }
    }
}

async fn submit(context: &Context, file: &str, header: Option<String>) -> Result<Exit, Failure> {
    let payload = if file == "-" { Payload::stdin(context.output) } else { Payload::file(file).await? };
    let request = SubmitRequest {
        node: "localhost".to_owned(),
        work_type: CONTROLLER.to_owned(),
        params: header.into_iter().map(|header| ("header".to_owned(), header)).collect(),
        payload_length: payload.size,
        ..SubmitRequest::default()
    };
    let refused = |error: CallError| Failure::new(Exit::SubmitFailed, error.to_string());
    let mut submission = context.client.submit(request).await.map_err(refused)?;
    let submitted = submission.send(payload.bytes, |_| ()).await.map_err(refused)?;
    let status = context.client.unit_status(&submitted.unit).await?;
    let id = &status.extra_data["JobID"];
    if context.output.json {
        context.output.value(&json!({"id": id, "unit": submitted.unit, "result": submitted.result}))?;
    } else {
        context.output.line(&format!("Job {id}: {}, unit {}", submitted.result, submitted.unit))?;
    }
    Ok(Exit::Success)
}
