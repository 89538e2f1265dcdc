//! The operations on targets of notices: how they stand, and a try. Shows of an address its host alone.

use super::missing;
use crate::controller::core::Time;
use crate::controller::driver::rfc3339;
use crate::controller::notify::{NoticeWay, Receipt, TargetState};
use crate::controller::service::Service;
use crate::controller::store::Audit;
use crate::rpc::operation::OperationRefusal;
use crate::rpc::report::controller::{NotifyList, NotifyReport, NotifyTested};

impl Service {
    pub(super) async fn list_notify(&self) -> Result<NotifyList, OperationRefusal> {
        let targets = self.notifier.targets().await?;
        Ok(NotifyList { targets: targets.into_iter().map(|(name, state)| report(name, state)).collect() })
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

fn report(name: String, TargetState { target, cursor, behind }: TargetState) -> NotifyReport {
    let time = |at: i64| rfc3339(Time(at));
    let to = match &target.way {
        NoticeWay::Webhook(hook) => hook.place().0.to_owned(),
        NoticeWay::Command(program, _) => program.clone(),
    };
    let begun = cursor.as_ref().map(|cursor| cursor.cursor);
    let cursor = cursor.unwrap_or_default();
    NotifyReport {
        name,
        to,
        events: target.events.iter().map(ToString::to_string).collect(),
        jobs: if target.only_named { "named" } else { "all" }.to_owned(),
        delivered: cursor.delivered.map(time),
        cursor: begun,
        behind,
        dropped: cursor.dropped,
        failing_since: cursor.failing_since.map(time),
        error: cursor.error,
        next: Some(cursor.next).filter(|next| *next > 0).map(time),
    }
}
