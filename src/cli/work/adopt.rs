//! `meshctl work adopt`: takes over a unit that another node submitted, by the ID that it has on the node that runs it.

use clap::Args;

use crate::cli::{
    CliContext,
    completion::nodes,
    exit::{Exit, Failure},
};
use crate::rpc::request::{AdoptRequest, Request, WorkRequest};

#[derive(Debug, Args)]
pub(crate) struct Adopt {
    /// Node that runs the job
    #[arg(add = nodes())]
    node: String,
    /// ID of the unit there; it gets the same ID here
    unit_id: String,
    /// TLS profile of the local node for its connection to the node that runs the job
    #[arg(long, value_name = "NAME")]
    tls_client: Option<String>,
    /// Have the local node sign its requests to the other one
    #[arg(long)]
    signwork: bool,
}

impl Adopt {
    pub(super) async fn run(self, context: &CliContext) -> Result<Exit, Failure> {
        let adopt = AdoptRequest {
            node: self.node,
            unit: self.unit_id.clone(),
            tls_client: self.tls_client.filter(|profile| !profile.is_empty()),
            sign_work: self.signwork,
            signature: None,
        };
        let answer = context.client.command(&Request::Work(WorkRequest::Adopt(adopt))).await?;
        let result = answer["result"].as_str().unwrap_or_default().to_lowercase();
        context.output.answer(&answer, || format!("{}: {result}", self.unit_id))
    }
}
