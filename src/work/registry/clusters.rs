//! What the controller needs of a cluster beside the pods of its units: secrets, and the pod of a unit that another node
//! submitted.

use serde_json::Value;

use super::Registry;
use crate::pods::place::{ClusterError, PodPlace};
use crate::work::WorkError;

impl Registry {
    /// Whether a unit of that work type with these parameters would be accepted as a pod. Asks no cluster.
    ///
    /// # Errors
    /// Those of [`Registry::submit`].
    pub async fn check_pods(&self, place: &PodPlace) -> Result<(), WorkError> {
        self.executor.pods.check(place).await
    }

    /// Has a secret be where pods go, with this content.
    ///
    /// # Errors
    /// [`ClusterError`] in the API server's words.
    pub async fn write_secret(&self, place: &PodPlace, secret: &Value) -> Result<(), ClusterError> {
        self.executor.pods.write_secret(place, secret).await
    }

    /// Deletes a secret where pods go, if it is there.
    ///
    /// # Errors
    /// [`ClusterError`] in the API server's words.
    pub async fn delete_secret(&self, place: &PodPlace, name: &str) -> Result<(), ClusterError> {
        self.executor.pods.delete_secret(place, name).await
    }

    /// The name and namespace of the pod that any node made for a unit.
    ///
    /// # Errors
    /// [`ClusterError`] in the API server's words.
    pub async fn find_pod(
        &self,
        place: &PodPlace,
        unit: &str,
    ) -> Result<Option<(String, String)>, ClusterError> {
        self.executor.pods.find(place, unit).await
    }
}
