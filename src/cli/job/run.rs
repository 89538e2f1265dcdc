//! `meshctl job run`: makes a job of a directory, submits it, prints what its playbook prints, and exits with its
//! result, as `meshctl job rerun --follow` does for a job that is there. Owns what Ctrl-C means: the first one cancels the job, the second one leaves the job and says what becomes
//! of it.

use std::pin::pin;

use serde_json::json;
use tokio::sync::mpsc;

use super::artifacts::Artifacts;
use super::flags::RunFlags;
use super::follow::{JobNumber, OutputOf, cancel, ending, exit_of, final_job};
use super::playbook::Playbook;
use super::secrets::Typed;
use super::submit::submit;
use super::tell::tell;
use crate::cli::CliContext;
use crate::cli::exit::{Exit, Failure};
use crate::cli::output::{Interrupts, Output};
use crate::cli::work::payload::SentPayload;
use crate::controller::pack::PackedStream;

/// Most pieces of output that wait for a slow terminal.
const AHEAD: usize = 4;

impl RunFlags {
    pub(super) async fn run(mut self: Box<Self>, context: &CliContext) -> Result<Exit, Failure> {
        self.settle()?;
        let (output, detach) = (context.output, self.detach);
        let typed = Typed::ask(&self).await?;
        let mut interrupts = Interrupts::new();
        let create = |directory| Artifacts::create(directory, self.artifacts_limit);
        let artifacts = self.artifacts.as_deref().map(create).transpose()?;
        let header = self.header().to_string();
        let packed = tokio::task::spawn_blocking(move || pack(&self, &typed, output));
        let stream = tokio::select! {
            packed = packed => packed.map_err(|error| Failure::new(Exit::Failed, error.to_string()))??,
            failure = interrupts.next() => return Err(failure),
        };
        let payload = SentPayload { size: Some(stream.length()), bytes: Box::new(stream) };
        let (id, submitted) = submit(context, payload, Some(header)).await?;
        output.note(&format!("Job {id}"));
        if detach {
            let json = json!({"id": id, "unit": submitted.unit, "result": submitted.result});
            return output.answer(&json, || id.to_string());
        }
        attend(context, id, artifacts, &mut interrupts).await
    }
}

/// As [`attend`], without artifacts.
pub(in crate::cli) async fn attend_job(
    context: &CliContext,
    id: JobNumber,
    interrupts: &mut Interrupts,
) -> Result<Exit, Failure> {
    attend(context, id, None, interrupts).await
}

/// Prints what a job's playbook prints, up to the job's end, and returns the job's result. The first Ctrl-C cancels the
/// job.
pub(super) async fn attend(
    context: &CliContext,
    id: JobNumber,
    artifacts: Option<Artifacts>,
    interrupts: &mut Interrupts,
) -> Result<Exit, Failure> {
    let output = context.output;
    let mut playbook = Playbook::new(output, artifacts);
    let cancel = watch(context, id, &mut playbook, interrupts).await?;
    let job = tokio::select! {
        job = final_job(context, id) => job?,
        failure = interrupts.next() => return Err(left(context, id, cancel, failure)),
    };
    let (exit, rest) = (exit_of(&job.report), playbook.finish(&job.report)?);
    if output.json {
        output.value(&job.json)?;
    } else {
        output.bytes(rest.as_bytes()).await?;
        if exit != Exit::Success {
            output.error(&ending(&job.report, &output.now()));
        }
    }
    Ok(exit)
}

/// Packs the job into a stream.
fn pack(flags: &RunFlags, typed: &Typed, output: Output) -> Result<PackedStream, Failure> {
    let ident = format!("{:032x}", rand::random::<u128>());
    let job = flags.pack(typed, &ident, &|name| std::env::var(name).ok())?;
    job.warnings.iter().for_each(|warning| output.note(&format!("meshctl: {warning}")));
    job.stream().map_err(|error| Failure::new(Exit::Failed, format!("cannot pack the job: {error}")))
}

/// How far a request to cancel the job has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cancel {
    /// There is no request, or it failed.
    None,
    /// The node has not answered yet.
    Asked,
    /// The node has saved it.
    Saved,
}

/// Prints the job's output to its end.
async fn watch(
    context: &CliContext,
    id: JobNumber,
    playbook: &mut Playbook,
    interrupts: &mut Interrupts,
) -> Result<Cancel, Failure> {
    let (sender, mut pieces) = mpsc::channel(AHEAD);
    let mut from = OutputOf::new(context, id, true);
    tokio::spawn(async move {
        while let Some(piece) = from.next().await.transpose() {
            if sender.send(piece).await.is_err() {
                break;
            }
        }
    });
    let mut telling = pin!(tell(context, id));
    let (mut was_interrupted, mut cancelled) = (false, Cancel::None);
    loop {
        tokio::select! {
            piece = pieces.recv() => match piece {
                None => return Ok(cancelled),
                Some(piece) => {
                    let text = playbook.push(&piece?)?;
                    if !context.output.json {
                        context.output.bytes(text.as_bytes()).await?;
                    }
                }
            },
            () = &mut telling, if !was_interrupted => {}
            failure = interrupts.next() => {
                if std::mem::replace(&mut was_interrupted, true) {
                    return Err(left(context, id, cancelled, failure));
                }
                tokio::select! {
                    saved = cancel_and_say(context, id) => match saved {
                        Ok(()) => cancelled = Cancel::Saved,
                        Err(error) => context.output.error(&format!("meshctl: cannot cancel job {id}: {error}")),
                    },
                    failure = interrupts.next() => return Err(left(context, id, Cancel::Asked, failure)),
                }
            }
        }
    }
}

async fn cancel_and_say(context: &CliContext, id: JobNumber) -> Result<(), Failure> {
    context
        .output
        .note(&format!("meshctl: cancelling job {id} and waiting for it to end; Ctrl-C again stops waiting"));
    cancel(context, id).await
}

fn left(context: &CliContext, id: JobNumber, cancel: Cancel, failure: Failure) -> Failure {
    let meshctl = format!("meshctl --socket {}", context.client.address());
    let what = match cancel {
        Cancel::None => "goes on without meshctl",
        Cancel::Asked => "goes on without meshctl, unless the cancel has reached the node already",
        Cancel::Saved => "is being cancelled, and ends without meshctl",
    };
    Failure::new(failure.exit, format!("job {id} {what}; to see what becomes of it: {meshctl} job show {id}"))
}
