//! `meshctl schedule`: when saved jobs start by themselves. Lists the next starts, and pauses schedules. The files say the
//! rest, and `meshctl saved check` reads them.

use clap::Subcommand;

use super::CliContext;
use super::completion::saved_jobs;
use super::exit::{Exit, Failure};
use super::operation::act;
use super::saved::all_of_saved;
use super::table::{Column, Layout, always, telling, wide};
use super::times::at;
use crate::rpc::operation::{self, ByName};
use crate::rpc::report::saved::{SchedulePage, ScheduleReport};

const COLUMNS: &[Column<ScheduleReport>] = &[
    always("NAME", |one, _| one.name.clone()),
    always("RULE", |one, _| one.rule.clone()),
    always("ZONE", |one, _| one.zone.clone()),
    always("NEXT", |one, now| match one.next.first() {
        _ if one.paused => "paused".to_owned(),
        _ if !one.enabled => "disabled".to_owned(),
        Some(next) => at(next, now),
        None => "none".to_owned(),
    }),
    wide("THEN", |one, now| one.next.iter().skip(1).map(|next| at(next, now)).collect::<Vec<_>>().join(", ")),
    telling("LAST", |one, now| one.last.as_ref().map(|last| at(&last.tick, now)).unwrap_or_default()),
    telling("JOB", |one, _| {
        one.last.as_ref().and_then(|last| last.job).map(|job| job.to_string()).unwrap_or_default()
    }),
    telling("SKIPPED", |one, now| {
        one.skipped
            .as_ref()
            .map(|skipped| format!("{}: {}", at(&skipped.tick, now), skipped.why))
            .unwrap_or_default()
    }),
    wide("OVERLAP", |one, _| one.overlap.to_string()),
    wide("MISSED", |one, _| one.missed.to_string()),
];

#[derive(Debug, Subcommand)]
pub(super) enum ScheduleVerb {
    /// List schedules: the next starts, the last one, and why one was skipped
    List(Layout),
    /// Start nothing by a schedule until it is resumed
    Pause {
        /// Name of the saved job
        #[arg(add = saved_jobs())]
        name: String,
    },
    /// Start jobs by a schedule again, from now on
    Resume {
        /// Name of the saved job
        #[arg(add = saved_jobs())]
        name: String,
    },
}

impl ScheduleVerb {
    pub(super) async fn run(self, context: &CliContext) -> Result<Exit, Failure> {
        match self {
            Self::List(layout) => list(context, layout).await,
            Self::Pause { name } => {
                act(context, operation::pause_schedule(ByName { name }), |one| {
                    format!("Paused: {} starts nothing by itself", one.name)
                })
                .await
            }
            Self::Resume { name } => {
                act(context, operation::resume_schedule(ByName { name }), |one| match one.next.first() {
                    Some(next) => format!("{} starts next at {}", one.name, at(next, &context.output.now())),
                    None => format!("{} goes on, and has no start to come", one.name),
                })
                .await
            }
        }
    }
}

async fn list(context: &CliContext, layout: Layout) -> Result<Exit, Failure> {
    let page = |page: SchedulePage| (page.schedules, page.next);
    let schedules = all_of_saved(context, operation::list_schedules, page).await?;
    if context.output.json {
        context.output.value(&serde_json::json!({"schedules": schedules, "next": null}))?;
    } else {
        context.output.list("schedules", &schedules, COLUMNS, layout)?;
    }
    Ok(Exit::Success)
}
