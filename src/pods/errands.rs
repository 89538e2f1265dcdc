//! Work in a cluster besides the life of a unit: writes and deletes secrets, and finds the pod of a unit that another
//! node submitted. Owns the order of requests. On secrets it needs only the rights that AWX's operator grants: `get`,
//! `create` and `delete`.

use std::sync::Arc;

use serde_json::Value;

use super::api::Select;
use super::api_error::{AnswerPatience, ApiError};
use super::cluster::Cluster;
use super::executor::PodExecutor;
use super::name::{UNIT_LABEL, label_value};
use super::options::KubernetesType;
use super::place::{ClusterError, PodPlace};

/// How often to try to create a secret that somebody else creates at the same time.
const ATTEMPTS: usize = 3;

impl From<ApiError> for ClusterError {
    fn from(error: ApiError) -> Self {
        match error.is_passing() && error.patience() != AnswerPatience::None {
            true => Self::Passing(error.to_string()),
            false => Self::Refused(error.to_string()),
        }
    }
}

impl PodExecutor {
    /// Puts a secret into a namespace. A secret with the same content stays untouched.
    ///
    /// # Errors
    /// [`ClusterError`] in the API server's words.
    pub async fn write_secret(
        &self,
        kind: &KubernetesType,
        place: &PodPlace,
        secret: &Value,
    ) -> Result<(), ClusterError> {
        let (cluster, namespace) = self.reach(kind, place).await?;
        let name = secret["metadata"]["name"].as_str().unwrap_or_default();
        for _ in 0..ATTEMPTS {
            match cluster.api.get_secret(&namespace, name).await {
                Ok(found) if found["data"] == secret["data"] && found["type"] == secret["type"] => {
                    return Ok(());
                }
                // Deleted and created again, because the type of a secret cannot be changed.
                Ok(_) => gone(cluster.api.delete_secret(&namespace, name).await)?,
                Err(ApiError::NotFound(_)) => {}
                Err(error) => return Err(error.into()),
            }
            match cluster.api.create_secret(&namespace, secret).await {
                Err(ApiError::Conflict(_)) => {}
                created => return Ok(created?),
            }
        }
        Err(ClusterError::Passing(format!("secret {name} in namespace {namespace} keeps changing")))
    }

    /// Deletes a secret, if it is there.
    ///
    /// # Errors
    /// [`ClusterError`] in the API server's words.
    pub async fn delete_secret(
        &self,
        kind: &KubernetesType,
        place: &PodPlace,
        name: &str,
    ) -> Result<(), ClusterError> {
        let (cluster, namespace) = self.reach(kind, place).await?;
        gone(cluster.api.delete_secret(&namespace, name).await)
    }

    /// The name and namespace of the pod that any node made for a unit.
    ///
    /// # Errors
    /// [`ClusterError`] in the API server's words.
    pub async fn find_pod(
        &self,
        kind: &KubernetesType,
        place: &PodPlace,
        unit: &str,
    ) -> Result<Option<(String, String)>, ClusterError> {
        let (cluster, namespace) = self.reach(kind, place).await?;
        let list = cluster.api.list(&namespace, &Select::Label(UNIT_LABEL, label_value(unit))).await?;
        let mut names = list.pods.iter().filter_map(|pod| pod["metadata"]["name"].as_str());
        Ok(names.next().map(|name| (name.to_owned(), namespace)))
    }

    async fn reach(
        &self,
        kind: &KubernetesType,
        place: &PodPlace,
    ) -> Result<(Arc<Cluster>, String), ClusterError> {
        let extra = self.check(kind, &place.params).await.map_err(ClusterError::Refused)?;
        let cluster = self.cluster(kind, &extra).await.map_err(ClusterError::Refused)?;
        let known = [place.namespace.clone().unwrap_or_default(), extra.kube_namespace];
        let namespace = known.into_iter().find(|name| !name.is_empty());
        let namespace = namespace.unwrap_or_else(|| cluster.namespace.clone());
        Ok((cluster, namespace))
    }
}

fn gone(answer: Result<(), ApiError>) -> Result<(), ClusterError> {
    match answer {
        Ok(()) | Err(ApiError::NotFound(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
