//! Units that run as pods, in a program that was built without Kubernetes: none is started, and those that another
//! program left are kept as they are.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::WorkError;
use super::kubernetes::NOT_BUILT_IN;
use super::kubernetes::place::{ClusterError, PodPlace};
use super::local::Local;
use super::remote::Gate;
use super::status::Status;
use super::units::{Entry, Outcome, Units};

/// Nothing that runs pods.
pub(crate) struct Pods(Arc<Units>);

fn without() -> WorkError {
    WorkError::Pod(NOT_BUILT_IN.into())
}

impl Pods {
    pub(crate) async fn open(
        units: Arc<Units>,
        _: Arc<Local>,
        _: BTreeMap<&'static str, String>,
        _: Gate,
    ) -> Arc<Self> {
        Arc::new(Self(units))
    }

    pub(crate) async fn new_status(
        &self,
        _: &str,
        _: &BTreeMap<String, String>,
    ) -> Result<Option<Status>, WorkError> {
        Ok(None)
    }

    pub(crate) async fn check(&self, _: &PodPlace) -> Result<(), WorkError> {
        Err(without())
    }

    pub(crate) async fn write_secret(&self, _: &PodPlace, _: &Value) -> Result<(), ClusterError> {
        Err(ClusterError::Refused(NOT_BUILT_IN.into()))
    }

    pub(crate) async fn delete_secret(&self, _: &PodPlace, _: &str) -> Result<(), ClusterError> {
        Err(ClusterError::Refused(NOT_BUILT_IN.into()))
    }

    pub(crate) async fn find(&self, _: &PodPlace, _: &str) -> Result<Option<(String, String)>, ClusterError> {
        Err(ClusterError::Refused(NOT_BUILT_IN.into()))
    }

    pub(crate) async fn start(self: &Arc<Self>, _: &Arc<Entry>) -> Result<(), WorkError> {
        Err(without())
    }

    pub(crate) async fn resume(self: &Arc<Self>, _: &Arc<Entry>) {}

    pub(crate) async fn cancel(self: &Arc<Self>, _: &Arc<Entry>) -> Result<Outcome, WorkError> {
        Err(without())
    }

    pub(crate) async fn stop(&self, _: &Arc<Entry>, _: String) -> Result<(), WorkError> {
        Err(without())
    }

    pub(crate) async fn release(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        force: bool,
    ) -> Result<Outcome, WorkError> {
        if !force {
            return Err(without());
        }
        self.0.remove(entry, |_| ()).await.map(|()| Outcome::Done)
    }

    pub(crate) async fn forget(&self, entry: &Arc<Entry>) -> Result<(), WorkError> {
        self.0.remove(entry, |_| ()).await
    }

    pub(crate) async fn finish_release(self: Arc<Self>, _: Arc<Entry>) {}

    pub(crate) fn sweep(self: &Arc<Self>) {}
}
