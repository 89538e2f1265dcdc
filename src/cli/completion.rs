//! `meshctl completion`: what shells need to complete our arguments, and the names that only a node knows. A node that
//! does not answer at once yields no names, because a shell does not wait. Only plain names are offered, because
//! strangers choose names, and a shell runs what stands on its line.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::time::Duration;

use clap::{Args, CommandFactory};
use clap_complete::CompleteEnv;
use clap_complete::engine::{
    ArgValueCandidates, ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter,
};
use clap_complete::env::Shells;
use serde::de::DeserializeOwned;

use super::endpoint::{DEFAULT_SOCKETS, Endpoint, EndpointDialer};
use super::exit::{Exit, Failure};
use super::output::Output;
use super::target::usual_socket;
use crate::rpc::operation::{self, InstanceFilter, JobFilter, Nothing, Question, SavedFilter};
use crate::rpc::report::node::{NodeReport, Section};
use crate::rpc::request::Request;
use crate::rpc::{Client, Deadlines, report};

/// Set by the shell's script when it asks for completions.
const VARIABLE: &str = "MESHCTL_COMPLETE";
/// How long a shell waits for names.
const NAMES_WITHIN: Duration = Duration::from_secs(1);
const SOCKET: &str = "--socket";

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

/// Answers a shell; false if none asks. Must run before other threads exist, because it changes the environment.
pub(super) fn answer(args: &[OsString]) -> bool {
    let directory = std::env::current_dir().ok();
    let asked = CompleteEnv::with_factory(super::Cli::command).var(VARIABLE);
    // A shell that cannot read the answer completes nothing.
    asked.try_complete(args, directory.as_deref()).unwrap_or(true)
}

/// Numbers of jobs, newest first.
pub(super) fn jobs() -> ArgValueCandidates {
    candidates(operation::list_jobs(JobFilter::default()), |answer| {
        answer.jobs.into_iter().map(|job| (job.id.to_string(), Some(job.name))).collect()
    })
}

/// Names of instances.
pub(super) fn instances() -> ArgValueCandidates {
    candidates(operation::list_instances(InstanceFilter::default()), |answer| {
        answer.instances.into_iter().flatten().map(|one| (one.name, Some(one.node_type))).collect()
    })
}

/// Names of groups.
pub(super) fn groups() -> ArgValueCandidates {
    candidates(operation::list_groups(Nothing {}), |answer| {
        answer.groups.into_iter().map(|group| (group.name, None)).collect()
    })
}

/// Names of saved jobs.
pub(super) fn saved_jobs() -> ArgValueCandidates {
    candidates(operation::list_saved(SavedFilter::default()), |answer| {
        answer.saved.into_iter().map(|one| (one.name, one.runs)).collect()
    })
}

/// Names of nodes of the mesh, as the node knows them.
pub(super) fn nodes() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let fields = Some([Section::NodeId, Section::Routes].map(|section| section.to_string()).to_vec());
        let ask = async |client: &Client| client.command(&Request::Status { fields }).await.ok();
        let report = connected(ask).and_then(|answer| report::read::<NodeReport>(&answer).ok());
        let NodeReport { node_id, routing_table, .. } = report.unwrap_or_default();
        let names = routing_table.into_iter().flat_map(BTreeMap::into_keys).chain(node_id);
        offered(names.map(|name| (name, None)))
    })
}

/// Control sockets: the usual ones that exist, and those below a path.
pub(super) fn sockets() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        let is_socket = |path: &Path| path.metadata().is_ok_and(|facts| facts.file_type().is_socket());
        let usual = DEFAULT_SOCKETS.into_iter().filter(|path| is_socket(Path::new(path)));
        let typed = current.to_string_lossy().into_owned();
        let usual = usual.filter(|path| path.starts_with(&typed)).map(CompletionCandidate::new);
        let paths = PathCompleter::any().filter(is_socket).complete(current);
        usual.chain(paths).collect()
    })
}

/// Playbooks and directories below a path.
pub(super) fn playbook_paths() -> ArgValueCompleter {
    ArgValueCompleter::new(PathCompleter::any().filter(|path| is_playbook(path.as_os_str())))
}

/// Playbooks in `project`, if this is a runner's directory, else in this directory.
pub(super) fn playbooks() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let in_project = std::fs::read_dir("project").or_else(|_| std::fs::read_dir("."));
        let files = in_project.into_iter().flatten().flatten().map(|entry| entry.file_name());
        let names = files.filter(|name| is_playbook(name)).filter_map(|name| name.into_string().ok());
        offered(names.map(|name| (name, None)))
    })
}

