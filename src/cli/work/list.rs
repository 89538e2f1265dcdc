//! `meshctl work list`: the units of a node, the local one or another. Prints a table on a terminal, else JSON for
//! scripts written for receptorctl.

use clap::Args;
use serde_json::{Value, json};

use super::{follow::of_unit, units};
use crate::cli::{
    CliContext,
    completion::nodes,
    exit::{Exit, Failure},
    table::Layout,
};
use crate::rpc::request::{Request, WorkRequest};

#[derive(Debug, Args)]
pub(crate) struct ListCommand {
    /// Node whose units to list [default: the local one]
    #[arg(long, add = nodes())]
    node: Option<String>,
    /// Only this unit
    #[arg(long = "unit_id", alias = "unit-id", value_name = "ID")]
    unit_id: Option<String>,
    /// TLS profile of the local node for its connection to the other one
    #[arg(long, value_name = "NAME")]
    tls_client: Option<String>,
    #[command(flatten)]
    layout: Layout,
}

impl ListCommand {
    pub(super) async fn run(self, context: &CliContext) -> Result<Exit, Failure> {
        let answer = self.ask(context).await?;
        let output = context.output;
        if output.json && output.quiet {
            output.value(&json!(units::ids(&answer)))?;
        } else if output.quiet {
            units::ids(&answer).iter().try_for_each(|id| output.line(id))?;
        } else if output.json || !output.is_terminal() {
            output.value(&answer)?;
        } else {
            output.list("units", &units::read(&answer)?, units::COLUMNS, self.layout)?;
        }
        Ok(Exit::Success)
    }

    async fn ask(&self, context: &CliContext) -> Result<Value, Failure> {
        let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let mut connection = context.client.connect().await?;
        if let Some(node) = given(&self.node) {
            let tunnel = connection.connect_to(node, "control".to_owned(), given(&self.tls_client)).await?;
            connection = tunnel.into_connection().await?;
        }
        let list = Request::Work(WorkRequest::List { unit: given(&self.unit_id) });
        connection.command(&list).await.map_err(|error| of_unit(error, context))
    }
}
