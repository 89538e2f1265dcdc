//! The daemon: wires the rooms into a node, in order, and takes them down again.
//!
//! Decides nothing about packets or jobs. What stands here is the order of start and stop, the mapping
//! from configuration to the rooms' own settings (`wiring`), and what a reload changes (`links`).

mod certificates;
mod links;
mod wiring;

use std::process::ExitCode;
use std::sync::Arc;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{error, info, warn};

use crate::config::{self, Config, Environment, Invocation, Loaded};
use crate::control::{Context, Limits, Reload, Server};
use crate::node::{NodeHandle, StopCause};
use crate::service::{TcpIn, TcpOut};
use crate::stream::Streams;
use crate::telemetry;
use crate::tls::{ClientProfile, Profiles, ServerProfile, UnknownProfile};
use crate::work::{self, Registry};

use links::Links;

/// What `status` and `--version` say.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Why a node did not start, or ended.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(
        "nothing to do: configure a tcp-listener or a tcp-peer, or `local-only` for a node without neighbours"
    )]
    NoBackends,
    #[error("another node was in the mesh first under our node ID: give each node an ID of its own")]
    Duplicate,
    #[error("failed to start {what}: {source}")]
    Start { what: String, source: Box<dyn std::error::Error + Send + Sync> },
}

impl Failure {
    fn start<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
        what: impl Into<String>,
    ) -> impl FnOnce(E) -> Self {
        let what = what.into();
        |source| Self::Start { what, source: source.into() }
    }
}

/// Runs a node as the arguments (without the program's name) say. Returns when it has ended.
pub fn main(args: Vec<String>) -> ExitCode {
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
    if let Some(command) = &loaded.config.certificate {
        return certificates::run(command);
    }
    telemetry::start(loaded.config.log_level, loaded.config.trace);
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("meshd: failed to start threads: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(run(*loaded)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            error!(%failure, "stopped");
            eprintln!("meshd: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Starts everything, waits for the end, stops everything.
async fn run(loaded: Loaded) -> Result<(), Failure> {
    let Loaded { config, warnings, sources } = loaded;
    for warning in &warnings {
        warn!(%warning, "configuration");
    }
    if config.backends().is_empty() && !config.local_only {
        return Err(Failure::NoBackends);
    }
    let tls = wiring::tls_profiles(&config).map_err(Failure::start("TLS"))?;
    let (node, stopped) = NodeHandle::start(wiring::node_options(&config));
    info!(node = %node.id(), version = VERSION, "starting");
    let streams = Streams::new(node.clone());
    let work = open_work(&config, &streams, &tls).await?;
    node.set_work_commands(work.work_commands());
    let links = Arc::new(Links::new(node.clone(), tls.clone(), config.clone(), sources));
    let context = Context {
        node: node.clone(),
        streams: streams.clone(),
        tls: tls.clone(),
        work,
        reload: links.clone(),
        version: VERSION,
    };
    let stop = CancellationToken::new();
    let tasks = TaskTracker::new();
    tasks.spawn(tls.clone().watch(stop.clone()));
    start_control(&config, &context, &stop, &tasks).await?;
    links.start_all().await.map_err(Failure::start("links to neighbours"))?;
    start_proxies(&config, &streams, &tls, &stop, &tasks).await?;
    // Without systemd there is nobody to tell.
    let _nobody = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    info!(node = %node.id(), "ready");
    let end = wait_for_end(stopped, links.as_ref()).await;
    let _nobody = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
    stop.cancel();
    tasks.close();
    tasks.wait().await;
    links.stop_all().await;
    node.stop();
    end
}

async fn open_work(config: &Config, streams: &Streams, tls: &Profiles) -> Result<Registry, Failure> {
    let what = || format!("the work engine in {}", config.node.data_dir.display());
    let types = config.work_commands.iter().map(wiring::command_type).collect();
    let options = work::Options::new(config.node.data_dir.clone(), config.node.id.clone(), types)
        .map_err(Failure::start(what()))?;
    let dialer = Arc::new(wiring::MeshDialer::new(streams.clone(), tls.clone()));
    Registry::open(options, dialer).await.map_err(Failure::start(what()))
}

async fn start_control(
    config: &Config,
    context: &Context,
    stop: &CancellationToken,
    tasks: &TaskTracker,
) -> Result<(), Failure> {
    for service in &config.control_services {
        let mut server = Server::new(context.clone(), Limits::default());
        let what = || format!("control service {}", service.service);
        if let Some(path) = &service.filename {
            server.listen_unix(path, service.permissions).map_err(Failure::start(what()))?;
        }
        if let Some(address) = &service.tcp_listen {
            let tls = wiring::server_profile(&context.tls, service.tcp_tls.as_deref());
            let tls = tls.map_err(Failure::start(what()))?;
            server.listen_tcp(&address.to_string(), tls).await.map_err(Failure::start(what()))?;
        }
        let tls = wiring::server_profile(&context.tls, service.tls.as_deref());
        let tls = tls.map_err(Failure::start(what()))?;
        server.listen_mesh(service.service, tls).await.map_err(Failure::start(what()))?;
        tasks.spawn(server.run(stop.clone().cancelled_owned()));
    }
    Ok(())
}

async fn start_proxies(
    config: &Config,
    streams: &Streams,
    tls: &Profiles,
    stop: &CancellationToken,
    tasks: &TaskTracker,
) -> Result<(), Failure> {
    for server in &config.tcp_servers {
        let address = server.bind.to_string();
        let node = wiring::remote_node(&server.remote.node, streams.node().id());
        let proxy = TcpIn::bind(&address, streams.clone(), node, server.remote.service)
            .await
            .map_err(Failure::start(format!("tcp-server on {address}")))?;
        let (port, way) = proxy_profiles(tls, &server.tls_server, &server.tls_client)
            .map_err(Failure::start(format!("tcp-server on {address}")))?;
        tasks.spawn(proxy.with_tls(port, way).run(stop.clone()));
    }
    for client in &config.tcp_clients {
        let what = || format!("tcp-client {}", client.service);
        let (service, way) =
            proxy_profiles(tls, &client.tls_server, &client.tls_client).map_err(Failure::start(what()))?;
        let proxy = TcpOut::listen_with(streams, client.service, client.address.to_string(), service, way)
            .await
            .map_err(Failure::start(what()))?;
        tasks.spawn(proxy.run(stop.clone()));
    }
    Ok(())
}

type ProxyProfiles = (Option<ServerProfile>, Option<ClientProfile>);

fn proxy_profiles(
    tls: &Profiles,
    server: &Option<String>,
    client: &Option<String>,
) -> Result<ProxyProfiles, UnknownProfile> {
    Ok((wiring::server_profile(tls, server.as_deref())?, wiring::client_profile(tls, client.as_deref())?))
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
                Ok(()) => info!("reloaded"),
                Err(error) => error!(%error, "reload failed, nothing was changed"),
            },
            cause = &mut stopped => return match cause {
                Ok(StopCause::Duplicate) => Err(Failure::Duplicate),
                Ok(StopCause::Asked) | Err(_) => Ok(()),
            },
        }
    }
    info!("stopping; running work goes on");
    Ok(())
}
