//! `meshctl config`: lists the settings of a node that another program does not know.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde_json::json;

use super::existing_path;
use super::exit::{Exit, Failure};
use super::output::Output;
use crate::config::unknown_to_receptor;

#[derive(Debug, Args)]
pub(super) struct ConfigCommand {
    /// List the settings that this program does not know, and with which it would not start
    #[arg(long = "for", value_name = "PROGRAM")]
    program: Program,
    /// A file, or a directory of files
    #[arg(default_value = "/etc/receptor/receptor.conf", value_parser = existing_path())]
    path: PathBuf,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Program {
    Receptor,
}

impl ConfigCommand {
    pub(super) fn run(self, output: Output) -> Result<Exit, Failure> {
        let found = match self.program {
            Program::Receptor => unknown_to_receptor(&self.path),
        };
        let found = found.map_err(|errors| Failure::new(Exit::Failed, errors.to_string()))?;
        let lines: Vec<_> = found.iter().map(|one| format!("{}: {}", one.at, one.text)).collect();
        let fine = || format!("fine: receptor knows everything in {}", self.path.display());
        output.answer(&json!(lines), || if lines.is_empty() { fine() } else { lines.join("\n") })?;
        Ok(if lines.is_empty() { Exit::Success } else { Exit::Failed })
    }
}
