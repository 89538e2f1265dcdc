//! `meshctl notify`: where a controller sends notices about jobs that have ended, and a try of one of them.

use clap::Subcommand;
use jiff::Zoned;

use super::CliContext;
use super::exit::{Exit, Failure};
use super::operation::list;
use super::table::{Column, Layout, always, given, telling};
use super::times::ago;
use crate::rpc::operation::{self, ByName, Nothing};
use crate::rpc::report::controller::NotifyReport;

const TARGETS: &[Column<NotifyReport>] = &[
    always("NAME", |one, _| one.name.clone()),
    always("TO", |one, _| one.to.clone()),
    telling("JOBS", |one, _| one.jobs.clone()),
    always("EVENTS", |one, _| one.events.join(",")),
    always("DELIVERED", |one, now| past(&one.delivered, now)),
    always("BEHIND", |one, _| one.behind.to_string()),
    telling("DROPPED", |one, _| one.dropped.to_string()),
    telling("FAILING", |one, now| past(&one.failing_since, now)),
    telling("ERROR", |one, _| given(&one.error)),
];

fn past(time: &Option<String>, now: &Zoned) -> String {
    time.as_deref().map_or_else(String::new, |time| ago(time, now))
}

#[derive(Debug, Subcommand)]
pub(super) enum NotifyVerb {
    /// List the targets of notices, and how far each is
    List(Layout),
    /// Send a notice that is only a test, and print what came back
    Test {
        /// Name of the target
        name: String,
    },
}

impl NotifyVerb {
    pub(super) async fn run(self, context: &CliContext) -> Result<Exit, Failure> {
        match self {
            Self::List(layout) => {
                let question = operation::list_notify(Nothing {});
                list(context, question, "targets", |answer| answer.targets.clone(), TARGETS, layout).await
            }
            Self::Test { name } => {
                let tested = operation::test_notify(ByName { name }).ask(&context.client).await?;
                let report = &tested.report;
                let what = if report.delivered { "delivered" } else { "not delivered" };
                context.output.answer(&tested.json, || format!("{what}: {}", report.answer))?;
                Ok(if report.delivered { Exit::Success } else { Exit::Failed })
            }
        }
    }
}
