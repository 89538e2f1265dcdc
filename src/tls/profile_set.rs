//! All profiles of a node, by name, and the watch over their files.
//!
//! Owns how soon changed files are read. It refuses to know what a change means: that is each profile's business.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::error::ProfileError;
use super::options::{ClientOptions, ServerOptions};
use super::profile::{ClientProfile, Profile, ServerProfile};
use crate::wire::NodeId;

/// Time between two looks at the files. A change counts at the second look that shows it, so that a revoked
/// neighbour is disconnected within little more than twice this time.
const FILES_EVERY: Duration = Duration::from_millis(400);
/// Time between two looks at the dates of certificates.
const EXPIRY_LOOK: Duration = Duration::from_secs(24 * 3600);

/// No profile of that name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown TLS config {0}")]
pub struct UnknownProfile(pub String);

/// The profiles of a node. Clones share them, also after a change.
#[derive(Debug, Clone, Default)]
pub struct Profiles {
    set: Arc<ArcSwap<ProfileSet>>,
    swapped: Arc<Notify>,
    admits_newcomers: Arc<AtomicBool>,
    /// Why the node's certificate cannot be renewed over the mesh. Locked for moments.
    renewal: Arc<Mutex<Option<String>>>,
}

/// Profiles of one kind, with the options that they were made from.
type ProfilesByName<O, P> = BTreeMap<String, (O, P)>;

/// All profiles at one time, with the options that they were made from.
#[derive(Debug, Default)]
pub struct ProfileSet {
    servers: ProfilesByName<ServerOptions, ServerProfile>,
    clients: ProfilesByName<ClientOptions, ClientProfile>,
    /// Profiles that were replaced or removed. Connections that they let in live on, and must still be cut when
    /// revoked.
    retired: Vec<Arc<Profile>>,
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

