//! Units that run on another node: each has a driver task here, which submits the unit there, follows its output
//! and state, and passes cancellation and release on, reconnecting for as long as it takes. What clients want is
//! written down first, so that a restart goes on where the last daemon stopped; of the attempts of jobs the controller's store
//! knows that.
//! `driver` decides and retries, `failures` is about what clients see meanwhile, `submit` does one thing over one
//! connection, `start` all that begins a unit, `disclaim` has a node promise not to run a unit, `payload` reads what is sent,
//! `output` keeps what has come. The verbs are [`far`](super::far)'s.

mod attempt;
mod disclaim;
mod driver;
mod failures;
mod follow;
mod gate;
mod output;
mod payload;
mod start;
mod submit;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

pub(crate) use self::attempt::Attempt;
pub use self::attempt::{AttemptOutput, AttemptPayload, FarUnit};
pub(crate) use self::gate::Gate;
use super::far::Far;
use super::signing::{PayloadHash, Signer};
use super::status::{RemoteExtra, Status};
use super::store::Durability;
use super::unit::Event;
use super::units::{Entry, Leftovers, LinkHandle, Outcome, Started, Units};
use super::{Dialer, WorkError};

/// How long a client waits for the other node before it is answered that the request is pending.
const PATIENCE: Duration = Duration::from_secs(5);
/// The same for a cancel or release that the other node is working on.
const CLEANUP_PATIENCE: Duration = Duration::from_secs(15);

/// What drives the units that run on other nodes.
pub(crate) struct Remotes {
    units: Arc<Units>,
    far: Far,
    /// Holds back what is done for jobs of a controller.
    gate: Gate,
}

/// Between a remote unit's driver and those who wait for it. Only this room looks inside.
#[derive(Debug, Default)]
pub(crate) struct Link {
    news: watch::Sender<News>,
    /// Changes whenever a client has recorded a new intent.
    intents: watch::Sender<u64>,
    /// Rises whenever more of an unfinished payload is in its file.
    growth: watch::Sender<u64>,
    /// Rises whenever a connection has been of use.
    progress: AtomicU64,
    /// Since when the other node has answered nothing.
    unanswered: Mutex<Option<Instant>>,
    /// Rises whenever the other node tells of the unit for the first time on a connection.
    contacts: watch::Sender<u64>,
    /// Whether a driver runs. A plain lock, never held across a wait.
    driven: Mutex<bool>,
    /// Held by blocking code while it looks at the length of `stdout` or adds to it: an addition whose asker was
    /// dropped may still be under way when the next begins.
    output: Arc<Mutex<()>>,
    /// Attempts to have the other node make the unit.
    attempts: AtomicU64,
    /// The other node has a unit and has not received the end of its payload: that one cannot have started.
    half_there: AtomicBool,
    /// Looks at a unit there that does not do what it was asked for: process the end that it was sent, or end.
    looks: AtomicU32,
    /// Of a unit that is signed, once it is known: a complete payload never changes.
    payload_hash: OnceLock<PayloadHash>,
}

/// The driver's news for its clients.
#[derive(Debug, Clone, Default)]
struct News {
    /// Why the unit could not be started, if so.
    refused: Option<String>,
    /// Attempts that failed.
    failures: u64,
    /// When the other node agreed to cancel the unit.
    cancelled: Option<Instant>,
    /// The unit is released and deleted.
    released: bool,
    /// The other node does not know the unit any more.
    gone: bool,
    /// It does not know it now, and may yet run it.
    missing: bool,
}

impl Link {
    /// A connection has been of use: the other node answered, took payload or sent output.
    fn note_progress(&self) {
        self.progress.fetch_add(1, Ordering::Relaxed);
        self.note_answered(true);
    }

    fn note_answered(&self, is_answer: bool) {
        let mut since = self.unanswered.lock();
        *since = if is_answer { None } else { since.or_else(|| Some(Instant::now())) };
    }

    /// How long the other node has answered nothing, although it was asked.
    pub(crate) fn unanswered_for(&self) -> Option<Duration> {
        self.unanswered.lock().map(|since| since.elapsed())
    }

