//! `meshctl work`: jobs, called units by the node that keeps them.

mod adopt;
mod cancel;
mod follow;
mod list;
mod params;
pub(super) mod payload;
mod progress;
mod release;
mod status;
pub(super) mod submit;
pub(super) mod units;

use clap::Subcommand;

use super::{
    CliContext,
    exit::{Exit, Failure},
};

#[derive(Debug, Subcommand)]
pub(super) enum Work {
    /// Submit a job
    Submit(submit::Submit),
    /// List the node's units: as a table on a terminal, otherwise as JSON
    List(list::ListCommand),
    /// Show the state of units
    Status(status::StatusArgs),
    /// Print a unit's output and follow it until the unit ends
    Results {
        /// Unit ID
        unit_id: String,
        /// First byte to print
        #[arg(long, value_name = "BYTE", default_value_t = 0)]
        start: u64,
        /// Print what it writes to stderr instead, on the node that runs it, if its work type keeps that apart
        #[arg(long)]
        stderr: bool,
    },
    /// Stop units
    Cancel(cancel::Cancel),
    /// Take over a unit that another node submitted
    Adopt(adopt::Adopt),
    /// Stop units and delete them with their output
    Release(release::ReleaseCommand),
}

impl Work {
    pub(super) async fn run(self, context: &CliContext) -> Result<Exit, Failure> {
        match self {
            Self::Submit(submit) => submit.run(context).await,
            Self::List(list) => list.run(context).await,
            Self::Status(status) => status.run(context).await,
            Self::Results { unit_id, start, stderr: false } => follow::follow(context, &unit_id, start).await,
            Self::Results { unit_id, start, stderr: true } => follow::stderr(context, &unit_id, start).await,
            Self::Cancel(cancel) => cancel.run(context).await,
            Self::Adopt(adopt) => adopt.run(context).await,
            Self::Release(release) => release.run(context).await,
        }
    }
}
