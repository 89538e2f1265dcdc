//! Payloads, outputs and rows whose time is over. A payload goes first, and its unit stays. An output goes with its
//! unit, unless the unit still has a payload. A row goes last, with all rows that belong to it.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use super::super::core::{JobId, Time};
use super::super::driver::rfc3339;
use super::super::header::Header;
use super::super::options::Bounds;
use super::super::service::Service;
use super::super::store::{Clock, Error, Holding, Kept};
use crate::work::Leftovers;

/// Jobs that are looked at in one transaction.
const AT_ONCE: u32 = 200;
/// The same for jobs with their headers, which may be long.
const HEADERS_AT_ONCE: u32 = 50;
/// How long audit rows are kept, and how many of them are deleted in one transaction.
const AUDIT_KEPT: Duration = Duration::from_secs(90 * 24 * 60 * 60);
const AUDIT_AT_ONCE: u32 = 1_000;

impl Service {
    /// Deletes what has been kept for long enough. While the clock is doubted, only outputs beyond the limit are
    /// deleted.
    pub(super) async fn drop_what_is_over(
        &self,
        bounds: &Bounds,
        was_doubted: &mut bool,
    ) -> Result<(), Error> {
        let clock = self.driver.store.look_at_clock().await?;
        let now = clock.now;
        if std::mem::replace(was_doubted, clock.is_doubted()) != clock.is_doubted() {
            say(&clock);
        }
        if clock.is_doubted() {
            return self.drop_most(now, bounds.output_limit).await;
        }
        let before = |kept: Duration| now - kept;
        let mut over = Copies::new(self, Kept::Payload, before(bounds.payload_retention));
        while let Some(one) = over.next().await? {
            self.drop_payload(&one).await?;
        }
        let mut over = Copies::new(self, Kept::Output, before(bounds.output_retention));
        while let Some(one) = over.next().await? {
            if self.registry.job_unit(&one.unit).is_some_and(|unit| !unit.is_final()) {
                // The unit will say that the output is lost, and goes in the next round.
                self.driver.store.give_up_output(one.job, self.driver.node.clone()).await?;
            } else {
                self.drop_output(&one).await?;
            }
        }
        self.drop_most(now, bounds.output_limit).await?;
        while self.driver.store.purge(before(bounds.job_retention), AT_ONCE).await? == u64::from(AT_ONCE) {}
        let cut = || self.driver.store.cut_audit(before(AUDIT_KEPT), AUDIT_AT_ONCE);
        while cut().await? == u64::from(AUDIT_AT_ONCE) {}
        Ok(())
    }

    /// Deletes payloads that were not to be kept, of jobs that ended under an earlier process. If a header is not
    /// understood because a later version wrote it, its payload is kept as long as others.
    pub(super) async fn drop_unwanted_payloads(&self) -> Result<(), Error> {
        let mut last = (JobId(0), String::new());
        loop {
            let (store, node) = (&self.driver.store, self.driver.node.clone());
            let page = store.payloads_of_ended(node, last.clone(), HEADERS_AT_ONCE).await?;
            let Some((held, _)) = page.last() else { return Ok(()) };
            last = (held.job, held.unit.clone());
            for (held, header) in &page {
                if Header::parse(header.as_bytes()).is_ok_and(|header| !header.rerun) {
                    self.drop_payload(held).await?;
                }
            }
        }
    }

    /// Deletes the oldest outputs until the rest is within the limit. Outputs beyond the limit then belong to running
    /// jobs, or cannot be deleted now.
    async fn drop_most(&self, now: Time, limit: u64) -> Result<(), Error> {
        let total = || self.driver.store.output_bytes(self.driver.node.clone());
        let mut left = total().await?;
        let mut oldest = Copies::new(self, Kept::Output, now);
        while left > limit {
            let Some(one) = oldest.next().await? else { break };
            let is_fetched = self.registry.job_unit(&one.unit).is_some_and(|unit| !unit.is_final());
            if !is_fetched && self.drop_output(&one).await? {
                left = left.saturating_sub(one.output_bytes);
            }
            if left <= limit {
                // Units of the same job share its output.
                left = total().await?;
            }
        }
        Ok(())
    }

    async fn drop_payload(&self, held: &Holding) -> Result<(), Error> {
        match self.registry.job_unit(&held.unit) {
            Some(unit) => self.driver.publisher.drop_payload(held.job, &unit).await,
            None => self.let_go(held, &Kept::ALL).await,
        }
    }

    /// Returns whether the output is gone.
    async fn drop_output(&self, held: &Holding) -> Result<bool, Error> {
        let Some(unit) = self.registry.job_unit(&held.unit) else {
            self.let_go(held, &Kept::ALL).await?;
            return Ok(true);
        };
        let payloads = self.driver.store.holders(held.job, Kept::Payload).await?;
        let has_payload = payloads.iter().any(|(node, id)| *node == self.driver.node && *id == held.unit);
        let (gone, dropped) = match has_payload {
            // The job may be rerun while its payload is kept.
            true => (&[Kept::Output][..], unit.drop_output().await.map_err(|error| error.to_string())),
            false => {
                let released = self.registry.release_child(&held.unit, Leftovers::Stay).await;
                (&Kept::ALL[..], released.map(drop).map_err(|error| error.to_string()))
            }
        };
        if let Err(error) = dropped {
            tracing::warn!(job = %held.job, unit = held.unit, error, "cannot delete the output of a job yet");
            return Ok(false);
        }
        self.let_go(held, gone).await?;
        Ok(true)
    }

    async fn let_go(&self, held: &Holding, gone: &'static [Kept]) -> Result<(), Error> {
        self.driver.store.let_go_unit(self.driver.node.clone(), held.unit.clone(), gone).await.map(drop)
    }
}

fn say(clock: &Clock) {
    let [now, latest] = [clock.now, clock.record.latest].map(rfc3339);
    match clock.is_doubted() {
        true => tracing::warn!(
            %now, %latest,
            "the clock is more than a day ahead of the latest time that the store has seen: nothing is deleted for \
             its age until the clock has run for a day; if the clock is right, confirm it with `meshctl controller confirm-clock`"
        ),
        false => tracing::info!(%now, "the clock is trusted again"),
    }
}

/// This node's copies of jobs that ended before a time, oldest end first. Each is returned once, so that a copy that
/// cannot be deleted holds up no other.
struct Copies<'a> {
    service: &'a Service,
    kept: Kept,
    before: Time,
    next: VecDeque<Holding>,
    /// The units of copies that were returned.
    seen: BTreeSet<String>,
    /// How many of them the store still named at the last read.
    left: u32,
    is_last: bool,
}

impl<'a> Copies<'a> {
    fn new(service: &'a Service, kept: Kept, before: Time) -> Self {
        Self { service, kept, before, next: VecDeque::new(), seen: BTreeSet::new(), left: 0, is_last: false }
    }

    /// The next one; `None` at the end.
    async fn next(&mut self) -> Result<Option<Holding>, Error> {
        while self.next.is_empty() && !self.is_last {
            let limit = AT_ONCE.saturating_add(self.left);
            let driver = &self.service.driver;
            let held = driver.store.held(driver.node.clone(), self.kept, self.before, limit).await?;
            self.is_last = held.len() < limit as usize;
            let (left, next): (Vec<_>, Vec<_>) =
                held.into_iter().partition(|one| self.seen.contains(&one.unit));
            (self.left, self.next) = (u32::try_from(left.len()).unwrap_or(u32::MAX), next.into());
        }
        let next = self.next.pop_front();
        self.seen.extend(next.iter().map(|one| one.unit.clone()));
        Ok(next)
    }
}
