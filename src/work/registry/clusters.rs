//! What the controller needs of a cluster besides the pods of its units: secrets, and finding the pod that another node
//! made for a unit.

use serde_json::Value;

use super::Registry;
use crate::pods::place::{ClusterError, PodPlace};
use crate::work::WorkError;

impl Registry {
    /// Checks whether a unit with this work type and these parameters would be accepted as a pod. Asks no cluster.
    pub async fn check_pods(&self, place: &PodPlace) -> Result<(), WorkError> {
        self.executor.pods.check(place).await
    }

    /// Writes a secret where the pods are made, with this content.
    ///
    /// # Errors
    /// [`ClusterError`] in the API server's words.
    pub async fn write_secret(&self, place: &PodPlace, secret: &Value) -> Result<(), ClusterError> {
        self.executor.pods.write_secret(place, secret).await
    }

    /// Deletes a secret where the pods are made, if it exists.
    ///
    /// # Errors
    /// [`ClusterError`] in the API server's words.
    pub async fn delete_secret(&self, place: &PodPlace, name: &str) -> Result<(), ClusterError> {
        self.executor.pods.delete_secret(place, name).await
    }

    /// The name and namespace of a unit's pod, whichever node made it.
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
