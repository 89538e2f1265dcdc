//! The daemon: wires the rooms into a node, in order, and takes them down again.
//!
//! Decides nothing about packets or jobs. What stands here is the order of start and stop, the mapping from
//! configuration to the rooms' own settings (`wiring`), links and services one by one (`components`), what a reload
//! changes (`reload`) and when one is due without being asked for (`watch`), what systemd is told (`systemd`), and
//! `meshd check`.

mod certificates;
mod check;
mod components;
mod controller;
mod doctor;
mod epoch;
mod reload;
mod systemd;
mod watch;
mod wiring;

use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::config::{self, Config, Environment, Invocation, Loaded};
use crate::control::{Context, Life, LineBudget, Observer, Operations, Reload};
use crate::controller::service;
use crate::node::{self, NodeHandle, NodeOptions, StopCause};
use crate::rpc::report::node::HealthState;
use crate::service::LinkTests;
use crate::stream::Streams;
use crate::telemetry::{self, Log};
use crate::tls::{Names, Profiles};
use crate::work::{self, NodeDirectory, Registry};

pub(crate) use controller::node_store;
pub(crate) use doctor::examine_files;

use components::{Components, StartError};
use reload::Reloader;

/// The version in `status` and `--version`.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Tasks that a thread runs between two looks at its sockets and timers. A link's task works for some tenths of a
/// millisecond when there is much to carry, and a ping that has arrived should not wait for dozens of them.
const EVENT_INTERVAL: u32 = 8;
/// How long a thread for calls that may wait (files, SQLite) lives without one. Each call wakes the thread that has been idle
/// longest, so as many stay as calls begin within this time. With less, a node that has a call in each second starts a thread
/// for each, which takes some 100 us.
const IDLE_THREAD: Duration = Duration::from_secs(2);
/// How long the process waits at its end for threads that read or write a file.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Why a node did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A configuration of nothing.
    #[error(
        "nothing to do: configure a tcp-listener or a tcp-peer, or `local-only` for a node without neighbours"
    )]
    NoBackends,
    /// The mesh knows a node of this name.
    #[error(
        "another node with a certificate for our node ID was there first: give each node an ID of its own"
    )]
    Duplicate,
    /// A link or a service.
    #[error(transparent)]
    Component(#[from] StartError),
    /// Anything else.
    #[error("failed to start {what}: {source}")]
    Start {
        /// What was to start.
        what: String,
        /// Why it does not.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl Failure {
    fn start<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
        what: impl Into<String>,
    ) -> impl FnOnce(E) -> Self {
        let what = what.into();
        |source| Self::Start { what, source: source.into() }
    }
}

/// Runs a node as the arguments (without the program's name) say. Returns when it has ended. `ask_to_sign` asks a
/// person whether to sign a certificate for these names.
pub(crate) fn main(args: Vec<String>, ask_to_sign: fn(&Names, &str) -> bool) -> ExitCode {
    if let Some(code) = crate::os::first_process::run_if_first() {
        return code;
    }
    if let Some(args) = check::asked(&args) {
        return check::main(args);
    }
    let loaded = match config::load(args, &Environment::of_process()) {
        Ok(Invocation::Help) => {
            print!("{}", config::help());
            return ExitCode::SUCCESS;
        }
        Ok(Invocation::Version) => {
            println!("meshd {VERSION}");
            return ExitCode::SUCCESS;
        }
        Ok(Invocation::Run(loaded)) => loaded,
        Err(errors) => {
            eprintln!("{errors}");
            return ExitCode::FAILURE;
        }
    };
    if let Some(code) = certificates::run(&loaded.config, ask_to_sign) {
        return code;
    }
    let (log, _last_lines) = {
        let config = &loaded.config;
        telemetry::start(config.log_level, config.trace, config.log_format, work::unit::job_of)
    };
    crate::os::rlimit::raise();
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.enable_all().event_interval(EVENT_INTERVAL).thread_keep_alive(IDLE_THREAD);
    let runtime = match runtime.build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("meshd: failed to start threads: {error}");
            return ExitCode::FAILURE;
        }
    };
    let code = match runtime.block_on(run(*loaded, log)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            report(&failure);
            ExitCode::FAILURE
        }
    };
    leave(runtime);
    code
}

/// Says once why the node ends: where the program was started, or in its log once it has run.
fn report(failure: &Failure) {
    match failure {
        Failure::Duplicate => error!(%failure, "stopped"),
        Failure::NoBackends | Failure::Component(_) | Failure::Start { .. } => {
            // In one piece: the log may go to the same place.
            let line = format!("meshd: {failure}\n");
            let _nobody_reads = std::io::stderr().write_all(line.as_bytes());
        }
    }
}

/// Abandons work in progress, none of which has to finish: files are replaced atomically, and jobs are processes of
/// their own. A thread that hangs on a dead file system must not keep the process alive.
fn leave(runtime: Runtime) {
    runtime.shutdown_timeout(LAST_WORDS);
}

