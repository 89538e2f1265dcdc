//! `meshctl status`: the mesh as one node sees it.

mod links;
mod tables;

use std::collections::{BTreeMap, BTreeSet};

use clap::Args;
use serde_json::Value;

use super::{
    CliContext,
    exit::{Exit, Failure},
    table::Layout,
};
use crate::rpc::CallError;
use crate::rpc::report::{
    self,
    node::{NodeReport, Section},
};
use crate::rpc::request::Request;
use tables::render;

/// From more nodes than these on the tables are summed up.
const MANY: usize = 50;

#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    /// Show each link to a neighbour with its round trip, queue and traffic instead
    #[arg(long)]
    links: bool,
    /// Show all tables, also of a mesh of more than 50 nodes, of which a summary is shown otherwise
    #[arg(long, conflicts_with = "links")]
    all: bool,
    #[command(flatten)]
    layout: Layout,
}

impl StatusArgs {
    pub(super) async fn run(self, context: &CliContext) -> Result<Exit, Failure> {
        if self.links {
            return links::run(context, self.layout).await;
        }
        if context.output.json {
            let answer = context.client.command(&Request::Status { fields: None }).await?;
            context.output.value(&answer)?;
            return Ok(Exit::Success);
        }
        let sections = Section::USUAL.into_iter().chain([Section::Ending, Section::Outages]);
        let fields = Some(sections.map(|section| section.to_string()).collect());
        let mesh = read(&context.client.command(&Request::Status { fields }).await?)?;
        let is_summary = !self.all && known(&mesh).len() > MANY;
        let (socket, width, now) = (context.client.address(), context.output.width(), context.output.now());
        context.output.line(&render(&mesh, &socket, width, &now, is_summary))?;
        Ok(Exit::Success)
    }
}

/// The nodes that the report names.
pub(super) fn known(mesh: &NodeReport) -> BTreeSet<&str> {
    let routes = mesh.routing_table.iter().flat_map(|routes| routes.keys());
    let costs = mesh.known_connection_costs.iter().flat_map(|costs| costs.keys());
    let advertised = mesh.advertisements.iter().flatten().map(|one| one.node_id.as_str());
    routes.chain(costs).chain(&mesh.node_id).map(String::as_str).chain(advertised).collect()
}

/// The links by their ends, the lesser name first, with the cost at each end.
pub(super) fn links(mesh: &NodeReport) -> BTreeMap<(String, String), [Option<f64>; 2]> {
    let links = mesh.link_costs().into_iter();
    links.map(|((a, b), costs)| ((a.to_owned(), b.to_owned()), costs)).collect()
}

/// A `status` answer as a report.
pub(super) fn read(answer: &Value) -> Result<NodeReport, CallError> {
    report::read(answer)
        .map_err(|error| CallError::Protocol { question: "status", answer: error.to_string() })
}
