//! Runs a command that handles data of strangers, confined to a few directories.
//!
//! The program has two hidden modes. One gives up all rights that the command does not need and then becomes the
//! command, so that no code runs between a fork and an exec. The other stays outside, and is the command's only way to
//! the network. This room owns what the command may read, write and reach, and how the kernel enforces it. It does not
//! know what the command is for.

mod calls;
mod capabilities;
mod children;
mod fence;
mod hosts;
mod mounts;
mod places;
mod proxy;
mod sockets;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::net::Ipv4Addr;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::Command;

use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;

use self::hosts::AllowedHosts;

/// The first argument with which this program runs a confined command. The command's words follow, and finally its
/// confinement as JSON.
pub(crate) const ARGUMENT: &str = "__confine";
/// The file of this program, even if another file was installed in its place.
pub(crate) const THIS_PROGRAM: &str = "/proc/self/exe";
/// The first argument of the process that becomes the command. The proxy's port follows, then the same words as after
/// [`ARGUMENT`].
const INSIDE: &str = "__confined";
/// Variables that tell programs of the proxy, and this program of the proxy that it has to use itself.
pub(crate) const PROXIES: [&str; 6] =
    ["http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"];
/// Variables that name servers to be reached without the proxy.
pub(crate) const NO_PROXY: [&str; 2] = ["no_proxy", "NO_PROXY"];
/// The exit code if the command cannot be confined.
const CANNOT: i32 = 126;
/// Variables that lead to other processes of this user.
const WITHHELD: [&str; 5] =
    ["SSH_AUTH_SOCK", "SSH_ASKPASS", "DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR", "NOTIFY_SOCKET"];

/// What the kernel can keep from a command. It does not change until the next boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Support {
    /// All but a few directories.
    Files,
    /// Unix sockets, and perhaps hidden directories.
    SocketsOnly,
}

impl Support {
    /// What this kernel can do.
    pub(crate) fn detect() -> Self {
        if fence::is_supported() { Self::Files } else { Self::SocketsOnly }
    }
}

/// What a command may read, write and reach, besides the programs of the system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Confinement {
    /// Directories that it may change.
    pub(crate) write: Vec<PathBuf>,
    /// Files and directories that it may read.
    pub(crate) read: Vec<PathBuf>,
    /// Directories in which it sees only what it may read or change.
    pub(crate) hidden: Vec<PathBuf>,
    /// Hosts that it may reach, by name or by an expression between slashes. If empty, all but this machine, link-local
    /// addresses and clouds' metadata servers.
    pub(crate) hosts: Vec<String>,
    /// Its home directory, in which it starts.
    pub(crate) home: PathBuf,
    /// Its directory for temporary files.
    pub(crate) temporary: PathBuf,
    /// Further variables of its environment. Those that are set already keep their values.
    pub(crate) variables: BTreeMap<String, PathBuf>,
}

/// Connects to a host as a command with no list of hosts may, by the environment's proxy if it names one; with
/// `anywhere`, to any host. The addresses of the name are checked, and no other one is connected to.
///
/// # Errors
/// It may not be reached, or cannot.
pub(crate) async fn reach(
    host: &str,
    port: u16,
    is_tls: bool,
    anywhere: bool,
) -> std::io::Result<tokio::net::TcpStream> {
    proxy::reach_for_self(host, port, is_tls, &AllowedHosts::unnamed(anywhere)).await
}

/// Runs one of the hidden modes if this process was started for it, and returns otherwise. Call it first in `main`,
/// before any thread exists.
pub(crate) fn main_if_asked() {
    let mut words = std::env::args_os().skip(1);
    let why = match words.next() {
        Some(first) if first == ARGUMENT => match run(words.collect()) {
            Ok(code) => std::process::exit(code),
            Err(why) => why,
        },
        Some(first) if first == INSIDE => {
            let Err(why) = become_command(words.collect());
            why
        }
        Some(_) | None => return,
    };
    eprintln!("meshd: the command cannot be confined: {why}");
    std::process::exit(CANNOT);
}

