//! `meshctl work release`: stops and deletes units, one by one or all.

use clap::Args;

use super::units::{Outcomes, ids, operate, release};
use crate::cli::{
    CliContext,
    exit::{Exit, Failure},
};
use crate::rpc::request::{Request, WorkRequest};

#[derive(Debug, Args)]
pub(crate) struct ReleaseCommand {
    /// Unit IDs
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    unit_ids: Vec<String>,
    /// Delete here even if the node that runs the job cannot be reached
    #[arg(long)]
    force: bool,
    /// Release every unit of the node
    #[arg(long)]
    all: bool,
}

impl ReleaseCommand {
    pub(super) async fn run(self, context: &CliContext) -> Result<Exit, Failure> {
        let units = if self.all {
            ids(&context.client.command(&Request::Work(WorkRequest::List { unit: None })).await?)
        } else {
            self.unit_ids
        };
        let mut outcomes = Outcomes::new();
        for unit in units {
            let outcome = operate(&context.client, release(&unit, self.force)).await;
            outcomes.add(unit, outcome);
        }
        outcomes.print(context)
    }
}
