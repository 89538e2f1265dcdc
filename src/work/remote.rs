//! Units on other nodes.
use super::WorkError;
use super::registry::{Entry, Inner, Outcome, Started};
use std::sync::Arc;
/// x
#[derive(Debug, Default)]
pub(crate) struct Link;
impl Inner {
    pub(crate) async fn start_remote(self: &Arc<Self>, _e: &Arc<Entry>) -> Result<Started, WorkError> {
        Ok(Started::Submitted)
    }
    pub(crate) async fn resume_remote(self: &Arc<Self>, _e: &Arc<Entry>) {}
    pub(crate) async fn cancel_remote(self: &Arc<Self>, _e: &Arc<Entry>) -> Result<Outcome, WorkError> {
        Ok(Outcome::Pending)
    }
    pub(crate) async fn release_remote(
        self: &Arc<Self>,
        _e: &Arc<Entry>,
        _f: bool,
    ) -> Result<Outcome, WorkError> {
        Ok(Outcome::Pending)
    }
}
