//! `meshctl group`: the groups of instances that a controller knows.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Context;
use super::completion::{groups, instances};
use super::exit::{Exit, Failure};
use super::operation::{Columns, given, print_answer, print_as, rows};
use crate::rpc::operation::{self, Answered, ByName};
use crate::rpc::report::controller::{GroupReport, Groups};

const COLUMNS: Columns<GroupReport> = &[
    ("NAME", |one| one.name.clone()),
    ("PERCENTAGE", |one| one.policy_instance_percentage.to_string()),
    ("MINIMUM", |one| one.policy_instance_minimum.to_string()),
    ("CAPACITY", |one| one.capacity.to_string()),
    ("USED", |one| one.consumed_capacity.to_string()),
    ("JOBS", |one| one.jobs_running.to_string()),
    ("MAX JOBS", |one| one.max_concurrent_jobs.to_string()),
    ("MAX FORKS", |one| one.max_forks.to_string()),
    ("CLUSTER", |one| given(&one.cluster)),
];

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
#[derive(Debug, Args)]
pub(super) struct Named {
    /// Its name
    #[arg(add = groups())]
    name: String,
}

/// A group and an instance.
#[derive(Debug, Args)]
pub(super) struct Membership {
    /// Name of the group
    #[arg(value_name = "GROUP", add = groups())]
    name: String,
    /// Name of the instance
    #[arg(add = instances())]
    instance: String,
}

/// What is set of a group; what is not given stays.
#[derive(Debug, Args)]
pub(super) struct GroupSettings {
    /// Share of the instances that are members
    #[arg(long = "percentage", value_name = "0-100", value_parser = clap::value_parser!(u32).range(0..=100))]
    policy_instance_percentage: Option<u32>,
    /// Least number of members
    #[arg(long = "minimum", value_name = "N")]
    policy_instance_minimum: Option<u32>,
    /// Instances that are always members, with commas; empty for none
    #[arg(long = "list", value_name = "NAME,...", value_parser = names, add = instances())]
    policy_instance_list: Option<InstanceNames>,
    /// Most jobs at a time; 0 is no limit
    #[arg(long = "max-jobs", value_name = "N")]
    max_concurrent_jobs: Option<u32>,
    /// Most forks at a time; 0 is no limit
    #[arg(long, value_name = "N")]
    max_forks: Option<u32>,
    /// Its jobs run in pods
    #[arg(long = "container", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    is_container_group: Option<bool>,
    /// Credential of the cluster; empty for the control node's own cluster
    #[arg(long, value_name = "CREDENTIAL")]
    cluster: Option<String>,
    /// Namespace of the pods
    #[arg(long)]
    namespace: Option<String>,
    /// What the pods have beside or instead of the default, in YAML or JSON
    #[arg(long, value_name = "FILE")]
    pod: Option<PathBuf>,
    /// Credential of the registry of their images
    #[arg(long, value_name = "CREDENTIAL")]
    registry: Option<String>,
}

/// What one argument holds.
type InstanceNames = Vec<String>;

fn names(text: &str) -> Result<InstanceNames, std::convert::Infallible> {
    Ok(text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect())
}

impl GroupVerb {
    pub(super) async fn run(self, context: &Context) -> Result<Exit, Failure> {
        let member = |it: Membership| operation::Membership { name: it.name, instance: it.instance };
        let question = match self {
            Self::List => {
                let table = |answer: &Answered<Groups>| rows("groups", &answer.report.groups, COLUMNS);
                return print_as(context, operation::list_groups(), table).await;
            }
            Self::Delete(Named { name }) => {
                return print_answer(context, operation::delete_group(ByName { name })).await;
            }
            Self::Show(Named { name }) => operation::get_group(ByName { name }),
            Self::Create { name, settings } => operation::create_group(settings.of(name)?),
            Self::Set { named, settings } => operation::set_group(settings.of(named.name)?),
            Self::Add(it) => operation::add_to_group(member(it)),
            Self::Remove(it) => operation::remove_from_group(member(it)),
        };
        print_answer(context, question).await
    }
}

impl GroupSettings {
    /// The settings of the group with this name.
    fn of(self, name: String) -> Result<operation::GroupSettings, Failure> {
        let read = |path: PathBuf| {
            std::fs::read_to_string(&path).map_err(|error| {
                Failure::new(Exit::Failed, format!("cannot read {}: {error}", path.display()))
            })
        };
        Ok(operation::GroupSettings {
            name,
            policy_instance_percentage: self.policy_instance_percentage,
            policy_instance_minimum: self.policy_instance_minimum,
            policy_instance_list: self.policy_instance_list,
            max_concurrent_jobs: self.max_concurrent_jobs,
            max_forks: self.max_forks,
            is_container_group: self.is_container_group,
            cluster: self.cluster,
            namespace: self.namespace,
            pod_spec_override: self.pod.map(read).transpose()?,
            registry: self.registry,
        })
    }
}
