//! `meshctl reload`: has the node read its configuration again, and says what became of it.

use clap::Args;
use serde_json::json;

use super::{
    Context,
    exit::{Exit, Failure},
};
use crate::rpc::request::Request;
use crate::rpc::{ErrorCode, ErrorLine};

/// Arguments of `meshctl reload`.
#[derive(Debug, Args)]
pub(super) struct Reload {}

impl Reload {
    pub(super) async fn run(self, context: &Context) -> Result<Exit, Failure> {
        let answer = context.client.command(&Request::Reload).await?;
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
        let exit = match ErrorLine::new(text).code() {
            ErrorCode::NeedsRestart => Exit::ReloadNeedsRestart,
            ErrorCode::BadConfiguration => Exit::ReloadUnreadable,
            _ => Exit::ReloadFailed,
        };
        let failure = Failure::new(exit, format!("reload failed: {text}"));
        // With --json the answer itself has said so.
        if context.output.json { Ok(failure.exit) } else { Err(failure) }
    }
}