    /// Prepares the next set. A profile that is in use with the same options is kept; the files of all others are read.
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
        let open = |options| ServerProfile::open(options, Some(node));
        let servers = prepared(servers, |options| &options.name, &now.servers, open)?;
        let open = |options| ClientProfile::open(options, Some(node));
        let clients = prepared(clients, |options| &options.name, &now.clients, open)?;
        Ok(ProfileSet { servers, clients, retired: Vec::new() })
    }

    /// Puts a new set in force, and returns the former one. A profile that was handed out before stays as it is.
    pub fn swap(&self, new: Arc<ProfileSet>) -> Arc<ProfileSet> {
        let old = self.set.load_full();
        let kept: Vec<&Arc<Profile>> = new.current().collect();
        let gone = old.current().chain(&old.retired).chain(&new.retired);
        let mut retired: Vec<Arc<Profile>> = Vec::new();
        for profile in gone.filter(|profile| profile.has_let_in()) {
            let known = |other: &&Arc<Profile>| Arc::ptr_eq(other, profile);
            if !kept.iter().any(known) && !retired.iter().any(|other| known(&other)) {
                retired.push(profile.clone());
            }
        }
        let (servers, clients) = (new.servers.clone(), new.clients.clone());
        self.set.store(Arc::new(ProfileSet { servers, clients, retired }));
        self.admit_newcomers(self.admits_newcomers.load(Ordering::Relaxed));
        self.swapped.notify_one();
        old
    }

    /// Lets newcomers in at the listeners of links from now on, or no longer.
    pub fn admit_newcomers(&self, admits: bool) {
        self.admits_newcomers.store(admits, Ordering::Relaxed);
        self.set.load().servers.values().for_each(|(_, profile)| profile.admit_newcomers(admits));
    }

    /// Whether newcomers are let in.
    #[cfg(test)]
    pub(crate) fn admits_newcomers(&self) -> bool {
        self.admits_newcomers.load(Ordering::Relaxed)
    }

    /// The `tls-server` of that name.
    pub fn server(&self, name: &str) -> Result<ServerProfile, UnknownProfile> {
        let found = self.set.load().servers.get(name).map(|(_, profile)| profile.clone());
        found.ok_or_else(|| UnknownProfile(name.to_owned()))
    }

    /// The `tls-client` of that name. One called `default` is always there: unless it is configured, it trusts
    /// the system's authorities and shows no certificate.
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

    /// The files of the authorities that its profiles trust.
    pub fn authorities(&self) -> BTreeSet<PathBuf> {
        let set = self.set.load();
        set.current().filter_map(|profile| profile.files().authorities.clone()).collect()
    }

    /// Notes why the certificate could not be renewed over the mesh, or that it was. Returns whether that is news.
    pub fn note_renewal(&self, why: Option<String>) -> bool {
        let mut known = self.renewal.lock();
        let is_news = *known != why;
        *known = why;
        is_news
    }

    /// Why the certificate could not be renewed over the mesh, when that was tried last.
    pub fn renewal_failure(&self) -> Option<String> {
        self.renewal.lock().clone()
    }

    /// Reads changed files again, cuts connections whose certificate is no longer accepted, and warns of
    /// certificates that expire, until `stop`. Without profiles it sleeps.
    pub async fn watch(self, stop: CancellationToken) {
        let mut looks = interval(FILES_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut dates = interval(EXPIRY_LOOK);
        dates.reset();
        loop {
            let any = !self.set.load().is_empty();
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.swapped.notified(), if !any => {}
                _ = looks.tick(), if any => self.look().await,
                _ = dates.tick() => self.set.load().current().for_each(|profile| profile.warn_of_files()),
            }
        }
    }

    /// The files of certificates that have expired or expire soon, each with its end.
    pub fn ending_soon(&self) -> BTreeMap<PathBuf, Timestamp> {
        self.set.load().current().filter_map(|profile| profile.ends_soon()).collect()
    }

    /// The ends of all certificates of the node, each with its profile's directive and name.
    pub fn ends(&self) -> Vec<(&'static str, String, Timestamp)> {
        let set = self.set.load();
        let end = |profile: &Arc<Profile>| {
            Some((profile.directive(), profile.name().to_owned(), profile.not_after()?))
        };
        set.current().filter_map(end).collect()
    }

    async fn look(&self) {
        let profiles = self.clone();
        // On another thread, because the files may lie on a file system that hangs.
        let looked = tokio::task::spawn_blocking(move || profiles.refresh());
        let _panicked_only = looked.await;
    }

    /// Reads changed files now. For files that were replaced as a whole, which need not be looked at twice.
    pub fn refresh_at_once(&self) {
        // The first look sees the change, and the second one that it stands still.
        self.refresh();
        self.refresh();
    }

    pub(super) fn refresh(&self) {
        let set = self.set.load_full();
        let retired = set.retired.iter().filter(|profile| profile.has_let_in());
        set.current().chain(retired).for_each(|profile| profile.refresh());
    }
}

impl ProfileSet {
    fn is_empty(&self) -> bool {
        self.servers.is_empty() && self.clients.is_empty() && self.retired.is_empty()
    }

    fn current(&self) -> impl Iterator<Item = &Arc<Profile>> {
        let servers = self.servers.values().map(|(_, profile)| &profile.0);
        servers.chain(self.clients.values().map(|(_, profile)| &profile.0))
    }
}

/// Keeps the profiles that are in use with the same options, and opens the others.
fn prepared<O: PartialEq + Clone, P: Deref<Target = Profile> + Clone>(
    all: impl IntoIterator<Item = O>,
    name: impl Fn(&O) -> &String,
    in_use: &ProfilesByName<O, P>,
    open: impl Fn(O) -> Result<P, ProfileError>,
) -> Result<ProfilesByName<O, P>, ProfileError> {
    let mut prepared = BTreeMap::new();
    for options in all {
        let profile = match in_use.get(name(&options)) {
            Some((known, profile)) if *known == options => profile.clone(),
            Some(_) | None => {
                let profile = open(options.clone())?;
                profile.warn_of_files();
                profile
            }
        };
        prepared.insert(name(&options).clone(), (options, profile));
    }
    Ok(prepared)
}
