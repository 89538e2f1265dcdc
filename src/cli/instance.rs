//! `meshctl instance`: the nodes that a controller knows.

use std::time::Duration;

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::Value;

use super::Context;
use super::completion::instances;
use super::exit::{Exit, Failure};
use super::operation::{Columns, Operation, print_each, print_one};

/// How often a node that drains is asked for its jobs.
const POLL: Duration = Duration::from_millis(500);

const COLUMNS: Columns = (
    "instances",
    &[
        ("NAME", "name"),
        ("TYPE", "node_type"),
        ("STATE", "node_state"),
        ("ENABLED", "enabled"),
        ("REACHABLE", "reachable"),
        ("WHY", "why"),
        ("CAPACITY", "capacity"),
        ("USED", "consumed_capacity"),
        ("JOBS", "jobs_running"),
        ("VERSION", "version"),
    ],
);

const FOUND: Columns = (
    "found",
    &[
        ("NAME", "name"),
        ("TYPE", "node_type"),
        ("RUNNER", "runner"),
        ("SIGNED", "secure"),
        ("TLS", "tls"),
        ("LAST SEEN", "last_seen"),
    ],
);

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
#[derive(Debug, Args, Serialize)]
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
#[derive(Debug, Args, Serialize)]
pub(super) struct NewInstance {
    /// Its name
    name: String,
    /// What it does; control nodes register themselves
    #[arg(long = "type", value_name = "TYPE", value_parser = ["execution", "hop"])]
    node_type: String,
}

/// What is changed.
#[derive(Debug, Args, Serialize)]
pub(super) struct InstanceSettings {
    /// Its name
    #[arg(add = instances())]
    name: String,
    /// Between the smaller (0) and the larger (1) of its capacities by processors and by memory, or above
    #[arg(long = "adjustment", value_name = "SHARE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    capacity_adjustment: Option<f64>,
    /// Groups take it by their percentage and minimum
    #[arg(long, value_name = "BOOL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    managed_by_policy: Option<bool>,
}

/// How a node is removed.
#[derive(Debug, Args, Serialize)]
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
        let each = |op, named: &NamedAll| {
            let operations =
                named.names.iter().map(move |name| Operation::new(op).with("name", name.as_str()));
            operations.collect::<Vec<_>>()
        };
        match self {
            Self::List { found: false } => Operation::new("instance.list").print_list(context, COLUMNS).await,
            Self::List { found: true } => {
                Operation::new("instance.list").with("found", true).print_list(context, FOUND).await
            }
            Self::Show(named) => Operation::of("instance.get", &named).print(context).await,
            Self::Add { add, disabled } => {
                Operation::of("instance.add", &add).with("enabled", !disabled).print(context).await
            }
            Self::Health { named, no_store } => {
                Operation::of("instance.health", &named).with("store", !no_store).print(context).await
            }
            Self::Enable(named) => print_each(context, each("instance.enable", &named)).await,
            Self::Disable { named, wait } => {
                let exit = print_each(context, each("instance.disable", &named)).await?;
                for name in named.names.iter().filter(|_| wait) {
                    print_one(context, &idle(context, name).await?)?;
                }
                Ok(exit)
            }
            Self::Set(settings) => Operation::of("instance.set", &settings).print(context).await,
            Self::Remove(removal) => {
                let drain = removal.drain || !removal.dead;
                Operation::of("instance.remove", &Removal { drain, ..removal }).print(context).await
            }
        }
    }
}

/// The instance once nothing runs there.
async fn idle(context: &Context, name: &str) -> Result<Value, Failure> {
    let get = Operation::new("instance.get").with("name", name);
    loop {
        let instance = get.ask(&context.client).await?;
        if instance["jobs_running"] == 0 {
            return Ok(instance);
        }
        tokio::time::sleep(POLL).await;
    }
}
