//! `meshctl node`: what one node remembers of others.

use clap::{Args, Subcommand};

use super::{
    Context,
    exit::{Exit, Failure},
};
use crate::rpc::request::Request;

/// Subcommands of `meshctl node`.
#[derive(Debug, Subcommand)]
pub(super) enum Node {
    /// Have the node forget an unreachable one at once: its links, services and name
    Forget(Forget),
}

/// Arguments of `meshctl node forget`.
#[derive(Debug, Args)]
pub(super) struct Forget {
    /// Node to forget
    node: String,
}

impl Node {
    pub(super) async fn run(self, context: &Context) -> Result<Exit, Failure> {
        let Self::Forget(Forget { node }) = self;
        let answer = context.client.command(&Request::NodeForget { node: node.clone() }).await?;
        if context.output.json {
            context.output.value(&answer)?;
        } else {
            context.output.line(&format!("Forgotten: {node}"))?;
        }
        Ok(Exit::Success)
    }
}
