//! `meshctl work adopt`: takes over a unit that another node submitted, by the ID that it has on the node that runs it.

use clap::Args;
use serde_json::{Value, json};

use crate::cli::{
    Context,
    exit::{Exit, Failure},
};
use crate::rpc::client::Command;

/// Arguments of `meshctl work adopt`.
#[derive(Debug, Args)]
pub struct Adopt {
    /// Node that runs the job
    node: String,
    /// The unit's ID there; it gets the same here
    unit_id: String,
    /// TLS profile of the local node for its connection to the node that runs the job
    #[arg(long, value_name = "NAME")]
    tls_client: Option<String>,
    /// Have the local node sign its requests to the other one
    #[arg(long)]
    signwork: bool,
}

impl Adopt {
    pub(super) async fn run(self, context: &Context) -> Result<Exit, Failure> {
        let mut command =
            json!({"command": "work", "subcommand": "adopt", "node": self.node, "unitid": self.unit_id});
        if let Some(profile) = self.tls_client.filter(|profile| !profile.is_empty()) {
            command["tlsclient"] = profile.into();
        }
        if self.signwork {
            command["signwork"] = "true".into();
        }
        let answer = context.client.command(&Command::json(&command)).await?;
        if context.output.json {
            context.output.value(&answer)?;
        } else {
            let result = answer.get("result").and_then(Value::as_str).unwrap_or_default().to_lowercase();
            context.output.line(&format!("{}: {result}", self.unit_id))?;
        }
        Ok(Exit::Success)
    }
}
