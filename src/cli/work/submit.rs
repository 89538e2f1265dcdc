//! `meshctl work submit`: sends a job and its payload, and follows it if asked. Owns what happens to the unit when
//! we are interrupted: half a payload never becomes a job, and a job that was accepted goes on without us.

use std::{collections::BTreeMap, pin::pin};

use clap::{ArgGroup, Args};
use serde_json::json;

use super::{follow, params, payload::SentPayload, progress::PayloadProgress, units};
use crate::cli::{
    CliContext,
    completion::nodes,
    exit::{Exit, Failure},
    output::{Output, interrupted},
    status,
};
use crate::rpc::report::node::Section;
use crate::rpc::request::{Request, SubmitRequest};
use crate::rpc::{CallError, PendingUnit, SubmitEnd};
use crate::yaml::nearest;

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("input").required(true).args(["payload", "payload_literal", "no_payload"]))]
pub(crate) struct Submit {
    /// Work type, by its name on the node that runs the job
    worktype: String,
    /// Words to add to the parameter `params` (after -- if they begin with a dash)
    cmdparams: Vec<String>,
    /// Node to run the job on [default: the local one]
    #[arg(long, add = nodes())]
    node: Option<String>,
    /// File that the job reads as its standard input; - for meshctl's own standard input
    #[arg(long, short, value_name = "FILE")]
    payload: Option<String>,
    /// Line of text that the job reads as its standard input
    #[arg(long, short = 'l', value_name = "TEXT")]
    payload_literal: Option<String>,
    /// Give the job an empty standard input
    #[arg(long, short)]
    no_payload: bool,
    /// TLS profile of the local node for its connection to the node that runs the job
    #[arg(long, value_name = "NAME")]
    tls_client: Option<String>,
    /// How long the job may take to start on the other node, such as 1h20m30s
    #[arg(long, value_parser = ttl)]
    ttl: Option<String>,
    /// Have the local node sign the job for the other one
    #[arg(long)]
    signwork: bool,
    /// Print the job's output until it ends, and exit as it does
    #[arg(long, short)]
    follow: bool,
    /// Release the unit once it has been followed to its end
    #[arg(long)]
    rm: bool,
    /// Parameter of the work type: KEY=VALUE, or KEY=@FILE for a file's text (@@ for a value that begins with @)
    #[arg(long, short = 'a', value_name = "KEY=VALUE")]
    param: Vec<String>,
}

impl Submit {
    pub(super) async fn run(self, context: &CliContext) -> Result<Exit, Failure> {
        let (follow, rm) = (self.follow, self.rm);
        let mut request = self.request()?;
        let payload = self.open_payload(context).await?;
        request.payload_length = payload.size;
        if request.node != "localhost" {
            warn_of_stranger(context, &request.node).await;
        }
        let submission = context.client.submit(request).await.map_err(not_accepted)?;
        let unit = submission.unit().to_owned();
        let submitted = match send(submission, payload, context.output).await {
            Ok(submitted) => submitted,
            Err(Unsent::GivenUp(failure)) => return Err(failure),
            Err(Unsent::ByNode(error)) => return Err(unaccepted(context, &unit, rm, error).await),
        };
        let ended = match follow {
            true => follow::follow(context, &unit, 0).await?,
            false => {
                let SubmitEnd { unit: id, result } = submitted;
                let text = || format!("Result: {result}\nUnit ID: {id}");
                context.output.answer(&json!({"result": result, "unitid": id}), text)?
            }
        };
        if rm {
            if !follow {
                context.output.note("Warning: --rm without --follow ends the job and drops its output.");
            }
            release(context, &unit).await?;
        }
        Ok(ended)
    }

    fn request(&self) -> Result<SubmitRequest, Failure> {
        let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let (tls_client, ttl) = (given(&self.tls_client), given(&self.ttl));
        let fields =
            [("tlsclient", tls_client.is_some()), ("ttl", ttl.is_some()), ("signwork", self.signwork)];
        let taken: Vec<&str> = fields.iter().filter(|(_, used)| *used).map(|(field, _)| *field).collect();
        let params: BTreeMap<String, String> = params::collect(&self.param, &self.cmdparams, &taken)?;
        Ok(SubmitRequest {
            node: given(&self.node).unwrap_or_else(|| "localhost".to_owned()),
            work_type: self.worktype.clone(),
            params,
            tls_client,
            ttl,
            sign_work: self.signwork,
            ..SubmitRequest::default()
        })
    }

