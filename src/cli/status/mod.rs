//! `meshctl status`: the mesh as one node sees it.

mod links;
mod tables;

use std::collections::BTreeSet;

use clap::Args;
use jiff::Timestamp;
use serde_json::Value;

use super::{
    Context,
    exit::{Exit, Failure},
    table::Layout,
};
use crate::rpc::CallError;
use crate::rpc::report::{self, node::NodeReport};
use crate::rpc::request::Request;
use tables::render;

#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    /// Show each link to a neighbour with its round trip, queue and traffic instead
    #[arg(long)]
    links: bool,
    #[command(flatten)]
    layout: Layout,
}

impl StatusArgs {
    pub(super) async fn run(self, context: &Context) -> Result<Exit, Failure> {
        if self.links {
            return links::run(context, self.layout).await;
        }
        let answer = context.client.command(&Request::Status { fields: None }).await?;
        if context.output.json {
            context.output.value(&answer)?;
        } else {
            let (socket, width) = (context.client.address(), context.output.width());
            context.output.line(&render(&read(&answer)?, &socket, width, Timestamp::now()))?;
        }
        Ok(Exit::Success)
    }
}

/// The nodes of which it tells.
pub(super) fn known(mesh: &NodeReport) -> BTreeSet<&str> {
    let routes = mesh.routing_table.iter().flat_map(|routes| routes.keys());
    let costs = mesh.known_connection_costs.iter().flat_map(|costs| costs.keys());
    let advertised = mesh.advertisements.iter().flatten().map(|one| one.node_id.as_str());
    routes.chain(costs).chain(&mesh.node_id).map(String::as_str).chain(advertised).collect()
}

/// A `status` answer as a report.
pub(super) fn read(answer: &Value) -> Result<NodeReport, CallError> {
    report::read(answer)
        .map_err(|error| CallError::Protocol { question: "status", answer: error.to_string() })
}
