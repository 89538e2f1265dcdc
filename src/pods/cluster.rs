//! The clusters that units use, each with one credential. All units of a cluster share its client and its watches. Owns
//! that neither is made twice; makes no requests by itself.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::OnceCell;
use tokio::time::timeout;

use super::api::connect::{ConnectError, CredentialSource};
use super::api::{ANSWER_WITHIN, Api, HttpApi, PodName, ProvenServers, Select, no_answer};
use super::api_error::ApiError;
use super::environment::Rate;
use super::name::STORE_LABEL;
use super::server_version::too_old;
use super::watch::{PodSubscription, PodWatch};

/// A cluster, as one credential sees it.
pub struct Cluster {
    /// Its API.
    pub api: Arc<dyn Api>,
    /// The namespace that the credential leads to.
    pub namespace: String,
    /// The value of [`STORE_LABEL`] that our pods have.
    store: String,
    /// A plain lock, for single operations.
    watches: Mutex<BTreeMap<(String, Select), Weak<PodWatch>>>,
    may_not_read_events: AtomicBool,
    /// Why the server is too old, if it is. Empty until the server was asked for its version.
    refusal: OnceCell<Option<String>>,
}

impl Cluster {
    /// A cluster that is reached through `api`.
    pub fn new(api: Arc<dyn Api>, namespace: String, store: String) -> Arc<Self> {
        Arc::new(Self {
            api,
            namespace,
            store,
            watches: Mutex::default(),
            may_not_read_events: AtomicBool::new(false),
            refusal: OnceCell::new(),
        })
    }

    /// Refuses a server that is too old for following logs. The server is asked once for all units.
    ///
    /// # Errors
    /// [`ApiError::Rejected`] names the version that is too old; others say why the server cannot be asked now.
    pub async fn check_server(&self) -> Result<(), ApiError> {
        let asked = self.refusal.get_or_try_init(|| self.look_at_version());
        match timeout(ANSWER_WITHIN, asked).await.unwrap_or_else(|_| Err(no_answer()))? {
            Some(refusal) => Err(ApiError::Rejected(refusal.clone())),
            None => Ok(()),
        }
    }

    async fn look_at_version(&self) -> Result<Option<String>, ApiError> {
        match self.api.version().await {
            Ok(answer) => Ok(too_old(&answer)),
            Err(error) if error.is_passing() => Err(error),
            // Not every credential may ask for the version.
            Err(_) => Ok(None),
        }
    }

    /// Follows a pod: our own pods with a shared watch, a pod that somebody else made by its name.
    pub fn follow(&self, pod: &PodName, is_ours: bool) -> PodSubscription {
        let select = match is_ours {
            true => Select::Label(STORE_LABEL, self.store.clone()),
            false => Select::Name(pod.name.clone()),
        };
        let mut watches = self.watches.lock();
        watches.retain(|_, watch| watch.strong_count() > 0);
        let key = (pod.namespace.clone(), select.clone());
        let watch = watches.get(&key).and_then(Weak::upgrade).unwrap_or_else(|| {
            let watch = PodWatch::start(self.api.clone(), pod.namespace.clone(), select);
            watches.insert(key, Arc::downgrade(&watch));
            watch
        });
        watch.subscribe(&pod.name)
    }

    /// Whether the credential may read events, as far as is known.
    pub fn may_read_events(&self) -> bool {
        !self.may_not_read_events.load(Ordering::Relaxed)
    }

    /// Notes that the server refused events to the credential.
    pub fn note_events_refused(&self) {
        self.may_not_read_events.store(true, Ordering::Relaxed);
    }
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cluster({})", self.namespace)
    }
}

/// All clusters in use.
#[derive(Debug)]
pub struct Clusters {
    rate: Option<Rate>,
    store: String,
    proven: ProvenServers,
    /// By the credential's whole text. A plain lock, for single operations.
    known: Mutex<BTreeMap<String, Weak<Cluster>>>,
}

impl Clusters {
    /// No clusters yet. `store` is the value of [`STORE_LABEL`] that our pods have.
    pub fn new(rate: Option<Rate>, store: String) -> Self {
        Self { rate, store, proven: ProvenServers::default(), known: Mutex::default() }
    }

    /// Requests to their API servers: verb, status code, count.
    pub fn calls(&self) -> Vec<(&'static str, String, u64)> {
        self.proven.calls()
    }

    /// The cluster of a credential.
    ///
    /// # Errors
    /// [`ConnectError`]: the credential cannot be used.
    pub async fn get(&self, credential: &CredentialSource) -> Result<Arc<Cluster>, ConnectError> {
        let key = match credential {
            CredentialSource::InCluster => "incluster".to_owned(),
            CredentialSource::Default => "default".to_owned(),
            CredentialSource::Kubeconfig(value) => value.to_string(),
        };
        if let Some(cluster) = self.known.lock().get(&key).and_then(Weak::upgrade) {
            return Ok(cluster);
        }
        let (api, namespace) = HttpApi::new(credential, self.rate, &self.proven).await?;
        let mut known = self.known.lock();
        known.retain(|_, cluster| cluster.strong_count() > 0);
        // Another unit may have been faster.
        if let Some(cluster) = known.get(&key).and_then(Weak::upgrade) {
            return Ok(cluster);
        }
        let cluster = Cluster::new(Arc::new(api), namespace, self.store.clone());
        known.insert(key, Arc::downgrade(&cluster));
        Ok(cluster)
    }
}
