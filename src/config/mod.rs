//! Configuration: from files and command line to checked types, all errors at once, each with its location.
//!
//! Each directive is declared once, in [`directives`]: names, types, defaults and help (`declare` says how, `parameters`
//! has the types). The way of a directive: a notation (`yaml` with `version2`, `cmdline`) yields it as written (`raw`,
//! `value`); the table of the declarations (`schema`) decides names, kinds, defaults and references (`check`); the
//! declaration's reader makes its typed value, part of a [`Config`]; `support` warns of what this version loads without
//! doing it. `components` says what of it a node runs, `reload` compares two configurations, `help` prints the grammar.
//!
//! Of other rooms this one names the types of their options, which it reads into, and nothing else. It opens
//! configuration files alone: no sockets, no keys, no clock; machine and caller are described by an [`Environment`].

mod address;
mod cmdline;
pub mod components;
mod declare;
pub mod directives;
pub mod error;
mod exposed;
mod firewall;
mod help;
mod item;
mod parameters;
mod receptor;
pub mod reload;
pub mod schema;
mod value;
mod yaml;

use std::path::{Path, PathBuf};

pub use address::{HostPort, WsUrl};
pub use components::ControlListener;
pub use directives::{Component, Config, DIRECTIVES, Link};
pub(crate) use error::nearest;
pub use error::{ConfigError, ConfigErrors, Location, Source, Warning};
pub use exposed::ADVICE;
pub use help::help;
pub use receptor::unknown_to_receptor;
pub use reload::{NotReloadable, ReloadPlan, plan};

use cmdline::Reading;
use declare::Declared;
use directives::node::Node;
use directives::tls::{TlsClient, TlsServer};
use error::Report;
use item::Item;
use schema::Directive;

use crate::tls::{ClientOptions, ServerOptions};

/// Everything outside the configuration that its defaults may depend on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Environment {
    /// The name the program was called by, without directory.
    pub program: String,
    /// The machine's name.
    pub host_name: Option<String>,
    /// True if the program runs as root.
    pub is_root: bool,
    /// `STATE_DIRECTORY`, which systemd sets for a service that has one.
    pub state_directory: Option<PathBuf>,
    /// `XDG_STATE_HOME`
    pub xdg_state_home: Option<PathBuf>,
    /// `HOME`
    pub home: Option<PathBuf>,
}

impl Environment {
    /// The environment of this process.
    pub fn of_process() -> Self {
        let path = |name| std::env::var_os(name).map(PathBuf::from);
        let program = std::env::args_os().next().unwrap_or_default();
        let program = Path::new(&program).file_name().unwrap_or_default().to_string_lossy().into_owned();
        Self {
            program,
            host_name: rustix::system::uname().nodename().to_str().ok().map(str::to_owned),
            is_root: rustix::process::geteuid().is_root(),
            state_directory: path("STATE_DIRECTORY"),
            xdg_state_home: path("XDG_STATE_HOME"),
            home: path("HOME"),
        }
    }

    /// Where a node keeps its data unless configured; under the name `receptor` it is receptor's own directory.
    pub fn default_data_dir(&self) -> Option<PathBuf> {
        // A relative path would depend on where the program was started; the XDG rules say to ignore it.
        let absolute = |path: &Option<PathBuf>| path.clone().filter(|path| path.is_absolute());
        if self.program == "receptor" {
            Some(PathBuf::from("/tmp/receptor"))
        } else if let Some(directory) = absolute(&self.state_directory) {
            Some(directory)
        } else if self.is_root {
            Some(PathBuf::from("/var/lib/meshd"))
        } else {
            let state = absolute(&self.xdg_state_home);
            // The home of users who have none, in containers above all.
            let home = absolute(&self.home).filter(|home| home != Path::new("/"));
            let state = state.or_else(|| Some(home?.join(".local/state")));
            state.map(|state| state.join("meshd"))
        }
    }
}

/// The action that a command line asks for.
#[derive(Debug)]
pub enum Invocation {
    /// Print [`help`] and end.
    Help,
    /// Print the version and end.
    Version,
    /// Run a node, or the certificate command in [`Config::certificate`].
    Run(Box<Loaded>),
}

/// A configuration and where it comes from.
#[derive(Debug)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// To be logged.
    pub warnings: Vec<Warning>,
    /// For who asks what may be better.
    pub notes: Vec<Warning>,
    /// The way to read it again.
    pub sources: Sources,
}

/// Where a configuration was read from: the command line with the files that it names, and the environment.
#[derive(Debug, Clone)]
pub struct Sources {
    args: Vec<String>,
    environment: Environment,
    files: Vec<PathBuf>,
    watched: Vec<PathBuf>,
}

impl Sources {
    /// The files that were read, in their order.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// Those of them in version 2: a change of one is followed without a request.
    pub fn watched(&self) -> &[PathBuf] {
        &self.watched
    }

