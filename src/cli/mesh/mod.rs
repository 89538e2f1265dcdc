//! `meshctl mesh check`: the mesh beside a file that says what it should be. Asks the node, its controller, and every
//! node for its version and its certificates; [`compare`] and [`file`] know the rest.

mod compare;
mod file;
mod inventory;

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use futures_util::{StreamExt as _, stream};
use serde_json::json;

use self::compare::{Difference, RealMesh, RealNode};
use self::file::{MeshFile, role};
use super::exit::{Exit, Failure};
use super::table::{Column, Layout, always, count, said};
use super::{CliContext, doctor, existing_path, status};
use crate::rpc::operation::{self, InstanceFilter, Nothing};
use crate::rpc::report::doctor::{DoctorReport, NoAnswer, NoAnswerCause};
use crate::rpc::report::node::Section;
use crate::rpc::request::Request;

/// Nodes that are asked at the same time.
const AT_ONCE: usize = 8;

const COLUMNS: &[Column<Difference>] = &[
    always("KIND", |one, _| one.kind.name().to_owned()),
    always("WHAT", |one, _| one.what.clone()),
    said("WANTED", |one, _| one.wanted.clone()),
    said("FOUND", |one, _| one.found.clone()),
];

#[derive(Debug, Subcommand)]
pub(super) enum MeshVerb {
    /// Compare the mesh with a file that says what it should be; exits with 1 if they differ
    Check(MeshCheck),
}

#[derive(Debug, Args)]
pub(super) struct MeshCheck {
    /// The wanted mesh: what --print has written, or the inventory of AWX's installer
    #[arg(value_name = "FILE", value_parser = existing_path(), required_unless_present = "print")]
    file: Option<PathBuf>,
    /// Write the mesh as it is now as such a file
    #[arg(long, conflicts_with = "file")]
    print: bool,
    #[command(flatten)]
    layout: Layout,
}

impl MeshVerb {
    pub(super) async fn run(self, context: &CliContext) -> Result<Exit, Failure> {
        match self {
            Self::Check(check) => check.run(context).await,
        }
    }
}

impl MeshCheck {
    async fn run(self, context: &CliContext) -> Result<Exit, Failure> {
        let Some(path) = self.file else {
            let file = ask(context).await?.file();
            return context.output.answer(&json!(file), || {
                serde_saphyr::to_string(&file)
                    .map_or_else(|error| error.to_string(), |text| text.trim_end().to_owned())
            });
        };
        let text = std::fs::read_to_string(&path).map_err(|error| error.to_string());
        let file = text.and_then(|text| MeshFile::read(&text));
        let file = file.map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
        let compared = ask(context).await?.compare(&file, &context.output.now());
        if context.output.json {
            context.output.value(&json!(compared))?;
        } else if compared.differences.is_empty() {
            let (nodes, links) = (count(file.nodes.len(), "node"), count(file.links().len(), "link"));
            context.output.done(&format!("The mesh is as {} says: {nodes}, {links}", path.display()))?;
        } else {
            context.output.list("differences", &compared.differences, COLUMNS, self.layout)?;
        }
        if !context.output.json {
            compared
                .not_compared
                .iter()
                .for_each(|what| context.output.note(&format!("not compared: {what}")));
        }
        Ok(if compared.differences.is_empty() { Exit::Success } else { Exit::Failed })
    }
}

/// Asks the node for the mesh, its controller for roles and groups, and each node for itself.
async fn ask(context: &CliContext) -> Result<RealMesh, Failure> {
    let sections = Section::USUAL.into_iter().chain([Section::BrokenLinks]);
    let fields = Some(sections.map(|section| section.to_string()).collect());
    let report = status::read(&context.client.command(&Request::Status { fields }).await?)?;
    let own = report.node_id.clone().unwrap_or_default();
    let is_reachable = |name: &str| {
        name == own || report.routing_table.as_ref().is_some_and(|routes| routes.contains_key(name))
    };
    let known: Vec<String> = status::known(&report).into_iter().map(str::to_owned).collect();
    let told = known.into_iter().map(|name| {
        let is_reachable = is_reachable(&name);
        async move {
            let told = if is_reachable { itself(context, &name).await } else { DoctorReport::default() };
            let version = Some(told.version).filter(|version| !version.is_empty());
            let (certificates, refused) =
                (told.certificates_ending, told.refused.map(|refused| refused.text));
            (name, RealNode { is_reachable, version, certificates, refused, ..RealNode::default() })
        }
    });
    let mut real =
        RealMesh { nodes: stream::iter(told).buffered(AT_ONCE).collect().await, ..RealMesh::default() };
    real.links = status::links(&report);
    real.broken = report.broken_links.unwrap_or_default();
    let instances = operation::list_instances(InstanceFilter::default()).ask(&context.client).await;
    let groups = operation::list_groups(Nothing {}).ask(&context.client).await;
    let (Ok(instances), Ok(groups)) = (instances, groups) else { return Ok(real) };
    let reserved: BTreeSet<String> =
        groups.report.groups.into_iter().filter(|group| group.reserved).map(|group| group.name).collect();
    for instance in instances.report.instances.into_iter().flatten() {
        let Some(node) = real.nodes.get_mut(&instance.name) else { continue };
        node.role = role(&instance.node_type);
        node.groups = Some(instance.groups.into_iter().filter(|group| !reserved.contains(group)).collect());
    }
    Ok(real)
}

/// What a node says of itself. A node that says nothing has said why.
async fn itself(context: &CliContext, node: &str) -> DoctorReport {
    let asked = doctor::ask(context, Some(node.to_owned()), None).await;
    asked.unwrap_or_else(|error| DoctorReport {
        refused: Some(NoAnswer::new(NoAnswerCause::Other, error)),
        ..DoctorReport::default()
    })
}
