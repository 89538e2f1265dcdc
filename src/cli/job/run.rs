//! `meshctl job run`: makes a job of a directory, submits it, prints what its playbook prints, and ends as it does.
//! Owns what Ctrl-C means: the first one cancels the job, the second one leaves it, and says what is so then.

use std::pin::pin;

use serde_json::json;
use tokio::sync::mpsc;

use super::artifacts::Artifacts;
use super::flags::RunFlags;
use super::follow::{JobId, OutputOf, cancel, ending, exit_of, final_job};
use super::pack::{Bundle, Typed};
use super::playbook::Playbook;
use super::submit::submit;
use super::tell::tell;
use super::transmit::Stream;
use crate::cli::Context;
use crate::cli::exit::{Exit, Failure};
use crate::cli::output::{Interrupts, Output};
use crate::cli::work::payload::Payload;

/// Pieces of output that wait for a slow terminal.
const AHEAD: usize = 4;

impl RunFlags {
    pub(super) async fn run(mut self: Box<Self>, context: &Context) -> Result<Exit, Failure> {
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
        let payload = Payload { size: Some(stream.length()), bytes: Box::new(stream) };
        let (id, submitted) = submit(context, payload, Some(header)).await?;
        output.note(&format!("Job {id}"));
        if detach {
            let json = json!({"id": id, "unit": submitted.unit, "result": submitted.result});
            return output.answer(&json, || id.to_string());
        }
        let mut playbook = Playbook::new(output, artifacts);
        let cancel = watch(context, id, &mut playbook, &mut interrupts).await?;
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
                output.error(&ending(&job.report));
            }
        }
        Ok(exit)
    }
}

/// The stream of the job.
fn pack(flags: &RunFlags, typed: &Typed, output: Output) -> Result<Stream, Failure> {
    let ident = format!("{:032x}", rand::random::<u128>());
    let job = Bundle::collect(flags, typed, &ident, &|name| std::env::var(name).ok())?;
    job.warnings.iter().for_each(|warning| output.note(&format!("meshctl: {warning}")));
    Stream::new(&job.kwargs, &job.tree)
        .map_err(|error| Failure::new(Exit::Failed, format!("cannot pack the job: {error}")))
}

/// What became of the wish to cancel the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cancel {
    /// Nobody has it, or the node refused.
    None,
    /// The node has not answered yet.
    Asked,
    /// The node has saved it.
    Saved,
}

/// Prints the job's output to its end.
async fn watch(
    context: &Context,
    id: JobId,
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
                        Err(error) => context.output.error(&format!("meshctl: job {id} is not cancelled: {error}")),
                    },
                    failure = interrupts.next() => return Err(left(context, id, Cancel::Asked, failure)),
                }
            }
        }
    }
}

async fn cancel_and_say(context: &Context, id: JobId) -> Result<(), Failure> {
    context
        .output
        .note(&format!("meshctl: cancelling job {id} and waiting for its end; Ctrl-C again leaves it"));
    cancel(context, id).await
}

fn left(context: &Context, id: JobId, cancel: Cancel, failure: Failure) -> Failure {
    let meshctl = format!("meshctl --socket {}", context.client.address());
    let what = match cancel {
        Cancel::None => "goes on without us",
        Cancel::Asked => "goes on without us, unless the node has our cancel already",
        Cancel::Saved => "is being cancelled, and ends without us",
    };
    Failure::new(failure.exit, format!("job {id} {what}; look after it: {meshctl} job show {id}"))
}
