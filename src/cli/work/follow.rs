//! Copies a unit's output to standard output as it comes, and turns the unit's end into an exit code. Owns the advice
//! to the user if we leave before the job is done.

use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;

use serde_json::Value;
use tokio::time::sleep;

use crate::cli::{
    CliContext,
    exit::{Exit, Failure},
    output::interrupted,
    status,
};
use crate::rpc::report::node::Section;
use crate::rpc::request::Request;
use crate::rpc::{CallError, FollowEvent, FollowedOutput, UnitReport, UnitState};

/// How often a unit that has not started is looked at.
const WAITING: Duration = Duration::from_secs(2);

/// Follows `unit` from byte `start` of its output to its end. With `--json` the final status goes to standard
/// error, since standard output is the job's own.
pub(super) async fn follow(context: &CliContext, unit: &str, start: u64) -> Result<Exit, Failure> {
    let mut stream = context.client.results(unit, start).await.map_err(|error| of_unit(error, context))?;
    let copied = {
        let mut copy = pin!(copy(context, &mut stream));
        let mut stop = pin!(interrupted());
        tokio::select! {
            copied = &mut copy => copied,
            never = tell(context, unit) => match never {},
            failure = &mut stop => Err(failure),
        }
    };
    match copied {
        Ok((report, answer)) => Ok(ended(context, unit, &report, answer)),
        Err(failure) => Err(left_early(context, unit, stream.position(), failure)),
    }
}

/// Prints what `unit` writes to its stderr, from byte `start` on to its end.
pub(super) async fn stderr(context: &CliContext, unit: &str, start: u64) -> Result<Exit, Failure> {
    let mut stream = context.client.stderr(unit, start).await.map_err(|error| of_unit(error, context))?;
    let mut raw = context.output.foreign_bytes();
    raw.copy("stderr is", stream.reader()).await?;
    raw.finish().await?;
    Ok(Exit::Success)
}

/// Says once that a unit has not started because its node is out of reach.
async fn tell(context: &CliContext, unit: &str) -> Infallible {
    if context.output.json || context.output.quiet {
        return std::future::pending().await;
    }
    loop {
        sleep(WAITING).await;
        // The copy of the output reports that our own node is away.
        let Ok(report) = context.client.unit_status(unit).await else { continue };
        if report.state == UnitState::Pending
            && let Some((node, _)) = report.remote()
        {
            if !lacks_route(context, node).await {
                continue;
            }
            let why = format!("Waiting for node {node}, trying again: no route to node {node}");
            context.output.note(&format!("Unit {unit} waits: {why}"));
        }
        break;
    }
    std::future::pending().await
}

/// Whether our node says that it has no route to `node`.
async fn lacks_route(context: &CliContext, node: &str) -> bool {
    let routes = Request::Status { fields: Some(vec![Section::Routes.to_string()]) };
    let Ok(answer) = context.client.command(&routes).await else { return false };
    let routes = status::read(&answer).ok().and_then(|report| report.routing_table);
    routes.is_some_and(|routes| !routes.contains_key(node))
}

async fn copy(context: &CliContext, stream: &mut FollowedOutput) -> Result<(UnitReport, Value), Failure> {
    let mut output = context.output.foreign_bytes();
    loop {
        match stream.next().await.map_err(|error| of_unit(error, context))? {
            FollowEvent::Data(bytes) => output.write(&bytes).await?,
            FollowEvent::Lost(error) => {
                context.output.note(&format!("meshctl: {error}; waiting for the node ..."))
            }
            FollowEvent::Resumed => {
                context.output.note("meshctl: the node is back; continuing where the output stopped")
            }
            FollowEvent::End { report, answer } => {
                output.finish().await?;
                return Ok((report, answer));
            }
        }
    }
}

fn ended(context: &CliContext, unit: &str, report: &UnitReport, mut answer: Value) -> Exit {
    if context.output.json {
        answer["unitid"] = unit.into();
        context.output.value_note(&answer);
    }
    match report.state {
        UnitState::Succeeded => return Exit::Success,
        UnitState::Pending | UnitState::Running | UnitState::Failed | UnitState::Canceled => {}
    }
    if !context.output.json {
        let state = report.state.name().to_lowercase();
        context.output.error(&format!("meshctl: unit {unit} {state}: {}", report.detail));
    }
    Exit::Failed
}

fn left_early(context: &CliContext, unit: &str, position: u64, failure: Failure) -> Failure {
    if failure.exit != Exit::Interrupted && failure.exit != Exit::Unreachable {
        return failure;
    }
    let meshctl = format!("meshctl --socket {}", context.client.address());
    let advice = format!(
        "unit {unit} goes on without meshctl\n  follow it:  {meshctl} work results {unit} --start {position}\n  \
         stop it:    {meshctl} work cancel {unit}"
    );
    match failure.message.as_str() {
        "" => Failure::new(failure.exit, advice),
        message => Failure::new(failure.exit, format!("{message}\n{advice}")),
    }
}

/// The failure of a request about a unit; if no such unit is known, with the command that lists the units.
pub(super) fn of_unit(error: CallError, context: &CliContext) -> Failure {
    let unknown = matches!(&error, CallError::Refused(line) if line.code().is_no_unit());
    let failure = Failure::from(error);
    if !unknown {
        return failure;
    }
    let list = format!("meshctl --socket {} work list", context.client.address());
    Failure::new(failure.exit, format!("{}; the node's units: {list}", failure.message))
}
