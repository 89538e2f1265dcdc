//! Copies a unit's output to standard output as it comes, and turns the unit's end into ours. Owns what a user is
//! told when we have to leave before the job is done.

use std::pin::pin;

use crate::cli::{
    Context,
    exit::{Exit, Failure},
    output::interrupted,
};
use crate::rpc::client::{ControlError, ResultEvent, ResultStream, UnitReport, UnitState};

/// Follows `unit` from byte `start` of its output to its end. With `--json` the final status goes to standard
/// error, since standard output is the job's own.
///
/// # Errors
/// A [`Failure`] if we were interrupted, nobody reads us, or the node stayed away.
pub async fn follow(context: &Context, unit: &str, start: u64) -> Result<Exit, Failure> {
    let mut stream = context.client.results(unit, start).await.map_err(|error| of_unit(error, context))?;
    let copied = {
        let mut copy = pin!(copy(context, &mut stream));
        let mut stop = pin!(interrupted());
        tokio::select! {
            copied = &mut copy => copied,
            failure = &mut stop => Err(failure),
        }
    };
    match copied {
        Ok(report) => Ok(ended(context, unit, &report)),
        Err(failure) => Err(left_early(context, unit, stream.position(), failure)),
    }
}

async fn copy(context: &Context, stream: &mut ResultStream) -> Result<UnitReport, Failure> {
    loop {
        match stream.next().await.map_err(|error| of_unit(error, context))? {
            ResultEvent::Data(bytes) => context.output.bytes(&bytes).await?,
            ResultEvent::Lost(error) => {
                context.output.note(&format!("meshctl: {error}; waiting for the node ..."))
            }
            ResultEvent::Resumed => {
                context.output.note("meshctl: the node is back; going on where it stopped")
            }
            ResultEvent::End(report) => return Ok(report),
        }
    }
}

fn ended(context: &Context, unit: &str, report: &UnitReport) -> Exit {
    if context.output.json {
        let mut status = report.raw.clone();
        status["unitid"] = unit.into();
        context.output.note(&status.to_string());
    }
    match report.state {
        UnitState::Succeeded => return Exit::Success,
        UnitState::Pending
        | UnitState::Running
        | UnitState::Failed
        | UnitState::Canceled
        | UnitState::Unknown(_) => {}
    }
    if !context.output.json {
        let state = report.state.name().to_lowercase();
        context.output.note(&format!("meshctl: unit {unit} {state}: {}", report.detail));
    }
    Exit::Failed
}

fn left_early(context: &Context, unit: &str, position: u64, failure: Failure) -> Failure {
    match failure.exit {
        Exit::Interrupted | Exit::Unreachable => {}
        Exit::Success
        | Exit::Failed
        | Exit::NoReply
        | Exit::ReloadNeedsRestart
        | Exit::ReloadUnreadable
        | Exit::ReloadFailed
        | Exit::Usage
        | Exit::SubmitFailed
        | Exit::BrokenPipe => return failure,
    }
    let meshctl = format!("meshctl --socket {}", context.client.endpoint());
    let advice = format!(
        "unit {unit} goes on without us\n  follow it:  {meshctl} work results {unit} --start {position}\n  stop it:    {meshctl} work cancel {unit}"
    );
    match failure.message.as_str() {
        "" => Failure::new(failure.exit, advice),
        message => Failure::new(failure.exit, format!("{message}\n{advice}")),
    }
}

/// A refusal to do something with a unit, with a way on.
pub fn of_unit(error: ControlError, context: &Context) -> Failure {
    let unknown = match &error {
        ControlError::Refused(text) => text.contains("unknown work unit"),
        _ => false,
    };
    let failure = Failure::from(error);
    if !unknown {
        return failure;
    }
    let list = format!("meshctl --socket {} work list", context.client.endpoint());
    Failure::new(failure.exit, format!("{}; the node's units: {list}", failure.message))
}