    async fn open_payload(&self, context: &CliContext) -> Result<SentPayload, Failure> {
        match (&self.payload, &self.payload_literal) {
            (Some(path), _) if path == "-" => Ok(SentPayload::stdin(context.output)),
            (Some(path), _) => SentPayload::file(path).await,
            (None, Some(text)) => Ok(SentPayload::text(format!("{text}\n").into_bytes())),
            (None, None) => Ok(SentPayload::text(Vec::new())),
        }
    }
}

/// Warns if the mesh knows no such node, because the job would wait for it, and the name may be mistyped.
async fn warn_of_stranger(context: &CliContext, node: &str) {
    let sections = [Section::NodeId, Section::Routes, Section::Costs];
    let fields = Some(sections.map(|section| section.to_string()).to_vec());
    let Ok(answer) = context.client.command(&Request::Status { fields }).await else { return };
    let Ok(mesh) = status::read(&answer) else { return };
    let known = Vec::from_iter(status::known(&mesh));
    if !known.contains(&node) {
        let near = nearest(node, &known).map(|near| format!(": did you mean {near}?")).unwrap_or_default();
        context
            .output
            .note(&format!("Warning: the mesh knows no node {node} now, so the job waits for it{near}"));
    }
}

fn ttl(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Ok(String::new());
    }
    crate::duration::parse(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

/// Why a submission failed.
pub(in crate::cli) fn not_accepted(error: CallError) -> Failure {
    match error {
        CallError::Refused(text) => {
            Failure::new(Exit::SubmitFailed, format!("the node does not accept the job: {text}"))
        }
        other => other.into(),
    }
}

/// Why a unit has not got its payload.
pub(in crate::cli) enum Unsent {
    /// We gave the unit up.
    GivenUp(Failure),
    /// The node refused it, or is gone.
    ByNode(CallError),
}

/// Sends the payload; if that is interrupted, or the payload cannot be read, the unit is given up.
pub(in crate::cli) async fn send(
    mut submission: PendingUnit,
    payload: SentPayload,
    output: Output,
) -> Result<SubmitEnd, Unsent> {
    let progress = PayloadProgress::new(payload.size, output);
    let sent = {
        let mut stop = pin!(interrupted());
        tokio::select! {
            sent = submission.send(payload.bytes, |bytes| progress.set(bytes)) => Some(sent),
            _signal = &mut stop => None,
        }
    };
    drop(progress);
    let (exit, cause) = match sent {
        Some(Ok(submitted)) => return Ok(submitted),
        Some(Err(error @ CallError::Payload(_))) => (Exit::SubmitFailed, error.to_string()),
        Some(Err(error)) => return Err(Unsent::ByNode(error)),
        None => (Exit::Interrupted, "interrupted while the payload was sent".to_owned()),
    };
    let unit = submission.unit().to_owned();
    let outcome = match submission.abandon().await {
        Ok(answer) if answer.get("released").is_some() => {
            format!("unit {unit} was given up, no job was started")
        }
        Ok(_pending) => format!("unit {unit} will be given up as soon as its node can be reached"),
        Err(error) => {
            format!("unit {unit} could not be given up and may start with part of its payload: {error}")
        }
    };
    Err(Unsent::GivenUp(Failure::new(exit, format!("{cause}; {outcome}"))))
}

/// The failure of a unit without a job. After a refusal the unit still exists, with the reason in its status. After a
/// lost connection it is not known what became of it.
async fn unaccepted(context: &CliContext, unit: &str, rm: bool, error: CallError) -> Failure {
    let refused = matches!(error, CallError::Refused(_));
    let failure = not_accepted(error);
    // An error of the clean-up is not told, because the first failure says more.
    if refused && rm && release(context, unit).await.is_ok() {
        return failure;
    }
    let rest = match refused {
        true => format!("(unit {unit} keeps the details)"),
        false => format!("(it is not known what became of unit {unit}: ask for its status)"),
    };
    Failure::new(failure.exit, format!("{} {rest}", failure.message))
}

async fn release(context: &CliContext, unit: &str) -> Result<(), Failure> {
    units::operate(&context.client, units::release(unit, false))
        .await
        .map(|_| ())
        .map_err(|error| Failure::new(Exit::Failed, format!("unit {unit} could not be released: {error}")))
}
