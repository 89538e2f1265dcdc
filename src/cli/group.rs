//! `meshctl group`: the groups of instances that a controller knows.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::CliContext;
use super::completion::{groups, instances};
use super::existing_path;
use super::exit::{Exit, Failure};
use super::operation::{act, each, list, show};
use super::table::{self, Column, Layout, above_zero, alone, always, given, of_lists, telling, wide, yes};
use crate::rpc::operation::{self, ByName, Nothing};
use crate::rpc::report::controller::{GroupReport, MemberReport};

const COLUMNS: &[Column<GroupReport>] = &[
    always("NAME", |one, _| one.name.clone()),
    always("USED", |one, _| format!("{}/{}", one.consumed_capacity, one.capacity)),
    telling("JOBS", |one, _| one.jobs_running.to_string()),
    telling("CLUSTER", |one, _| given(&one.cluster)),
    telling("MAX JOBS", |one, _| above_zero(one.max_concurrent_jobs)),
    telling("MAX FORKS", |one, _| above_zero(one.max_forks)),
    telling("PERCENTAGE", |one, _| above_zero(one.policy_instance_percentage)),
    telling("MINIMUM", |one, _| above_zero(one.policy_instance_minimum as u64)),
    wide("LISTED", |one, _| one.policy_instance_list.join(", ")),
    of_lists(always("MEMBERS", |one, _| {
        one.members.iter().map(|member| member.name.as_str()).collect::<Vec<_>>().join(", ")
    })),
    alone("RESERVED", |one, _| yes(one.reserved)),
    alone("CONTAINERS", |one, _| yes(one.is_container_group)),
    alone("NAMESPACE", |one, _| given(&one.namespace)),
    alone("REGISTRY", |one, _| given(&one.registry)),
    alone("POD", |one, _| given(&one.pod_spec_override)),
];
const MEMBERS: &[Column<MemberReport>] =
    &[always("MEMBER", |one, _| one.name.clone()), always("BY", |one, _| one.origin.clone())];

#[derive(Debug, Subcommand)]
pub(super) enum GroupVerb {
    /// List groups
    List(Layout),
    /// Show a group with its members
    Show(Named),
    /// Create a group
    Create {
        /// Name of the group
        name: String,
        #[command(flatten)]
        settings: GroupOptions,
    },
    /// Change a group
    Set {
        #[command(flatten)]
        named: Named,
        #[command(flatten)]
        settings: GroupOptions,
    },
    /// Put an instance on a group's list
    Add(MembershipOptions),
    /// Take an instance off a group's list
    Remove(MembershipOptions),
    /// Delete groups
    Delete {
        /// Names of the groups
        #[arg(required = true, value_name = "NAME", add = groups())]
        names: Vec<String>,
    },
}

/// The name of a group.
#[derive(Debug, Args)]
pub(super) struct Named {
    /// Name of the group
    #[arg(add = groups())]
    name: String,
}

/// A group and an instance.
#[derive(Debug, Args)]
pub(super) struct MembershipOptions {
    /// Name of the group
    #[arg(value_name = "GROUP", add = groups())]
    name: String,
    /// Name of the instance
    #[arg(add = instances())]
    instance: String,
}

/// What is set of a group; what is not given stays.
#[derive(Debug, Args)]
pub(super) struct GroupOptions {
    /// Percentage of all instances that are members
    #[arg(long = "percentage", value_name = "0-100", value_parser = clap::value_parser!(u32).range(0..=100))]
    policy_instance_percentage: Option<u32>,
    /// Smallest number of members
    #[arg(long = "minimum", value_name = "N")]
    policy_instance_minimum: Option<u32>,
    /// Instances that are always members, separated by commas; empty for none
    #[arg(long = "list", value_name = "NAME,...", value_parser = names, add = instances())]
    policy_instance_list: Option<InstanceNames>,
    /// Most jobs at a time; 0 for no limit
    #[arg(long = "max-jobs", value_name = "N")]
    max_concurrent_jobs: Option<u32>,
    /// Most forks at a time; 0 for no limit
    #[arg(long, value_name = "N")]
    max_forks: Option<u32>,
    /// Run its jobs in pods
    #[arg(long = "container", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    is_container_group: Option<bool>,
    /// Credential for the cluster; empty for the control node's own cluster
    #[arg(long, value_name = "CREDENTIAL")]
    cluster: Option<String>,
    /// Namespace of the pods
    #[arg(long)]
    namespace: Option<String>,
    /// What the pods have in addition to the default pod, or instead of parts of it, in YAML or JSON
    #[arg(long, value_name = "FILE", value_parser = existing_path())]
    pod: Option<PathBuf>,
    /// Credential for the registry of their images
    #[arg(long, value_name = "CREDENTIAL")]
    registry: Option<String>,
}

/// The names in one argument. An alias, because clap would take a `Vec` for repeated arguments.
type InstanceNames = Vec<String>;

fn names(text: &str) -> Result<InstanceNames, std::convert::Infallible> {
    Ok(text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect())
}

impl GroupVerb {
    pub(super) async fn run(self, context: &CliContext) -> Result<Exit, Failure> {
        match self {
            Self::List(layout) => {
                list(
                    context,
                    operation::list_groups(Nothing {}),
                    "groups",
                    |answer| answer.groups.clone(),
                    COLUMNS,
                    layout,
                )
                .await
            }
            Self::Show(Named { name }) => {
                show(context, operation::get_group(ByName { name }), |one| described(context, one)).await
            }
            Self::Create { name, settings } => {
                let create = operation::create_group(settings.of(name)?);
                act(context, create, |one| format!("{} created", one.name)).await
            }
            Self::Set { named, settings } => {
                let set = operation::set_group(settings.of(named.name)?);
                act(context, set, |one| format!("{} changed", one.name)).await
            }
            Self::Add(it) => {
                let add = operation::add_to_group(it.named());
                act(context, add, |one| format!("{} added to {}", it.instance, one.name)).await
            }
            Self::Remove(it) => {
                let remove = operation::remove_from_group(it.named());
                act(context, remove, |one| format!("{} removed from {}", it.instance, one.name)).await
            }
            Self::Delete { names } => {
                let delete = |name: String| (name.clone(), operation::delete_group(ByName { name }));
                let said = |name: String, _: &_| context.output.done(&format!("{name} deleted"));
                each(context, names.into_iter().map(delete), said).await
            }
        }
    }
}

impl MembershipOptions {
    fn named(&self) -> operation::Membership {
        operation::Membership { name: self.name.clone(), instance: self.instance.clone() }
    }
}

/// A group, and its members with the reasons why they belong to it.
fn described(context: &CliContext, one: &GroupReport) -> String {
    let now = &context.output.now();
    let group = table::described(table::fields(one, COLUMNS, now));
    let members = table::list(&one.members, MEMBERS, Layout::default(), context.output.width(), now);
    if one.members.is_empty() { group } else { format!("{group}\n\n{members}") }
}

impl GroupOptions {
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
