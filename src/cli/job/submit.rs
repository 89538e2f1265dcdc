//! Hands a stream and its header to the controller, and waits until it is a job.

use std::pin::pin;

use super::follow::JobId;
use crate::cli::Context;
use crate::cli::exit::{Exit, Failure};
use crate::cli::output::interrupted;
use crate::cli::wait::POLL;
use crate::cli::work::payload::Payload;
use crate::cli::work::submit::{Unsent, not_accepted, send};
use crate::rpc::request::SubmitRequest;
use crate::rpc::{CallError, ErrorCode, Submitted};
use crate::work::jobs::{CONTROLLER, HEADER, LONGEST_HEADER, NO_CONTROLLER};

/// Submits a stream, and returns the job's number.
///
/// # Errors
/// It was not accepted, or we were interrupted: half a stream never becomes a job.
pub(super) async fn submit(
    context: &Context,
    payload: Payload,
    header: Option<String>,
) -> Result<(JobId, Submitted), Failure> {
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
    let mut stop = pin!(interrupted());
    loop {
        let status = context.client.unit_status(&submitted.unit).await?;
        if let Some(id) = status.extra_data["JobID"].as_i64() {
            return Ok((id, submitted));
        }
        if status.state.is_final() {
            return Err(Failure::new(Exit::SubmitFailed, status.detail));
        }
        tokio::select! {
            () = tokio::time::sleep(POLL) => {}
            failure = &mut stop => {
                let advice = format!("unit {} becomes a job once the store is back", submitted.unit);
                return Err(Failure::new(failure.exit, advice));
            }
        }
    }
}
