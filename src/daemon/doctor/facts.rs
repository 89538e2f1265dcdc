//! Gathers what the checks of a host look at: files, limits, file systems, programs. Decides nothing.
//!
//! All files are below one root, so that the host of a container, or a tree that a test has made, can be looked at.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use nix::unistd::{Uid, User};
use rustix::fs::{StatVfsMountFlags, inotify, statvfs};
use rustix::process::{Resource, getrlimit};
use tokio::time::timeout;

use crate::config::{Component, Config, Link};
use crate::daemon::check::program;
use crate::daemon::wiring;
use crate::os::regular_file;
use crate::tls::{ClientProfile, ServerProfile};
use crate::work::{CommandType, SYNC};

/// How much of the audit log's end is read.
const AUDIT_TAIL: u64 = 1 << 20;
/// How long a program may take to print its version.
const VERSION_WITHIN: Duration = Duration::from_secs(10);
/// The units of the package.
const UNITS: [&str; 2] = ["meshd.service", "meshd-jobs.service"];
const SEARCH: [&str; 6] = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// A host, and what the node needs of it.
#[derive(Debug, Default)]
pub(super) struct HostFacts {
    pub(super) now: Timestamp,
    pub(super) node: String,
    /// Certificates of the node that have expired or soon do.
    pub(super) ends: BTreeMap<PathBuf, Timestamp>,
    /// Private keys of the node that everybody on the host may read.
    pub(super) open_keys: BTreeSet<PathBuf>,
    /// The node has work types that run on this host.
    pub(super) runs_jobs: bool,
    pub(super) data: Option<FileSystem>,
    /// Bytes of `data` that have to stay free, if the configuration says so.
    pub(super) reserve: Option<u64>,
    pub(super) tmp: Option<FileSystem>,
    /// The most files that may be open at once.
    pub(super) files: Option<u64>,
    pub(super) watches: Option<u64>,
    /// Why no inotify instance is available.
    pub(super) no_inotify: Option<String>,
    /// The end of the audit log; `None` if it cannot be read.
    pub(super) audit: Option<String>,
    pub(super) selinux_enforces: bool,
    pub(super) fapolicyd_enforces: bool,
    /// Files that fapolicyd trusts besides those of packages.
    pub(super) trusted: String,
    /// The daemon and the commands of work types, each with the place where it is configured.
    pub(super) programs: Vec<(String, PathBuf)>,
    /// What firewalld lets in, if it runs.
    pub(super) firewall: Option<Firewall>,
    /// Ports that others dial: where configured, number, protocol.
    pub(super) ports: Vec<(String, u16, &'static str)>,
    /// Units in /etc that hide the package's, and whether each is masked.
    pub(super) hidden_units: Vec<(PathBuf, bool)>,
    /// Users of jobs that may start containers.
    pub(super) users: Vec<JobUser>,
    /// Each ansible-runner, with the version that it prints, or why it prints none.
    pub(super) runners: Vec<(String, Result<String, String>)>,
}

/// The state of the file system of a path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct FileSystem {
    pub(super) path: PathBuf,
    pub(super) size: u64,
    pub(super) free: u64,
    pub(super) inodes: u64,
    pub(super) free_inodes: u64,
    pub(super) is_read_only: bool,
    pub(super) is_noexec: bool,
}

/// What firewalld's files let in, in the zones that are in use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Firewall {
    pub(super) accepts_all: bool,
    /// First and last port, protocol.
    pub(super) open: BTreeSet<(u16, u16, String)>,
}

/// A user of rootless containers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct JobUser {
    pub(super) name: String,
    pub(super) has_subordinates: bool,
    /// `None` if no systemd runs.
    pub(super) lingers: Option<bool>,
}

