//! Selects jobs, by their numbers or by a filter. Before something is done to all jobs that a filter matches, tells
//! the user how many there are, and asks for a yes.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use jiff::Zoned;

use super::flags::label;
use super::follow::JobNumber;
use crate::cli::CliContext;
use crate::cli::completion::{groups, instances, jobs, saved_jobs};
use crate::cli::exit::Failure;
use crate::cli::table::count;
use crate::cli::times::TypedTime;
use crate::rpc::operation::{self, JobFilter};
use crate::rpc::report::{JobKind, JobState};

/// Jobs that are asked for at a time.
const PAGE: u32 = 1000;

/// What jobs are.
#[derive(Debug, Clone, PartialEq, Args)]
pub(in crate::cli) struct Filter {
    /// Only jobs in one of these states, separated by commas or given several times
    #[arg(long, value_name = "STATE", value_delimiter = ',', value_parser = named(&JobState::ALL, JobState::name))]
    state: Vec<JobState>,
    /// Only jobs of one of these kinds
    #[arg(long, value_name = "KIND", value_delimiter = ',', value_parser = named(&JobKind::ALL, JobKind::name))]
    kind: Vec<JobKind>,
    /// Only jobs whose name begins with this
    #[arg(long)]
    name: Option<String>,
    /// Only jobs that ran in this group
    #[arg(long, add = groups())]
    group: Option<String>,
    /// Only jobs that ran on this node
    #[arg(long, add = instances())]
    node: Option<String>,
    /// Only jobs with this label; if given several times, only jobs that have all of them
    #[arg(long, value_name = "KEY=VALUE", value_parser = label)]
    label: Vec<(String, String)>,
    /// Only jobs that were started of this saved job
    #[arg(long, value_name = "NAME", add = saved_jobs())]
    saved: Option<String>,
    /// Only jobs created at this time or later: 2h or 3d (ago), yesterday, 2026-01-31, 2026-01-31T12:00:00Z
    #[arg(long, value_name = "TIME", value_parser = TypedTime::parse)]
    since: Option<TypedTime>,
    /// Only jobs created at this time or earlier
    #[arg(long, value_name = "TIME", value_parser = TypedTime::parse)]
    until: Option<TypedTime>,
}

impl Filter {
    /// The filter for one page: at most `limit` jobs, all older than `before`. Times count from `now`.
    pub(super) fn page(&self, before: Option<JobNumber>, limit: u32, now: &Zoned) -> JobFilter {
        let Self { state, kind, name, group, node, label, saved, since, until } = self.clone();
        let (label, limit) = (label.into_iter().collect(), Some(limit));
        let [since, until] = [since, until].map(|time| time.map(|time| time.moment(now)));
        JobFilter {
            state,
            kind,
            name,
            group,
            node,
            label,
            saved,
            since,
            until,
            before,
            limit,
            ..JobFilter::default()
        }
    }

    fn is_empty(&self) -> bool {
        self.page(None, PAGE, &Zoned::now()) == JobFilter { limit: Some(PAGE), ..JobFilter::default() }
    }
}

/// A parser of names that shells complete and errors list.
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
    /// Numbers of the jobs; or select them with the flags below
    #[arg(value_name = "ID", add = jobs())]
    ids: Vec<JobNumber>,
    #[command(flatten)]
    filter: Filter,
    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
}

impl Chosen {
    /// The numbers as given, or those of all jobs that match, the latest first. If no states are given, `usual` says
    /// which states match.
    ///
    /// # Errors
    /// Neither numbers nor flags are given, or both; the user says no or cannot be asked; or the node cannot be
    /// reached.
    pub(super) async fn ids(
        mut self,
        context: &CliContext,
        verb: &str,
        usual: fn(JobState) -> bool,
    ) -> Result<Vec<JobNumber>, Failure> {
        match (self.ids.is_empty(), self.filter.is_empty()) {
            (false, true) => return Ok(self.ids),
            (true, false) => {}
            (false, false) => {
                return Err(Failure::usage("give numbers of jobs or flags that select them, but not both"));
            }
            (true, true) => {
                return Err(Failure::usage(
                    "which jobs? give their numbers, or flags that select them, such as --state",
                ));
            }
        }
        if self.filter.state.is_empty() {
            self.filter.state = JobState::ALL.into_iter().filter(|state| usual(*state)).collect();
        }
        let (mut before, now) = (None, context.output.now());
        loop {
            let filter = self.filter.page(before, PAGE, &now);
            let page = operation::list_jobs(filter).ask(&context.client).await?.report;
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
