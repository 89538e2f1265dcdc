//! Units that run on another node. Each has a driver task here, which submits the unit there, copies its output and state
//! here, and passes cancels and releases on, reconnecting for as long as it takes. What clients want is written down first,
//! so that a restart continues where the last daemon stopped; for the attempts of jobs the controller's store keeps that.
//!
//! `step` decides what to do, `driver` has it done and tries again, `failures` is about what clients see meanwhile,
//! `submit` submits a unit in steps, `start` all at once, `follow` follows it, `disclaim` asks a node to promise not to
//! run a unit, `payload` reads what is sent, `pieces` sends it to nodes that have some of it, `output` keeps what arrives, `attempt` has it read again, and `gate` holds
//! back what may not be done now. The verbs are [`far`](super::far)'s.

mod attempt;
mod disclaim;
mod driver;
mod failures;
mod follow;
mod gate;
mod output;
mod payload;
mod pieces;
mod progress;
mod start;
mod step;
mod submit;

use std::sync::Arc;
use std::time::Duration;

pub use self::attempt::FarOutput;
pub(crate) use self::gate::Gate;
use self::pieces::Keepers;
pub(crate) use self::pieces::WORTH_IT;
pub(crate) use self::step::has_work;
use super::far::Far;
use super::signing::Signer;
use super::status::RemoteExtra;
use super::store::Durability;
use super::unit::UnitEvent;
use super::units::{DriverHandle, DriverNews, Entry, Leftovers, Outcome, Started, Units};
use super::{Dialer, WorkError};

/// How long a client waits for the other node before the answer says that the request is pending.
const NODE_WITHIN: Duration = Duration::from_secs(5);
/// How long a client waits for a cancel or release that the other node is working on.
const CLEANUP_PATIENCE: Duration = Duration::from_secs(15);

/// Drives the units that run on other nodes.
pub(crate) struct Remotes {
    units: Arc<Units>,
    far: Far,
    /// Holds back what is done for jobs of a controller.
    gate: Gate,
    keepers: Keepers,
}

/// A payload that is streamed to the other node while it is still being submitted.
#[derive(Debug)]
pub(crate) struct PayloadStream(DriverHandle);

impl PayloadStream {
    /// More of the payload is in its file.
    pub(crate) fn note_growth(&self) {
        self.0.growth.send_modify(|growth| *growth += 1);
    }
}

impl Remotes {
    /// Drives no unit yet.
    pub(crate) fn new(
        units: Arc<Units>,
        dialer: Arc<dyn Dialer>,
        signer: Option<Arc<Signer>>,
        gate: Gate,
    ) -> Arc<Self> {
        Arc::new(Self { units, far: Far::new(dialer, signer), gate, keepers: Keepers::default() })
    }

    /// The gate that holds back what is done for jobs.
    pub(crate) fn gate(&self) -> &Gate {
        &self.gate
    }

    /// What long payloads have cost and saved.
    pub(crate) fn keepers(&self) -> &Keepers {
        &self.keepers
    }

    /// Asks other nodes about their units.
    pub(crate) fn far(&self) -> &Far {
        &self.far
    }

    /// Streams a payload to the other node while it is still being submitted. It is complete there only once it is
    /// durable here, so a connection that is reset before that does not look like the payload's end.
    pub(crate) fn stream_payload(self: &Arc<Self>, entry: &Arc<Entry>) -> Option<PayloadStream> {
        let status = entry.status();
        // A signature covers the whole payload, so a signed unit has to wait for it.
        status.remote().filter(|remote| !remote.sign_work && !status.life.state.is_final())?;
        let stream = PayloadStream(entry.link());
        self.ensure_driver(entry);
        Some(stream)
    }

