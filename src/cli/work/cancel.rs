//! `meshctl work cancel`: stops units, and says of each whether that was still to be done.

use clap::Args;

use super::units::{Outcomes, operate};
use crate::cli::{
    Context,
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
    pub(super) async fn run(self, context: &Context) -> Result<Exit, Failure> {
        let mut outcomes = Outcomes::new();
        for unit in self.unit_ids {
            let outcome = cancel(context, &unit).await;
            outcomes.add(unit, outcome);
        }
        outcomes.print(context)
    }
}

/// Nodes answer "cancelled" for units that ended long ago, which would be a lie to pass on.
async fn cancel(context: &Context, unit: &str) -> Result<String, CallError> {
    let state = context.client.unit_status(unit).await?.state;
    if state.is_final() {
        return Ok(format!("nothing to cancel, it had ended already ({})", state.name()));
    }
    let cancel = WorkRequest::Cancel { unit: unit.to_owned(), signature: None };
    operate(&context.client, cancel).await
}
