//! A copy of the store while it is in use.

use std::path::Path;

use super::bad;
use crate::controller::service::Service;
use crate::controller::store::Audit;
use crate::rpc::operation::{BackupPath, OperationRefusal};
use crate::rpc::report::controller::BackupReport;

impl Service {
    /// Writes the copy. A relative path would mean another place than where the operator types.
    pub(super) async fn back_up(
        &self,
        asked: BackupPath,
        audit: Audit,
    ) -> Result<BackupReport, OperationRefusal> {
        let path = asked.path;
        let to = Path::new(&path);
        if !to.is_absolute() {
            return Err(bad("path: it begins with a slash, as the daemon has a directory of its own"));
        }
        self.driver.store.backup(to).await?;
        if let Err(error) = self.driver.store.record(audit).await {
            // Nobody would know who has a copy.
            if let Err(error) = tokio::fs::remove_file(to).await {
                tracing::warn!(path, %error, "a backup that is not in the audit stays");
            }
            return Err(error.into());
        }
        let bytes = tokio::fs::metadata(to).await.map_or(0, |found| found.len());
        Ok(BackupReport { path, bytes })
    }
}
