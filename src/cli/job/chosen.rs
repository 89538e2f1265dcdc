//! Which jobs are meant: by their numbers, or by a filter. Before something is done to all jobs that a filter matches,
//! the user is told how many they are, and asked.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use jiff::Timestamp;

use super::flags::label;
use super::follow::JobId;
use crate::cli::Context;
use crate::cli::completion::{groups, instances, jobs};
use crate::cli::exit::Failure;
use crate::cli::table::count;
use crate::cli::times::moment;
use crate::rpc::operation::{self, JobFilter};
use crate::rpc::report::{JobKind, JobState};

/// Jobs that are asked for at a time.
const PAGE: u32 = 1000;

/// What jobs are.
#[derive(Debug, Clone, PartialEq, Args)]
pub(in crate::cli) struct Filter {
    /// Only those in one of these states, with commas or given several times
    #[arg(long, value_name = "STATE", value_delimiter = ',', value_parser = named(&JobState::ALL, JobState::name))]
    state: Vec<JobState>,
    /// Only those of one of these kinds
    #[arg(long, value_name = "KIND", value_delimiter = ',', value_parser = named(&JobKind::ALL, JobKind::name))]
    kind: Vec<JobKind>,
    /// Only those whose name begins like this
    #[arg(long)]
    name: Option<String>,
    /// Only those that ran in this group
    #[arg(long, add = groups())]
    group: Option<String>,
    /// Only those that ran on this node
    #[arg(long, add = instances())]
    node: Option<String>,
    /// Only those with this label; with several of them, those that have all
    #[arg(long, value_name = "KEY=VALUE", value_parser = label)]
    label: Vec<(String, String)>,
    /// Only those created at this time or later: 2h or 3d ago, yesterday, 2026-01-31, 2026-01-31T12:00:00Z
    #[arg(long, value_name = "TIME", value_parser = moment)]
    since: Option<Timestamp>,
    /// Only those created at this time or earlier
    #[arg(long, value_name = "TIME", value_parser = moment)]
    until: Option<Timestamp>,
}

impl Filter {
    /// The filter for one page: at most `limit` jobs, all older than `before`.
    pub(super) fn page(&self, before: Option<JobId>, limit: u32) -> JobFilter {
        let Self { state, kind, name, group, node, label, since, until } = self.clone();
        let (label, limit) = (label.into_iter().collect(), Some(limit));
        JobFilter { state, kind, name, group, node, label, since, until, before, limit, brief: false }
    }

    fn is_empty(&self) -> bool {
        self.page(None, PAGE) == JobFilter { limit: Some(PAGE), ..JobFilter::default() }
    }
}

/// Names that shells complete and that an error lists.
pub(super) fn named<T: Copy + Send + Sync>(
    all: &'static [T],
    name_of: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    let names = PossibleValuesParser::new(all.iter().map(|one| name_of(*one)));
    names.try_map(move |name| {
        all.iter().copied().find(|one| name_of(*one) == name).ok_or("it is none of them")
    })
}

/// Jobs to which something is done.
#[derive(Debug, Args)]
pub(in crate::cli) struct Chosen {
    /// Their numbers, or instead the flags below that say what they are
    #[arg(value_name = "ID", add = jobs())]
    ids: Vec<JobId>,
    #[command(flatten)]
    filter: Filter,
    /// Do not ask
    #[arg(long)]
    yes: bool,
}

impl Chosen {
    /// The numbers of all of them, the latest first; unless their states are given, of those for which the state is of
    /// `usual`.
    ///
    /// # Errors
    /// None are chosen, somebody says no or cannot be asked, or the node cannot be reached.
    pub(super) async fn ids(
        mut self,
        context: &Context,
        verb: &str,
        usual: fn(JobState) -> bool,
    ) -> Result<Vec<JobId>, Failure> {
        match (self.ids.is_empty(), self.filter.is_empty()) {
            (false, true) => return Ok(self.ids),
            (true, false) => {}
            (false, false) => {
                return Err(Failure::usage("give numbers of jobs, or say what they are, but not both"));
            }
            (true, true) => {
                return Err(Failure::usage(
                    "which jobs? give their numbers, or say what they are, as by --state",
                ));
            }
        }
        if self.filter.state.is_empty() {
            self.filter.state = JobState::ALL.into_iter().filter(|state| usual(*state)).collect();
        }
        let mut before = None;
        loop {
            let page =
                operation::list_jobs(self.filter.page(before, PAGE)).ask(&context.client).await?.report;
            self.ids.extend(page.jobs.iter().map(|job| job.id));
            before = page.next;
            if before.is_none() {
                break;
            }
        }
        if self.ids.is_empty() {
            context.output.note("No jobs.");
        } else if !self.yes {
            context.output.confirm(&format!("{verb} {}?", count(self.ids.len(), "job"))).await?;
        }
        Ok(self.ids)
    }
}
