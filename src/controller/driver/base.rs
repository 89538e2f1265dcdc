//! What all parts of the driver use: the node's name, its store, its settings, the mesh and the node's units. Decides
//! nothing.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::Notify;

use super::figures::Figures;
use super::world::{Children, MeshView};
use crate::controller::clusters::pod_type;
use crate::controller::core::{Attempt, ChildType, InstanceName, LeaseTimes, Rates};
use crate::controller::health::Surroundings;
use crate::controller::options::{ControllerOptions, KUBE_RUNTIME_TYPE, RUNNER_TYPE, SharedOptions};
use crate::controller::peer::PeerClient;
use crate::controller::projects::ProjectCache;
use crate::controller::store::{Error, Store};
use crate::os::back_off::BackOff;

/// The pause before a store that is away is asked again.
pub(super) const STORE_RETRY: Duration = Duration::from_secs(1);
/// The pauses between tries to cancel or release a unit.
pub(super) const UNIT_RETRY: BackOff = BackOff::new(Duration::from_secs(1), Duration::from_secs(300));

/// What the parts of one control node share.
pub(in crate::controller) struct Base {
    pub(super) node: InstanceName,
    pub(super) store: Store,
    /// The first 8 hex digits of the install ID.
    pub(super) install: u32,
    pub(in crate::controller) settings: SharedOptions,
    pub(super) mesh: Arc<dyn MeshView>,
    pub(super) children: Arc<dyn Children>,
    pub(super) projects: ProjectCache,
    pub(in crate::controller) figures: Figures,
    /// Asks other control nodes; set if there may be any.
    pub(in crate::controller) peers: OnceLock<PeerClient>,
    /// Notified when something is due.
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
                // A deleted group is taken for one with a cluster of its own.
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
