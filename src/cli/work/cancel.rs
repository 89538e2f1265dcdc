//! `meshctl work cancel`: stops units, and says of each whether there was anything to stop.

use clap::Args;

use super::units::{Outcomes, operate};
use crate::cli::{
    CliContext,
    exit::{Exit, Failure},
};
use crate::rpc::CallError;
use crate::rpc::request::WorkRequest;

#[derive(Debug, Args)]
pub(crate) struct Cancel {
    /// Unit IDs
    #[arg(required = true)]
    unit_ids: Vec<String>,
}

impl Cancel {
    pub(super) async fn run(self, context: &CliContext) -> Result<Exit, Failure> {
        let mut outcomes = Outcomes::new();
        for unit in self.unit_ids {
            let outcome = cancel(context, &unit).await;
            outcomes.add(unit, outcome);
        }
        outcomes.print(context)
    }
}

/// Cancels a unit that has not ended. Looks first, because nodes answer "cancelled" even if the unit ended long ago.
async fn cancel(context: &CliContext, unit: &str) -> Result<String, CallError> {
    let state = context.client.unit_status(unit).await?.state;
    if state.is_final() {
        return Ok(format!("nothing to cancel: it has already ended ({})", state.name()));
    }
    let cancel = WorkRequest::Cancel { unit: unit.to_owned(), signature: None };
    operate(&context.client, cancel).await
}