    /// Starts a unit whose payload is complete. Waits a little for the first attempt, or for the one under way.
    pub(crate) async fn start(self: &Arc<Self>, entry: &Arc<Entry>) -> Result<Started, WorkError> {
        let link = entry.link();
        let failures = link.news.borrow().failures;
        let begun = entry
            .writer(self.units.store())
            .await
            .apply(UnitEvent::PayloadComplete, Durability::Deferred)
            .await;
        if !begun {
            let refused = link.news.borrow().refused.clone();
            let ended = || WorkError::EndedEarly(entry.id.to_string());
            return Err(refused.map_or_else(ended, WorkError::NotStarted));
        }
        let mut news = link.news.subscribe();
        let mut status = entry.subscribe();
        self.ensure_driver(entry);
        let first = async {
            loop {
                if status.borrow_and_update().remote().is_some_and(|remote| remote.remote_started) {
                    return Ok(Started::Started);
                }
                // A refusal becomes news before it ends the unit, but is answered only after that.
                let ended = status.borrow().life.state.is_final();
                let latest = news.borrow_and_update().clone();
                match (ended, latest.refused) {
                    (true, Some(cause)) => return Err(WorkError::NotStarted(cause)),
                    (true, None) => return Ok(Started::Submitted),
                    (false, None) if latest.failures > failures => return Ok(Started::Submitted),
                    (false, _) => {}
                }
                tokio::select! {
                    _ = news.changed() => {}
                    _ = status.changed() => {}
                }
            }
        };
        let started = match tokio::time::timeout(NODE_WITHIN, first).await {
            // The status that was written with the other node's ID is enough.
            Ok(Ok(Started::Started)) => return Ok(Started::Started),
            Ok(ended) => ended,
            Err(_) => Ok(Started::Submitted),
        };
        if let Err(error) = entry.save(self.units.store()).await {
            tracing::error!(unit = %entry.id, %error, "cannot store that a unit's payload is complete: a restart may forget it");
        }
        started
    }

    /// Takes up an unfinished unit after a restart.
    pub(crate) async fn resume(self: &Arc<Self>, entry: &Arc<Entry>) {
        if entry.status().life.awaits_payload {
            entry.apply(self.units.store(), UnitEvent::Restarted).await;
        }
        self.ensure_driver(entry);
    }

    /// Cancels a unit on both nodes.
    pub(crate) async fn cancel(self: &Arc<Self>, entry: &Arc<Entry>) -> Result<Outcome, WorkError> {
        let status = entry.status();
        if status.life.state.is_final() || entry.is_gone() {
            return Ok(Outcome::Done);
        }
        self.record_intent(entry, |remote| remote.local_cancelled = true).await?;
        let done = |entry: &Entry, news: &DriverNews| {
            news.cancelled.is_some() || entry.status().life.state.is_final()
        };
        let outcome = self.wait_for(entry, CLEANUP_PATIENCE, done).await;
        self.promise(entry, outcome).await
    }

    /// Notes that a unit is to be cancelled, and waits for nothing.
    pub(crate) async fn withhold(self: &Arc<Self>, entry: &Arc<Entry>) -> Result<(), WorkError> {
        if entry.status().life.state.is_final() || entry.is_gone() {
            return Ok(());
        }
        self.record_intent(entry, |remote| remote.local_cancelled = true).await
    }

    /// Ends a unit there for a reason of this node's own. From then on its output is ignored, and it fails once it has
    /// ended.
    pub(crate) async fn stop(self: &Arc<Self>, entry: &Arc<Entry>, why: String) -> Result<(), WorkError> {
        let end = |remote: &mut RemoteExtra| (remote.local_cancelled, remote.stopped) = (true, why.into());
        self.record_intent(entry, end).await
    }

    /// Releases a unit on both nodes; with `force`, here even if the other node cannot be reached.
    pub(crate) async fn release(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        force: bool,
        leftovers: Leftovers,
    ) -> Result<Outcome, WorkError> {
        if entry.is_gone() {
            return Ok(Outcome::Done);
        }
        let intent = |remote: &mut RemoteExtra| {
            (remote.local_cancelled, remote.local_released) = (true, true);
            remote.sweep |= leftovers == Leftovers::End;
        };
        let recorded = self.record_intent(entry, intent).await;
        if !force {
            recorded?;
        }
        let outcome = self.wait_for(entry, CLEANUP_PATIENCE, |_, news| news.released).await;
        if force && outcome == Outcome::Pending {
            tracing::info!(unit = %entry.id, "released by force; the other node releases its part when it can be reached");
            self.abandon(entry).await?;
            return Ok(Outcome::Done);
        }
        self.promise(entry, outcome).await
    }

    /// Makes a pending intent durable before it is answered.
    async fn promise(&self, entry: &Arc<Entry>, outcome: Outcome) -> Result<Outcome, WorkError> {
        if outcome == Outcome::Pending {
            entry.save(self.units.store()).await?;
        }
        Ok(outcome)
    }

