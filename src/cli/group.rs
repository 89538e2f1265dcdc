//! `meshctl group`: the groups of instances that a controller knows.

use clap::Subcommand;
use serde_json::json;

use super::Context;
use super::exit::{Exit, Failure};
use super::operation::{operate, print_list};

/// Verbs of `meshctl group`.
#[derive(Debug, Subcommand)]
pub(super) enum GroupVerb {
    /// List them: a table on a terminal, else JSON
    List,
    /// Show one
    Show {
        /// Its name
        name: String,
    },
}

impl GroupVerb {
    pub(super) async fn run(self, context: &Context) -> Result<Exit, Failure> {
        match self {
            Self::List => {
                let answer = operate(context, "group.list", []).await?;
                let columns = [
                    ("NAME", "name"),
                    ("PERCENTAGE", "policy_instance_percentage"),
                    ("CAPACITY", "capacity"),
                    ("USED", "consumed_capacity"),
                    ("JOBS", "jobs_running"),
                ];
                print_list(context, &answer, "groups", columns)
            }
            Self::Show { name } => {
                context.output.value(&operate(context, "group.get", [("name", json!(name))]).await?)?;
                Ok(Exit::Success)
            }
        }
    }
}
