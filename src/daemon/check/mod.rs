//! `meshd check`: says what is wrong with a configuration, and what it needs but does not find on this machine.
//!
//! Owns the findings and their words. It starts nothing and leaves nothing behind: ports are opened for a moment,
//! files are opened for reading. `config` finds errors within the configuration; `trust` checks certificates
//! and keys.

pub(super) mod controller;
mod trust;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs::File;
use std::io;
use std::net::ToSocketAddrs as _;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use nix::unistd::User;
use rustix::fs::{Access, FlockOperation, access, flock};
use socket2::{Socket, Type};

use super::enrolment::desk;
use super::wiring;
use crate::config::components::{ListenerTrust, SoleResource};
use crate::config::{
    self, ADVICE, Component, Config, ConfigError, ControlListener, Environment, HostPort, Invocation, Link,
    Warning,
};
use crate::http::TokenFile;
use crate::os::address::{bind, open_first};
use crate::os::directories::parent_of;
use crate::os::{container, regular_file};
use crate::rpc::report::finding::{Finding, Severity};
use crate::tls::access::AccessTokens;
use crate::work::{self, limits::Limits};

/// The rest of the arguments, if they ask for a check.
pub(super) fn asked(args: &[String]) -> Option<&[String]> {
    args.split_first().filter(|(first, _)| *first == "check").map(|(_, rest)| rest)
}

/// What to do about a program that is missing.
const PROGRAM: &str = "install it, or write its path where the configuration names it";
/// What to do about a directory that cannot be written.
const WRITABLE: &str =
    "chown it to the daemon's user; if the file system is read-only, dmesg says why: mount -o remount,rw";
/// How an error in the files of a running node begins.
pub(super) const NEXT_START: &str = "the next start or reload fails: ";
/// What to do about something that is in use.
const RUNNING: &str = "if that is this node itself, check with --running";

