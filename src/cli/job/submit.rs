//! Hands a stream and its header to the controller, and waits until it is a job.

use std::pin::pin;

use super::follow::JobNumber;
use crate::cli::CliContext;
use crate::cli::exit::{Exit, Failure};
use crate::cli::output::interrupted;
use crate::cli::wait::POLL;
use crate::cli::work::payload::SentPayload;
use crate::cli::work::submit::{Unsent, not_accepted, send};
use crate::rpc::request::SubmitRequest;
use crate::rpc::{CallError, ErrorCode, SubmitEnd};
use crate::work::jobs::{CONTROLLER, HEADER, LONGEST_HEADER, NO_CONTROLLER};

/// Submits a stream, and returns the job's number.
///
/// # Errors
/// It was not accepted, or we were interrupted: half a stream never becomes a job.
pub(super) async fn submit(
    context: &CliContext,
    payload: SentPayload,
    header: Option<String>,
) -> Result<(JobNumber, SubmitEnd), Failure> {
    let (payload, header) = match header {
        Some(long) if long.len() > LONGEST_HEADER => (payload.behind(&long), None),
        header => (payload, header),
    };
    let request = SubmitRequest {
        node: "localhost".to_owned(),
        work_type: CONTROLLER.to_owned(),
        params: header.into_iter().map(|header| (HEADER.to_owned(), header)).collect(),
        payload_length: payload.size,
        ..SubmitRequest::default()
    };
    let refused = |error| match error {
        CallError::Refused(line) if line.code() == ErrorCode::UnknownWorkType => {
            Failure::new(Exit::SubmitFailed, NO_CONTROLLER)
        }
        error => not_accepted(error),
    };
    let unit = context.client.submit(request).await.map_err(refused)?;
    let submitted = match send(unit, payload, context.output).await {
        Ok(submitted) => submitted,
        Err(Unsent::GivenUp(failure)) => return Err(failure),
        Err(Unsent::ByNode(error)) => return Err(not_accepted(error)),
    };
    let id = number_of(context, &submitted.unit).await?;
    Ok((id, submitted))
}

/// The number of a unit's job, once it has one.
///
/// # Errors
/// It was not accepted, or we were interrupted.
pub(in crate::cli) async fn number_of(context: &CliContext, unit: &str) -> Result<JobNumber, Failure> {
    let mut stop = pin!(interrupted());
    loop {
        let status = context.client.unit_status(unit).await?;
        if let Some(id) = status.extra_data["JobID"].as_i64() {
            return Ok(id);
        }
        if status.state.is_final() {
            return Err(Failure::new(Exit::SubmitFailed, status.detail));
        }
        tokio::select! {
            () = tokio::time::sleep(POLL) => {}
            failure = &mut stop => {
                let advice = format!("unit {unit} becomes a job once the store is back");
                return Err(Failure::new(failure.exit, advice));
            }
        }
    }
}
