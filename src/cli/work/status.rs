//! `meshctl work status`: the state of single units.

use clap::Args;
use serde_json::{Map, Value};

use super::{follow::of_unit, units};
use crate::cli::{
    CliContext,
    exit::{Exit, Failure},
    table::Layout,
};
use crate::rpc::CallError;
use crate::rpc::request::{Request, WorkRequest};

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// Unit IDs
    #[arg(required = true)]
    unit_ids: Vec<String>,
    #[command(flatten)]
    layout: Layout,
}

impl StatusArgs {
    pub(super) async fn run(self, context: &CliContext) -> Result<Exit, Failure> {
        let mut answers = Map::new();
        let mut exit = Exit::Success;
        for id in self.unit_ids {
            let status = Request::Work(WorkRequest::Status { unit: id.clone(), signature: None });
            match context.client.command(&status).await {
                Ok(answer) => drop(answers.insert(id, answer)),
                // The other units may exist even if this one is gone.
                Err(error @ CallError::Refused(_)) => {
                    let failure = of_unit(error, context);
                    context.output.failure(&failure);
                    exit = failure.exit;
                }
                Err(error) => return Err(error.into()),
            }
        }
        let answers = Value::Object(answers);
        if context.output.json {
            context.output.value(&answers)?;
        } else if answers != Value::Object(Map::new()) {
            context.output.list("units", &units::read(&answers)?, units::COLUMNS, self.layout)?;
        }
        Ok(exit)
    }
}