/// Checks what the arguments name and prints the findings. Returns success if none of them is an error.
pub(super) fn main(args: &[String]) -> ExitCode {
    let given = |flag: &str| args.iter().any(|arg| arg == flag);
    let (running, json) = (given("--running"), given("--json"));
    let rest = args.iter().filter(|arg| !["--running", "--json"].contains(&arg.as_str())).cloned();
    let (found, summary) = match config::load(sources(rest.collect()), &Environment::of_process()) {
        Ok(Invocation::Run(loaded)) => {
            let mut found: Vec<_> = loaded.warnings.iter().chain(&loaded.notes).map(warning).collect();
            found.extend(findings(&loaded.config, running, false, true));
            found.sort_by_key(|one| one.severity);
            (found, summary(&loaded.config))
        }
        Ok(Invocation::Help | Invocation::Version) => {
            eprintln!("usage: meshd check [--running] [--json] FILE-OR-DIRECTORY | OPTION...");
            return ExitCode::from(64);
        }
        Err(errors) if json => (errors.0.iter().map(fault).collect(), String::new()),
        Err(errors) => {
            eprintln!("{errors}");
            return ExitCode::FAILURE;
        }
    };
    let is_fine = !found.iter().any(|one| one.severity == Severity::Error);
    if json {
        println!("{}", serde_json::json!(found));
    } else {
        for one in &found {
            println!("{one}");
        }
        if is_fine {
            println!("fine: {summary}");
        }
    }
    if is_fine { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

pub(super) fn warning(warning: &Warning) -> Finding {
    let (place, what) = (warning.at.to_string(), warning.text.clone());
    Finding { place, what, severity: Severity::Warning, remedy: None }
}

pub(super) fn fault(error: &ConfigError) -> Finding {
    let names = [error.directive, error.parameter].into_iter().flatten().map(|name| format!(": {name}"));
    let place = error.at.to_string() + &names.collect::<String>();
    Finding { place, what: error.fault.clone(), severity: Severity::Error, remedy: None }
}

/// Puts the option that reads a path before a path that is given alone.
pub(super) fn sources(args: Vec<String>) -> Vec<String> {
    match args.as_slice() {
        [path] if !path.starts_with('-') => {
            let option = if Path::new(path).is_dir() { "--config-dir" } else { "--config" };
            vec![option.to_owned(), path.clone()]
        }
        _ => args,
    }
}

fn summary(config: &Config) -> String {
    let is_link = |component: &Component| matches!(component, Component::Link(_));
    let (links, services): (Vec<_>, Vec<_>) = config.components().into_iter().partition(is_link);
    let (links, services) = (links.len(), services.len());
    format!(
        "node {}, {links} links, {services} services, {} work types",
        config.node.id,
        config.work_commands.len() + config.work_kubernetes.len() + config.work_python.len()
    )
}

/// Everything that would keep the configuration from working here. With `running`, what its own node holds counts as
/// free. `without_ends` leaves out certificates that end soon, which the caller reports itself. Without `may_run`,
/// clusters are not asked, because a kubeconfig can name programs.
pub(super) fn findings(config: &Config, running: bool, without_ends: bool, may_run: bool) -> Vec<Finding> {
    let mut findings = CheckFindings { running, without_ends, may_run, ..CheckFindings::default() };
    if config.is_for_certificates() {
        return findings.list;
    }
    if config.is_alone() {
        findings.add("nothing to do", "there is no listener, no peer and no `local-only`");
    }
    findings.data_dir(&config.node.data_dir);
    if config.control_services.is_empty() && config.controller.is_none() {
        for kind in wiring::work_types(config) {
            let what = "nobody can submit to it: the node has no `control-service`";
            findings.warn(format_args!("work type {}", kind.name), what);
        }
    }
    for component in config.components() {
        findings.component(&component);
        findings.claim(&component);
        findings.door(config, &component);
    }
    for command in &config.work_commands {
        let what = format!("work-command {}", command.name);
        findings.program(&what, &command.command);
        findings.surroundings(&what, &command.limits);
    }
    for python in &config.work_python {
        let what = format!("work-python {}", python.name);
        findings.program(&what, &python.command);
        findings.surroundings(&what, &python.limits);
    }
    if let Err(error) = work::check_limits(&wiring::work_types(config)) {
        findings.add("", error);
    }
    findings.profiles(config);
    findings.keys(config);
    findings.controller(config);
    findings.list
}

#[derive(Default)]
struct CheckFindings {
    running: bool,
    without_ends: bool,
    may_run: bool,
    list: Vec<Finding>,
    /// For each resource that only one component can have, the component that claims it.
    claimed: BTreeMap<SoleResource, String>,
    /// Ports stay open until the end, so that no two components find the same port free.
    ports: Vec<Socket>,
}

impl CheckFindings {
    /// Adds what keeps a node from starting.
    fn add(&mut self, place: impl Display, what: impl Display) {
        let what = if self.running { format!("{NEXT_START}{what}") } else { what.to_string() };
        self.find(Severity::Error, place, what, None);
    }

    /// Adds what keeps a part of a node from working.
    fn lacks(&mut self, place: impl Display, what: impl Display) {
        self.find(Severity::Error, place, what, None);
    }

    fn warn(&mut self, place: impl Display, what: impl Display) {
        self.find(Severity::Warning, place, what, None);
    }

    fn find(&mut self, severity: Severity, place: impl Display, what: impl Display, remedy: Option<&str>) {
        let (place, what, remedy) = (place.to_string(), what.to_string(), remedy.map(str::to_owned));
        self.list.push(Finding { what, place, severity, remedy });
    }

    fn surroundings(&mut self, what: &str, limits: &Limits) {
        if let Some(cwd) = limits.cwd.as_ref().filter(|cwd| !cwd.is_dir()) {
            self.lacks(what, format!("cwd: {} is not a directory", cwd.display()));
        }
    }

    fn component(&mut self, component: &Component) {
        match component {
            Component::Control(ControlListener::Unix(path, _)) => self.socket(component, path),
            Component::Control(ControlListener::Tcp(address, ..)) => self.tcp(component, address),
            Component::Link(Link::TcpListener(listener)) => self.tcp(component, &listener.bind),
            Component::Link(Link::WebSocketListener(listener)) => self.tcp(component, &listener.bind),
            Component::Link(Link::UdpListener(listener)) => self.udp(component, &listener.bind),
            Component::Link(Link::QuicListener(listener)) => self.udp(component, &listener.bind),
            Component::Link(
                Link::TcpPeer(_) | Link::UdpPeer(_) | Link::WebSocketPeer(_) | Link::QuicPeer(_),
            ) => {}
            Component::TcpServer(server) => self.tcp(component, &server.bind),
            Component::Enrolment(enrolment) => {
                if let Err(error) = desk(enrolment, None).check() {
                    self.add(component, error);
                }
            }
            Component::Metrics(metrics) => {
                self.tcp(component, &metrics.address);
                if let Some(Err(error)) = metrics.token_file.clone().map(TokenFile::open) {
                    self.add(component, error);
                }
            }
            Component::EventsSink(sink) => {
                if let Some(Err(error)) = sink.token_file.clone().map(TokenFile::open) {
                    self.add(component, error);
                }
            }
            Component::Web(web) => {
                self.tcp(component, &web.address);
                match AccessTokens::of_directive(web.tokens.clone()).list() {
                    Err(error) if web.tokens.is_none() => self.warn(component, error),
                    Err(error) => self.add(component, error),
                    Ok(_) => {}
                }
            }
            Component::UdpServer(server) => self.udp(component, &server.bind),
            Component::UnixSocketServer(server) => self.socket(component, &server.filename),
            Component::CommandService(command) => {
                let words = shlex::split(&command.command).unwrap_or_default();
                match words.first() {
                    Some(program) => self.program(component.to_string(), program),
                    None => self.add(component, "the command does not split into words"),
                }
            }
            Component::IpRouter(router) => {
                if router.accept.is_empty() && router.from_nodes.is_empty() {
                    let what = "any node of the mesh that claims to lead to a private network gets what this \
                                machine sends there: name the networks in `accept`, or the nodes in `fromnodes`";
                    self.find(Severity::Warning, component, what, Some(ADVICE));
                }
                let taken = |name: &&String| Path::new("/sys/class/net").join(name).exists();
                if let Some(name) = router.interface.as_ref().filter(taken).filter(|_| !self.running) {
                    let what = format!("there is an interface {name}");
                    self.find(Severity::Error, component, what, Some(RUNNING));
                }
                if let Err(error) = File::options().read(true).write(true).open("/dev/net/tun") {
                    self.add(component, format!("cannot open /dev/net/tun: {error}"));
                }
            }
            Component::Control(ControlListener::Mesh(_, _, ListenerTrust::Everyone)) => self.warn(component, format_args!(
                "with `forward: all`, any node of the mesh can make this one submit work elsewhere, sign it, \
                 reload, and change its log level"
            )),
            Component::Control(ControlListener::Mesh(_, _, ListenerTrust::Proof))
            | Component::TcpClient(_)
            | Component::UdpClient(_)
            | Component::UnixSocketClient(_)
            | Component::Renewal(_) => {}
        }
    }

    /// Warns of a listener that admits everybody who reaches this machine.
    fn door(&mut self, config: &Config, component: &Component) {
        let Component::Link(link) = component else { return };
        if config.is_open_listener(link) {
            let what = "anybody who reaches it joins the mesh without a certificate";
            self.find(Severity::Warning, component, what, Some(ADVICE));
        }
    }

    /// Finds interfaces that two components claim, because there is only one of each name.
    fn claim(&mut self, component: &Component) {
        for claim in component.facts().claims {
            let name = match &claim {
                SoleResource::Interface(name) => name.clone(),
                // Ports are tried out, `config` checks names and files, and neighbours are known only later.
                SoleResource::Tcp(_)
                | SoleResource::Udp(_)
                | SoleResource::File(_)
                | SoleResource::Service(_)
                | SoleResource::Neighbour => {
                    continue;
                }
            };
            if let Some(first) = self.claimed.get(&claim) {
                let problem = format!("interface {name} belongs to {first} already");
                self.add(component, problem);
            } else {
                self.claimed.insert(claim, component.to_string());
            }
        }
    }

    fn tcp(&mut self, component: &Component, address: &HostPort) {
        let other = self.same_port(component, SoleResource::Tcp(address.port));
        self.port(component, address, other, Type::STREAM);
    }

    fn udp(&mut self, component: &Component, address: &HostPort) {
        let other = self.same_port(component, SoleResource::Udp(address.port));
        self.port(component, address, other, Type::DGRAM);
    }

    /// An earlier component with the same port, on any address.
    fn same_port(&mut self, component: &Component, claim: SoleResource) -> Option<String> {
        let first = self.claimed.entry(claim).or_insert_with(|| component.to_string());
        Some(first.clone()).filter(|first| *first != component.to_string())
    }

    fn port(&mut self, component: &Component, address: &HostPort, other: Option<String>, kind: Type) {
        let found = (address.host.as_str(), address.port).to_socket_addrs();
        match found.and_then(|found| open_first(found.collect(), |address| bind(address, kind))) {
            Ok(socket) => self.ports.push(socket),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => match other {
                Some(other) => self.add(component, format!("{address} is in use: {other} has the port")),
                None if self.running => {}
                None => {
                    self.find(Severity::Error, component, format!("{address} is in use"), Some(RUNNING));
                }
            },
            Err(error) => self.add(component, format!("cannot listen on {address}: {error}")),
        }
    }

    fn socket(&mut self, component: &Component, path: &Path) {
        if path.as_os_str().len() > crate::os::unix_socket::MAX_SOCKET_PATH {
            let limit = crate::os::unix_socket::MAX_SOCKET_PATH;
            return self.add(component, format!("the path is longer than {limit} bytes"));
        }
        match std::fs::symlink_metadata(path) {
            Ok(found) if !std::os::unix::fs::FileTypeExt::is_socket(&found.file_type()) => {
                self.add(component, "the path exists and is not a socket");
            }
            Ok(_) | Err(_) => {}
        }
        let mut lock = path.as_os_str().to_owned();
        lock.push(".lock");
        if let Ok(file) = regular_file::open(Path::new(&lock))
            && flock(&file, FlockOperation::NonBlockingLockExclusive).is_err()
            && !self.running
        {
            self.find(Severity::Error, component, "another daemon holds the socket", Some(RUNNING));
        }
        self.directory(&component.to_string(), parent_of(path));
    }

    /// Checks that a directory can be written, or made if it is missing.
    fn directory(&mut self, what: &str, path: &Path) {
        let existing = path.ancestors().find(|ancestor| ancestor.exists()).unwrap_or(Path::new("/"));
        if !existing.is_dir() {
            self.add(what, format!("{} is not a directory", existing.display()));
        } else if let Err(error) = access(existing, Access::WRITE_OK | Access::EXEC_OK) {
            let cannot = format!("{} cannot be written: {}", existing.display(), io::Error::from(error));
            self.find(Severity::Error, what, cannot, Some(WRITABLE));
        }
    }

    fn data_dir(&mut self, path: &Path) {
        const WHAT: &str = "node: datadir";
        self.directory(WHAT, path);
        let own = rustix::process::geteuid().as_raw();
        // Root may be checking on behalf of the service's user.
        let of_service = || User::from_name("meshd").ok().flatten().map(|user| user.uid.as_raw());
        if let Ok(found) = std::fs::metadata(path)
            && found.uid() != own
            && !(own == 0 && of_service() == Some(found.uid()))
            && !(found.uid() == 0 && container::is_entered() && container::is_volume(path))
        {
            self.add(WHAT, format!("{} belongs to user {}, not to {own}", path.display(), found.uid()));
        }
    }

    fn program(&mut self, what: impl Display, name: &str) {
        if program(name).is_none() {
            let missing = format!("there is no program {name:?} that can be run");
            self.find(Severity::Error, what, missing, Some(PROGRAM));
        }
    }
}

/// A program that can be run. It is looked for on the search path unless its name has a slash.
pub(super) fn program(name: &str) -> Option<PathBuf> {
    let runs = |path: &PathBuf| path.is_file() && access(path, Access::EXEC_OK).is_ok();
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(runs);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|directory| directory.join(name)).find(runs)
}
