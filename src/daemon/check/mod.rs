//! `meshd check`: says what is wrong with a configuration, and what it needs and does not find on this machine.
//!
//! Owns the findings and their words. It starts nothing and leaves nothing behind: ports are opened for a moment,
//! files are opened for reading. What the configuration itself gets wrong is `config`'s to say; certificates and keys
//! are `trust`'s part.

mod controller;
mod trust;

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::net::ToSocketAddrs as _;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;

use rustix::fs::{Access, FlockOperation, access, flock};
use socket2::{Socket, Type};

use super::wiring;
use crate::config::components::{Claim, Trust};
use crate::config::{
    self, ADVICE, Component, Config, ControlListener, Environment, HostPort, Invocation, Link,
};
use crate::os::address::{bind, open_first};
use crate::os::container;
use crate::work::{self, limits::Limits};

/// The rest of the arguments, if they ask for a check.
pub(super) fn asked(args: &[String]) -> Option<&[String]> {
    args.split_first().filter(|(first, _)| *first == "check").map(|(_, rest)| rest)
}

/// Checks what the arguments name and prints the findings: 0 if nothing keeps a node from starting.
pub(super) fn main(args: &[String]) -> ExitCode {
    let running = args.iter().any(|arg| arg == "--running");
    let args: Vec<String> = args.iter().filter(|arg| *arg != "--running").cloned().collect();
    let loaded = match config::load(sources(args), &Environment::of_process()) {
        Ok(Invocation::Run(loaded)) => loaded,
        Ok(Invocation::Help | Invocation::Version) => {
            eprintln!("usage: meshd check [--running] FILE-OR-DIRECTORY | OPTION...");
            return ExitCode::from(64);
        }
        Err(errors) => {
            eprintln!("{errors}");
            return ExitCode::FAILURE;
        }
    };
    for warning in &loaded.warnings {
        println!("warning: {warning}");
    }
    let Findings { list, warnings, .. } = findings(&loaded.config, running);
    for warning in &warnings {
        println!("warning: {warning}");
    }
    for finding in &list {
        println!("error: {finding}");
    }
    if list.is_empty() {
        println!("fine: {}", summary(&loaded.config));
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// A path alone stands for the option that reads it.
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

/// Everything that would keep the configuration from working here. With `running`, what its own node holds is free.
fn findings(config: &Config, running: bool) -> Findings {
    let mut findings = Findings { running, ..Findings::default() };
    if config.is_for_certificates() {
        return findings;
    }
    if config.is_alone() {
        findings.add("nothing to do", "there is no listener, no peer and no `local-only`");
    }
    findings.data_dir(&config.node.data_dir);
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
    findings.list.extend(work::check_limits(&wiring::work_types(config)).err());
    findings.profiles(config);
    findings.keys(config);
    findings.controller(config);
    findings
}

#[derive(Default)]
struct Findings {
    running: bool,
    list: Vec<String>,
    warnings: Vec<String>,
    /// Which component claims what only one can have.
    claimed: BTreeMap<Claim, String>,
    /// Ports stay open until the end, so that no two components find the same one free.
    ports: Vec<Socket>,
}

impl Findings {
    fn add(&mut self, what: impl std::fmt::Display, problem: impl std::fmt::Display) {
        self.list.push(format!("{what}: {problem}"));
    }

    fn surroundings(&mut self, what: &str, limits: &Limits) {
        if let Some(cwd) = limits.cwd.as_ref().filter(|cwd| !cwd.is_dir()) {
            self.add(what, format!("cwd: {} is not a directory", cwd.display()));
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
                let taken = |name: &&String| Path::new("/sys/class/net").join(name).exists();
                if let Some(name) = router.interface.as_ref().filter(taken).filter(|_| !self.running) {
                    let problem =
                        format!("there is an interface {name}; if by this very node, check with --running");
                    self.add(component, problem);
                }
                if let Err(error) = File::options().read(true).write(true).open("/dev/net/tun") {
                    self.add(component, format!("/dev/net/tun cannot be opened: {error}"));
                }
            }
            Component::Control(ControlListener::Mesh(_, _, Trust::Everyone)) => self.warnings.push(format!(
                "{component}: with forward: all any node of the mesh may have this one submit work elsewhere, sign it, reload and change its log level"
            )),
            Component::Control(ControlListener::Mesh(_, _, Trust::Proof))
            | Component::TcpClient(_)
            | Component::UdpClient(_)
            | Component::UnixSocketClient(_) => {}
        }
    }

    /// A listener that lets everybody in who reaches this machine.
    fn door(&mut self, config: &Config, component: &Component) {
        let Component::Link(link) = component else { return };
        if config.is_open_listener(link) {
            let text =
                format!("{component}: whoever reaches it joins the mesh without a certificate; {ADVICE}");
            self.warnings.push(text);
        }
    }

    /// Interfaces, of which there is one of each name.
    fn claim(&mut self, component: &Component) {
        for claim in component.claims() {
            let name = match &claim {
                Claim::Interface(name) => name.clone(),
                // Ports are tried out, names and files are the configuration's business, neighbours turn out later.
                Claim::Tcp(_) | Claim::Udp(_) | Claim::File(_) | Claim::Service(_) | Claim::Neighbour => {
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
        let other = self.same_port(component, Claim::Tcp(address.port));
        self.port(component, address, other, Type::STREAM);
    }

    fn udp(&mut self, component: &Component, address: &HostPort) {
        let other = self.same_port(component, Claim::Udp(address.port));
        self.port(component, address, other, Type::DGRAM);
    }

    /// The component before this one that has the same port, on whatever address.
    fn same_port(&mut self, component: &Component, claim: Claim) -> Option<String> {
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
                None => self.add(
                    component,
                    format!("{address} is in use; if by this very node, check with --running"),
                ),
            },
            Err(error) => self.add(component, format!("{address} cannot be listened on: {error}")),
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
        if let Ok(file) = File::open(&lock)
            && flock(&file, FlockOperation::NonBlockingLockExclusive).is_err()
            && !self.running
        {
            self.add(component, "another daemon holds the socket; if this very node, check with --running");
        }
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        self.directory(&component.to_string(), parent);
    }

    /// A directory that exists and can be written, or that can be made.
    fn directory(&mut self, what: &str, path: &Path) {
        let existing = path.ancestors().find(|ancestor| ancestor.exists()).unwrap_or(Path::new("/"));
        if !existing.is_dir() {
            self.add(what, format!("{} is not a directory", existing.display()));
        } else if let Err(error) = access(existing, Access::WRITE_OK | Access::EXEC_OK) {
            self.add(what, format!("{} cannot be written: {}", existing.display(), io::Error::from(error)));
        }
    }

    fn data_dir(&mut self, path: &Path) {
        const WHAT: &str = "node: datadir";
        self.directory(WHAT, path);
        let own = rustix::process::geteuid().as_raw();
        if let Ok(found) = std::fs::metadata(path)
            && found.uid() != own
            && !(found.uid() == 0 && container::is_entered() && container::is_volume(path))
        {
            self.add(WHAT, format!("{} belongs to user {}, not to {own}", path.display(), found.uid()));
        }
    }

    /// A program is found on the search path unless its name has a slash.
    fn program(&mut self, what: impl std::fmt::Display, program: &str) {
        let runs = |path: &Path| path.is_file() && access(path, Access::EXEC_OK).is_ok();
        let found = if program.contains('/') {
            runs(Path::new(program))
        } else {
            let path = std::env::var_os("PATH").unwrap_or_default();
            std::env::split_paths(&path).any(|directory| runs(&directory.join(program)))
        };
        if !found {
            self.add(what, format!("there is no program {program:?} that can be run"));
        }
    }
}
