//! The operations on targets of notices: how they stand, and a try.

use super::missing;
use crate::controller::notify::Receipt;
use crate::controller::service::Service;
use crate::controller::store::Audit;
use crate::rpc::operation::OperationRefusal;
use crate::rpc::report::controller::{NotifyList, NotifyTested};

impl Service {
    pub(super) async fn list_notify(&self) -> Result<NotifyList, OperationRefusal> {
        Ok(NotifyList { targets: self.notifier.targets().await? })
    }

    /// Delivers a notice that is only a test.
    pub(super) async fn test_notify(
        &self,
        name: String,
        audit: Audit,
    ) -> Result<NotifyTested, OperationRefusal> {
        let no_such = || missing(format!("there is no target {name} in notify of work-controller"));
        let target = self.driver.options().notify.get(&name).cloned().ok_or_else(no_such)?;
        self.driver.store.record(audit).await?;
        let (delivered, answer) = match self.notifier.test(&name, &target).await {
            Receipt::Delivered(answer) => (true, answer),
            Receipt::Refused(answer) | Receipt::Failed(answer) => (false, answer),
        };
        Ok(NotifyTested { name, delivered, answer })
    }
}