    /// The other node said that it does not know the unit any more.
    pub(crate) fn is_gone(&self) -> bool {
        self.news.borrow().gone
    }

    /// Whether the other node said that it does not know the unit, and did not promise that it will not run it.
    pub(crate) fn is_missing(&self) -> bool {
        self.news.borrow().missing
    }

    fn note_missing(&self) {
        self.news.send_modify(|news| news.missing = true);
        // Who waits for a contact is to see that there is none.
        self.contacts.send_modify(|_| ());
    }

    fn note_contact(&self) {
        self.news.send_modify(|news| news.missing = false);
        self.contacts.send_modify(|count| *count += 1);
    }

    /// Rises with each connection on which the other node has told of the unit: it has the unit at that moment.
    pub(crate) fn contacts(&self) -> watch::Receiver<u64> {
        self.contacts.subscribe()
    }

    /// The number of an attempt that begins; the latest one's unit counts.
    fn begin_attempt(&self) -> u64 {
        self.attempts.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn is_latest(&self, attempt: u64) -> bool {
        self.attempts.load(Ordering::Relaxed) == attempt
    }

    fn is_half_there(&self) -> bool {
        self.half_there.load(Ordering::Relaxed)
    }

    fn set_half_there(&self, half: bool) {
        self.half_there.store(half, Ordering::Relaxed);
        self.looks.store(0, Ordering::Relaxed);
    }

    /// How often that was called before, for this attempt.
    fn look(&self) -> u32 {
        self.looks.fetch_add(1, Ordering::Relaxed)
    }
}

/// A payload that is streamed to the other node while it is still being submitted.
#[derive(Debug)]
pub(crate) struct PayloadStream(LinkHandle);

impl PayloadStream {
    /// More of the payload is in its file.
    pub(crate) fn note_growth(&self) {
        self.0.growth.send_modify(|growth| *growth += 1);
    }
}

/// Whether something is to be done about a remote unit, here or on the other node.
pub(crate) fn has_work(status: &Status) -> bool {
    driver::has_work(status)
}

impl Remotes {
    /// Drives none yet.
    pub(crate) fn new(
        units: Arc<Units>,
        dialer: Arc<dyn Dialer>,
        signer: Option<Arc<Signer>>,
        gate: Gate,
    ) -> Arc<Self> {
        Arc::new(Self { units, far: Far::new(dialer, signer), gate })
    }

    /// What holds back what is done for jobs.
    pub(crate) fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Units of other nodes, as they are asked about.
    pub(crate) fn far(&self) -> &Far {
        &self.far
    }

    /// Streams a payload to the other node while it is still being submitted. It is complete there only once it is
    /// durable here: a connection that is reset before that is not taken for the end.
    pub(crate) fn stream_payload(self: &Arc<Self>, entry: &Arc<Entry>) -> Option<PayloadStream> {
        let status = entry.status();
        // A signature is made for the whole payload.
        status.remote().filter(|remote| !remote.sign_work && !status.life.state.is_final())?;
        let stream = PayloadStream(entry.link());
        self.ensure_driver(entry);
        Some(stream)
    }

    /// Starts a unit whose payload is complete; waits a little for the first attempt, or for the one under way.
    pub(crate) async fn start(self: &Arc<Self>, entry: &Arc<Entry>) -> Result<Started, WorkError> {
        let link = entry.link();
        let failures = link.news.borrow().failures;
        let begun =
            entry.writer(self.units.store()).await.apply(Event::PayloadComplete, Durability::Deferred).await;
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
                // A refusal is news before it ends the unit, and answered once it has.
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
        let started = match tokio::time::timeout(PATIENCE, first).await {
            // What the other node's ID was written down with is enough.
            Ok(Ok(Started::Started)) => return Ok(Started::Started),
            Ok(ended) => ended,
            Err(_) => Ok(Started::Submitted),
        };
        if let Err(error) = entry.save(self.units.store()).await {
            tracing::error!(unit = %entry.id, %error, "a complete payload is known in memory only");
        }
        started
    }

    /// Takes an unfinished unit up after a restart.
    pub(crate) async fn resume(self: &Arc<Self>, entry: &Arc<Entry>) {
        if entry.status().life.awaits_payload {
            entry.apply(self.units.store(), Event::Restarted).await;
        }
        self.ensure_driver(entry);
    }

