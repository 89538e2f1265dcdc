//! The daemon: wires the rooms into a node, in order, and takes them down again.
//!
//! Decides nothing about packets or jobs. Owns the order of start and stop, the mapping from configuration to the
//! rooms' own settings (`wiring`), the start and stop of single links and services (`components`), what a reload
//! changes (`reload`), the reload after a file has changed (`watch`), what systemd is told (`systemd`), `meshd check`
//! (`check`), the examination of the own node (`doctor`), and who answers operations about nodes of the mesh (`nodes`).

mod certificates;
mod check;
mod components;
mod controller;
mod doctor;
mod enrolment;
mod epoch;
mod nodes;
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
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::config::{self, Config, Environment, Invocation, Loaded};
use crate::control::{Context, LineBudget, Observer, ProcessLife, Reload};
use crate::controller::service;
use crate::enrol::EnrolDoor;
use crate::join::shared::SharedStore;
use crate::node::{self, NodeHandle, NodeOptions, StopCause};
use crate::rpc::report::node::HealthState;
use crate::service::LinkTests;
use crate::stream::Streams;
use crate::telemetry::{self, Log};
use crate::tls::{Names, Profiles};
use crate::work::jobs::Operations;
use crate::work::{self, NodeDirectory, Registry};

pub(crate) use controller::node_store;
pub(crate) use doctor::examine_files;

use components::{Components, StartError};
use nodes::{DeskSlot, NodeOperations};
use reload::Reloader;

/// The version in `status` and `--version`.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Tasks that a thread runs between two looks at its sockets and timers. A link's task works for some tenths of a
/// millisecond when there is much to carry, and a ping that has arrived should not wait for dozens of such tasks.
const EVENT_INTERVAL: u32 = 8;
/// How long a thread for blocking calls (files, SQLite) lives without a call. Each call wakes the thread that has been
/// idle longest, so as many threads stay as calls begin within this time. With a shorter time, a node with one call per
/// second would start a thread for each, which takes some 100 us.
const IDLE_THREAD: Duration = Duration::from_secs(2);
/// Newcomers that wait for the door.
const NEWCOMERS: usize = 64;
/// How long the process waits at its end for threads that read or write a file.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Why a node did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum NodeFailure {
    /// The configuration has no link and no `local-only`.
    #[error(
        "nothing to do: configure a tcp-listener or a tcp-peer, or `local-only` for a node without neighbours"
    )]
    NoBackends,
    /// Another node in the mesh has this node's name.
    #[error(
        "another node with a certificate for this node's ID was there first: give each node an ID of its own"
    )]
    Duplicate,
    /// A link or a service did not start.
    #[error(transparent)]
    Component(#[from] StartError),
    /// Something else did not start.
    #[error("failed to start {what}: {source}")]
    Start {
        /// What did not start.
        what: String,
        /// Why it did not.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl NodeFailure {
    fn start<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
        what: impl Into<String>,
    ) -> impl FnOnce(E) -> Self {
        let what = what.into();
        |source| Self::Start { what, source: source.into() }
    }
}

/// Runs a node as the arguments say, which lack the program's name. Returns when the node has ended. `ask_to_sign` asks
/// a person whether to sign a certificate for these names.
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

/// Says once why the node ends: on standard error if it did not start, otherwise in its log.
fn report(failure: &NodeFailure) {
    match failure {
        NodeFailure::Duplicate => error!(%failure, "stopped"),
        NodeFailure::NoBackends | NodeFailure::Component(_) | NodeFailure::Start { .. } => {
            // In one write, because the log may go to standard error too.
            let line = format!("meshd: {failure}\n");
            let _nobody_reads = std::io::stderr().write_all(line.as_bytes());
        }
    }
}

/// Abandons work in progress. None of it has to finish, because files are replaced atomically and jobs are processes of
/// their own. A thread that hangs on a dead file system must not keep the process alive.
fn leave(runtime: Runtime) {
    runtime.shutdown_timeout(LAST_WORDS);
}

