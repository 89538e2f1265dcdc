//! `meshctl`, the command line. Owns arguments, exit codes and what is printed; everything it knows about a node it
//! asks through [`crate::rpc`]; the stream of a job it reads as [`crate::controller::stream`] does. One file per command;
//! options and environment variables that receptorctl's users know keep their names and meaning.

mod cert;
mod completion;
mod config;
mod connect;
mod controller;
mod demo;
mod doctor;
mod endpoint;
mod events;
pub(crate) mod exit;
mod graph;
mod group;
mod health;
mod install;
mod instance;
mod job;
mod link;
mod loglevel;
mod node;
mod operation;
mod output;
mod ping;
mod reload;
mod service;
mod snapshot;
mod status;
mod table;
mod target;
mod terminal;
mod times;
mod top;
mod traceroute;
mod version;
mod wait;
mod web;
mod work;

use std::error::Error as _;
use std::num::{IntErrorKind, ParseIntError};
use std::path::PathBuf;
use std::{ffi::OsString, process::ExitCode};

use clap::builder::{PathBufValueParser, TypedValueParser};
use clap::error::{ContextKind, ContextValue};
use clap::{Parser, Subcommand};

use crate::rpc::Client;
use exit::{Exit, Failure};
use output::Output;

pub(crate) use cert::ask as ask_to_sign;
pub(crate) use controller::NodeStore;

/// Talks to a meshd or receptor node through its control socket.
#[derive(Debug, Parser)]
#[command(name = "meshctl", version, after_help = exit::table(), max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    target: target::Target,

    /// Print JSON: results to standard output, errors to standard error
    #[arg(long, global = true)]
    json: bool,

    /// Print results and failures alone: of a list the names, of an action nothing
    #[arg(long, short, global = true)]
    quiet: bool,

    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show the mesh as the node sees it
    Status(status::StatusArgs),
    /// Whether the node does its work, for probes: 0 if it is ready
    Health(health::Health),
    /// Ping a node through the mesh
    Ping(ping::Ping),
    /// Show the way through the mesh to a node
    Traceroute(traceroute::Traceroute),
    /// Find out what is wrong with this node, with another one and with the way there
    Doctor(doctor::Doctor),
    /// Draw the mesh: for Graphviz, Mermaid or a browser
    Graph(graph::Graph),
    /// Print what changes in the mesh and on its controller, until interrupted
    Events(events::Events),
    /// Show nodes, links and jobs as they are now, on a terminal
    Top(top::Top),
    /// Connect standard input and output to a service of a node
    Connect(connect::Connect),
    /// Have the node read its configuration again
    Reload(reload::Reload),
    /// What a link with a neighbour carries
    #[command(subcommand)]
    Link(link::LinkVerb),
    /// Show how much the node logs, or change it
    Loglevel(loglevel::LogLevel),
    /// Show the versions of meshctl and of the node
    Version(version::Version),
    /// Nodes of the mesh: add and remove them, renew their certificates
    #[command(subcommand)]
    Node(node::Node),
    /// Make this host a node of the mesh, by a bundle from the control node
    Install(install::Install),
    /// Submit jobs and look after them
    #[command(subcommand)]
    Work(work::Work),
    /// Jobs that find their node by themselves
    #[command(subcommand)]
    Job(job::JobVerb),
    /// Nodes that run jobs
    #[command(subcommand)]
    Instance(instance::InstanceVerb),
    /// Groups of instances
    #[command(subcommand)]
    Group(group::GroupVerb),
    /// The controller of a control node as a whole
    #[command(subcommand)]
    Controller(controller::ControllerVerb),
    /// Who may use the page of a node, and its API
    #[command(subcommand)]
    Web(web::WebVerb),
    /// What another program would make of a node's configuration
    Config(config::Config),
    /// Make certificates, look at them and verify them
    #[command(subcommand)]
    Cert(cert::Cert),
    /// Make keys for signing work
    #[command(subcommand)]
    Key(cert::Key),
    /// Print the script with which a shell completes arguments: source <(meshctl completion bash)
    Completion(completion::Completion),
    /// Start a mesh of four nodes in a temporary directory, run jobs on it, and lose one of the nodes
    Demo(demo::Demo),
}

/// What every command gets: the node to talk to and the place to print.
struct Context {
    client: Client,
    output: Output,
}

/// The first argument with which meshctl becomes a node, so that `meshctl demo` needs no second program.
pub(crate) const DAEMON_ARGUMENT: &str = "__meshd";

/// What meshctl reads of a node's configuration, by functions of the rooms that understand it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NodeFiles {
    /// Its TLS profiles.
    pub profiles: cert::NodeProfiles,
    /// The store of its controller.
    pub store: NodeStore,
    /// What is wrong with it and its host.
    pub examine: doctor::ExamineFiles,
}

/// Reads the path of something that must be there. What cannot be looked at is the command line's fault.
fn readable() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| match std::fs::metadata(&path) {
        Ok(_) => Ok(path),
        Err(error) => Err(format!("cannot read it: {error}")),
    })
}

/// The grammar of meshctl's command line: for its manual.
pub fn command_line() -> clap::Command {
    <Cli as clap::CommandFactory>::command()
}

