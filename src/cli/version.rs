//! `meshctl version`: our version and the node's.

use clap::Args;
use serde_json::json;

use super::{
    CliContext,
    exit::{Exit, Failure},
};
use crate::rpc::request::Request;

const OURS: &str = env!("CARGO_PKG_VERSION");

#[derive(Debug, Args)]
pub(super) struct VersionCommand {}

impl VersionCommand {
    /// Prints our version even if no node answers, and then fails because the node's version is unknown.
    pub(super) async fn run(self, context: &CliContext) -> Result<Exit, Failure> {
        let asked = Request::Status { fields: Some(vec!["Version".to_owned()]) };
        let answer = context.client.command(&asked).await;
        let node = answer.as_ref().ok().and_then(|answer| answer["Version"].as_str());
        let text = || format!("meshctl  {OURS}\nnode     {}", node.unwrap_or("unknown"));
        let exit = context.output.answer(&json!({"meshctl": OURS, "node": node}), text)?;
        Ok(answer.map(|_| exit)?)
    }
}