/// Runs a node on the caller's runtime, in a process that may do other things: starts everything, waits for the end,
/// and stops everything.
///
/// # Errors
/// Why the node did not start, or that another node in the mesh has its name.
pub async fn run(loaded: Loaded, log: Log) -> Result<(), NodeFailure> {
    let life = ProcessLife::begin();
    let Loaded { config, warnings, sources, .. } = loaded;
    for config::Warning { at, text } in &warnings {
        warn!(%at, warning = %text, "configuration");
    }
    systemd::warn_of_confined_jobs(&config);
    if config.is_alone() {
        return Err(NodeFailure::NoBackends);
    }
    enrolment::finish_renewal(&config);
    let shared = SharedStore::of(&config).map_err(NodeFailure::start("enrolment"))?;
    let tls = Profiles::default();
    tls.swap(wiring::tls_profiles(&config, &tls).map_err(NodeFailure::start("TLS"))?);
    work::check_limits(&wiring::work_types(&config)).map_err(NodeFailure::start("the work engine"))?;
    let taken = NodeDirectory::take(&config.node.data_dir, &config.node.id).await;
    let directory = taken.map_err(NodeFailure::start(work_engine(&config)))?;
    let (newcomers, has_come) = mpsc::channel(NEWCOMERS);
    let (epoch, newcomers) = (Some(next_epoch(&directory)), Some(newcomers));
    let options = NodeOptions { epoch, newcomers, ..wiring::node_options(&config) };
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
    let door = EnrolDoor::new(streams.clone(), profiles.clone()).map_err(NodeFailure::start("enrolment"))?;
    tokio::spawn(door.clone().serve(has_come, stop.clone()));
    let link_tests =
        LinkTests::start(streams.clone(), stop.clone()).await.map_err(NodeFailure::start("link tests"))?;
    let desk = DeskSlot::default();
    let operations = controller.clone().map(|controller| -> Arc<dyn Operations> {
        let (controller, own) = (Arc::new(controller), node.id().clone());
        Arc::new(NodeOperations { controller, own, desk: desk.clone() })
    });
    let (seen, asked) = (profiles.clone(), operations.clone());
    let reload = Arc::downgrade(&reloader);
    let observer = Observer::new(node.clone(), seen, VERSION, work.clone(), life.clone(), asked);
    let (looked_after, sink) = (operations.clone(), observer.sink.clone());
    let doctor = doctor::Doctor::new(reload.clone(), node.clone(), profiles.clone(), looked_after, sink);
    let context = Context {
        observer,
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
    reloader
        .start(Components::new(context, door, shared, desk, directory.path().to_owned(), stop.clone()))
        .await?;
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
        controller.stop();
        work.end_jobs();
    }
    node.stop();
    work.close().await;
    end
}

/// The epoch of this start. If it cannot be stored, the clock alone gives it.
fn next_epoch(directory: &NodeDirectory) -> u64 {
    let clock = node::epoch(jiff::Timestamp::now());
    epoch::next(directory.path(), clock).unwrap_or_else(|error| {
        let directory = directory.path().display();
        warn!(%directory, %error, "cannot store the epoch: if the clock is set back, other nodes will distrust this node for a while");
        clock
    })
}

fn work_engine(config: &Config) -> String {
    format!("the work engine in {}", config.node.data_dir.display())
}

async fn open_work(config: &Config, streams: &Streams, tls: &Profiles) -> Result<Registry, NodeFailure> {
    let what = || work_engine(config);
    let types = wiring::work_types(config);
    let mut options = work::Options::new(config.node.data_dir.clone(), config.node.id.clone(), types)
        .map_err(NodeFailure::start(what()))?;
    options.signer = wiring::signer(config).map_err(NodeFailure::start("work-signing"))?;
    options.verifier = wiring::verifier(config).map_err(NodeFailure::start("work-verification"))?;
    options.kubernetes = config.node.kubernetes();
    options.payload_cache = config.node.payload_cache;
    options.is_child = config.controller.is_some().then_some(service::is_child as fn(&work::UnitId) -> bool);
    let dialer = Arc::new(wiring::MeshDialer::new(streams.clone(), tls.clone()));
    let work = Registry::open(options, dialer).await.map_err(NodeFailure::start(what()))?;
    work.set_quota(config.node.quota);
    work.set_disk_reserve(config.disk_reserve());
    Ok(work)
}

/// Waits until a signal or the mesh ends the node. SIGHUP reloads.
async fn wait_for_end(
    mut stopped: oneshot::Receiver<StopCause>,
    reload: &dyn Reload,
) -> Result<(), NodeFailure> {
    let listen = |kind| signal(kind).map_err(NodeFailure::start("signal handling"));
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
                Ok(StopCause::Duplicate) => Err(NodeFailure::Duplicate),
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
