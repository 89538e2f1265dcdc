//! Where pods go, for callers that need a secret there, or the name of a pod. Types only.

use std::collections::BTreeMap;

/// The parameter with the content of a kubeconfig.
pub const KUBE_CONFIG: &str = "secret_kube_config";
/// The parameter with the definition of a pod.
pub const KUBE_POD: &str = "secret_kube_pod";
/// The parameter with the time within which a pod must run.
pub const POD_PENDING_TIMEOUT: &str = "pod_pending_timeout";
/// The parameter by which a pod that has not started outlives the daemon, if it is `true`.
pub const KEEP_POD: &str = "keep_pod";
/// The parameter with the namespace of a pod.
pub const KUBE_NAMESPACE: &str = "kube_namespace";
/// The parameter with the name of a pod that runs already.
pub const POD_NAME: &str = "pod_name";

/// Where the pods of a work type go.
#[derive(Clone, PartialEq, Eq)]
pub struct PodPlace {
    /// The work type.
    pub work_type: String,
    /// Parameters of a submission, which may contain its credential.
    pub params: BTreeMap<String, String>,
    /// `None` for the namespace of the parameters, the work type or the credential.
    pub namespace: Option<String>,
}

/// Why something in a cluster was not done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClusterError {
    /// The API server does not answer, or cannot serve the request now.
    #[error("{0}")]
    Passing(String),
    /// The request would be refused again.
    #[error("{0}")]
    Refused(String),
}

impl std::fmt::Debug for PodPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PodPlace({})", self.work_type)
    }
}
