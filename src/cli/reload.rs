//! `meshctl reload`: has the node read its configuration again, and says what became of it.

use clap::Args;
use serde_json::json;

use super::{
    Context,
    exit::{Exit, Failure},
};
use crate::rpc::client::Command;

/// Arguments of `meshctl reload`.
#[derive(Debug, Args)]
pub struct Reload {}

impl Reload {
    pub(super) async fn run(self, context: &Context) -> Result<Exit, Failure> {
        let answer = context.client.command(&Command::words("reload")?).await?;
        let succeeded = answer["Success"] == json!(true);
        if context.output.json {
            context.output.value(&answer)?;
        } else if succeeded {
            context.output.line("Reload successful")?;
        }
        if succeeded {
            return Ok(Exit::Success);
        }
        let text = answer["Error"].as_str().unwrap_or("the node gave no reason");
        let failure = Failure::new(exit_of(text), format!("reload failed: {text}"));
        // With --json the answer itself has said so.
        if context.output.json { Ok(failure.exit) } else { Err(failure) }
    }
}

fn exit_of(error: &str) -> Exit {
    if error.contains("ERRORCODE 3") {
        Exit::ReloadNeedsRestart
    } else if error.contains("ERRORCODE 4") {
        Exit::ReloadUnreadable
    } else {
        Exit::ReloadFailed
    }
}
