//! Payloads, outputs and rows whose time is over. A payload goes first and leaves its unit; an output goes with its unit,
//! of which nothing could be read any more; a row goes last, with all that hangs on it.

use super::super::core::Time;
use super::super::driver::parsed;
use super::super::options::Bounds;
use super::super::service::Service;
use super::super::store::{Error, Holding, Kept};

/// Jobs that are looked at in one transaction.
const AT_ONCE: u32 = 200;

impl Service {
    pub(super) async fn drop_what_is_over(&self, bounds: &Bounds) -> Result<(), Error> {
        let now = self.driver.store.now().await?;
        let before = |kept: std::time::Duration| {
            Time(now.0.saturating_sub(i64::try_from(kept.as_millis()).unwrap_or(i64::MAX)))
        };
        for over in self.held(Kept::Payload, before(bounds.payload_retention)).await? {
            self.drop_payload(&over).await?;
        }
        for over in self.held(Kept::Output, before(bounds.output_retention)).await? {
            self.drop_output(&over).await?;
        }
        self.drop_most(now, bounds.output_limit).await?;
        while self.driver.store.purge(before(bounds.job_retention), AT_ONCE).await? == u64::from(AT_ONCE) {}
        Ok(())
    }

    /// The payloads of jobs that ended under an earlier process and were not to be kept.
    pub(super) async fn drop_unwanted_payloads(&self) -> Result<(), Error> {
        let now = self.driver.store.now().await?;
        let held = self.driver.store.held(self.driver.node.clone(), Kept::Payload, now, u32::MAX).await?;
        for held in held {
            if !parsed(&self.driver.store.detail(held.job).await?)?.rerun {
                self.drop_payload(&held).await?;
            }
        }
        Ok(())
    }

    async fn held(&self, kept: Kept, before: Time) -> Result<Vec<Holding>, Error> {
        self.driver.store.held(self.driver.node.clone(), kept, before, AT_ONCE).await
    }

    /// Deletes the oldest outputs until the rest is within the limit.
    async fn drop_most(&self, now: Time, limit: u64) -> Result<(), Error> {
        let node = &self.driver.node;
        let mut total = self.driver.store.output_bytes(node.clone()).await?;
        while total > limit {
            let before = total;
            for one in self.held(Kept::Output, now).await? {
                if total <= limit {
                    break;
                }
                self.drop_output(&one).await?;
                total = total.saturating_sub(one.output_bytes);
            }
            total = self.driver.store.output_bytes(node.clone()).await?;
            if total >= before {
                // What is left belongs to jobs that run, or cannot be deleted now.
                break;
            }
        }
        Ok(())
    }

    async fn drop_payload(&self, held: &Holding) -> Result<(), Error> {
        match self.registry.job_unit(&held.unit) {
            Some(unit) => self.driver.drop_payload(held.job, &unit).await,
            None => self.let_go(held).await,
        }
    }

    async fn drop_output(&self, held: &Holding) -> Result<(), Error> {
        if self.registry.job_unit(&held.unit).is_some()
            && let Err(error) = self.registry.release_child(&held.unit).await
        {
            tracing::warn!(job = %held.job, unit = held.unit, %error, "an output is not deleted yet");
            return Ok(());
        }
        self.let_go(held).await
    }

    async fn let_go(&self, held: &Holding) -> Result<(), Error> {
        let (node, unit) = (self.driver.node.clone(), held.unit.clone());
        self.driver.store.let_go_unit(node, unit, &Kept::ALL).await.map(drop)
    }
}
