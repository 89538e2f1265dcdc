//! `meshctl group`: the groups of instances that a controller knows.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde::Serialize;

use super::Context;
use super::completion::{groups, instances};
use super::exit::{Exit, Failure};
use super::operation::{Columns, Operation};

const COLUMNS: Columns = (
    "groups",
    &[
        ("NAME", "name"),
        ("PERCENTAGE", "policy_instance_percentage"),
        ("MINIMUM", "policy_instance_minimum"),
        ("CAPACITY", "capacity"),
        ("USED", "consumed_capacity"),
        ("JOBS", "jobs_running"),
        ("MAX JOBS", "max_concurrent_jobs"),
        ("MAX FORKS", "max_forks"),
        ("CLUSTER", "cluster"),
    ],
);

/// Verbs of `meshctl group`.
#[derive(Debug, Subcommand)]
pub(super) enum GroupVerb {
    /// List them: a table on a terminal, else JSON
    List,
    /// Show one with its members
    Show(Named),
    /// Make one
    Create {
        /// Its name
        name: String,
        #[command(flatten)]
        settings: GroupSettings,
    },
    /// Change one
    Set {
        #[command(flatten)]
        named: Named,
        #[command(flatten)]
        settings: GroupSettings,
    },
    /// Put an instance on a group's list
    Add(Membership),
    /// Take an instance off a group's list
    Remove(Membership),
    /// Delete one
    Delete(Named),
}

/// The name of a group.
#[derive(Debug, Args, Serialize)]
pub(super) struct Named {
    /// Its name
    #[arg(add = groups())]
    name: String,
}

/// A group and an instance.
#[derive(Debug, Args, Serialize)]
pub(super) struct Membership {
    /// Name of the group
    #[arg(value_name = "GROUP", add = groups())]
    name: String,
    /// Name of the instance
    #[arg(add = instances())]
    instance: String,
}

/// What is set of a group; what is not given stays.
#[derive(Debug, Args, Serialize)]
pub(super) struct GroupSettings {
    /// Share of the instances that are members
    #[arg(long = "percentage", value_name = "0-100", value_parser = clap::value_parser!(u32).range(0..=100))]
    #[serde(skip_serializing_if = "Option::is_none")]
    policy_instance_percentage: Option<u32>,
    /// Least number of members
    #[arg(long = "minimum", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    policy_instance_minimum: Option<u32>,
    /// Instances that are always members, with commas; empty for none
    #[arg(long = "list", value_name = "NAME,...", value_parser = names, add = instances())]
    #[serde(skip_serializing_if = "Option::is_none")]
    policy_instance_list: Option<InstanceNames>,
    /// Most jobs at a time; 0 is no limit
    #[arg(long = "max-jobs", value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    max_concurrent_jobs: Option<u32>,
    /// Most forks at a time; 0 is no limit
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    max_forks: Option<u32>,
    /// Its jobs run in pods
    #[arg(long = "container", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    #[serde(skip_serializing_if = "Option::is_none")]
    is_container_group: Option<bool>,
    /// Credential of the cluster; empty for the control node's own cluster
    #[arg(long, value_name = "CREDENTIAL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<String>,
    /// Namespace of the pods
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<String>,
    /// What the pods have beside or instead of the default, in YAML or JSON
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pod: Option<PathBuf>,
    /// Credential of the registry of their images
    #[arg(long, value_name = "CREDENTIAL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    registry: Option<String>,
}

/// What one argument holds.
type InstanceNames = Vec<String>;

fn names(text: &str) -> Result<InstanceNames, std::convert::Infallible> {
    Ok(text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect())
}

impl GroupVerb {
    pub(super) async fn run(self, context: &Context) -> Result<Exit, Failure> {
        let operation = match self {
            Self::List => return Operation::new("group.list").print_list(context, COLUMNS).await,
            Self::Show(named) => Operation::of("group.get", &named),
            Self::Create { name, settings } => settings.operation("group.create", &name)?,
            Self::Set { named, settings } => settings.operation("group.set", &named.name)?,
            Self::Add(member) => Operation::of("group.add", &member),
            Self::Remove(member) => Operation::of("group.remove", &member),
            Self::Delete(named) => Operation::of("group.delete", &named),
        };
        operation.print(context).await
    }
}

impl GroupSettings {
    fn operation(&self, op: &'static str, name: &str) -> Result<Operation, Failure> {
        let operation = Operation::of(op, self).with("name", name);
        let Some(path) = &self.pod else { return Ok(operation) };
        let text = std::fs::read_to_string(path).map_err(|error| {
            Failure::new(Exit::Failed, format!("cannot read {}: {error}", path.display()))
        })?;
        Ok(operation.with("pod_spec_override", text))
    }
}
