//! `meshctl reload`: makes the node read its configuration again, and reports the outcome.

use clap::Args;
use serde_json::{Value, json};

use super::{
    CliContext,
    exit::{Exit, Failure},
};
use crate::rpc::request::Request;
use crate::rpc::{Client, ErrorCode, ErrorLine};

/// What an error ends with for receptor's clients if a change needs a restart; meshctl has its own advice.
const RESTART_SUFFIX: &str = ". Must restart receptor for these changes to take effect";

#[derive(Debug, Args)]
pub(super) struct ReloadCommand {}

impl ReloadCommand {
    pub(super) async fn run(self, context: &CliContext) -> Result<Exit, Failure> {
        let answer = context.client.command(&Request::Reload).await?;
        let outcome = check_answer(&answer);
        if context.output.json {
            context.output.value(&answer)?;
            // The printed answer says why.
            return Ok(outcome.err().map_or(Exit::Success, |failure| failure.exit));
        }
        outcome.and_then(|()| context.output.line("Reload successful")).map(|()| Exit::Success)
    }
}

/// Makes a node read its configuration again.
pub(super) async fn ask(client: &Client) -> Result<(), Failure> {
    check_answer(&client.command(&Request::Reload).await?)
}

fn check_answer(answer: &Value) -> Result<(), Failure> {
    if answer["Success"] == json!(true) {
        return Ok(());
    }
    let text = answer["Error"].as_str().unwrap_or("the node gave no reason");
    let (exit, advice) = match ErrorLine::new(text).code() {
        ErrorCode::NeedsRestart => {
            (Exit::ReloadNeedsRestart, "; restart the node to apply it: systemctl restart meshd")
        }
        ErrorCode::BadConfiguration => (Exit::ReloadUnreadable, ""),
        _ => (Exit::ReloadFailed, ""),
    };
    let (what, _number) = text.rsplit_once(" ERRORCODE ").unwrap_or((text, ""));
    let what = what.replace(RESTART_SUFFIX, "");
    Err(Failure::new(exit, format!("reload failed: {what}; nothing was changed{advice}")))
}
