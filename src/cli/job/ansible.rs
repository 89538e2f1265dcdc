//! The flags of `meshctl job run` that ansible-playbook has and the runner has no word for: they become words of
//! ansible's command line on the node. Passwords are files there, never words.

use std::path::{Component, Path};

use clap::Args;

use super::vault::VaultFlags;
use crate::cli::exit::Failure;

/// Flags of ansible, by its own names and letters.
#[derive(Debug, Args)]
pub(in crate::cli) struct AnsibleFlags {
    /// Change nothing, and say what would change
    #[arg(long, short = 'C')]
    pub check: bool,
    /// Show what changes in files
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
    /// User of the connection
    #[arg(long, short = 'u')]
    pub user: Option<String>,
    /// Kind of connection, such as local
    #[arg(long, short = 'c')]
    pub connection: Option<String>,
    /// Directories of modules within the project, with colons
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
    /// Ask for the password of the connection
    #[arg(long, short = 'k')]
    pub ask_pass: bool,
    /// Ask for the password of become
    #[arg(long, short = 'K')]
    pub ask_become_pass: bool,
    #[command(flatten)]
    pub vault: VaultFlags,
}

/// Where ansible runs on the node, as seen from there: a module beside the project, a playbook in it.
#[derive(Debug, Clone, Copy)]
pub(super) struct RunnerPaths {
    /// What stands before `env/…`.
    pub top: &'static str,
    /// What stands before a path within the project.
    pub project: &'static str,
}

impl RunnerPaths {
    /// With an image all of it is below /runner, and a module runs in the project as well.
    pub(super) fn of(is_module: bool, has_image: bool) -> Self {
        match (is_module, has_image) {
            (true, true) => Self { top: "/runner/", project: "/runner/project/" },
            (true, false) => Self { top: "", project: "project/" },
            (false, _) => Self { top: "../", project: "" },
        }
    }
}

impl AnsibleFlags {
    /// The words, without those for passwords.
    ///
    /// # Errors
    /// A path that does not travel with the project.
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

/// Paths with colons, as they are on the node.
fn travelling(paths: &str, place: RunnerPaths) -> Result<String, Failure> {
    let inside = |path: &str| {
        let is_below = |part| matches!(part, Component::Normal(_) | Component::CurDir);
        let text = format!("--module-path: {path} does not lie in the project, and only that travels");
        if Path::new(path).components().all(is_below) {
            Ok(format!("{}{path}", place.project))
        } else {
            Err(Failure::usage(text))
        }
    };
    Ok(paths.split(':').map(inside).collect::<Result<Vec<_>, _>>()?.join(":"))
}