    /// Cancels a unit here and there.
    pub(crate) async fn cancel(self: &Arc<Self>, entry: &Arc<Entry>) -> Result<Outcome, WorkError> {
        let status = entry.status();
        if status.life.state.is_final() || entry.is_gone() {
            return Ok(Outcome::Done);
        }
        self.record_intent(entry, |remote| remote.local_cancelled = true).await?;
        let done =
            |entry: &Entry, news: &News| news.cancelled.is_some() || entry.status().life.state.is_final();
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

    /// Ends a unit there for a reason of this node's own. No more of its output is taken, and it fails once it has ended.
    pub(crate) async fn stop(self: &Arc<Self>, entry: &Arc<Entry>, why: String) -> Result<(), WorkError> {
        let end = |remote: &mut RemoteExtra| (remote.local_cancelled, remote.stopped) = (true, why.into());
        self.record_intent(entry, end).await
    }

    /// Releases a unit here and there; with `force`, here in any case.
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

    /// Deletes a unit here at once. What the other node has to release is kept in a hidden directory until it has.
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
                // The unit goes in any case; without a directory nothing is left that could be tried again.
                let kept = hidden.inspect_err(|error| {
                    tracing::warn!(unit = %entry.id, %error, "the other node's part of the unit may stay there");
                });
                kept.ok()
                    .or_else(|| Some(self.units.store().hidden(&entry.id)).filter(|dir| dir.path().exists()))
            }
            false => None,
        };
        drop(writer);
        entry.forget_unsaved();
        entry.link().news.send_modify(|news| news.released = true);
        entry.writer(self.units.store()).await.apply(Event::CancelledLocally, Durability::Volatile).await;
        self.units.remove(entry, |_| ()).await?;
        entry.link().intents.send_modify(|intent| *intent += 1);
        if let Some(dir) = kept {
            self.ensure_driver(&Entry::new(entry.id.clone(), dir, status));
        }
        Ok(())
    }

    /// Drops a unit here, and asks its node for nothing.
    pub(crate) async fn forget(&self, entry: &Arc<Entry>) -> Result<(), WorkError> {
        entry.forget_unsaved();
        entry.link().news.send_modify(|news| news.released = true);
        entry.link().intents.send_modify(|intent| *intent += 1);
        entry.writer(self.units.store()).await.apply(Event::CancelledLocally, Durability::Volatile).await;
        self.units.remove(entry, |_| ()).await
    }

    /// Takes up a unit that was released by force and whose other half may still be there.
    pub(crate) fn resume_abandoned(self: &Arc<Self>, entry: &Arc<Entry>) {
        self.ensure_driver(entry);
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
        // Nothing waits for the rest of a payload that still comes, whatever the other node does.
        let ends = status.life.awaits_payload && status.life.apply(&Event::CancelledLocally);
        let how = if ends { Durability::Durable } else { Durability::Deferred };
        let written = writer.put(status, how).await;
        drop(writer);
        self.call_driver(entry);
        written
    }

    /// Waits for the driver's success, its next failure, or the end of patience.
    async fn wait_for(
        &self,
        entry: &Arc<Entry>,
        patience: Duration,
        done: impl Fn(&Entry, &News) -> bool,
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

    /// Has the unit's driver look at it again, whatever it does.
    fn call_driver(self: &Arc<Self>, entry: &Arc<Entry>) {
        entry.link().intents.send_modify(|intent| *intent += 1);
        self.ensure_driver(entry);
    }

    /// Starts the unit's driver unless it runs.
    fn ensure_driver(self: &Arc<Self>, entry: &Arc<Entry>) {
        let link = entry.link();
        let begins = {
            let mut driven = link.driven.lock();
            !std::mem::replace(&mut *driven, true)
        };
        if begins {
            let (inner, entry) = (self.clone(), entry.clone());
            tokio::spawn(async move {
                driver::drive(&inner, &entry).await;
                // Until here, so that there is one driver for everybody who asks for one.
                drop(link);
            });
        }
    }
}
