//! The flags of `meshctl job run`. Those that ansible has keep its letters and meaning; `ansible` has those that become
//! words of ansible's command line.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use super::ansible::AnsibleFlags;
use super::chosen::named;
use crate::cli::completion::{groups, jobs, playbook_paths, playbooks};
use crate::cli::existing_path;
use crate::cli::exit::Failure;
use crate::controller::core::JobKind;
use crate::controller::credentials::{CredentialName, Url};
use crate::controller::header::{Header, Pull};

/// Most characters of a name that nobody chose.
const LONGEST_TITLE: usize = 100;

#[derive(Debug, Args)]
pub(in crate::cli) struct RunFlags {
    /// Playbook to run; with -m, the hosts to run it on; or the directory for -p and -m: the project, or a runner's
    /// directory with project/ in it [default: .]
    #[arg(value_name = "PLAYBOOK|HOSTS|DIR", add = playbook_paths())]
    pub dir: Option<PathBuf>,
    /// The directory is the project even if it has project/ in it, because the playbook is not in project/.
    #[arg(skip)]
    pub is_project: bool,
    /// Playbook to run, as a path within the project
    #[arg(long, short = 'p', value_name = "FILE", add = playbooks())]
    pub playbook: Option<String>,
    /// Module to run on each host, instead of a playbook
    #[arg(long, short = 'm', conflicts_with = "playbook")]
    pub module: Option<String>,
    /// Arguments of the module
    #[arg(long = "args", short = 'a', requires = "module")]
    pub module_args: Option<String>,
    /// Hosts to run the module on [default: all]
    #[arg(long, requires = "module")]
    pub pattern: Option<String>,
    /// Inventory: a file, a directory, or a list of hosts with a comma after each
    #[arg(long, short = 'i', value_name = "FILE|DIR|HOST,")]
    pub inventory: Vec<String>,
    /// Variables: KEY=VALUE, a JSON object, or @FILE
    #[arg(long = "extra-vars", short = 'e', value_name = "VARS")]
    pub extra_vars: Vec<String>,
    /// Run only on these hosts; if given several times, the last one counts
    #[arg(long, short = 'l', value_name = "PATTERN", overrides_with = "limit")]
    pub limit: Option<String>,
    /// Number of hosts to work on at a time
    #[arg(long, short = 'f', env = "ANSIBLE_FORKS", hide_env_values = true, overrides_with = "forks",
        value_parser = clap::value_parser!(u32).range(1..))]
    pub forks: Option<u32>,
    /// Run only tasks with these tags, separated by commas or given several times
    #[arg(long, short = 't')]
    pub tags: Vec<String>,
    /// Skip tasks with these tags
    #[arg(long)]
    pub skip_tags: Vec<String>,
    /// Let the playbook print more (up to -vvvvv)
    #[arg(short = 'v', action = clap::ArgAction::Count)]
    pub verbose: u8,
    #[command(flatten)]
    pub ansible: AnsibleFlags,
    /// Private key for the hosts
    #[arg(long, alias = "key-file", value_name = "FILE", value_parser = existing_path())]
    pub private_key: Option<PathBuf>,
    #[command(flatten)]
    pub placing: Placing,
    /// Directory for the job's artifacts: stdout, rc, status, job_events/, facts
    #[arg(long, value_name = "DIR")]
    pub artifacts: Option<PathBuf>,
    /// Most bytes that the runner's files may take up there
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 30)]
    pub artifacts_limit: u64,
    /// Do not wait for the job to end: only print its number
    #[arg(long)]
    pub detach: bool,
}

impl RunFlags {
    /// Settles what the positional argument is. With `-p` or `-m` it is the directory; with `-m`, what is no directory
    /// is a pattern of hosts, as for ansible. Otherwise it is the playbook, and this directory is the project, as for
    /// ansible-playbook; if the playbook is elsewhere, its own directory is the project.
    pub(super) fn settle(&mut self) -> Result<(), Failure> {
        if self.ansible.step {
            let text = "--step asks before each task, and nobody can answer a job: use --start-at-task, --tags or --check";
            return Err(Failure::usage(text));
        }
        if self.module.is_some() && self.pattern.is_none() {
            let hosts = self.dir.take_if(|given| !given.is_dir());
            self.pattern = hosts.map(|hosts| hosts.to_string_lossy().into_owned());
        }
        let is_said = self.playbook.is_some() || self.module.is_some();
        let Some(given) = self.dir.as_ref().filter(|_| !is_said) else {
            let text = "say what to run: a playbook, as in `meshctl job run site.yml`, or -m MODULE";
            return if is_said { Ok(()) } else { Err(Failure::usage(text)) };
        };
        let shown = given.display();
        if given.is_dir() {
            return Err(Failure::usage(format!("{shown} is a directory: name the playbook in it with -p")));
        }
        let Ok(found) = given.canonicalize() else {
            return Err(Failure::usage(format!("there is no playbook {shown}")));
        };
        let here = PathBuf::from(".");
        let inside = |root: &str| found.strip_prefix(Path::new(root).canonicalize().ok()?).ok();
        let of_runner = inside("project");
        let beside = || Some((found.parent()?.to_owned(), Path::new(found.file_name()?)));
        let (dir, playbook) = of_runner
            .or_else(|| inside("."))
            .map(|playbook| (here, playbook))
            .or_else(beside)
            .and_then(|(dir, playbook)| Some((dir, playbook.to_str()?.to_owned())))
            .ok_or_else(|| Failure::usage(format!("{shown}: it has no name in UTF-8")))?;
        self.is_project = of_runner.is_none();
        (self.dir, self.playbook) = (Some(dir), Some(playbook));
        Ok(())
    }

