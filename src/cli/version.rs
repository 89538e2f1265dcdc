//! `meshctl version`: our version and the node's.

use clap::Args;
use serde_json::json;

use super::{
    Context,
    exit::{Exit, Failure},
};
use crate::rpc::request::Request;

const OURS: &str = env!("CARGO_PKG_VERSION");

#[derive(Debug, Args)]
pub(super) struct Version {}

impl Version {
    /// Prints our version even when there is no node, and then fails for the node's sake.
    pub(super) async fn run(self, context: &Context) -> Result<Exit, Failure> {
        let asked = Request::Status { fields: Some(vec!["Version".to_owned()]) };
        let answer = context.client.command(&asked).await;
        let node = answer.as_ref().ok().and_then(|answer| answer["Version"].as_str());
        let text = || format!("meshctl  {OURS}\nnode     {}", node.unwrap_or("unknown"));
        let exit = context.output.answer(&json!({"meshctl": OURS, "node": node}), text)?;
        Ok(answer.map(|_| exit)?)
    }
}
