//! `meshctl controller`: the controller of a control node as a whole.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde_json::json;

use super::Context;
use super::exit::{Exit, Failure};
use super::operation::{act, list, show};
use super::output::Output;
use super::table::{self, Column, Layout, above_zero, always, given, telling, wide};
use super::times::{ago, at};
use crate::controller::store::{self, POSTGRES_TOOLS};
use crate::rpc::operation::{self, AuditPage, BackupPath, Nothing, PolicyRun};
use crate::rpc::report::controller::{AuditRow, ControllerReport, GroupSummary, NodeSummary, PolicyReport};

const COLUMNS: &[Column<ControllerReport>] = &[
    always("CONTROLLER", |one, _| format!("{}, meshd {}", one.node, one.version)),
    always("JOBS", |one, _| match one.paused {
        Some(true) => "paused: none starts".to_owned(),
        Some(false) => "start".to_owned(),
        None => String::new(),
    }),
    always("STORE", |one, _| match (&one.store.error, one.store.up) {
        (Some(error), true) => format!("{}: {error}", one.store.kind),
        (Some(error), false) => format!("{}, away: {error}", one.store.kind),
        (None, true) => one.store.kind.clone(),
        (None, false) => format!("{}, away", one.store.kind),
    }),
    always("FAILURES", |one, _| above_zero(one.store.times_away)),
    always("CLOCK", |one, now| match one.clock.as_ref().filter(|clock| clock.doubted) {
        Some(clock) => format!("doubted: the store has seen {}", at(&clock.latest, now)),
        None => String::new(),
    }),
];
const NODES: &[Column<NodeSummary>] = &[
    always("NODE", |one, _| one.node.clone()),
    telling("TYPE", |one, _| one.node_type.clone()),
    always("STATE", |one, _| one.node_state.clone()),
    always("USED", |one, _| format!("{}/{}", one.consumed, one.capacity)),
    always("SEEN", |one, now| ago(&given(&one.heartbeat), now)),
    telling("VERSION", |one, _| given(&one.version)),
    telling("ERRORS", |one, _| one.errors.join("; ")),
    wide("UUID", |one, _| given(&one.uuid)),
];
const GROUPS: &[Column<GroupSummary>] = &[
    always("GROUP", |one, _| one.name.clone()),
    always("USED", |one, _| format!("{}/{}", one.consumed, one.capacity)),
    telling("JOBS", |one, _| one.running.to_string()),
    always("MEMBERS", |one, _| one.members.join(", ")),
];
const AUDIT: &[Column<AuditRow>] = &[
    always("WHEN", |one, now| ago(&one.at, now)),
    always("WHO", |one, _| one.who.clone()),
    always("OPERATION", |one, _| one.op.clone()),
    always("TARGET", |one, _| one.target.clone()),
    wide("AT", |one, _| one.at.clone()),
];
const POLICIES: &[Column<PolicyReport>] = &[
    always("GROUP", |one, _| one.name.clone()),
    always("MEMBERS", |one, _| one.members.join(", ")),
    always("WAS", |one, _| one.was.join(", ")),
];

/// Reads which store a node's configuration, a file or a directory, names. That is the daemon's knowledge; on failure it
/// says everything that is wrong with the configuration.
pub(crate) type NodeStore = fn(&Path) -> Result<store::Options, String>;

#[derive(Debug, Subcommand)]
pub(super) enum ControllerVerb {
    /// Show whether it works: its store, its control nodes, whether it is paused
    Ping(Layout),
    /// Compute again which instances belong to which groups
    Policy {
        /// Only show what would change
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        layout: Layout,
    },
    /// Show what operators have changed, the latest first
    Audit {
        /// At most that many
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
        #[command(flatten)]
        layout: Layout,
    },
    /// Start no more jobs, until resumed; those that run go on
    Pause,
    /// Start jobs again
    Resume,
    /// Say that the clock is right: by one that is a day ahead of what the store has seen nothing is deleted
    ConfirmClock,
    /// Delete now what runners have left on the instances
    Cleanup,
    /// Write a copy of the store into a file on the control node (SQLite)
    Backup {
        /// File to write
        file: PathBuf,
    },
    /// Put a backup in the place of this machine's store, while its node is stopped (SQLite)
    Restore(Restore),
}

