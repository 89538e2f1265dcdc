//! What all parts of the driver stand on: the node's name, its store, its settings, the mesh and the units that it has.
//! Decides nothing.

use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use tokio::sync::Notify;

use super::figures::Figures;
use super::world::{Children, Mesh};
use crate::controller::core::{InstanceName, LeaseTimes, Rates};
use crate::controller::health::Surroundings;
use crate::controller::options::ControllerOptions;
use crate::controller::peer::PeerClient;
use crate::controller::projects::ProjectCache;
use crate::controller::store::Store;

/// The settings of a controller, which a reload replaces. Clones share them.
pub type Settings = Arc<ArcSwap<ControllerOptions>>;

/// One control node, as its parts share it.
pub(in crate::controller) struct Base {
    pub(super) node: InstanceName,
    pub(super) store: Store,
    /// The first 8 hex digits of the install ID.
    pub(super) install: u32,
    pub(in crate::controller) settings: Settings,
    pub(super) mesh: Arc<dyn Mesh>,
    pub(super) children: Arc<dyn Children>,
    pub(super) projects: ProjectCache,
    pub(in crate::controller) figures: Figures,
    /// The way to other control nodes, if there may be any.
    pub(in crate::controller) peers: OnceLock<PeerClient>,
    /// Something is due.
    pub(super) wake: Notify,
}

impl Base {
    /// The settings.
    pub(super) fn options(&self) -> Arc<ControllerOptions> {
        self.settings.load_full()
    }

    /// The times of leases.
    pub(super) fn times(&self) -> LeaseTimes {
        let timers = self.options().timers;
        LeaseTimes { heartbeat: timers.heartbeat, owner_lost_after: timers.owner_lost_after }
    }

    /// How forks are counted now.
    pub(super) fn rates(&self) -> Rates {
        let options = self.options();
        Surroundings::of_process().rates(options.forks_per_cpu, options.mib_per_fork, options.memory_reserve)
    }
}
