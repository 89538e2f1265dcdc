//! The controller of a control node, wired to the node: what it sees of the mesh, and what the control socket asks of it.

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::watch;
use tracing::warn;

use super::Failure;
use super::check::controller::lacks_tls_client;
use super::wiring::{MeshDialer, server_profile};
use crate::config::{self, Config, Environment, Invocation};
use crate::control::{Operated, OperationStream, Operations};
use crate::controller::core::InstanceName;
use crate::controller::driver::world::{Mesh, NodeView};
use crate::controller::operations::JobStream;
use crate::controller::options::ControllerOptions;
use crate::controller::projects::ProjectCache;
use crate::controller::service::{self, Setup, default_store, store_options};
use crate::controller::store::{Error, Options};
use crate::counters::ControllerCounters;
use crate::node::NodeHandle;
use crate::os::directories;
use crate::os::house::House;
use crate::rpc::operation::Operation;
use crate::stream::{StreamListener, Streams};
use crate::tls::{Handshakes, Profiles};
use crate::wire::{Advertisement, ConnType, NodeId};
use crate::work::jobs::Act;
use crate::work::{Caller, NodeDirectory, Registry};

/// The directory of the store and the projects, below the node's.
const DIRECTORY: &str = ".controller";
/// The directory of the projects in it.
const PROJECTS: &str = "projects";

/// Streams to a control node that have not said yet what they want: of one neighbour, whose oldest go for further ones.
const UNASKED: usize = 64;

/// What marks a control service among a node's services.
const CONTROL_SERVICE: &str = "Control Service";

/// The store that a node's configuration, a file or a directory, names. The node need not run.
///
/// # Errors
/// What is wrong with the configuration, or that it is no control node's.
pub(crate) fn node_store(path: &Path) -> Result<Options, String> {
    let option = if path.is_dir() { "--config-dir" } else { "--config" };
    let args = [option.to_owned(), path.display().to_string()];
    let config = match config::load(args, &Environment::of_process()) {
        Ok(Invocation::Run(loaded)) => Some(loaded.config),
        Ok(Invocation::Help | Invocation::Version) => None,
        Err(errors) => return Err(errors.to_string()),
    };
    let store = config.as_ref().and_then(store_of);
    let store = store.ok_or_else(|| format!("{}: it has no work-controller", path.display()))?;
    store.map_err(|error| error.to_string())
}

/// The store of a node's controller, if it has one.
pub(super) fn store_of(config: &Config) -> Option<Result<Options, Error>> {
    let directory = config.node.data_dir.join(config.node.id.as_str());
    Some(store_options(config.controller.as_ref()?, &directory))
}

/// The node's controller, as the control socket asks it.
#[derive(Debug, Clone)]
pub(super) struct Controller(service::Controller);

/// Starts the controller, if one is configured.
pub(super) async fn start(
    config: &Config,
    directory: &NodeDirectory,
    streams: &Streams,
    tls: &Profiles,
    work: &Registry,
) -> Result<Option<Controller>, Failure> {
    let Some(options) = config.controller.clone() else { return Ok(None) };
    if let Some((what, remedy)) = lacks_tls_client(config) {
        warn!(warning = what, remedy, "work-controller");
    }
    let node = streams.node();
    let peers = options.peers.clone();
    let mesh = Arc::new(SeenMesh::new(node.clone(), work.clone(), tls.clone()));
    let setup = setup(options, directory, node.id(), work, mesh);
    let setup = setup.map_err(Failure::start("work-controller"))?;
    let is_shared = setup.store.is_shared();
    let controller = service::Controller::open(setup).await.map_err(Failure::start("work-controller"))?;
    if is_shared {
        let what = || format!("the service {} of work-controller", peers.service);
        let profile = server_profile(tls, &peers.tls_server).map_err(Failure::start(what()))?;
        let listener = streams.listen_with(peers.service, None, profile).await;
        let listener = listener.map_err(Failure::start(what()))?;
        let dialer = Arc::new(MeshDialer::new(streams.clone(), tls.clone()));
        tokio::spawn(serve_peers(node.clone(), listener, controller.clone(), dialer));
    }
    Ok(Some(Controller(controller)))
}

/// Answers other control nodes, from when the store is there and for as long as this node runs.
async fn serve_peers(
    node: NodeHandle,
    mut listener: StreamListener,
    mut controller: service::Controller,
    dialer: Arc<MeshDialer>,
) {
    let server = controller.running().await.open_peers(dialer);
    let (mut asked, house) = (Handshakes::default(), House::new(UNASKED));
    loop {
        tokio::select! {
            stream = listener.accept() => {
                let Some(stream) = stream else { return };
                let Some((from, _)) = stream.remote() else { continue };
                let Some(seat) = house.enter(node.counted(from, stream.is_certified())) else { continue };
                let server = server.clone();
                asked.begin(async move {
                    tokio::select! {
                        admitted = server.admit(Box::new(stream), from) => admitted,
                        () = seat.left() => None,
                    }
                });
            }
            admitted = asked.next() => {
                if let Some(admitted) = admitted {
                    tokio::spawn(admitted.serve());
                }
            }
        }
    }
}

