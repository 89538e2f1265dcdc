//! `meshctl job export`: jobs that have ended, one JSON object per line, for a SIEM or a warehouse. Owns no state: whoever reads
//! the lines keeps the cursor of the last one.

use std::time::Duration;

use clap::Args;
use tokio::time::sleep;

use super::follow::ask;
use crate::cli::CliContext;
use crate::cli::exit::{Exit, Failure};
use crate::rpc::operation::{self, ExportFrom};

/// How often new ends are looked for.
const FOLLOW: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub(in crate::cli) struct ExportFlags {
    /// Only those after this `cursor` of an earlier line
    #[arg(long, value_name = "CURSOR", default_value_t = 0, value_parser = clap::value_parser!(i64).range(0..))]
    since: i64,
    /// Go on with jobs as they end
    #[arg(long, short)]
    follow: bool,
}

impl ExportFlags {
    pub(super) async fn run(mut self, context: &CliContext) -> Result<Exit, Failure> {
        loop {
            let from = operation::export_jobs(ExportFrom { since: self.since, limit: None });
            let page = ask(&context.client, context.output, &from).await?;
            let jobs = page.json["jobs"].as_array();
            jobs.into_iter().flatten().try_for_each(|job| context.output.value_line(job))?;
            match (page.report.next > self.since, self.follow) {
                (true, _) => self.since = page.report.next,
                (false, true) => sleep(FOLLOW).await,
                (false, false) => return Ok(Exit::Success),
            }
        }
    }
}
