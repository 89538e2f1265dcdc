//! `meshctl loglevel`: how much the node logs.

use clap::Args;

use super::{
    Context,
    exit::{Exit, Failure},
};
use crate::rpc::request::Request;

#[derive(Debug, Args)]
pub(super) struct LogLevel {
    /// error, warning, info, debug or trace, until it is changed again or the node restarts; tells the level if
    /// not given
    level: Option<String>,
}

impl LogLevel {
    pub(super) async fn run(self, context: &Context) -> Result<Exit, Failure> {
        let answer = context.client.command(&Request::LogLevel { level: self.level }).await?;
        context.output.answer(&answer, || answer["Level"].as_str().unwrap_or("unknown").to_owned())
    }
}