fn is_playbook(name: &OsStr) -> bool {
    [".yml", ".yaml"].iter().any(|end| name.to_string_lossy().ends_with(end))
}

/// Offers the names in an answer, each with a short help text.
fn candidates<A: DeserializeOwned + 'static>(
    question: Question<A>,
    names: fn(A) -> Vec<(String, Option<String>)>,
) -> ArgValueCandidates {
    ArgValueCandidates::new(move || {
        let ask = async |client: &Client| question.ask(client).await.ok();
        let answer = connected(ask).map(|answer| answer.report);
        offered(answer.map(names).unwrap_or_default())
    })
}

/// The names that are safe on a shell's line, in their order, each with its help text. Bash inserts them as they are,
/// so `$(...)` in a node's name would run.
fn offered(names: impl IntoIterator<Item = (String, Option<String>)>) -> Vec<CompletionCandidate> {
    let plain = names.into_iter().filter(|(name, _)| is_plain(name));
    let candidate = |(at, (name, help)): (usize, (String, Option<String>))| {
        let help = help.filter(|help| is_plain(help));
        CompletionCandidate::new(name).help(help.map(Into::into)).display_order(Some(at))
    };
    plain.enumerate().map(candidate).collect()
}

/// Whether every shell takes a text for one word, and meshctl does not take it for a flag.
fn is_plain(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._@:+/-".contains(&byte);
    !text.is_empty() && !text.starts_with('-') && text.bytes().all(is_plain)
}

/// What a node answers, if there is one.
fn connected<T>(ask: impl AsyncFnOnce(&Client) -> Option<T>) -> Option<T> {
    let endpoint = match socket(
        &std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>(),
    ) {
        Some(text) => text.parse::<Endpoint>().ok()?,
        None => usual_socket(&DEFAULT_SOCKETS).ok()?.0,
    };
    let deadlines = Deadlines { connect: NAMES_WITHIN, answer: NAMES_WITHIN, ..Deadlines::default() };
    let client = Client::new(EndpointDialer::new(endpoint, None), deadlines);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    runtime.block_on(ask(&client))
}

/// The socket on the line that is being completed, else that of the environment.
fn socket(args: &[String]) -> Option<String> {
    let given = args.iter().zip(args.iter().skip(1)).find(|(word, _)| *word == SOCKET);
    let joined = || args.iter().find_map(|word| word.strip_prefix(SOCKET)?.strip_prefix('='));
    let given = given.map(|(_, socket)| socket.as_str()).or_else(joined);
    given.map(str::to_owned).or_else(|| std::env::var("RECEPTORCTL_SOCKET").ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(names: &[&str]) -> Vec<String> {
        let candidates = offered(names.iter().map(|name| ((*name).to_owned(), Some((*name).to_owned()))));
        let value = |one: &CompletionCandidate| one.get_value().to_string_lossy().into_owned();
        assert!(candidates.iter().all(|one| one.get_help().is_some()), "a plain word is shown");
        candidates.iter().map(value).collect()
    }

    #[test]
    fn only_names_that_no_shell_reads_anything_into_are_offered() {
        let plain = ["exe1", "a.b-c_d", "node@host:27199", "42", "x/y.yml", "c++"];
        assert_eq!(values(&plain), plain);
        let hostile = [
            "exe2$(touch x)",
            "a`id`",
            "a;id",
            "a|id",
            "a&id",
            "a>x",
            "a<x",
            "a b",
            "a\tb",
            "a\nb",
            "a\u{b}b",
            "$HOME",
            "a*",
            "a?",
            "[a]",
            "{a,b}",
            "!!",
            "a#b",
            "~root",
            "a\\b",
            "a'b",
            "a\"b",
            "a^b",
            "a=b",
            "a%b",
            "a,b",
            "-f",
            "--socket",
            "-",
            "",
            "=ls",
            "a\u{1b}[2J",
            "a\u{202e}b",
            "a\u{2029}b",
            "a\u{200b}b",
            "\u{e9}",
            "a\u{0}",
        ];
        for name in hostile {
            assert_eq!(values(&[name]), Vec::<String>::new(), "{name:?}");
        }
    }

    #[test]
    fn a_word_about_a_name_is_plain_too() {
        let [job] = offered([("7".to_owned(), Some("\u{1b}[2J`id`".to_owned()))]).try_into().unwrap();
        assert_eq!((job.get_value(), job.get_help()), (OsStr::new("7"), None));
    }
}
