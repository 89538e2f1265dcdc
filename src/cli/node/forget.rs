//! `meshctl node forget`: makes the node forget an unreachable node.

use clap::Args;

use crate::cli::CliContext;
use crate::cli::completion::nodes;
use crate::cli::exit::{Exit, Failure};
use crate::rpc::request::Request;

#[derive(Debug, Args)]
pub(in crate::cli) struct Forget {
    /// Node to forget
    #[arg(add = nodes())]
    node: String,
}

impl Forget {
    pub(super) async fn run(self, context: &CliContext) -> Result<Exit, Failure> {
        let Self { node } = self;
        let answer = context.client.command(&Request::NodeForget { node: node.clone() }).await?;
        context.output.answer(&answer, || format!("Forgotten: {node}"))
    }
}
