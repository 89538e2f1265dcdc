//! The flags of `meshctl job run` that ansible-playbook has and the runner's arguments lack: they become words of
//! ansible's command line on the node. Passwords travel in files, never as words.

use std::path::{Component, Path};

use clap::Args;

use super::vault::VaultFlags;
use crate::cli::exit::Failure;
use crate::controller::pack::RunnerPaths;

/// Flags of ansible, by its own names and letters.
#[derive(Debug, Args)]
pub(in crate::cli) struct AnsibleFlags {
    /// Change nothing, and show what would change
    #[arg(long, short = 'C')]
    pub check: bool,
    /// Show what changes in files, as a diff
    #[arg(long, short = 'D')]
    pub diff: bool,
    /// Become another user on the hosts
    #[arg(long = "become", short = 'b')]
    pub becomes: bool,
    /// User to become
    #[arg(long, value_name = "USER")]
    pub become_user: Option<String>,
    /// How to become it
    #[arg(long, value_name = "METHOD")]
    pub become_method: Option<String>,
    /// User to connect as
    #[arg(long, short = 'u')]
    pub user: Option<String>,
    /// Kind of connection, such as local
    #[arg(long, short = 'c')]
    pub connection: Option<String>,
    /// Directories of modules within the project, separated by colons
    #[arg(long, short = 'M', value_name = "PATH")]
    pub module_path: Option<String>,
    /// Start at the task of this name
    #[arg(long, value_name = "NAME", conflicts_with = "module")]
    pub start_at_task: Option<String>,
    /// Refused: nobody can answer a job
    #[arg(long, hide = true)]
    pub step: bool,
    /// Check the playbook's syntax, and run nothing
    #[arg(long, conflicts_with = "module")]
    pub syntax_check: bool,
    /// List the hosts, and run nothing
    #[arg(long)]
    pub list_hosts: bool,
    /// List the tasks, and run nothing
    #[arg(long, conflicts_with = "module")]
    pub list_tasks: bool,
    /// List the tags, and run nothing
    #[arg(long, conflicts_with = "module")]
    pub list_tags: bool,
    /// Forget the facts of all hosts first
    #[arg(long, conflicts_with = "module")]
    pub flush_cache: bool,
    /// Run handlers even if a task fails
    #[arg(long, conflicts_with = "module")]
    pub force_handlers: bool,
    /// Ask for the password to connect with
    #[arg(long, short = 'k')]
    pub ask_pass: bool,
    /// Ask for the password to become the other user with
    #[arg(long, short = 'K')]
    pub ask_become_pass: bool,
    #[command(flatten)]
    pub vault: VaultFlags,
}

impl AnsibleFlags {
    /// The words of ansible's command line, without those for passwords.
    ///
    /// # Errors
    /// A path is not within the project.
    pub(super) fn words(&self, place: RunnerPaths) -> Result<Vec<String>, Failure> {
        let switches = [
            (self.check, "--check"),
            (self.diff, "--diff"),
            (self.becomes, "--become"),
            (self.syntax_check, "--syntax-check"),
            (self.list_hosts, "--list-hosts"),
            (self.list_tasks, "--list-tasks"),
            (self.list_tags, "--list-tags"),
            (self.flush_cache, "--flush-cache"),
            (self.force_handlers, "--force-handlers"),
        ];
        let module_path = self.module_path.as_deref().map(|path| travelling(path, place)).transpose()?;
        let values = [
            (&self.become_user, "--become-user"),
            (&self.become_method, "--become-method"),
            (&self.user, "--user"),
            (&self.connection, "--connection"),
            (&module_path, "--module-path"),
            (&self.start_at_task, "--start-at-task"),
        ];
        let given = switches.into_iter().filter(|(given, _)| *given).map(|(_, word)| word.to_owned());
        let valued =
            values.into_iter().filter_map(|(value, word)| Some(format!("{word}={}", value.as_ref()?)));
        Ok(given.chain(valued).collect())
    }
}

/// Paths separated by colons, as they are on the node.
fn travelling(paths: &str, place: RunnerPaths) -> Result<String, Failure> {
    let inside = |path: &str| {
        let is_below = |part| matches!(part, Component::Normal(_) | Component::CurDir);
        let text = format!("--module-path: {path} is not in the project, and only the project is sent");
        if Path::new(path).components().all(is_below) {
            Ok(format!("{}{path}", place.project))
        } else {
            Err(Failure::usage(text))
        }
    };
    Ok(paths.split(':').map(inside).collect::<Result<Vec<_>, _>>()?.join(":"))
}