fn setup(
    options: ControllerOptions,
    directory: &NodeDirectory,
    node: &NodeId,
    work: &Registry,
    mesh: Arc<SeenMesh>,
) -> Result<Setup, Error> {
    let store = store_options(&options, directory.path())?;
    let path = directory.path().join(DIRECTORY);
    directories::make(&path).map_err(|source| Error::File { path, source })?;
    let projects = ProjectCache::new(directory.path().join(DIRECTORY).join(PROJECTS));
    let node = InstanceName::from(node.as_str());
    let default_store = default_store(directory.path());
    Ok(Setup { options, store, default_store, registry: work.clone(), node, mesh, projects })
}

impl Controller {
    /// Follows a new configuration.
    pub(super) fn set_options(&self, options: ControllerOptions) {
        self.0.set_options(options);
    }

    /// Ends it; children run on.
    pub(super) fn stop(&self, work: &Registry) {
        self.0.stop();
        work.end_jobs();
    }
}

impl Operations for Controller {
    fn operate<'a>(
        &'a self,
        operation: Operation,
        who: &'a Caller,
    ) -> Pin<Box<dyn Future<Output = Operated> + Send + 'a>> {
        Box::pin(async move {
            let (answer, rest) = self.0.operate(operation, who).await?;
            Ok((answer, rest.map(|stream| Box::new(Rest(stream)) as Box<dyn OperationStream>)))
        })
    }

    fn figures(&self) -> Pin<Box<dyn Future<Output = Option<ControllerCounters>> + Send + '_>> {
        Box::pin(self.0.figures())
    }

    fn tls_client(&self) -> Option<String> {
        self.0.tls_client()
    }
}

/// The stream of an operation, as the control service sends it.
struct Rest(Box<JobStream>);

impl OperationStream for Rest {
    fn next(&mut self) -> Pin<Box<dyn Future<Output = Option<Bytes>> + Send + '_>> {
        Box::pin(self.0.next())
    }
}

/// Whether it is a control service, which a node without work types advertises too.
fn is_control(ad: &Advertisement) -> bool {
    let tag = ad.tags.as_ref().and_then(|tags| tags.get("type"));
    ad.work_commands.is_some() || tag.is_some_and(|tag| tag == CONTROL_SERVICE)
}

/// The mesh as this node sees it.
struct SeenMesh {
    node: NodeHandle,
    work: Registry,
    tls: Profiles,
    changes: watch::Receiver<u64>,
}

impl SeenMesh {
    fn new(node: NodeHandle, work: Registry, tls: Profiles) -> Self {
        // The receiver is there from the beginning: a channel without any counts as closed.
        let ((news, changes), mut noticed) = (watch::channel(0), node.changes());
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    () = noticed.next() => news.send_modify(|count| *count += 1),
                    () = news.closed() => return,
                }
            }
        });
        Self { node, work, tls, changes }
    }
}

impl Mesh for SeenMesh {
    fn nodes(&self) -> Act<'_, Vec<NodeView>> {
        Box::pin(async move {
            let status = self.node.status().await;
            let own = self.node.id();
            let types = self.work.work_commands().into_iter();
            let mut nodes = vec![NodeView {
                name: InstanceName::from(own.as_str()),
                routed: true,
                advertised: Some(0),
                tls: false,
                work_types: types.map(|kind| (kind.work_type, kind.secure)).collect(),
            }];
            let controls = status.advertisements.iter().filter(|ad| is_control(ad));
            for ad in controls.filter(|ad| ad.node_id != *own) {
                let types = ad.work_commands.iter().flatten();
                let ahead = status.dated_ahead.get(&(ad.node_id.clone(), ad.service));
                nodes.push(NodeView {
                    name: InstanceName::from(ad.node_id.as_str()),
                    routed: status.routing_table.contains_key(&ad.node_id),
                    advertised: Some((ad.time + ahead.copied().unwrap_or_default()).as_millisecond()),
                    tls: ad.conn_type == ConnType::STREAM_TLS,
                    work_types: types.map(|kind| (kind.work_type.clone(), kind.secure)).collect(),
                });
            }
            nodes
        })
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changes.clone()
    }

    fn signs(&self) -> bool {
        self.work.signs()
    }

    fn proves_names(&self, profile: &str) -> bool {
        self.tls.client(profile).is_ok_and(|profile| profile.proves_names())
    }
}
