//! Builds the pods of container groups from a group's settings and the credentials that it names. It reads credentials,
//! which blocks on the disk, and sends nothing.

use std::collections::BTreeMap;

use super::core::JobId;
use super::credentials::{
    BadName, CredentialError, CredentialName, Credentials, KubernetesLogin, RegistryLogin,
};
use super::driver::world::PodChild;
use super::header::RunnerWords;
use super::options::{KUBE_IN_CLUSTER_TYPE, KUBE_RUNTIME_TYPE};
use super::pod::{PodFault, PodOverride, PodRequest, PullSecret, secret_name};
use super::store::GroupRecord;
use crate::pods::place::{KEEP_POD, KUBE_CONFIG, KUBE_POD, POD_PENDING_TIMEOUT, PodPlace};

/// How long a pod may wait for its start, as in AWX.
const PENDING_TIMEOUT: &str = "2h";

/// The longest name of a namespace.
const LONGEST_NAMESPACE: usize = 63;

/// Why a group can have no pods. The text begins with the setting.
#[derive(Debug, thiserror::Error)]
pub enum GroupFault {
    /// It runs its jobs on instances.
    #[error("it is not a container group")]
    Instances,
    /// The name of a credential is not valid.
    #[error("{0}: {1}")]
    Name(&'static str, BadName),
    /// A credential cannot be used.
    #[error("{0}: {1}")]
    Credential(&'static str, CredentialError),
    /// The name of the namespace is not valid.
    #[error(
        "namespace: it must have 1 to {LONGEST_NAMESPACE} lower-case letters, digits and dashes, and must begin and \
         end with a letter or digit"
    )]
    Namespace,
    /// The namespace is set twice, differently.
    #[error(
        "pod_spec_override: metadata.namespace differs from the group's namespace: set it in only one of the two"
    )]
    TwoNamespaces,
    /// The pod cannot be built.
    #[error("pod_spec_override: {0}")]
    Pod(#[from] PodFault),
}

/// Builds what a group's jobs need.
#[derive(Debug, Clone)]
pub struct PodSetup {
    /// The first 8 hex digits of the install ID.
    pub install: u32,
    /// The credentials of this node.
    pub credentials: Credentials,
}

impl PodSetup {
    /// Where the pods of a group go, before its override is applied.
    fn place(&self, group: &GroupRecord) -> Result<PodPlace, GroupFault> {
        if !group.group.is_container_group() {
            return Err(GroupFault::Instances);
        }
        let login = group.cluster.as_deref().map(|name| self.kubernetes(name)).transpose()?;
        let mut params = BTreeMap::new();
        let mut namespace = group.namespace.clone();
        if let Some(KubernetesLogin { kubeconfig, namespace: own }) = login {
            params.insert(KUBE_CONFIG.to_owned(), kubeconfig.expose().to_owned());
            namespace = namespace.or(own);
        }
        if namespace.as_deref().is_some_and(|name| !is_namespace(name)) {
            return Err(GroupFault::Namespace);
        }
        Ok(PodPlace { work_type: pod_type(group).to_owned(), params, namespace })
    }

    /// The unit of a job in a group.
    pub fn child(
        &self,
        group: &GroupRecord,
        job: JobId,
        runner: Option<&RunnerWords>,
    ) -> Result<PodChild, GroupFault> {
        let mut place = self.place(group)?;
        let changes = PodOverride::parse(group.pod_spec_override.as_deref().unwrap_or_default())?;
        let registry = group.registry.as_deref().map(|name| self.registry(name)).transpose()?;
        let pod = PodRequest {
            job,
            install: self.install,
            namespace: place.namespace.as_deref(),
            runner,
            pull_secret: registry.as_ref().map(|(name, _)| name),
        };
        let pod = pod.pod(&changes)?;
        if let Some(namespace) = pod["metadata"]["namespace"].as_str() {
            if place.namespace.as_deref().is_some_and(|name| name != namespace) {
                return Err(GroupFault::TwoNamespaces);
            }
            if !is_namespace(namespace) {
                return Err(GroupFault::Namespace);
            }
            place.namespace = Some(namespace.to_owned());
        }
        place.params.insert(KUBE_POD.to_owned(), pod.to_string());
        place.params.insert(POD_PENDING_TIMEOUT.to_owned(), PENDING_TIMEOUT.to_owned());
        place.params.insert(KEEP_POD.to_owned(), "true".to_owned());
        let pull_secret = registry.map(|(name, login)| PullSecret::new(self.install, &name, &login));
        Ok(PodChild { place, pull_secret, is_inherited: false })
    }

    /// The unit of an example job in a group, to check whether the group can have one.
    pub fn trial(&self, group: &GroupRecord) -> Result<PodChild, GroupFault> {
        let image = RunnerWords { image: Some("image".to_owned()), ..RunnerWords::default() };
        self.child(group, JobId(1), Some(&image))
    }

    /// The place and the name of a group's secret, if it has one. The registry's credential may be gone.
    pub fn secret(&self, group: &GroupRecord) -> Result<Option<(PodPlace, String)>, GroupFault> {
        let Some(registry) = &group.registry else { return Ok(None) };
        let name = CredentialName::new(registry).map_err(|error| GroupFault::Name("registry", error))?;
        let PodChild { place, .. } = self.trial(&GroupRecord { registry: None, ..group.clone() })?;
        Ok(Some((place, secret_name(self.install, &name))))
    }

    fn kubernetes(&self, name: &str) -> Result<KubernetesLogin, GroupFault> {
        let name = CredentialName::new(name).map_err(|error| GroupFault::Name("cluster", error))?;
        self.credentials.cluster(&name).map_err(|error| GroupFault::Credential("cluster", error))
    }

    fn registry(&self, name: &str) -> Result<(CredentialName, RegistryLogin), GroupFault> {
        let name = CredentialName::new(name).map_err(|error| GroupFault::Name("registry", error))?;
        let login = self.credentials.group_registry(&name);
        Ok((name, login.map_err(|error| GroupFault::Credential("registry", error))?))
    }
}

/// The work type of a group's units.
pub fn pod_type(group: &GroupRecord) -> &'static str {
    if group.cluster.is_some() { KUBE_RUNTIME_TYPE } else { KUBE_IN_CLUSTER_TYPE }
}

fn is_namespace(name: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=LONGEST_NAMESPACE).contains(&name.len())
        && name.bytes().all(good)
        && !name.starts_with('-')
        && !name.ends_with('-')
}
