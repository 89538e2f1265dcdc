//! `meshctl loglevel`: how much the node logs.

use clap::Args;

use super::{
    CliContext,
    exit::{Exit, Failure},
};
use crate::rpc::request::Request;

#[derive(Debug, Args)]
pub(super) struct LogLevelCommand {
    /// error, warning, info, debug or trace, until changed again or until the node restarts; if not given, show the
    /// level
    level: Option<String>,
}

impl LogLevelCommand {
    pub(super) async fn run(self, context: &CliContext) -> Result<Exit, Failure> {
        let answer = context.client.command(&Request::LogLevel { level: self.level }).await?;
        context.output.answer(&answer, || answer["Level"].as_str().unwrap_or("unknown").to_owned())
    }
}