    /// The header of the job.
    pub(super) fn header(&self) -> Header {
        let kind = if self.module.is_some() { JobKind::AdHoc } else { JobKind::Job };
        self.placing.clone().onto(Header { kind, name: self.title(), ..Header::default() })
    }

    /// What the job does, for lists: its playbook, or its module with its arguments.
    fn title(&self) -> Option<String> {
        let module = self.module.as_ref().map(|module| match &self.module_args {
            Some(args) => format!("{module} {args}"),
            None => module.clone(),
        });
        let title = self.playbook.clone().or(module)?;
        let plain = title.chars().map(|c| if c.is_control() { ' ' } else { c });
        Some(plain.take(LONGEST_TITLE).collect())
    }
}

/// Where and when a job runs: the flags that become its header.
#[derive(Debug, Default, Clone, Args)]
pub(in crate::cli) struct Placing {
    /// Number of hosts in the inventory, which the job's size depends on
    #[arg(long)]
    pub hosts: Option<u32>,
    /// How long the job may run, as in 1h30m
    #[arg(long, value_name = "DURATION", value_parser = span)]
    pub job_timeout: Option<Duration>,
    /// How long the job may wait to be started
    #[arg(long, value_name = "DURATION", value_parser = span)]
    pub pending_timeout: Option<Duration>,
    /// How long the job's node may be silent before it counts as lost
    #[arg(long, value_name = "DURATION", value_parser = span)]
    pub lost_after: Option<Duration>,
    /// Run the job again, up to this many times, if its node is lost
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=10))]
    pub retry: Option<u32>,
    /// Run it again even if the lost attempt may still be running
    #[arg(long, requires = "retry")]
    pub retry_unconfirmed: bool,
    /// Group to run in; if given several times, the groups are tried in this order
    #[arg(long, add = groups())]
    pub group: Vec<String>,
    /// Name to show in lists [default for job run: the playbook, or the module and its arguments]
    #[arg(long)]
    pub name: Option<String>,
    /// Key of the job: submitting the same key again follows the same job
    #[arg(long, value_name = "KEY")]
    pub job_key: Option<String>,
    /// Priority, from -100 to 100; higher goes first
    #[arg(long, allow_negative_numbers = true, value_parser = clap::value_parser!(i8).range(-100..=100))]
    pub priority: Option<i8>,
    /// Label to filter by
    #[arg(long, value_name = "KEY=VALUE", value_parser = label)]
    pub label: Vec<(String, String)>,
    /// Number or key of a job that must succeed first
    #[arg(long, value_name = "JOB", add = jobs())]
    pub depends_on: Vec<String>,
    /// Word that only one running job may hold at a time
    #[arg(long, value_name = "WORD")]
    pub exclusive: Vec<String>,
    /// Image of the execution environment
    #[arg(long)]
    pub image: Option<String>,
    /// When to pull the image: always, missing or never
    #[arg(long, value_parser = named(&Pull::ALL, Pull::name))]
    pub pull: Option<Pull>,
    /// Credential for the image's registry
    #[arg(long, value_name = "CREDENTIAL", value_parser = CredentialName::new)]
    pub registry: Option<CredentialName>,
    /// Repository of the project, which the control node fetches
    #[arg(long, value_name = "URL", value_parser = Url::parse)]
    pub project_url: Option<Url>,
    /// Branch, tag or commit of the repository
    #[arg(long, requires = "project_url")]
    pub revision: Option<String>,
    /// Credential for the repository
    #[arg(long, value_name = "CREDENTIAL", requires = "project_url", value_parser = CredentialName::new)]
    pub project_credential: Option<CredentialName>,
}

fn span(text: &str) -> Result<Duration, String> {
    match crate::duration::parse(text) {
        Ok(span) if span.is_zero() => Err("it must be above zero".to_owned()),
        span => span.map_err(|error| error.to_string()),
    }
}

/// A label as typed.
pub(super) fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("write it as KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}
