//! Wires the controller of a control node to the node: what it sees of the mesh, and how other control nodes reach it.
//! Decides nothing about jobs.

use std::io;
use std::path::Path;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio::sync::watch;
use tracing::warn;

use super::NodeFailure;
use super::check::controller::lacks_tls_client;
use super::wiring::{MeshDialer, client_profile, server_profile, system_trust};
use crate::config::{self, Config, Environment, Invocation};
use crate::controller::core::InstanceName;
use crate::controller::driver::world::{MeshView, NodeView};
use crate::controller::notify::WebTls;
use crate::controller::options::ControllerOptions;
use crate::controller::projects::ProjectCache;
use crate::controller::service::{Controller, Setup, store_options};
use crate::controller::store::{Error, Options};
use crate::node::NodeHandle;
use crate::os::directories;
use crate::os::house::House;
use crate::rpc::Duplex;
use crate::stream::{StreamListener, Streams};
use crate::tls::{Handshakes, Profiles};
use crate::wire::{Advertisement, ConnType, NodeId};
use crate::work::jobs::Act;
use crate::work::{NodeDirectory, Registry};

/// The directory of the store and the projects, below the node's.
const DIRECTORY: &str = ".controller";
/// The directory of the projects, below [`DIRECTORY`].
const PROJECTS: &str = "projects";

/// The most streams of one neighbour that have not yet said what they want. The oldest leave for further ones.
const UNASKED: usize = 64;

/// The tag of a control service among a node's services.
const CONTROL_SERVICE: &str = "Control Service";

/// The store that a node's configuration names. `path` is its file or directory. The node need not run.
///
/// # Errors
/// What is wrong with the configuration, or that it has no controller.
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

/// Starts the controller, if one is configured.
pub(super) async fn start(
    config: &Config,
    directory: &NodeDirectory,
    streams: &Streams,
    tls: &Profiles,
    work: &Registry,
) -> Result<Option<Controller>, NodeFailure> {
    let Some(options) = config.controller.clone() else { return Ok(None) };
    if let Some((what, remedy)) = lacks_tls_client(config) {
        warn!(warning = what, remedy, "work-controller");
    }
    let node = streams.node();
    let peers = options.peers.clone();
    let mesh = Arc::new(SeenMesh::new(node.clone(), work.clone(), tls.clone()));
    let setup = setup(options, directory, node.id(), work, mesh, tls);
    let setup = setup.map_err(NodeFailure::start("work-controller"))?;
    let is_shared = setup.store.is_shared();
    let controller = Controller::open(setup).await.map_err(NodeFailure::start("work-controller"))?;
    if is_shared {
        let what = || format!("the service {} of work-controller", peers.service);
        let profile = server_profile(tls, &peers.tls_server).map_err(NodeFailure::start(what()))?;
        let listener = streams.listen_with(peers.service, None, profile).await;
        let listener = listener.map_err(NodeFailure::start(what()))?;
        let dialer = Arc::new(MeshDialer::new(streams.clone(), tls.clone()));
        tokio::spawn(serve_peers(node.clone(), listener, controller.clone(), dialer));
    }
    Ok(Some(controller))
}

/// Answers other control nodes once the store is open, for as long as this node runs.
async fn serve_peers(
    node: NodeHandle,
    mut listener: StreamListener,
    mut controller: Controller,
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
    tls: &Profiles,
) -> Result<Setup, Error> {
    let store = store_options(&options, directory.path())?;
    let path = directory.path().join(DIRECTORY);
    directories::make(&path).map_err(|source| Error::File { path, source })?;
    let projects = ProjectCache::new(directory.path().join(DIRECTORY).join(PROJECTS));
    let node = InstanceName::from(node.as_str());
    let directory = directory.path().to_owned();
    let tls = Arc::new(TowardsWeb(tls.clone()));
    Ok(Setup { options, store, directory, registry: work.clone(), node, mesh, projects, tls })
}

/// Whether an advertisement is of a control service, which a node without work types advertises too.
fn is_control(ad: &Advertisement) -> bool {
    let tag = ad.tags.as_ref().and_then(|tags| tags.get("type"));
    ad.work_commands.is_some() || tag.is_some_and(|tag| tag == CONTROL_SERVICE)
}

/// TLS by the node's profiles.
struct TowardsWeb(Profiles);

impl WebTls for TowardsWeb {
    fn secure(
        &self,
        stream: TcpStream,
        host: String,
        profile: Option<String>,
    ) -> Act<'_, io::Result<Box<dyn Duplex>>> {
        Box::pin(async move {
            let profile = client_profile(&self.0, &profile).map_err(io::Error::other)?;
            let profile = profile.map_or_else(system_trust, Ok)?;
            Ok(Box::new(profile.connect(stream, &host).await.map_err(io::Error::other)?) as Box<dyn Duplex>)
        })
    }
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
        // The receiver exists before the task starts, because a channel without receivers counts as closed.
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

impl MeshView for SeenMesh {
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