/// Runs a node on the runtime of the caller, whose process it may share: starts everything, waits for the end, stops everything.
///
/// # Errors
/// Why it did not start, or that the mesh has another node of its name.
pub async fn run(loaded: Loaded, log: Log) -> Result<(), Failure> {
    let life = Life::begin();
    let Loaded { config, warnings, sources, .. } = loaded;
    for config::Warning { at, text } in &warnings {
        warn!(%at, warning = %text, "configuration");
    }
    systemd::warn_of_confined_jobs(&config);
    if config.is_alone() {
        return Err(Failure::NoBackends);
    }
    let tls = Profiles::default();
    tls.swap(wiring::tls_profiles(&config, &tls).map_err(Failure::start("TLS"))?);
    work::check_limits(&wiring::work_types(&config)).map_err(Failure::start("the work engine"))?;
    let taken = NodeDirectory::take(&config.node.data_dir, &config.node.id).await;
    let directory = taken.map_err(Failure::start(work_engine(&config)))?;
    let options = NodeOptions { epoch: Some(next_epoch(&directory)), ..wiring::node_options(&config) };
    let (node, stopped) = NodeHandle::start(options);
    info!(node = %node.id(), version = VERSION, "starting");
    let streams = Streams::new(node.clone());
    if let Some(bytes) = config.node.stream_buffers {
        streams.set_buffers(bytes);
    }
    let work = open_work(&config, &streams, &tls).await?;
    let controller = controller::start(&config, &directory, &streams, &tls, &work).await?;
    node.set_work_commands(work.work_commands());
    let stop = CancellationToken::new();
    let profiles = tls.clone();
    tokio::spawn(tls.watch(stop.clone()));
    let reloader = Reloader::new(log.clone(), life.clone(), config, sources, warnings, controller.clone());
    let link_tests =
        LinkTests::start(streams.clone(), stop.clone()).await.map_err(Failure::start("link tests"))?;
    let operations = controller.clone().map(|controller| Arc::new(controller) as Arc<dyn Operations>);
    let (seen, asked) = (profiles.clone(), operations.clone());
    let reload = Arc::downgrade(&reloader);
    let doctor = doctor::Doctor::new(reload.clone(), node.clone(), profiles.clone(), operations.clone());
    let context = Context {
        observer: Observer::new(node.clone(), seen, VERSION, work.clone(), life.clone(), asked),
        node: node.clone(),
        streams,
        tls: profiles,
        work: work.clone(),
        reload: Arc::new(reload.clone()),
        doctor: Arc::new(doctor),
        controller: operations,
        log: Arc::new(log),
        link_tests,
        lines: LineBudget::default(),
    };
    reloader.start(Components::new(context, stop.clone())).await?;
    watch::spawn(Arc::new(reload.clone()), stop.clone()).await;
    systemd::spawn_watchdog(node.clone(), stop);
    life.enter(HealthState::Ready);
    systemd::ready();
    info!(node = %node.id(), "ready");
    let end = wait_for_end(stopped, &reload).await;
    node.stop_dialling();
    info!("stopping; running work goes on");
    life.enter(HealthState::Stopping);
    systemd::stopping();
    reloader.stop().await;
    if let Some(controller) = controller {
        controller.stop(&work);
    }
    node.stop();
    work.close().await;
    end
}

/// The epoch of this start. Where it cannot be kept, the clock has to do.
fn next_epoch(directory: &NodeDirectory) -> u64 {
    let clock = node::epoch(jiff::Timestamp::now());
    epoch::next(directory.path(), clock).unwrap_or_else(|error| {
        let directory = directory.path().display();
        warn!(%directory, %error, "cannot keep the epoch: after a clock set back other nodes will distrust us for a while");
        clock
    })
}

fn work_engine(config: &Config) -> String {
    format!("the work engine in {}", config.node.data_dir.display())
}

async fn open_work(config: &Config, streams: &Streams, tls: &Profiles) -> Result<Registry, Failure> {
    let what = || work_engine(config);
    let types = wiring::work_types(config);
    let mut options = work::Options::new(config.node.data_dir.clone(), config.node.id.clone(), types)
        .map_err(Failure::start(what()))?;
    options.signer = wiring::signer(config).map_err(Failure::start("work-signing"))?;
    options.verifier = wiring::verifier(config).map_err(Failure::start("work-verification"))?;
    options.kubernetes = config.node.kubernetes();
    options.is_child = config.controller.is_some().then_some(service::is_child as fn(&work::UnitId) -> bool);
    let dialer = Arc::new(wiring::MeshDialer::new(streams.clone(), tls.clone()));
    let work = Registry::open(options, dialer).await.map_err(Failure::start(what()))?;
    work.set_quota(config.node.quota);
    work.set_disk_reserve(config.disk_reserve());
    Ok(work)
}

/// Until a signal or the mesh ends the node; SIGHUP reloads.
async fn wait_for_end(mut stopped: oneshot::Receiver<StopCause>, reload: &dyn Reload) -> Result<(), Failure> {
    let listen = |kind| signal(kind).map_err(Failure::start("signal handling"));
    let mut terminate = listen(SignalKind::terminate())?;
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut hang_up = listen(SignalKind::hangup())?;
    loop {
        tokio::select! {
            _signal = terminate.recv() => break,
            _signal = interrupt.recv() => break,
            _signal = hang_up.recv() => match reload.reload().await {
                Ok(()) => {}
                Err(error) => error!(%error, "reload failed, nothing was changed"),
            },
            cause = &mut stopped => return match cause {
                Ok(StopCause::Duplicate) => Err(Failure::Duplicate),
                Ok(StopCause::Asked) | Err(_) => Ok(()),
            },
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_thread_that_hangs_does_not_keep_the_process() {
        let runtime = Runtime::new().unwrap();
        let (begun, has_begun) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        runtime.spawn_blocking(move || {
            begun.send(()).unwrap();
            let _released = released.recv_timeout(Duration::from_secs(60));
        });
        has_begun.recv().unwrap();
        let start = Instant::now();
        leave(runtime);
        assert!(start.elapsed() < Duration::from_secs(30), "it was waited for");
        drop(release);
    }
}
