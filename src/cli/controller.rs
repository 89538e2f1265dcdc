//! `meshctl controller`: the controller of a control node as a whole.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::json;

use super::Context;
use super::exit::{Exit, Failure};
use super::operation::print_answer;
use super::output::Output;
use crate::controller::store::{self, POSTGRES_TOOLS};
use crate::rpc::operation::{self, BackupPath, PolicyRun};

/// Reads which store a node's configuration, a file or a directory, names. That is the daemon's knowledge; on failure it
/// says everything that is wrong with the configuration.
pub(crate) type NodeStore = fn(&Path) -> Result<store::Options, String>;

/// Verbs of `meshctl controller`.
#[derive(Debug, Subcommand)]
pub(super) enum ControllerVerb {
    /// Show whether it works: its store, its control nodes, whether it is paused
    Ping,
    /// Compute again which instances belong to which groups
    Policy {
        /// Only show what would change
        #[arg(long)]
        dry_run: bool,
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

/// Arguments of `meshctl controller restore`.
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
        let to = match node_store(&self.config).map_err(failed)? {
            store::Options::Sqlite(path) => path,
            store::Options::Postgres(_) => return Err(failed(format!("the store: {POSTGRES_TOOLS}"))),
        };
        store::restore(&self.file, &to).map_err(|error| failed(error.to_string()))?;
        match output.json {
            true => output.value(&json!({"restored": to}))?,
            false => output.line(&format!("Restored: {}", to.display()))?,
        }
        Ok(Exit::Success)
    }
}

impl ControllerVerb {
    /// Asks the node, which `context` finds, or does without it.
    ///
    /// # Errors
    /// Those of the verb.
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
            Self::Ping => print_answer(context, operation::ping()).await,
            Self::Policy { dry_run } => {
                print_answer(context, operation::run_policies(PolicyRun { dry_run })).await
            }
            Self::Pause => print_answer(context, operation::pause()).await,
            Self::Resume => print_answer(context, operation::resume()).await,
            Self::ConfirmClock => print_answer(context, operation::confirm_clock()).await,
            Self::Cleanup => print_answer(context, operation::clean_up()).await,
            Self::Backup { file } => {
                print_answer(context, operation::back_up(BackupPath { path: absolute(&file)? })).await
            }
        }
    }
}

/// The node's directory is another than ours.
fn absolute(path: &Path) -> Result<String, Failure> {
    let whole = std::path::absolute(path).ok().and_then(|path| path.to_str().map(str::to_owned));
    whole.ok_or_else(|| Failure::usage(format!("{}: it is no path that can be sent", path.display())))
}
