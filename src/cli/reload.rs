//! `meshctl reload`: has the node read its configuration again, and says what became of it.

use clap::Args;
use serde_json::{Value, json};

use super::{
    Context,
    exit::{Exit, Failure},
};
use crate::rpc::request::Request;
use crate::rpc::{Client, ErrorCode, ErrorLine};

/// What other clients know of a change that needs a restart.
const OF_RECEPTOR: &str = ". Must restart receptor for these changes to take effect";

#[derive(Debug, Args)]
pub(super) struct Reload {}

impl Reload {
    pub(super) async fn run(self, context: &Context) -> Result<Exit, Failure> {
        let answer = context.client.command(&Request::Reload).await?;
        let outcome = judged(&answer);
        if context.output.json {
            context.output.value(&answer)?;
            // The answer itself has said so.
            return Ok(outcome.err().map_or(Exit::Success, |failure| failure.exit));
        }
        outcome.and_then(|()| context.output.line("Reload successful")).map(|()| Exit::Success)
    }
}

/// Has a node read its configuration again.
pub(super) async fn ask(client: &Client) -> Result<(), Failure> {
    judged(&client.command(&Request::Reload).await?)
}

fn judged(answer: &Value) -> Result<(), Failure> {
    if answer["Success"] == json!(true) {
        return Ok(());
    }
    let text = answer["Error"].as_str().unwrap_or("the node gave no reason");
    let (exit, advice) = match ErrorLine::new(text).code() {
        ErrorCode::NeedsRestart => {
            (Exit::ReloadNeedsRestart, "; a restart takes it over: systemctl restart meshd")
        }
        ErrorCode::BadConfiguration => (Exit::ReloadUnreadable, ""),
        _ => (Exit::ReloadFailed, ""),
    };
    let (what, _number) = text.rsplit_once(" ERRORCODE ").unwrap_or((text, ""));
    let what = what.replace(OF_RECEPTOR, "");
    Err(Failure::new(exit, format!("reload failed: {what}; nothing was changed{advice}")))
}