    /// Reads the same sources again. Files in a directory may have come or gone.
    ///
    /// # Errors
    /// Everything that is wrong with them now.
    pub fn load_again(&self) -> Result<Loaded, ConfigErrors> {
        read(&self.args, &self.environment)
    }
}

/// Reads a configuration from the arguments after the program's name. No arguments ask for help.
///
/// # Errors
/// Everything that is wrong with the command line and the files it names.
pub fn load(
    args: impl IntoIterator<Item = String>,
    environment: &Environment,
) -> Result<Invocation, ConfigErrors> {
    let args: Vec<String> = args.into_iter().collect();
    let options = args.iter().filter_map(|arg| cmdline::option(arg));
    let asked = options.map(str::to_ascii_lowercase).find_map(|option| match option.as_str() {
        "help" | "h" => Some(Invocation::Help),
        "version" => Some(Invocation::Version),
        _ => None,
    });
    match asked {
        Some(asked) => Ok(asked),
        None if args.is_empty() => Ok(Invocation::Help),
        None => read(&args, environment).map(|loaded| Invocation::Run(Box::new(loaded))),
    }
}

/// The TLS profiles in a node's configuration, which is a file or a directory. What else is in it may be for another
/// version of the program, and is not looked at.
///
/// # Errors
/// What is wrong with the files, or with the profiles.
pub fn tls_profiles(path: &Path) -> Result<(Vec<ServerOptions>, Vec<ClientOptions>), ConfigErrors> {
    let mut report = Report::default();
    let items = reading_of(path, &mut report).items;
    if !items.is_empty() {
        let is_profile =
            |error: &ConfigError| matches!(error.directive, Some(TlsServer::NAME | TlsClient::NAME));
        report.errors.retain(is_profile);
    }
    let environment = Environment::of_process();
    let servers = directives::read_all::<TlsServer>(&items, &environment, &mut report);
    let clients = directives::read_all::<TlsClient>(&items, &environment, &mut report);
    report.finish().map(|_| (servers, clients))
}

/// Reads a file, or a directory of files.
fn reading_of(path: &Path, report: &mut Report) -> Reading {
    let option = if path.is_dir() { "--config-dir" } else { "--config" };
    cmdline::read(&[option.to_owned(), path.display().to_string()], report)
}

/// Whether this file counts among those of a directory of configuration.
pub fn is_configuration(path: &Path) -> bool {
    cmdline::is_configuration(path)
}

/// The configuration that these files would be, each with its path and its text, read on this machine.
///
/// # Errors
/// Everything that is wrong with them.
pub fn of_texts(files: &[(PathBuf, String)]) -> Result<Config, ConfigErrors> {
    let mut report = Report::default();
    let read = |(path, text): &(PathBuf, String)| yaml::read(path, text, &mut report).items;
    let items = files.iter().flat_map(read).collect();
    let config = assemble(items, &Environment::of_process(), &mut report);
    report.finish().map(|_warnings| config)
}

fn read(args: &[String], environment: &Environment) -> Result<Loaded, ConfigErrors> {
    let mut report = Report::default();
    let Reading { items, files, watched } = cmdline::read(args, &mut report);
    let config = assemble(items, environment, &mut report);
    let notes = config.notes_for_awx(std::mem::take(&mut report.bare_words));
    let warnings = report.finish()?;
    let sources = Sources { args: args.to_vec(), environment: environment.clone(), files, watched };
    Ok(Loaded { config, warnings, notes, sources })
}

impl Config {
    /// AWX reads the configuration of its own node, and fails at an item that is a name and no more.
    fn notes_for_awx(&self, bare_words: Vec<(Location, String)>) -> Vec<Warning> {
        const OF_AWX: [&str; 3] = ["local", "kubernetes-runtime-auth", "kubernetes-incluster-auth"];
        let commands = self.work_commands.iter().map(|kind| &kind.name);
        let mut types = commands.chain(self.work_kubernetes.iter().map(|kind| &kind.name));
        if !types.any(|name| OF_AWX.contains(&name.as_str())) {
            return Vec::new();
        }
        let note = |(at, name)| Warning {
            at,
            text: format!(
                "{name}: right here and in receptor, but AWX fails at it when it reads this file: write `{name}:`"
            ),
        };
        bare_words.into_iter().map(note).collect()
    }
}

/// From directives to the configuration, which is complete unless there is an error in the report.
fn assemble(mut items: Vec<Item>, environment: &Environment, report: &mut Report) -> Config {
    item::check(&items, report);
    let given = |directive: &Directive| items.iter().any(|item| item.directive.name == directive.name);
    // A certificate command needs no node: neither its name nor its directory.
    if !DIRECTIVES.iter().any(|directive| directive.exclusive && given(directive)) {
        let implicit = DIRECTIVES.iter().find(|directive| directive.name == Node::NAME && !given(directive));
        items.extend(implicit.map(Item::implicit));
    }
    let config = directives::build(&items, environment, report);
    exposed::warn(&config, &items, report);
    config
}

#[cfg(test)]
mod tests;
