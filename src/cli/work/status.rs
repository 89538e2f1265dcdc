//! `meshctl work status`: the state of single units.

use clap::Args;
use serde_json::{Map, Value};

use super::{follow::of_unit, times, units};
use crate::cli::{
    Context,
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
    /// Show when the units took their steps, on each node by its own clock
    #[arg(long)]
    times: bool,
    #[command(flatten)]
    layout: Layout,
}

impl StatusArgs {
    pub(super) async fn run(self, context: &Context) -> Result<Exit, Failure> {
        let mut answers = Map::new();
        let mut exit = Exit::Success;
        for id in self.unit_ids {
            let status = Request::Work(WorkRequest::Status { unit: id.clone(), signature: None });
            match context.client.command(&status).await {
                Ok(answer) => drop(answers.insert(id, answer)),
                // One unit that is gone says nothing about the others.
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
        } else if self.times {
            for (id, report) in units::read(&answers)? {
                context.output.line(&times::text(&id, &report))?;
            }
        } else if answers != Value::Object(Map::new()) {
            context.output.list("units", &units::read(&answers)?, units::COLUMNS, self.layout)?;
        }
        Ok(exit)
    }
}