/// Looks at everything. Runs programs, which jobs may have changed, only with `may_run`: for the node itself. Blocks.
pub(super) fn gather(config: &Config, root: &Path, may_run: bool) -> HostFacts {
    let host = HostFiles { root };
    let types = wiring::work_types(config);
    let commands: Vec<&CommandType> =
        types.iter().filter(|kind| kind.pods.is_none() && kind.name != SYNC).collect();
    let programs = programs(&commands);
    HostFacts {
        now: Timestamp::now(),
        node: config.node.id.to_string(),
        ends: ends(config),
        open_keys: open_keys(config),
        runs_jobs: !commands.is_empty(),
        data: host.space(&config.node.data_dir),
        reserve: config.disk_reserve(),
        tmp: host.space(Path::new("/tmp")),
        files: getrlimit(Resource::Nofile).maximum,
        watches: host.number("/proc/sys/fs/inotify/max_user_watches"),
        no_inotify: inotify::init(inotify::CreateFlags::CLOEXEC).err().map(|error| error.to_string()),
        audit: host.tail("/var/log/audit/audit.log"),
        selinux_enforces: host.number("/sys/fs/selinux/enforce") == Some(1),
        fapolicyd_enforces: host.runs("fapolicyd")
            && host
                .text("/etc/fapolicyd/fapolicyd.conf")
                .is_none_or(|text| setting(&text, "permissive") != "1"),
        trusted: host.trusted(),
        firewall: host.runs("firewalld").then(|| host.firewall()),
        ports: ports(config),
        hidden_units: host.hidden_units(),
        users: host.users(&commands),
        runners: if may_run { versions(&commands) } else { Vec::new() },
        programs,
    }
}

struct HostFiles<'a> {
    root: &'a Path,
}

impl HostFiles<'_> {
    fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        regular_file::read_text(&self.at(path)).ok()
    }

    fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.trim().parse().ok()
    }

    fn tail(&self, path: &str) -> Option<String> {
        let mut file = regular_file::open(&self.at(path)).ok()?;
        let end = file.metadata().ok()?.len();
        file.seek(SeekFrom::Start(end.saturating_sub(AUDIT_TAIL))).ok()?;
        let mut bytes = Vec::new();
        file.take(AUDIT_TAIL).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Whether a service runs, which means that its control group exists.
    fn runs(&self, service: &str) -> bool {
        ["/sys/fs/cgroup", "/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified"]
            .iter()
            .any(|groups| self.at(format!("{groups}/system.slice/{service}.service")).exists())
    }

    /// The file system that has a path, or would have it.
    fn space(&self, path: &Path) -> Option<FileSystem> {
        let path = self.at(path);
        let existing = path.ancestors().find(|ancestor| ancestor.exists())?;
        let found = statvfs(existing).ok()?;
        Some(FileSystem {
            size: found.f_blocks.saturating_mul(found.f_frsize),
            free: found.f_bavail.saturating_mul(found.f_frsize),
            inodes: found.f_files,
            free_inodes: found.f_ffree,
            is_read_only: found.f_flag.contains(StatVfsMountFlags::RDONLY),
            is_noexec: found.f_flag.contains(StatVfsMountFlags::NOEXEC),
            path,
        })
    }

    /// The texts of the files in a directory.
    fn texts(&self, directory: &str) -> impl Iterator<Item = String> {
        let entries = std::fs::read_dir(self.at(directory)).into_iter().flatten().flatten();
        entries.filter_map(|entry| regular_file::read_text(&entry.path()).ok())
    }

    fn trusted(&self) -> String {
        let list = self.text("/etc/fapolicyd/fapolicyd.trust").into_iter();
        list.chain(self.texts("/etc/fapolicyd/trust.d")).collect::<Vec<_>>().join("\n")
    }

    fn firewall(&self) -> Firewall {
        let definition = |kind: &str, name: &str| {
            let mut places = ["/etc/firewalld", "/usr/lib/firewalld"].iter();
            places.find_map(|place| self.text(format!("{place}/{kind}/{name}.xml")))
        };
        let settings = self.text("/etc/firewalld/firewalld.conf").unwrap_or_default();
        let default = Some(setting(&settings, "DefaultZone")).filter(|zone| !zone.is_empty());
        let has = |zone: &str, name| elements(zone, name).next().is_some();
        let is_used = |zone: &String| has(zone, "interface") || has(zone, "source");
        let used = self.texts("/etc/firewalld/zones").filter(is_used);
        let mut found = Firewall::default();
        for zone in definition("zones", default.unwrap_or("public")).into_iter().chain(used) {
            found.accepts_all |= zone.contains("target=\"ACCEPT\"");
            let services = elements(&zone, "service").filter_map(|service| attribute(service, "name"));
            let services = services.filter_map(|service| definition("services", service));
            found.open.extend(services.chain([zone.clone()]).flat_map(|text| open_ports(&text)));
        }
        found
    }

    /// Units in /etc that hide the package's, and whether each is masked.
    fn hidden_units(&self) -> Vec<(PathBuf, bool)> {
        let is_packaged = |unit: &&&str| {
            let mut places = ["/usr/lib/systemd/system", "/lib/systemd/system"].iter();
            places.any(|place| self.at(place).join(unit).exists())
        };
        let own = UNITS.iter().filter(is_packaged).map(|unit| self.at("/etc/systemd/system").join(unit));
        let found = own.filter(|path| path.symlink_metadata().is_ok()).map(|path| {
            let is_masked = std::fs::read_link(&path).is_ok_and(|to| to == Path::new("/dev/null"));
            (path, is_masked)
        });
        found.collect()
    }

    /// The users of jobs, if the host has podman: without it, nobody needs subordinate IDs.
    fn users(&self, commands: &[&CommandType]) -> Vec<JobUser> {
        if !SEARCH.iter().any(|place| self.at(place).join("podman").exists()) {
            return Vec::new();
        }
        let own = User::from_uid(Uid::effective()).ok().flatten().map(|user| user.name);
        let name = |kind: &&CommandType| kind.limits.user.clone().or_else(|| own.clone());
        let names: BTreeSet<String> =
            commands.iter().filter_map(name).filter(|name| name != "root" && name != "0").collect();
        let has_range = |list: &str, name: &str| {
            let text = self.text(list).unwrap_or_default();
            text.lines().any(|line| line.split(':').next() == Some(name))
        };
        let lingers = |name: &str| self.at("/var/lib/systemd/linger").join(name).exists();
        let has_systemd = self.at("/run/systemd/system").is_dir();
        let user = |name: String| JobUser {
            has_subordinates: ["/etc/subuid", "/etc/subgid"].iter().all(|list| has_range(list, &name)),
            lingers: has_systemd.then(|| lingers(&name)),
            name,
        };
        names.into_iter().map(user).collect()
    }
}

