//! Backs the store up while it is in use.

use std::path::Path;

use super::bad;
use crate::controller::service::Service;
use crate::controller::store::Audit;
use crate::rpc::operation::{BackupPath, OperationRefusal};
use crate::rpc::report::controller::BackupReport;

impl Service {
    /// Writes the backup. A relative path is refused, because it would not mean the operator's own directory.
    pub(super) async fn back_up(
        &self,
        asked: BackupPath,
        audit: Audit,
    ) -> Result<BackupReport, OperationRefusal> {
        let path = asked.path;
        let to = Path::new(&path);
        if !to.is_absolute() {
            return Err(bad(
                "path: it must begin with a slash, because the daemon has a working directory of its own",
            ));
        }
        self.driver.store.backup(to).await?;
        if let Err(error) = self.driver.store.record(audit).await {
            // The backup is removed, because without the audit nobody would know who has one.
            if let Err(error) = tokio::fs::remove_file(to).await {
                tracing::warn!(path, %error, "cannot remove a backup that is not in the audit");
            }
            return Err(error.into());
        }
        let bytes = tokio::fs::metadata(to).await.map_or(0, |found| found.len());
        Ok(BackupReport { path, bytes })
    }
}
