//! A node: a daemon on a host of its own, which starts, answers clients, and crashes.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use super::runner::jobs_of;
use meshd_machine::{self as machine, Host};
use tokio::sync::oneshot;

use meshd::config::{self, Environment, Invocation};
use meshd::telemetry::{self, Log, LogFormat, LogLevel};
use meshd::tls::make::{self, KeyKind};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;

/// The directory of all files of a run, in memory.
pub(super) struct Place(tempfile::TempDir);

impl Place {
    pub(super) fn new() -> Self {
        Self(tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap())
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Writes a pair of keys. Returns the configuration with which a node signs and verifies.
    pub(super) fn signing_keys(&self) -> String {
        let key = make::private_key(KeyKind::Ed25519).unwrap();
        let write = |name: &str, text: &str| {
            let path = self.path().join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
            path.display().to_string()
        };
        let (private, public) = (write("key", &key), write("key.pub", &make::public_key(&key).unwrap()));
        format!(
            "- work-signing: {{privatekey: '{private}'}}\n- work-verification: {{publickey: '{public}'}}\n"
        )
    }
}

/// The log of all nodes, on standard output.
pub(super) fn log(level: LevelFilter) -> Log {
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_ansi(false)
        .with_writer(std::io::stdout)
        .with_timer(Now)
        .init();
    let (log, last) = telemetry::start(LogLevel::Error, false, LogFormat::Text, |_| None);
    std::mem::forget(last);
    log
}

/// Prints the time of the run, and the host.
struct Now;

impl FormatTime for Now {
    fn format_time(&self, into: &mut Writer<'_>) -> std::fmt::Result {
        let host = machine::host().map_or(0, |host| host.0);
        write!(into, "{:12.6} {host:2}", machine::now().as_secs_f64())
    }
}

pub(super) struct Node {
    pub(super) host: Host,
    pub(super) name: String,
    /// Its disk has ignored flushes once.
    pub(super) has_lied: bool,
    files: PathBuf,
    configuration: String,
    process: Option<Process>,
}

struct Process {
    thread: JoinHandle<()>,
    crash: oneshot::Sender<()>,
    gone: oneshot::Receiver<()>,
}

/// A process that was killed, perhaps with all others of its machine.
pub(super) struct Crash {
    hosts: Vec<Host>,
    process: Process,
}

impl Crash {
    /// Waits until nothing of the process is left.
    pub(super) async fn finish(self) {
        let Process { thread, crash, gone } = self.process;
        drop(crash);
        let _ended = gone.await;
        thread.join().unwrap();
        while self.hosts.iter().any(|host| machine::threads_of(*host) > 0) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        if let [host, _jobs] = *self.hosts {
            machine::lose_unflushed(host);
            machine::boot(&self.hosts);
        }
        machine::switch_on(&self.hosts);
    }
}

impl Node {
    pub(super) fn new(files: &Path, host: Host, name: &str, config: &str) -> Self {
        std::fs::create_dir(files).unwrap();
        let text = format!(
            "- node: {{id: {name}, datadir: '{0}/data'}}\n- control-service: {{service: control, filename: '{0}/sock'}}\n{config}",
            files.display()
        );
        std::fs::write(files.join("meshd.yml"), &text).unwrap();
        machine::mount(host, files);
        machine::boot(&[host, jobs_of(host)]);
        Self {
            host,
            name: name.to_owned(),
            has_lied: false,
            files: files.to_owned(),
            configuration: text,
            process: None,
        }
    }

    pub(super) fn boot(&mut self, log: &Log) {
        let (crash, crashed) = oneshot::channel::<()>();
        let (left, gone) = oneshot::channel();
        let arguments = vec!["--config".to_owned(), self.files.join("meshd.yml").display().to_string()];
        let (log, name) = (log.clone(), self.name.clone());
        let run = move || {
            let loaded = match config::load(arguments, &Environment::of_process()) {
                Ok(Invocation::Run(loaded)) => loaded,
                other => panic!("{other:?}"),
            };
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                tokio::select! {
                    ended = meshd::daemon::run(*loaded, log) => println!("note {name} ended: {ended:?}"),
                    _crash = crashed => {}
                }
            });
            runtime.shutdown_timeout(Duration::from_secs(3600));
            let _nobody = left.send(());
        };
        let builder = std::thread::Builder::new().name(self.name.clone()).stack_size(8 << 20);
        let thread = machine::on_host(self.host, || builder.spawn(run)).unwrap();
        self.process = Some(Process { thread, crash, gone });
    }

    /// Kills the process, or the whole machine if it loses its power. What the process held is free after
    /// [`Crash::finish`].
    pub(super) fn begin_crash(&mut self, loses_power: bool) -> Option<Crash> {
        let process = self.process.take()?;
        let jobs = jobs_of(self.host);
        let hosts = if loses_power { vec![self.host, jobs] } else { vec![self.host] };
        machine::switch_off(&hosts);
        if loses_power {
            machine::kill_all(jobs);
        }
        Some(Crash { hosts, process })
    }

    /// Adds a work type to the node's configuration or removes it again, as an operator who edits the file.
    pub(super) fn change_configuration(&self, more: bool) {
        let more = if more { "- work-command: {worktype: another, command: cat}\n" } else { "" };
        self.put("meshd.yml", &format!("{}{more}", self.configuration));
    }

    /// Writes or replaces a file in the node's directory, durably.
    pub(super) fn put(&self, name: &str, text: &str) {
        let draft = self.files.join("draft");
        std::fs::write(&draft, text).unwrap();
        std::fs::File::open(&draft).unwrap().sync_all().unwrap();
        std::fs::rename(draft, self.files.join(name)).unwrap();
        std::fs::File::open(&self.files).unwrap().sync_all().unwrap();
    }

    /// The same, with a file that nobody else may read.
    pub(super) fn put_secret(&self, name: &str, text: &str) {
        let path = self.files.join(name);
        let parent = path.parent().expect("it is in a directory");
        let _there = std::fs::create_dir(parent);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        for flushed in [&path, parent, &self.files] {
            std::fs::File::open(flushed).unwrap().sync_all().unwrap();
        }
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.files.join("sock")
    }

    /// The node's data directory.
    pub(super) fn data(&self) -> PathBuf {
        self.files.join("data")
    }

    /// Whether this is a directory without a status that a lying disk left. The node does not treat it as a unit; an
    /// operator must remove it.
    pub(super) fn is_half_made(&self, unit: &Path) -> bool {
        self.has_lied && !unit.join("status").exists()
    }

    /// The directory of the node's units.
    pub(super) fn units(&self) -> PathBuf {
        self.data().join(&self.name)
    }
}
