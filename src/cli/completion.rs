//! `meshctl completion`: what shells need to complete our arguments, and the names that only a node knows. A node that
//! does not answer at once has no names: a shell does not wait.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, CommandFactory};
use clap_complete::CompleteEnv;
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use clap_complete::env::Shells;
use serde_json::Value;

use super::endpoint::{DEFAULT_SOCKETS, Endpoint, EndpointDialer};
use super::exit::{Exit, Failure};
use super::operation::Operation;
use super::output::Output;
use super::target::usual_socket;
use crate::rpc::{Client, Deadlines};

/// Set by the shell's script when it asks for completions.
const VARIABLE: &str = "MESHCTL_COMPLETE";
/// How long a shell waits for names.
const PATIENCE: Duration = Duration::from_secs(1);
const SOCKET: &str = "--socket";

/// Arguments of `meshctl completion`.
#[derive(Debug, Args)]
pub(super) struct Completion {
    /// The shell whose script to print
    #[arg(value_parser = ["bash", "zsh", "fish"])]
    shell: String,
}

impl Completion {
    /// Prints the script.
    pub(super) fn run(&self, output: Output) -> Result<Exit, Failure> {
        let mut script = Vec::new();
        if let Some(shell) = Shells::builtins().completer(&self.shell) {
            let written = shell.write_registration(VARIABLE, "meshctl", "meshctl", "meshctl", &mut script);
            written.map_err(|error| Failure::output(&error))?;
        }
        output.line(String::from_utf8_lossy(&script).trim_end())?;
        Ok(Exit::Success)
    }
}

/// Answers a shell; false if none asks. Before any other thread exists.
pub(super) fn answer(args: &[OsString]) -> bool {
    let directory = std::env::current_dir().ok();
    let asked = CompleteEnv::with_factory(super::Cli::command).var(VARIABLE);
    // A shell that cannot read the answer completes nothing.
    asked.try_complete(args, directory.as_deref()).unwrap_or(true)
}

/// Numbers of jobs, newest first.
pub(super) fn jobs() -> ArgValueCandidates {
    ArgValueCandidates::new(|| names("job.list", "jobs", "id", "name"))
}

/// Names of instances.
pub(super) fn instances() -> ArgValueCandidates {
    ArgValueCandidates::new(|| names("instance.list", "instances", "name", "node_type"))
}

/// Names of groups.
pub(super) fn groups() -> ArgValueCandidates {
    ArgValueCandidates::new(|| names("group.list", "groups", "name", ""))
}

/// Playbooks in this directory, or in the project of a runner's.
pub(super) fn playbooks() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let in_project = std::fs::read_dir("project").or_else(|_| std::fs::read_dir("."));
        let files = in_project.into_iter().flatten().flatten().map(|entry| entry.file_name());
        let is_playbook =
            |name: &OsString| [".yml", ".yaml"].iter().any(|end| name.to_string_lossy().ends_with(end));
        files.filter(is_playbook).map(CompletionCandidate::new).collect()
    })
}

fn names(op: &'static str, list: &str, key: &str, help: &str) -> Vec<CompletionCandidate> {
    let answer = ask(op).unwrap_or_default();
    let rows = answer[list].as_array().into_iter().flatten().enumerate();
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let candidate = |(at, row): (usize, &Value)| {
        let help = row[help].as_str().map(|help| help.to_owned().into());
        CompletionCandidate::new(text(&row[key])).help(help).display_order(Some(at))
    };
    rows.map(candidate).collect()
}

fn ask(op: &'static str) -> Option<Value> {
    let endpoint = match socket(
        &std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>(),
    ) {
        Some(text) => text.parse::<Endpoint>().ok()?,
        None => usual_socket(&DEFAULT_SOCKETS).ok()?,
    };
    let deadlines = Deadlines { connect: PATIENCE, answer: PATIENCE, ..Deadlines::default() };
    let client = Client::new(EndpointDialer::new(endpoint, None), deadlines);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    runtime.block_on(Operation::new(op).ask(&client)).ok()
}

/// The socket on the line that is being completed, or of the environment.
fn socket(args: &[String]) -> Option<String> {
    let given = args.iter().zip(args.iter().skip(1)).find(|(word, _)| *word == SOCKET);
    let joined = || args.iter().find_map(|word| word.strip_prefix(SOCKET)?.strip_prefix('='));
    let given = given.map(|(_, socket)| socket.as_str()).or_else(joined);
    given.map(str::to_owned).or_else(|| std::env::var("RECEPTORCTL_SOCKET").ok())
}