/// The value of a line `name = value`; empty if there is none.
fn setting<'a>(text: &'a str, name: &str) -> &'a str {
    let values = text.lines().filter_map(|line| line.split_once('='));
    values
        .filter(|(key, _)| key.trim() == name)
        .map(|(_, value)| value.trim())
        .next_back()
        .unwrap_or_default()
}

/// The attributes of each element of that name, if it has any.
fn elements<'a>(xml: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let tags = xml.split('<').filter_map(|text| text.split_once('>'));
    tags.filter_map(move |(tag, _)| {
        tag.strip_prefix(name).filter(|rest| rest.starts_with(char::is_whitespace))
    })
}

fn attribute<'a>(attributes: &'a str, name: &str) -> Option<&'a str> {
    let mut words = attributes.split_whitespace();
    words
        .find_map(|word| word.strip_prefix(name)?.strip_prefix("=\"")?.split_once('"'))
        .map(|(value, _)| value)
}

/// First and last port, protocol.
fn open_ports(xml: &str) -> Vec<(u16, u16, String)> {
    let read = |attributes| {
        let (range, protocol) = (attribute(attributes, "port")?, attribute(attributes, "protocol")?);
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some((first.parse().ok()?, last.parse().ok()?, protocol.to_owned()))
    };
    elements(xml, "port").filter_map(read).collect()
}

fn ends(config: &Config) -> BTreeMap<PathBuf, Timestamp> {
    let node = Some(&config.node.id);
    let servers = config.tls_servers.iter();
    let servers = servers.filter_map(|options| ServerProfile::open(options.clone(), node).ok()?.ends_soon());
    let clients = config.tls_clients.iter();
    let clients = clients.filter_map(|options| ClientProfile::open(options.clone(), node).ok()?.ends_soon());
    servers.chain(clients).collect()
}

