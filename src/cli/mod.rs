//! `meshctl`, the command line. Owns arguments, exit codes and what is printed. Asks everything about a node through
//! [`crate::rpc`], and reads a job's stream with [`crate::controller::stream`]. One file per command; options and
//! environment variables that receptorctl's users know keep their names and meaning.

mod authority;
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
mod mesh;
mod node;
mod notify;
mod operation;
mod output;
mod ping;
mod reload;
mod saved;
mod schedule;
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

    /// Print only results and failures: a list's names, nothing for an action
    #[arg(long, short, global = true)]
    quiet: bool,

    /// Show and read times in UTC, not in this terminal's zone (TZ)
    #[arg(long, global = true)]
    utc: bool,

    #[command(subcommand)]
    verb: MeshctlVerb,
}

#[derive(Debug, Subcommand)]
enum MeshctlVerb {
    /// Show the mesh as the node sees it
    Status(status::StatusArgs),
    /// Check whether the node is ready, for probes: the exit code is 0 if it is
    Health(health::Health),
    /// Ping a node through the mesh
    Ping(ping::Ping),
    /// Show the route through the mesh to a node
    Traceroute(traceroute::Traceroute),
    /// Find out what is wrong with this node, with another one and with the route to it
    Doctor(doctor::DoctorCommand),
    /// Draw the mesh, for Graphviz, Mermaid or a browser
    Graph(graph::GraphCommand),
    /// Compare the mesh with what it should be
    #[command(subcommand)]
    Mesh(mesh::MeshVerb),
    /// Print what changes in the mesh and on its controller, until interrupted
    Events(events::Events),
    /// Show nodes, links and jobs as they are now, on a terminal
    Top(top::Top),
    /// Connect standard input and output to a service of a node
    Connect(connect::ConnectCommand),
    /// Have the node read its configuration again
    Reload(reload::ReloadCommand),
    /// Measure what a link with a neighbour carries
    #[command(subcommand)]
    Link(link::LinkVerb),
    /// Show or change how much the node logs
    Loglevel(loglevel::LogLevelCommand),
    /// Show the versions of meshctl and of the node
    Version(version::VersionCommand),
    /// Add and remove nodes of the mesh, and renew their certificates
    #[command(subcommand)]
    Node(node::NodeCommand),
    /// Replace the authority that signs the certificates of the mesh
    #[command(subcommand)]
    Authority(authority::AuthorityCommand),
    /// Make this host a node of the mesh, with a bundle from the control node
    Install(install::Install),
    /// Submit and manage jobs on a node that you choose
    #[command(subcommand)]
    Work(work::Work),
    /// Submit and manage jobs for which the controller chooses the node
    #[command(subcommand)]
    Job(job::JobVerb),
    /// List, show, start and check jobs that a control node has as files
    #[command(subcommand)]
    Saved(saved::SavedVerb),
    /// Show and pause the schedules of saved jobs
    #[command(subcommand)]
    Schedule(schedule::ScheduleVerb),
    /// List and test the targets of notices about jobs that have ended
    #[command(subcommand)]
    Notify(notify::NotifyVerb),
    /// Manage the nodes that run jobs
    #[command(subcommand)]
    Instance(instance::InstanceVerb),
    /// Manage groups of instances
    #[command(subcommand)]
    Group(group::GroupVerb),
    /// Manage the controller of a control node as a whole
    #[command(subcommand)]
    Controller(controller::ControllerVerb),
    /// Manage who may use a node's page and its API
    #[command(subcommand)]
    Web(web::WebVerb),
    /// Check a node's configuration for what receptor rejects
    Config(config::ConfigCommand),
    /// Make, show and verify certificates
    #[command(subcommand)]
    Cert(cert::Cert),
    /// Make keys for signing work
    #[command(subcommand)]
    Key(cert::Key),
    /// Print a shell's completion script: source <(meshctl completion bash)
    Completion(completion::Completion),
    /// Start a mesh of four nodes in a temporary directory, run jobs on it, and lose one of the nodes
    Demo(demo::Demo),
}

