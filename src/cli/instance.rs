//! `meshctl instance`: the nodes that a controller knows.

use std::time::Duration;

use clap::{Args, Subcommand};

use super::Context;
use super::completion::instances;
use super::exit::{Exit, Failure};
use super::operation::{Columns, given, print_answer, print_as, print_each, print_one, rows, yes};
use crate::rpc::operation::{self, Answered, ByName, HealthCheck, InstanceFilter, Question};
use crate::rpc::report::controller::{CandidateReport, Candidates, InstanceReport, Instances};

/// How often a node that drains is asked for its jobs.
const POLL: Duration = Duration::from_millis(500);

const COLUMNS: Columns<InstanceReport> = &[
    ("NAME", |one| one.name.clone()),
    ("TYPE", |one| one.node_type.clone()),
    ("STATE", |one| one.node_state.clone()),
    ("ENABLED", |one| yes(one.enabled)),
    ("REACHABLE", |one| yes(one.reachable)),
    ("WHY", |one| given(&one.why)),
    ("CAPACITY", |one| one.capacity.to_string()),
    ("USED", |one| one.consumed_capacity.to_string()),
    ("JOBS", |one| one.jobs_running.to_string()),
    ("VERSION", |one| given(&one.version)),
];

const FOUND: Columns<CandidateReport> = &[
    ("NAME", |one| one.name.clone()),
    ("TYPE", |one| one.node_type.clone()),
    ("RUNNER", |one| yes(one.runner)),
    ("SIGNED", |one| yes(one.secure)),
    ("TLS", |one| yes(one.tls)),
    ("LAST SEEN", |one| one.last_seen.clone()),
];

/// Verbs of `meshctl instance`.
#[derive(Debug, Subcommand)]
pub(super) enum InstanceVerb {
    /// List them: a table on a terminal, else JSON
    List {
        /// The nodes that discovery found, and that nobody has enabled or added
        #[arg(long)]
        found: bool,
    },
    /// Show one
    Show(Named),
    /// Register a node, also before it is seen
    Add {
        #[command(flatten)]
        add: NewInstance,
        /// Let no jobs start on it yet
        #[arg(long)]
        disabled: bool,
    },
    /// Ask a node for its size and the version of its runner
    Health {
        #[command(flatten)]
        named: Named,
        /// Only show the answer
        #[arg(long)]
        no_store: bool,
    },
    /// Let jobs start on nodes, also on those that discovery found
    Enable(NamedAll),
    /// Start no more jobs on nodes
    Disable {
        #[command(flatten)]
        named: NamedAll,
        /// Return once their last jobs have ended
        #[arg(long)]
        wait: bool,
    },
    /// Change how a node is used
    Set(InstanceSettings),
    /// Remove a node
    Remove(Removal),
}

/// The name of an instance.
#[derive(Debug, Args)]
pub(super) struct Named {
    /// Its name
    #[arg(add = instances())]
    name: String,
}

/// The names of instances.
#[derive(Debug, Args)]
pub(super) struct NamedAll {
    /// Their names
    #[arg(required = true, value_name = "NAME", add = instances())]
    names: Vec<String>,
}

/// What is registered.
#[derive(Debug, Args)]
pub(super) struct NewInstance {
    /// Its name
    name: String,
    /// What it does; control nodes register themselves
    #[arg(long = "type", value_name = "TYPE", value_parser = ["execution", "hop"])]
    node_type: String,
}

/// What is changed.
#[derive(Debug, Args)]
pub(super) struct InstanceSettings {
    /// Its name
    #[arg(add = instances())]
    name: String,
    /// Between the smaller (0) and the larger (1) of its capacities by processors and by memory, or above
    #[arg(long = "adjustment", value_name = "SHARE")]
    capacity_adjustment: Option<f64>,
    /// Groups take it by their percentage and minimum
    #[arg(long, value_name = "BOOL")]
    managed_by_policy: Option<bool>,
}

/// How a node is removed.
#[derive(Debug, Args)]
pub(super) struct Removal {
    /// Its name
    #[arg(add = instances())]
    name: String,
    /// Start nothing more there, and remove it once its jobs have ended (the default)
    #[arg(long, conflicts_with = "dead")]
    drain: bool,
    /// What ran there has ended, or never will: its jobs go on without it
    #[arg(long)]
    dead: bool,
}

impl InstanceVerb {
    pub(super) async fn run(self, context: &Context) -> Result<Exit, Failure> {
        let question = match self {
            Self::List { found } => {
                let question = operation::list_instances(InstanceFilter { found });
                return print_as(context, question, table).await;
            }
            Self::Enable(named) => {
                return print_each(context, each(&named, operation::enable_instance)).await;
            }
            Self::Disable { named, wait } => {
                let exit = print_each(context, each(&named, operation::disable_instance)).await?;
                for name in named.names.iter().filter(|_| wait) {
                    print_one(context, &idle(context, name).await?.json)?;
                }
                return Ok(exit);
            }
            Self::Remove(Removal { name, dead, drain: _ }) => {
                let removal =
                    operation::InstanceRemoval { name, dead, ..operation::InstanceRemoval::default() };
                return print_answer(context, operation::remove_instance(removal)).await;
            }
            Self::Show(Named { name }) => operation::get_instance(ByName { name }),
            Self::Add { add: NewInstance { name, node_type }, disabled } => {
                let (node_type, enabled) = (Some(node_type), Some(!disabled));
                operation::add_instance(operation::NewInstance { name, node_type, enabled })
            }
            Self::Health { named: Named { name }, no_store } => {
                operation::check_health(HealthCheck { name, store: no_store.then_some(false) })
            }
            Self::Set(InstanceSettings { name, capacity_adjustment, managed_by_policy }) => {
                let set = operation::InstanceSettings { name, capacity_adjustment, managed_by_policy };
                operation::set_instance(set)
            }
        };
        print_answer(context, question).await
    }
}

/// The same for each of several instances.
fn each<A>(named: &NamedAll, question: fn(ByName) -> Question<A>) -> impl Iterator<Item = Question<A>> {
    named.names.iter().map(move |name| question(ByName { name: name.clone() }))
}

/// Instances as a table, or the nodes that could become some.
fn table(answer: &Answered<Instances>) -> String {
    match &answer.report.found {
        Candidates::These(found) => rows("found", found, FOUND),
        Candidates::Count(_) => {
            rows("instances", answer.report.instances.as_deref().unwrap_or_default(), COLUMNS)
        }
    }
}

/// The instance once nothing runs there.
async fn idle(context: &Context, name: &str) -> Result<Answered<InstanceReport>, Failure> {
    let get = operation::get_instance(ByName { name: name.to_owned() });
    loop {
        let instance = get.ask(&context.client).await?;
        if instance.report.jobs_running == 0 {
            return Ok(instance);
        }
        tokio::time::sleep(POLL).await;
    }
}
