//! All profiles of a node, by name, and the watch over their files.
//!
//! Owns how soon a change is taken up. It refuses to know what a change means: that is each profile's
//! business.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::error::ProfileError;
use super::profile::{ClientOptions, ClientProfile, Core, ServerOptions, ServerProfile};
use crate::wire::NodeId;

/// Time between two looks at the files. A change counts at the second look that shows it, so a revoked
/// neighbour is gone after twice this and a moment.
const LOOK: Duration = Duration::from_millis(400);
/// Time between two looks at the dates of certificates.
const EXPIRY_LOOK: Duration = Duration::from_secs(24 * 3600);

/// No profile of that name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown TLS config {0}")]
pub struct UnknownProfile(pub String);

/// The profiles of a node. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Profiles {
    servers: Arc<BTreeMap<String, ServerProfile>>,
    clients: Arc<BTreeMap<String, ClientProfile>>,
}

impl Profiles {
    /// Reads the files of all profiles.
    ///
    /// # Errors
    /// The first profile that cannot be used, with the file and what is wrong with it.
    pub fn open(
        servers: impl IntoIterator<Item = ServerOptions>,
        clients: impl IntoIterator<Item = ClientOptions>,
        node: &NodeId,
    ) -> Result<Self, ProfileError> {
        let servers = servers.into_iter().map(|options| {
            ServerProfile::open(options, Some(node)).map(|profile| (profile.name().to_owned(), profile))
        });
        let clients = clients.into_iter().map(|options| {
            ClientProfile::open(options, Some(node)).map(|profile| (profile.name().to_owned(), profile))
        });
        let profiles = Self {
            servers: Arc::new(servers.collect::<Result<_, _>>()?),
            clients: Arc::new(clients.collect::<Result<_, _>>()?),
        };
        profiles.all().for_each(Core::warn_of_expiry);
        Ok(profiles)
    }

    /// The `tls-server` of that name.
    ///
    /// # Errors
    /// If there is none.
    pub fn server(&self, name: &str) -> Result<ServerProfile, UnknownProfile> {
        self.servers.get(name).cloned().ok_or_else(|| UnknownProfile(name.to_owned()))
    }

    /// The `tls-client` of that name.
    ///
    /// # Errors
    /// If there is none.
    pub fn client(&self, name: &str) -> Result<ClientProfile, UnknownProfile> {
        self.clients.get(name).cloned().ok_or_else(|| UnknownProfile(name.to_owned()))
    }

    fn all(&self) -> impl Iterator<Item = &Core> {
        let servers = self.servers.values().map(|profile| &*profile.core);
        servers.chain(self.clients.values().map(|profile| &*profile.core))
    }

    /// Takes changed files up, cuts connections whose certificate is no longer accepted, and warns of
    /// certificates that expire, until `stop`.
    pub async fn watch(self, stop: CancellationToken) {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut dates = interval(EXPIRY_LOOK);
        dates.reset();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = looks.tick() => self.look().await,
                _ = dates.tick() => self.all().for_each(Core::warn_of_expiry),
            }
        }
    }

    async fn look(&self) {
        let profiles = self.clone();
        // Files may lie on a file system that hangs: the node must not.
        let looked = tokio::task::spawn_blocking(move || profiles.all().for_each(Core::refresh));
        let _panicked_only = looked.await;
    }
}