#[derive(Debug, Args)]
pub(super) struct Restore {
    /// The backup
    file: PathBuf,
    /// Configuration of the node, a file or a directory, which says where its store is
    #[arg(long, value_name = "PATH", default_value = "/etc/meshd/conf.d")]
    config: PathBuf,
}

impl Restore {
    /// Works on files alone, as there is no node to ask.
    ///
    /// # Errors
    /// The node runs, its configuration names no file of SQLite, or the backup is none.
    fn run(&self, output: Output, node_store: NodeStore) -> Result<Exit, Failure> {
        let failed = |why: String| Failure::new(Exit::Failed, why);
        let config = self.config.display();
        std::fs::metadata(&self.config).map_err(|error| {
            Failure::usage(format!(
                "cannot read {config}: {error}: give the node's configuration by --config"
            ))
        })?;
        let to = match node_store(&self.config).map_err(failed)? {
            store::Options::Sqlite(path) => path,
            store::Options::Postgres(_) => return Err(failed(format!("the store: {POSTGRES_TOOLS}"))),
        };
        store::restore(&self.file, &to).map_err(|error| match error {
            store::Error::Refused(why) => {
                failed(format!("{} is no backup of a controller: {why}", self.file.display()))
            }
            error => failed(error.to_string()),
        })?;
        output.answer(&json!({"restored": to}), || format!("Restored: {}", to.display()))
    }
}

impl ControllerVerb {
    /// Asks the node, which `context` finds, or does without it.
    pub(super) async fn run(
        self,
        context: impl FnOnce() -> Result<Context, Failure>,
        output: Output,
        node_store: NodeStore,
    ) -> Result<Exit, Failure> {
        if let Self::Restore(restore) = self {
            return restore.run(output, node_store);
        }
        let context = &context()?;
        match self {
            Self::Restore(_) => Ok(Exit::Success),
            Self::Ping(layout) => {
                show(context, operation::ping(Nothing {}), |answer| {
                    described(answer, layout, context.output.width())
                })
                .await
            }
            Self::Policy { dry_run, layout } => {
                let run = operation::run_policies(PolicyRun { dry_run });
                list(context, run, "groups", |answer| answer.groups.clone(), POLICIES, layout).await
            }
            Self::Audit { limit, layout } => {
                let page = operation::list_audit(AuditPage { limit: Some(limit) });
                list(context, page, "requests", |answer| answer.rows.clone(), AUDIT, layout).await
            }
            Self::Pause => {
                act(context, operation::pause(Nothing {}), |_| "Paused: no job starts".to_owned()).await
            }
            Self::Resume => {
                act(context, operation::resume(Nothing {}), |_| "Resumed: jobs start".to_owned()).await
            }
            Self::ConfirmClock => {
                act(context, operation::confirm_clock(Nothing {}), |clock| format!("{} is right", clock.now))
                    .await
            }
            Self::Cleanup => {
                act(context, operation::clean_up(Nothing {}), |answer| match answer.instances.as_slice() {
                    [] => "No instance to clean up".to_owned(),
                    names => format!("Cleaning up on {}", names.join(", ")),
                })
                .await
            }
            Self::Backup { file } => {
                let backup = operation::back_up(BackupPath { path: absolute(&file)? });
                act(context, backup, |one| format!("{}: {}", one.path, table::size(one.bytes))).await
            }
        }
    }
}

/// The controller, then its nodes and groups.
fn described(answer: &ControllerReport, layout: Layout, width: usize) -> String {
    let now = Timestamp::now();
    let parts = [
        table::described(table::fields(answer, COLUMNS, now)),
        table::list(&answer.nodes, NODES, layout, width, now),
        table::list(&answer.groups, GROUPS, layout, width, now),
    ];
    parts.join("\n\n")
}

/// The node's directory is another than ours.
fn absolute(path: &Path) -> Result<String, Failure> {
    let whole = std::path::absolute(path).ok().and_then(|path| path.to_str().map(str::to_owned));
    whole.ok_or_else(|| Failure::usage(format!("{}: it is no path that can be sent", path.display())))
}
