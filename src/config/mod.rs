//! Configuration: from files and the command line to checked types. It gives all errors at once, each with its
//! location.
//!
//! Each directive is declared once, in [`directives`]: names, types, defaults and help (`declare` says how,
//! `parameters` has the types). A directive goes through these steps: `yaml` or `cmdline` read it as written
//! (`item`, `value`); the table made of the declarations (`schema`) decides names, kinds, defaults and references;
//! the declaration's reader makes its typed value, part of a [`Config`]. `components` lists what a node then runs,
//! `exposed` warns of what strangers can reach, `reload` compares two configurations, and `help` prints the
//! grammar.
//!
//! It knows the types of other rooms' options, which it reads into, and nothing else of them. It opens only
//! configuration files: no sockets, no keys, no clock. An [`Environment`] describes the machine and the caller.

mod address;
mod cmdline;
pub mod components;
mod declare;
pub mod directives;
mod environment;
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
pub use cmdline::is_configuration;
pub use components::ControlListener;
pub use directives::{Component, Config, DIRECTIVES, Link};
pub use environment::Environment;
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

/// The action that a command line asks for.
#[derive(Debug)]
pub enum Invocation {
    /// Print [`help`] and end.
    Help,
    /// Print the version and end.
    Version,
    /// Run a node, or the certificate command that the configuration has.
    Run(Box<Loaded>),
}

/// A configuration and where it comes from.
#[derive(Debug)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// Warnings for the log.
    pub warnings: Vec<Warning>,
    /// Advice on how to improve the configuration, for the commands that check it.
    pub notes: Vec<Warning>,
    /// How to read it again.
    pub sources: Sources,
}

/// Where a configuration was read from: the command line, the files that it names, and the environment.
#[derive(Debug, Clone)]
pub struct Sources {
    args: Vec<String>,
    environment: Environment,
    files: Vec<PathBuf>,
    watched: Vec<PathBuf>,
}

impl Sources {
    /// The files that were read, in order.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// The files in version 2: a change of one takes effect without a request.
    pub fn watched(&self) -> &[PathBuf] {
        &self.watched
    }

    /// Reads the same sources again. A directory may hold other files by now.
    ///
    /// # Errors
    /// Everything that is wrong with them now.
    pub fn load_again(&self) -> Result<Loaded, ConfigErrors> {
        read(&self.args, &self.environment)
    }
}

/// Reads a configuration from the arguments after the program's name. Without arguments, gives
/// [`Invocation::Help`].
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

/// The TLS profiles in a node's configuration, which is a file or a directory. Other directives are ignored,
/// because they may be for another version of the program.
///
/// # Errors
/// What is wrong with the files, or with the profiles.
pub fn tls_profiles(path: &Path) -> Result<(Vec<ServerOptions>, Vec<ClientOptions>), ConfigErrors> {
    let mut report = Report::default();
    let items = cmdline::read_path(path, &mut report).items;
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

/// The configuration that these files make, each given as path and text, if read on this machine.
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
    /// Advice for AWX, which reads the configuration of its own node and fails at an item that is only a name.
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

/// Makes the configuration, which is complete unless the report has an error.
fn assemble(mut items: Vec<Item>, environment: &Environment, report: &mut Report) -> Config {
    item::check(&items, &DIRECTIVES, report);
    let given = |directive: &Directive| items.iter().any(|item| item.directive.name == directive.name);
    // A certificate command needs no node, and so neither name nor directory.
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
