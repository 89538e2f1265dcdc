//! What all parts of the driver stand on: the node's name, its store, its settings, the mesh and the units that it has.
//! Decides nothing.

use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use tokio::sync::Notify;

use super::figures::Figures;
use super::world::{Children, Mesh};
use crate::controller::clusters::pod_type;
use crate::controller::core::{Attempt, ChildType, InstanceName, LeaseTimes, Rates};
use crate::controller::health::Surroundings;
use crate::controller::options::{ControllerOptions, KUBE_RUNTIME_TYPE, RUNNER_TYPE};
use crate::controller::peer::PeerClient;
use crate::controller::projects::ProjectCache;
use crate::controller::store::{Error, Store};

/// The settings of a controller, which a reload replaces. Clones share them.
pub type SharedOptions = Arc<ArcSwap<ControllerOptions>>;

/// One control node, as its parts share it.
pub(in crate::controller) struct Base {
    pub(super) node: InstanceName,
    pub(super) store: Store,
    /// The first 8 hex digits of the install ID.
    pub(super) install: u32,
    pub(in crate::controller) settings: SharedOptions,
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
        self.options().timers.of_leases()
    }

    /// The work type of an attempt's unit.
    pub(in crate::controller) async fn child_type(&self, attempt: &Attempt) -> Result<String, Error> {
        Ok(match attempt.child {
            ChildType::Local => self.options().runner.name.clone(),
            ChildType::Runner => RUNNER_TYPE.to_owned(),
            ChildType::Container => match self.store.registry().await?.group_mut(&attempt.group) {
                Ok(group) => pod_type(group).to_owned(),
                // One that is gone had a cluster.
                Err(Error::NoGroup(_)) => KUBE_RUNTIME_TYPE.to_owned(),
                Err(error) => return Err(error),
            },
        })
    }

    /// How forks are counted now.
    pub(super) fn rates(&self) -> Rates {
        let options = self.options();
        Surroundings::of_process().rates(options.forks_per_cpu, options.mib_per_fork, options.memory_reserve)
    }
}