/// Runs the command in a process of its own, and its proxy in this one. Returns the command's exit code.
fn run(words: Vec<OsString>) -> Result<i32, String> {
    let confinement = parse(words.last().ok_or("nothing says how")?)?;
    let hosts = AllowedHosts::new(&confinement.hosts).map_err(|error| error.to_string())?;
    let failed = |error: std::io::Error| error.to_string();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    children::adopt_orphans().map_err(|error| error.to_string())?;
    let ended = runtime.block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        let login = format!("sync:{:032x}", rand::random::<u128>());
        let proxy = format!("http://{login}@{}:{port}", Ipv4Addr::LOCALHOST);
        let mut command = tokio::process::Command::new(THIS_PROGRAM);
        command.arg(INSIDE).arg(port.to_string()).args(words);
        for name in NO_PROXY {
            command.env_remove(name);
        }
        command.envs(PROXIES.iter().map(|name| (name, &proxy)));
        let mut child = command.spawn().map_err(failed)?;
        tokio::select! {
            ended = child.wait() => {
                let ended = ended.map_err(failed)?;
                Ok(ended.code().or(ended.signal().map(|signal| 128 + signal)).unwrap_or(CANNOT))
            }
            () = proxy::serve(listener, hosts, &login) => Err("its proxy has ended".to_owned()),
        }
    });
    children::end_all();
    ended
}

fn parse(confinement: &OsStr) -> Result<Confinement, String> {
    serde_json::from_slice(confinement.as_encoded_bytes()).map_err(|error| error.to_string())
}

fn become_command(mut words: Vec<OsString>) -> Result<Infallible, String> {
    let confinement = parse(&words.pop().ok_or("nothing says how")?)?;
    let [port, program, arguments @ ..] = words.as_slice() else {
        return Err("there is no command".to_owned());
    };
    let port = port.to_string_lossy().parse::<u16>().map_err(|_| "there is no way out")?;
    for path in &confinement.read {
        if let Some(hidden) = confinement.hidden.iter().find(|hidden| hidden.starts_with(path)) {
            return Err(format!("what it may read, {}, holds {}", path.display(), hidden.display()));
        }
    }
    let program = places::find(program)?;
    let mut readable = places::of_system();
    readable.extend(places::of_program(&program)?);
    readable.extend(confinement.read.iter().cloned());
    let mut command = Command::new(&program);
    command.args(arguments).env("HOME", &confinement.home).env("TMPDIR", &confinement.temporary);
    for name in WITHHELD {
        command.env_remove(name);
    }
    command.envs(confinement.variables.iter().filter(|(name, _)| std::env::var_os(name).is_none()));
    enclose(&confinement, &readable, port)?;
    Err(format!("{}: {}", program.display(), command.exec()))
}

/// Takes from this process, and from processes that it starts, all rights that the command does not need.
fn enclose(confinement: &Confinement, readable: &[PathBuf], port: u16) -> Result<(), String> {
    let kept = readable.iter().chain(&confinement.write);
    mounts::hide(&confinement.hidden, kept).map_err(|error| format!("mounts: {error}"))?;
    std::env::set_current_dir(&confinement.home).map_err(|error| format!("its home directory: {error}"))?;
    capabilities::drop_all().map_err(|error| format!("capabilities: {error}"))?;
    rustix::thread::set_no_new_privs(true).map_err(|error| format!("new rights: {error}"))?;
    fence::enclose(readable, &confinement.write, port).map_err(|error| format!("Landlock: {error}"))?;
    sockets::refuse().and_then(|()| calls::refuse()).map_err(|error| format!("seccomp: {error}"))?;
    // Kills the command when the process of its proxy ends. Last, because a change of rights clears this setting.
    let ended = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    ended.map_err(|error| error.to_string())
}