/// What every command gets: the node to talk to and the place to print.
struct CliContext {
    client: Client,
    output: Output,
}

/// The first argument with which meshctl becomes a node, so that `meshctl demo` and `meshctl install` need no second
/// program.
pub(crate) const DAEMON_ARGUMENT: &str = "__meshd";

/// Functions with which meshctl reads a node's configuration, from the rooms that understand it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NodeFiles {
    /// Reads its TLS profiles.
    pub profiles: cert::NodeProfiles,
    /// Reads the store of its controller.
    pub store: NodeStore,
    /// Finds what is wrong with it and its host.
    pub examine: doctor::ExamineFiles,
}

/// Parses the path of something that must exist; a path that cannot be examined is wrong usage.
fn existing_path() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| match std::fs::metadata(&path) {
        Ok(_) => Ok(path),
        Err(error) => Err(format!("cannot read it: {error}")),
    })
}

/// The grammar of meshctl's command line, for its manual.
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
    let output = Output { json: cli.json, quiet: cli.quiet, utc: cli.utc };
    let exit = run(cli, output, files).unwrap_or_else(|failure| {
        output.failure(&failure);
        failure.exit
    });
    ExitCode::from(exit.code())
}

/// Rewords the error for a value that is no number, and adds a hint to unknown commands such as `node list`.
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
    let context =
        || Ok::<_, Failure>(CliContext { client: cli.target.client(files.profiles, output)?, output });
    match cli.verb {
        MeshctlVerb::Status(status) => status.run(&context()?).await,
        MeshctlVerb::Health(health) => health.run(&context()?).await,
        MeshctlVerb::Ping(ping) => ping.run(&context()?).await,
        MeshctlVerb::Traceroute(traceroute) => traceroute.run(&context()?).await,
        MeshctlVerb::Doctor(doctor) => doctor.run(context, output, files.examine).await,
        MeshctlVerb::Graph(graph) => graph.run(&context()?).await,
        MeshctlVerb::Mesh(mesh) => mesh.run(&context()?).await,
        MeshctlVerb::Events(events) => events.run(&context()?).await,
        MeshctlVerb::Top(top) => top.run(&context()?).await,
        MeshctlVerb::Connect(connect) => connect.run(&context()?).await,
        MeshctlVerb::Reload(reload) => reload.run(&context()?).await,
        MeshctlVerb::Link(link) => link.run(&context()?).await,
        MeshctlVerb::Loglevel(level) => level.run(&context()?).await,
        MeshctlVerb::Node(node) => node.run(context, output).await,
        MeshctlVerb::Authority(authority) => authority.run(output),
        MeshctlVerb::Install(install) => install.run(output).await,
        MeshctlVerb::Version(version) => version.run(&context()?).await,
        MeshctlVerb::Work(work) => work.run(&context()?).await,
        MeshctlVerb::Job(job) => job.run(&context()?).await,
        MeshctlVerb::Saved(saved) => saved.run(context, output).await,
        MeshctlVerb::Schedule(schedule) => schedule.run(&context()?).await,
        MeshctlVerb::Notify(notify) => notify.run(&context()?).await,
        MeshctlVerb::Instance(instance) => instance.run(&context()?).await,
        MeshctlVerb::Group(group) => group.run(&context()?).await,
        MeshctlVerb::Controller(controller) => controller.run(context, output, files.store).await,
        MeshctlVerb::Completion(completion) => completion.run(output),
        MeshctlVerb::Web(web) => web.run(output),
        MeshctlVerb::Config(config) => config.run(output),
        MeshctlVerb::Cert(cert) => cert.run(output, files.profiles),
        MeshctlVerb::Key(key) => key.run(output),
        MeshctlVerb::Demo(demo) => demo.run(output).await,
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