fn open_keys(config: &Config) -> BTreeSet<PathBuf> {
    let servers = config.tls_servers.iter().map(|options| &options.files);
    let profiles = servers.chain(config.tls_clients.iter().map(|options| &options.files));
    let keys = profiles.filter_map(|files| Some(&files.identity.as_ref()?.1));
    let keys = keys.chain(config.work_signing.iter().map(|signing| &signing.private_key));
    let is_open = |key: &&PathBuf| key.metadata().is_ok_and(|file| file.mode() & 0o004 != 0);
    keys.filter(is_open).cloned().collect()
}

fn ports(config: &Config) -> Vec<(String, u16, &'static str)> {
    let open = config.components().into_iter().filter_map(|component| {
        let Component::Link(link) = &component else { return None };
        let (bind, protocol) = match link {
            Link::TcpListener(listener) => (&listener.bind, "tcp"),
            Link::WebSocketListener(listener) => (&listener.bind, "tcp"),
            Link::UdpListener(listener) => (&listener.bind, "udp"),
            Link::QuicListener(listener) => (&listener.bind, "udp"),
            Link::TcpPeer(_) | Link::UdpPeer(_) | Link::WebSocketPeer(_) | Link::QuicPeer(_) => return None,
        };
        let is_dialled = !bind.is_loopback() && bind.port != 0;
        is_dialled.then(|| (component.to_string(), bind.port, protocol))
    });
    open.collect()
}

/// The daemon's program, and those of work types that can be run.
fn programs(commands: &[&CommandType]) -> Vec<(String, PathBuf)> {
    let own = std::env::current_exe().ok().map(|path| ("meshd".to_owned(), path));
    let of = |kind: &&CommandType| Some((format!("work type {}", kind.name), program(&kind.command)?));
    own.into_iter().chain(commands.iter().filter_map(of)).collect()
}

/// The version that the ansible-runner of each work type prints. It runs with the rights that it has for jobs.
fn versions(commands: &[&CommandType]) -> Vec<(String, Result<String, String>)> {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return Vec::new();
    };
    let ask = |program: &Path, user: Option<&str>| {
        let mut command = tokio::process::Command::new(program);
        command.arg("--version").stdin(std::process::Stdio::null()).kill_on_drop(true);
        if let Some(name) = user {
            let user = User::from_name(name).map_err(|error| error.to_string())?;
            let user = user.ok_or_else(|| format!("there is no user {name}"))?;
            let path = std::env::var_os("PATH").unwrap_or_default();
            command.uid(user.uid.as_raw()).gid(user.gid.as_raw()).env_clear().env("PATH", path);
        }
        let ended = runtime.block_on(async { timeout(VERSION_WITHIN, command.output()).await });
        let ended = ended.map_err(|_| format!("no answer within {} s", VERSION_WITHIN.as_secs()))?;
        let ended = ended.map_err(|error| error.to_string())?;
        match ended.status.success() {
            true => Ok(String::from_utf8_lossy(&ended.stdout).trim().to_owned()),
            false => {
                Err(String::from_utf8_lossy(&ended.stderr).lines().last().unwrap_or_default().to_owned())
            }
        }
    };
    let runners = commands.iter().filter_map(|kind| {
        let program = program(&kind.command).filter(|program| program.ends_with("ansible-runner"))?;
        let place = format!("work type {}: {}", kind.name, program.display());
        Some((place, ask(&program, kind.limits.user.as_deref())))
    });
    runners.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_of_a_zone_are_read_in_either_order() {
        let zone = r#"<zone target="default"><service name="ssh"/>
            <port protocol="tcp" port="27199"/><port port="100-200" protocol="udp"/></zone>"#;
        assert_eq!(open_ports(zone), [(27199, 27199, "tcp".to_owned()), (100, 200, "udp".to_owned())]);
        let services: Vec<_> = elements(zone, "service").filter_map(|one| attribute(one, "name")).collect();
        assert_eq!(services, ["ssh"]);
    }

    #[test]
    fn of_a_setting_the_last_value_counts_and_comments_do_not() {
        assert_eq!(setting("# permissive = 1\npermissive = 0\n permissive=1 \n", "permissive"), "1");
        assert_eq!(setting("x=1", "permissive"), "");
    }
}
