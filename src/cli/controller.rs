//! `meshctl controller`: the controller of a control node as a whole.

use std::path::{Path, PathBuf};

use clap::Subcommand;

use super::Context;
use super::exit::{Exit, Failure};
use super::operation::Operation;

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
    /// Delete now what is kept too long, here and on the instances
    Cleanup,
    /// Write a copy of the store into a file on the control node (SQLite)
    Backup {
        /// File to write
        file: PathBuf,
    },
}

impl ControllerVerb {
    pub(super) async fn run(self, context: &Context) -> Result<Exit, Failure> {
        let operation = match self {
            Self::Ping => Operation::new("ping"),
            Self::Policy { dry_run } => Operation::new("policy.run").with("dry_run", dry_run),
            Self::Pause => Operation::new("pause"),
            Self::Resume => Operation::new("resume"),
            Self::Cleanup => Operation::new("cleanup"),
            Self::Backup { file } => Operation::new("backup").with("path", absolute(&file)?),
        };
        operation.print(context).await
    }
}

/// The node's directory is another than ours.
fn absolute(path: &Path) -> Result<String, Failure> {
    let whole = std::path::absolute(path).ok().and_then(|path| path.to_str().map(str::to_owned));
    whole.ok_or_else(|| Failure::usage(format!("{}: it is no path that can be sent", path.display())))
}
