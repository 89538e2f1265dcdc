//! `meshctl work release`: stops and deletes units, one by one or all.

use clap::Args;

use super::units::{Outcomes, ids, operate};
use crate::cli::{
    Context,
    exit::{Exit, Failure},
};
use crate::rpc::client::Command;

/// Arguments of `meshctl work release`.
#[derive(Debug, Args)]
pub struct Release {
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

impl Release {
    pub(super) async fn run(self, context: &Context) -> Result<Exit, Failure> {
        let verb = if self.force { "force-release" } else { "release" };
        let units = if self.all {
            ids(&context.client.command(&Command::words("work list")?).await?)
        } else {
            self.unit_ids
        };
        let mut outcomes = Outcomes::new();
        for unit in units {
            let outcome = operate(&context.client, verb, &unit).await;
            outcomes.add(unit, outcome);
        }
        outcomes.print(context)
    }
}