/// Runs meshctl with `args`, the program's name first, and returns its exit code. Blocks; starts its own runtime.
pub(crate) fn main(args: Vec<OsString>, files: NodeFiles) -> ExitCode {
    if completion::answer(&args) {
        return ExitCode::SUCCESS;
    }
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            let error = in_plain_words(error);
            // Nothing can be done about an unwritable terminal here.
            let _ = error.print();
            let exit = if error.use_stderr() { Exit::Usage } else { Exit::Success };
            return ExitCode::from(exit.code());
        }
    };
    let output = Output { json: cli.json, quiet: cli.quiet };
    let exit = run(cli, output, files).unwrap_or_else(|failure| {
        output.failure(&failure);
        failure.exit
    });
    ExitCode::from(exit.code())
}

/// The error with our words for what is no number, and with a hint for `node list` and its like.
fn in_plain_words(mut error: clap::Error) -> clap::Error {
    let is_nodes = |word: &ContextValue| ["list", "nodes", "instances"].contains(&word.to_string().as_str());
    if error.get(ContextKind::InvalidSubcommand).is_some_and(is_nodes) {
        let text =
            "`meshctl status` shows the nodes of the mesh, `meshctl instance list` those that run jobs";
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![text.into()]));
    }
    let number = error.source().and_then(|source| source.downcast_ref::<ParseIntError>());
    let is_none =
        number.is_some_and(|it| matches!(it.kind(), IntErrorKind::InvalidDigit | IntErrorKind::Empty));
    let words = [ContextKind::InvalidValue, ContextKind::InvalidArg].map(|kind| error.get(kind));
    let [Some(value), Some(argument)] = words else { return error };
    let text = format!("invalid value '{value}' for '{argument}': it takes a whole number");
    let plain = format!("{text}\n\nFor more information, try '--help'.\n");
    if is_none { clap::Error::raw(error.kind(), plain) } else { error }
}

fn run(cli: Cli, output: Output, files: NodeFiles) -> Result<Exit, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Failure::new(Exit::Failed, format!("cannot start: {error}")))?;
    let result = runtime.block_on(dispatch(cli, output, files));
    // A read of standard input that never ends must not keep the process alive.
    runtime.shutdown_background();
    result
}

async fn dispatch(cli: Cli, output: Output, files: NodeFiles) -> Result<Exit, Failure> {
    let context = || Ok::<_, Failure>(Context { client: cli.target.client(files.profiles, output)?, output });
    match cli.verb {
        Verb::Status(status) => status.run(&context()?).await,
        Verb::Health(health) => health.run(&context()?).await,
        Verb::Ping(ping) => ping.run(&context()?).await,
        Verb::Traceroute(traceroute) => traceroute.run(&context()?).await,
        Verb::Doctor(doctor) => doctor.run(context, output, files.examine).await,
        Verb::Graph(graph) => graph.run(&context()?).await,
        Verb::Events(events) => events.run(&context()?).await,
        Verb::Top(top) => top.run(&context()?).await,
        Verb::Connect(connect) => connect.run(&context()?).await,
        Verb::Reload(reload) => reload.run(&context()?).await,
        Verb::Link(link) => link.run(&context()?).await,
        Verb::Loglevel(level) => level.run(&context()?).await,
        Verb::Node(node) => node.run(context, output).await,
        Verb::Install(install) => install.run(output).await,
        Verb::Version(version) => version.run(&context()?).await,
        Verb::Work(work) => work.run(&context()?).await,
        Verb::Job(job) => job.run(&context()?).await,
        Verb::Instance(instance) => instance.run(&context()?).await,
        Verb::Group(group) => group.run(&context()?).await,
        Verb::Controller(controller) => controller.run(context, output, files.store).await,
        Verb::Completion(completion) => completion.run(output),
        Verb::Web(web) => web.run(output),
        Verb::Config(config) => config.run(output),
        Verb::Cert(cert) => cert.run(output, files.profiles),
        Verb::Key(key) => key.run(output),
        Verb::Demo(demo) => demo.run(output).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_arguments_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn command_lines_of_receptorctl_parse() {
        for line in [
            "receptorctl --socket /run/r.sock status --json",
            "receptorctl --socket tls://h:1 -c r.yml --tls-client x status",
            "receptorctl --socket tls://h:1 --rootcas ca --key k --cert c status",
            "receptorctl --insecureskipverify True --socket s ping node --count 2 --delay 0.5",
            "receptorctl --socket s connect node svc --raw --tls-client t",
            "receptorctl --socket s work submit ansible-runner --node e -p - -f --rm --ttl 1h --signwork",
            "receptorctl --socket s work submit sh -l text -a a=b --param c=@d one two -- -x",
            "receptorctl --socket s work submit sh --no-payload",
            "receptorctl --socket s work list -q --node n --unit_id u --tls-client t",
            "receptorctl --socket s work release --force --all",
            "receptorctl --socket s work cancel a b",
            "meshctl cert init --commonname x --bits 2048 --outcert c --outkey k",
            "meshctl cert makereq --commonname x --nodeid a --nodeid b --dnsname h --outreq r --outkey k",
            "meshctl cert signreq --req . --cacert . --cakey . --outcert o --verify",
            "meshctl cert verify . --ca . --node a",
            "meshctl key generate --type ed25519 --private a --public b",
            "receptorctl --socket s work results u",
        ] {
            let parsed = Cli::try_parse_from(line.split(' '));
            assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
        }
    }
}
