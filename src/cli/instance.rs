//! `meshctl instance`: the nodes that a controller knows.

use clap::Subcommand;
use serde_json::json;

use super::Context;
use super::exit::{Exit, Failure};
use super::operation::{operate, print_list};

/// Verbs of `meshctl instance`.
#[derive(Debug, Subcommand)]
pub(super) enum InstanceVerb {
    /// List them: a table on a terminal, else JSON
    List,
    /// Show one
    Show {
        /// Its name
        name: String,
    },
    /// Let jobs start on it
    Enable {
        /// Its name
        name: String,
    },
    /// Start no more jobs on it
    Disable {
        /// Its name
        name: String,
    },
    /// Remove it once its jobs have ended
    Remove {
        /// Its name
        name: String,
        /// What ran there has ended, or never will: its jobs go on without it
        #[arg(long)]
        dead: bool,
    },
}

impl InstanceVerb {
    pub(super) async fn run(self, context: &Context) -> Result<Exit, Failure> {
        let (op, name) = match self {
            Self::List => {
                let answer = operate(context, "instance.list", []).await?;
                let columns = [
                    ("NAME", "name"),
                    ("TYPE", "node_type"),
                    ("STATE", "node_state"),
                    ("ENABLED", "enabled"),
                    ("REACHABLE", "reachable"),
                    ("CAPACITY", "capacity"),
                    ("USED", "consumed_capacity"),
                    ("JOBS", "jobs_running"),
                ];
                return print_list(context, &answer, "instances", columns);
            }
            Self::Remove { name, dead } => {
                let arguments = [("name", json!(name)), ("dead", json!(dead))];
                context.output.value(&operate(context, "instance.remove", arguments).await?)?;
                return Ok(Exit::Success);
            }
            Self::Show { name } => ("instance.get", name),
            Self::Enable { name } => ("instance.enable", name),
            Self::Disable { name } => ("instance.disable", name),
        };
        context.output.value(&operate(context, op, [("name", json!(name))]).await?)?;
        Ok(Exit::Success)
    }
}