    /// Deletes a unit here at once. A hidden directory keeps what the other node has to release, until it has done so.
    async fn abandon(self: &Arc<Self>, entry: &Arc<Entry>) -> Result<(), WorkError> {
        // Under the write lock nobody else writes to the directory while it is renamed.
        let writer = entry.writer(self.units.store()).await;
        let mut status = writer.status().as_ref().clone();
        let over_there = status.remote().is_some_and(|remote| !remote.remote_unit_id.is_empty());
        if let Some(remote) = status.remote_mut() {
            (remote.local_cancelled, remote.local_released) = (true, true);
        }
        let kept = match over_there {
            true => {
                let hidden = self.units.store().hide(&entry.id, &status).await;
                // The unit is deleted in any case; without a directory there is nothing to repeat the release from.
                let kept = hidden.inspect_err(|error| {
                    tracing::warn!(unit = %entry.id, %error, "cannot keep track of the other node's part of a released unit: it may stay there");
                });
                kept.ok()
                    .or_else(|| Some(self.units.store().hidden(&entry.id)).filter(|dir| dir.path().exists()))
            }
            false => None,
        };
        drop(writer);
        entry.forget_unsaved();
        entry.link().news.send_modify(|news| news.released = true);
        entry.writer(self.units.store()).await.apply(UnitEvent::CancelledLocally, Durability::Volatile).await;
        self.units.remove(entry, |_| ()).await?;
        entry.link().intents.send_modify(|intent| *intent += 1);
        if let Some(dir) = kept {
            self.ensure_driver(&Entry::new(entry.id.clone(), dir, status));
        }
        Ok(())
    }

    /// Forgets a unit here without asking its node.
    pub(crate) async fn forget(&self, entry: &Arc<Entry>) -> Result<(), WorkError> {
        entry.forget_unsaved();
        entry.link().news.send_modify(|news| news.released = true);
        entry.link().intents.send_modify(|intent| *intent += 1);
        entry.writer(self.units.store()).await.apply(UnitEvent::CancelledLocally, Durability::Volatile).await;
        self.units.remove(entry, |_| ()).await
    }

    /// Records an intent and wakes the driver. It is on disk soon, and durable before a client learns that it is pending.
    async fn record_intent(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        change: impl FnOnce(&mut RemoteExtra),
    ) -> Result<(), WorkError> {
        let mut writer = entry.writer(self.units.store()).await;
        let mut status = writer.status().as_ref().clone();
        if let Some(remote) = status.remote_mut() {
            change(remote);
        }
        // If the payload is still arriving, nothing waits for its rest, whatever the other node does.
        let ends = status.life.awaits_payload && status.life.apply(&UnitEvent::CancelledLocally);
        let how = if ends { Durability::Durable } else { Durability::Deferred };
        let written = writer.put(status, how).await;
        drop(writer);
        self.call_driver(entry);
        written
    }

    /// Waits until the driver succeeds, fails again, or patience ends.
    async fn wait_for(
        &self,
        entry: &Arc<Entry>,
        patience: Duration,
        done: impl Fn(&Entry, &DriverNews) -> bool,
    ) -> Outcome {
        let mut news = entry.link().news.subscribe();
        let mut status = entry.subscribe();
        let failures = news.borrow().failures;
        let wait = async {
            loop {
                let latest = news.borrow_and_update().clone();
                if done(entry, &latest) {
                    return Outcome::Done;
                }
                if latest.failures > failures {
                    return Outcome::Pending;
                }
                tokio::select! {
                    _ = news.changed() => {}
                    _ = status.changed() => {}
                }
            }
        };
        tokio::time::timeout(patience, wait).await.unwrap_or(Outcome::Pending)
    }

    /// Makes the unit's driver look at the unit again, whatever it is doing.
    fn call_driver(self: &Arc<Self>, entry: &Arc<Entry>) {
        entry.link().intents.send_modify(|intent| *intent += 1);
        self.ensure_driver(entry);
    }

    /// Starts the unit's driver unless it runs.
    pub(crate) fn ensure_driver(self: &Arc<Self>, entry: &Arc<Entry>) {
        let link = entry.link();
        let begins = {
            let mut driven = link.driven.lock();
            !std::mem::replace(&mut *driven, true)
        };
        if begins {
            let (inner, entry) = (self.clone(), entry.clone());
            tokio::spawn(async move {
                driver::drive(&inner, &entry).await;
                // Held until here, so that everybody who asks for a driver gets the same one.
                drop(link);
            });
        }
    }
}
