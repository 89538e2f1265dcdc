//! `meshctl controller`: the controller of a control node as a whole.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use jiff::Zoned;
use serde_json::json;

use super::CliContext;
use super::existing_path;
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
        Some(true) => "paused: no job starts".to_owned(),
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

/// Reads which store a node's configuration (a file or a directory) names; the daemon provides this. An error says
/// everything that is wrong with the configuration.
pub(crate) type NodeStore = fn(&Path) -> Result<store::Options, String>;

#[derive(Debug, Subcommand)]
pub(super) enum ControllerVerb {
    /// Show whether the controller works: its store, its control nodes, and whether it is paused
    Ping(Layout),
    /// Recompute which instances belong to which groups
    Policy {
        /// Only show what would change
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        layout: Layout,
    },
    /// Show what operators have changed, latest first
    Audit {
        /// At most this many
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
        #[command(flatten)]
        layout: Layout,
    },
    /// Start no more jobs until resumed; running jobs go on
    Pause,
    /// Start jobs again
    Resume,
    /// Confirm that the clock is right: while it is more than a day ahead of the latest time that the store has seen,
    /// nothing is deleted for its age
    ConfirmClock,
    /// Delete what runners have left on the instances, now
    Cleanup,
    /// Write a copy of the store into a file on the control node (SQLite)
    Backup {
        /// File to write
        file: PathBuf,
    },
    /// Replace this machine's store with a backup, while its node is stopped (SQLite)
    Restore(Restore),
    /// Copy this machine's store into an empty one, for example from SQLite to PostgreSQL, while all its control
    /// nodes are stopped
    Copy(CopyFlags),
}

#[derive(Debug, Args)]
pub(super) struct Restore {
    /// The backup
    #[arg(value_parser = existing_path())]
    file: PathBuf,
    #[command(flatten)]
    own: OwnStore,
}

#[derive(Debug, Args)]
pub(super) struct CopyFlags {
    /// The store to copy into, written as in the setting `store`: postgresql://USER@HOST/DATABASE, or sqlite:PATH
    #[arg(long, value_name = "STORE")]
    to: String,
    /// File with the password for that store, like the setting `storepasswordfile`
    #[arg(long, value_name = "FILE", value_parser = existing_path())]
    password_file: Option<PathBuf>,
    #[command(flatten)]
    own: OwnStore,
}

/// The store of this machine's node.
#[derive(Debug, Args)]
struct OwnStore {
    /// Configuration of the node, a file or a directory, that names its store
    #[arg(long, value_name = "PATH", default_value = "/etc/meshd/conf.d", value_parser = existing_path())]
    config: PathBuf,
}

impl OwnStore {
    fn read(&self, node_store: NodeStore) -> Result<store::Options, Failure> {
        node_store(&self.config).map_err(failed)
    }
}

fn failed(why: String) -> Failure {
    Failure::new(Exit::Failed, why)
}

impl CopyFlags {
    async fn run(&self, output: Output, node_store: NodeStore) -> Result<Exit, Failure> {
        if self.to == "sqlite" {
            return Err(Failure::usage(
                "--to: give the file, as in sqlite:/var/lib/meshd/NODE/.controller/store.db",
            ));
        }
        let from = self.own.read(node_store)?;
        let to = store::Options::parse(&self.to, self.password_file.clone(), Path::new(""));
        let to = to.map_err(|error| Failure::usage(format!("--to: {error}")))?;
        if from.is_shared() || to.is_shared() {
            output.note("Copying: first watching for half a minute whether a control node uses PostgreSQL");
        }
        let copied = store::copy_store(&from, &to).await;
        let jobs = copied.map_err(|error| failed(format!("not copied into {}: {error}", self.to)))?;
        output.answer(&json!({"copied": self.to, "jobs": jobs}), || {
            let all = table::count(jobs, "job");
            format!(
                "Copied into {}: {all}, and all instances, groups and lines of the audit\n\
                 Outputs and payloads of jobs stay where they are: in the data directories of the control nodes",
                self.to
            )
        })
    }
}

impl Restore {
    /// Works on files alone, because the node must be stopped.
    ///
    /// # Errors
    /// The node runs, its configuration names no SQLite file, or the file is no backup.
    fn run(&self, output: Output, node_store: NodeStore) -> Result<Exit, Failure> {
        let to = match self.own.read(node_store)? {
            store::Options::Sqlite(path) => path,
            store::Options::Postgres(_) => return Err(failed(format!("the store: {POSTGRES_TOOLS}"))),
        };
        store::restore(&self.file, &to).map_err(|error| match error {
            store::Error::Refused(why) => {
                failed(format!("{} is not a backup of a controller: {why}", self.file.display()))
            }
            error => failed(error.to_string()),
        })?;
        output.answer(&json!({"restored": to}), || format!("Restored: {}", to.display()))
    }
}

impl ControllerVerb {
    /// Runs the command. `context` finds the node, which not every command asks.
    pub(super) async fn run(
        self,
        context: impl FnOnce() -> Result<CliContext, Failure>,
        output: Output,
        node_store: NodeStore,
    ) -> Result<Exit, Failure> {
        if let Self::Restore(restore) = self {
            return restore.run(output, node_store);
        }
        if let Self::Copy(copy) = self {
            return copy.run(output, node_store).await;
        }
        let context = &context()?;
        match self {
            Self::Restore(_) | Self::Copy(_) => Ok(Exit::Success),
            Self::Ping(layout) => {
                show(context, operation::ping(Nothing {}), |answer| {
                    described(answer, layout, context.output.width(), &context.output.now())
                })
                .await
            }
            Self::Policy { dry_run, layout } => {
                let run = operation::run_policies(PolicyRun { dry_run });
                list(context, run, "groups", |answer| answer.groups.clone(), POLICIES, layout).await
            }
            Self::Audit { limit, layout } => {
                let page = operation::list_audit(AuditPage { limit: Some(limit), after: None });
                list(context, page, "requests", |answer| answer.rows.clone(), AUDIT, layout).await
            }
            Self::Pause => {
                act(context, operation::pause(Nothing {}), |_| "Paused: no more jobs start".to_owned()).await
            }
            Self::Resume => {
                act(context, operation::resume(Nothing {}), |_| "Resumed: jobs start".to_owned()).await
            }
            Self::ConfirmClock => {
                let now = context.output.now();
                let right = |time: &str| format!("{} is right", at(time, &now));
                act(context, operation::confirm_clock(Nothing {}), |clock| right(&clock.now)).await
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
fn described(answer: &ControllerReport, layout: Layout, width: usize, now: &Zoned) -> String {
    let parts = [
        table::described(table::fields(answer, COLUMNS, now)),
        table::list(&answer.nodes, NODES, layout, width, now),
        table::list(&answer.groups, GROUPS, layout, width, now),
    ];
    parts.join("\n\n")
}

/// Makes a path absolute, because the node's working directory is not ours.
fn absolute(path: &Path) -> Result<String, Failure> {
    let whole = std::path::absolute(path).ok().and_then(|path| path.to_str().map(str::to_owned));
    whole.ok_or_else(|| Failure::usage(format!("{}: this path cannot be sent", path.display())))
}
