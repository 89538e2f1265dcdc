//! All profiles of a node, by name, and the watch over their files.
//!
//! Owns how soon a change is taken up. It refuses to know what a change means: that is each profile's
//! business.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::Notify;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::core::Core;
use super::error::ProfileError;
use super::profile::{ClientOptions, ClientProfile, ServerOptions, ServerProfile};
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

/// The profiles of a node. Clones are the same, also after a change.
#[derive(Debug, Clone, Default)]
pub struct Profiles {
    set: Arc<ArcSwap<ProfileSet>>,
    swapped: Arc<Notify>,
}

/// All profiles at one time, with the settings that they were made of.
#[derive(Debug, Default)]
pub struct ProfileSet {
    servers: BTreeMap<String, (ServerOptions, ServerProfile)>,
    clients: BTreeMap<String, (ClientOptions, ClientProfile)>,
    /// Of profiles that are no more: connections that they let in live on, and must still be cut when revoked.
    retired: Vec<Arc<Core>>,
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
        let profiles = Self::default();
        let set = profiles.prepare(servers, clients, node)?;
        profiles.swap(Arc::new(set));
        Ok(profiles)
    }

    /// Reads the files of those profiles that are not in use with these very settings; those stay the same.
    /// Nothing changes before [`Self::swap`].
    ///
    /// # Errors
    /// The first profile that cannot be used, with the file and what is wrong with it.
    pub fn prepare(
        &self,
        servers: impl IntoIterator<Item = ServerOptions>,
        clients: impl IntoIterator<Item = ClientOptions>,
        node: &NodeId,
    ) -> Result<ProfileSet, ProfileError> {
        let now = self.set.load();
        let mut set = ProfileSet::default();
        for options in servers {
            let kept = now.servers.get(&options.name).filter(|(known, _)| *known == options);
            let profile = match kept {
                Some((_, profile)) => profile.clone(),
                None => warned(ServerProfile::open(options.clone(), Some(node))?, |made| &made.core),
            };
            set.servers.insert(options.name.clone(), (options, profile));
        }
        for options in clients {
            let kept = now.clients.get(&options.name).filter(|(known, _)| *known == options);
            let profile = match kept {
                Some((_, profile)) => profile.clone(),
                None => warned(ClientProfile::open(options.clone(), Some(node))?, |made| &made.core),
            };
            set.clients.insert(options.name.clone(), (options, profile));
        }
        Ok(set)
    }

    /// Puts other profiles in the place of these, which are given back. Whoever asks from now on gets the new
    /// ones; whoever holds an old one keeps it.
    pub fn swap(&self, new: Arc<ProfileSet>) -> Arc<ProfileSet> {
        let old = self.set.load_full();
        let kept: Vec<&Arc<Core>> = new.current().collect();
        let gone = old.current().chain(&old.retired).chain(&new.retired);
        let mut retired: Vec<Arc<Core>> = Vec::new();
        for core in gone.filter(|core| core.has_let_in()) {
            let known = |other: &&Arc<Core>| Arc::ptr_eq(other, core);
            if !kept.iter().any(known) && !retired.iter().any(|other| known(&other)) {
                retired.push(core.clone());
            }
        }
        let (servers, clients) = (new.servers.clone(), new.clients.clone());
        self.set.store(Arc::new(ProfileSet { servers, clients, retired }));
        self.swapped.notify_one();
        old
    }

    /// The `tls-server` of that name.
    ///
    /// # Errors
    /// If there is none.
    pub fn server(&self, name: &str) -> Result<ServerProfile, UnknownProfile> {
        let found = self.set.load().servers.get(name).map(|(_, profile)| profile.clone());
        found.ok_or_else(|| UnknownProfile(name.to_owned()))
    }

    /// The `tls-client` of that name. One called `default` is always there: unless it is configured, it trusts
    /// the system's authorities and shows no certificate.
    ///
    /// # Errors
    /// If there is none.
    pub fn client(&self, name: &str) -> Result<ClientProfile, UnknownProfile> {
        let unknown = || UnknownProfile(name.to_owned());
        match self.set.load().clients.get(name) {
            Some((_, profile)) => Ok(profile.clone()),
            None if name == "default" => {
                let options = ClientOptions { name: name.to_owned(), ..ClientOptions::default() };
                ClientProfile::open(options, None).map_err(|error| {
                    warn!(%error, "no default TLS profile");
                    unknown()
                })
            }
            None => Err(unknown()),
        }
    }

    /// Takes changed files up, cuts connections whose certificate is no longer accepted, and warns of
    /// certificates that expire, until `stop`. One task does it; without profiles it sleeps.
    pub async fn watch(self, stop: CancellationToken) {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut dates = interval(EXPIRY_LOOK);
        dates.reset();
        loop {
            let any = !self.set.load().is_empty();
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.swapped.notified(), if !any => {}
                _ = looks.tick(), if any => self.look().await,
                _ = dates.tick() => self.set.load().current().for_each(|core| core.warn_of_expiry()),
            }
        }
    }

    async fn look(&self) {
        let profiles = self.clone();
        // Files may lie on a file system that hangs: the node must not.
        let looked = tokio::task::spawn_blocking(move || profiles.refresh());
        let _panicked_only = looked.await;
    }

    pub(super) fn refresh(&self) {
        let set = self.set.load_full();
        let retired = set.retired.iter().filter(|core| core.has_let_in());
        set.current().chain(retired).for_each(|core| core.refresh());
    }
}

impl ProfileSet {
    fn is_empty(&self) -> bool {
        self.servers.is_empty() && self.clients.is_empty() && self.retired.is_empty()
    }

    fn current(&self) -> impl Iterator<Item = &Arc<Core>> {
        let servers = self.servers.values().map(|(_, profile)| &profile.core);
        servers.chain(self.clients.values().map(|(_, profile)| &profile.core))
    }
}

fn warned<P>(profile: P, core: impl FnOnce(&P) -> &Arc<Core>) -> P {
    core(&profile).warn_of_expiry();
    profile
}
