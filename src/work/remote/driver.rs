//! The driver of one remote unit: does what `step` says is to be done next, and tries again if the other
//! node cannot be reached. It ends when nothing is left to do; a client's new intent starts another driver. A unit that
//! was released by force lives on here, hidden, until the other node has released its part too.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::Instant;

use super::Remotes;
use super::disclaim::is_inherited;
use super::failures::{Trouble, time_of_day};
use super::step::{DriverStep, extra, next_step};
use crate::os::back_off::BackOff;
use crate::wire::NodeId;
use crate::work::far::{ControlSession, StepError};
use crate::work::status::RemoteExtra;
use crate::work::store::Durability;
use crate::work::unit::{State, UnitEvent};
use crate::work::units::Entry;

/// First and longest pause between attempts.
pub(super) const FIRST_PAUSE: Duration = Duration::from_secs(1);
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// The pause after a connection that was of use before it broke. To be granted only once in a while.
const SHORT_PAUSE: Duration = Duration::from_millis(50);
const SHORT_PAUSES_APART: Duration = Duration::from_secs(5);
/// How long a connection may be silent after the route to its node was lost and came back: the node may have restarted
/// and know nothing of the connection. Following again costs little, but a submission has to send its payload again.
const SILENCE: Duration = Duration::from_secs(1);
const SILENCE_WHILE_FOLLOWING: Duration = Duration::from_millis(400);
/// How long to believe a node that agreed to end a unit but says that the unit still runs. Without a limit, a job that
/// was cancelled or printed too much would keep its place forever.
const BELIEVED_FOR: Duration = Duration::from_secs(600);
/// The time between two checks whether it still says so.
const DENIAL_LOOK: Duration = Duration::from_secs(60);

/// Works on a unit, one step after the other, until nothing is left to do.
pub(super) async fn drive(remotes: &Arc<Remotes>, entry: &Arc<Entry>) {
    let link = entry.link();
    let mut intents = link.intents.subscribe();
    let mut pauses = Pauses::new();
    let mut trouble = Trouble::default();
    let mut started = None;
    loop {
        intents.mark_unchanged();
        let step = next_step(&entry.status(), link.news.borrow().cancelled.is_some());
        if step == DriverStep::Rest || link.news.borrow().released || entry.is_gone() {
            // Under the lock, so that an intent that is being recorded finds either this driver or none.
            let mut driven = link.driven.lock();
            if !intents.has_changed().unwrap_or(false) {
                *driven = false;
                return;
            }
            continue;
        }
        if remotes.gate.holds(&entry.id, step) {
            tokio::select! {
                () = remotes.gate.opens(&entry.id, step) => {}
                _ = intents.changed() => {}
            }
            continue;
        }
        let before = link.progress.load(Ordering::Relaxed);
        // Watched from before the attempt on: a route that comes back while the attempt fails must not be missed.
        let mut way_back = std::pin::pin!(appears(remotes, entry));
        let mut payload_ends = std::pin::pin!(payload_ends(entry));
        let mut is_back = false;
        let done = {
            let mut attempt = std::pin::pin!(attempt(remotes, entry, step, started.take(), &mut intents));
            loop {
                tokio::select! {
                    biased;
                    () = &mut way_back, if !is_back => is_back = true,
                    done = &mut attempt => break done,
                }
            }
        };
        match done {
            StepEnd::Overtaken => {}
            StepEnd::Done(Ok(following)) => {
                started = following;
                pauses.attempts.reset();
                trouble = Trouble::default();
            }
            StepEnd::Done(Err(error)) => {
                if link.progress.load(Ordering::Relaxed) != before {
                    pauses.note_progress();
                    trouble = Trouble::default();
                }
                remotes.note_failure(entry, step, &error, &mut trouble).await;
                let pause = pauses.next(&error);
                // If the write fails, it is repeated elsewhere.
                let _ = entry.save(remotes.units.store()).await;
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    () = &mut way_back, if !is_back => pauses.attempts.reset(),
                    () = tokio::time::sleep(SHORT_PAUSE), if is_back => pauses.attempts.reset(),
                    () = &mut payload_ends => pauses.attempts.reset(),
                    _ = intents.changed() => pauses.attempts.reset(),
                    () = expiry(entry) => expire(remotes, entry).await,
                }
            }
        }
    }
}

/// How an attempt ended.
enum StepEnd {
    Done(Result<Option<Box<ControlSession>>, StepError>),
    /// Another step has to be taken now.
    Overtaken,
}

/// Takes a step, until it is done, another step is due, or its connection is dead.
async fn attempt(
    remotes: &Arc<Remotes>,
    entry: &Arc<Entry>,
    step: DriverStep,
    started: Option<Box<ControlSession>>,
    intents: &mut watch::Receiver<u64>,
) -> StepEnd {
    let lost = |text: &str| StepEnd::Done(Err(StepError::Connection(text.into())));
    tokio::select! {
        done = remotes.perform(entry, step, started) => StepEnd::Done(done),
        () = stalls(remotes, entry, step) => lost("the route to the node was lost and found again, and the connection did not survive that"),
        () = disappears(remotes, entry), if step.is_brief() => lost("the route to the node was lost"),
        _ = intents.changed() => StepEnd::Overtaken,
        () = remotes.gate.closes(&entry.id, step) => StepEnd::Overtaken,
        // Another reader takes the output now, perhaps from an earlier byte on.
        () = passed_on(entry), if step == DriverStep::Follow => StepEnd::Overtaken,
        () = denial(remotes, entry), if step == DriverStep::Follow => {
            remotes.end_denied(entry).await;
            StepEnd::Overtaken
        }
        // The unit has ended because its payload stopped half way.
        () = entry.finished(), if step == DriverStep::Start => StepEnd::Overtaken,
        () = expiry(entry) => {
            expire(remotes, entry).await;
            StepEnd::Overtaken
        }
    }
}

/// How long to wait before the next attempt.
struct Pauses {
    attempts: BackOff,
    /// The next pause is short.
    is_short: bool,
    /// When the last short pause was granted.
    short: Option<Instant>,
}

impl Pauses {
    fn new() -> Self {
        Self { attempts: BackOff::new(FIRST_PAUSE, LONGEST_PAUSE), is_short: false, short: None }
    }

    /// Notes that the connection was of use before it broke.
    fn note_progress(&mut self) {
        self.attempts.reset();
        let now = Instant::now();
        if self.short.is_none_or(|last| now.duration_since(last) >= SHORT_PAUSES_APART) {
            self.short = Some(now);
            self.is_short = true;
        }
    }

    fn next(&mut self, error: &StepError) -> Duration {
        match error {
            // A full disk, for example: trying often burdens nobody else.
            StepError::Local(_) => FIRST_PAUSE,
            StepError::Connection(_)
            | StepError::Handshake(_)
            | StepError::OwnProfile(_)
            | StepError::Refused(_) => {
                if std::mem::take(&mut self.is_short) {
                    SHORT_PAUSE
                } else {
                    self.attempts.next()
                }
            }
        }
    }
}

/// Ends when the route to the node was lost, is back, and nothing moves. The step can then be repeated, as every step
/// can.
async fn stalls(remotes: &Remotes, entry: &Entry, step: DriverStep) {
    let silence = if step == DriverStep::Follow { SILENCE_WHILE_FOLLOWING } else { SILENCE };
    loop {
        appears(remotes, entry).await;
        let before = entry.link().progress.load(Ordering::Relaxed);
        tokio::time::sleep(silence).await;
        if entry.link().progress.load(Ordering::Relaxed) == before {
            return;
        }
    }
}

/// Ends when a node has agreed to end a unit but has said for too long that it runs. Output may come for longer than
/// that.
async fn denial(remotes: &Remotes, entry: &Entry) {
    let Some(agreed) = entry.link().news.borrow().cancelled else { return std::future::pending().await };
    tokio::time::sleep_until(agreed + BELIEVED_FOR).await;
    while !remotes.still_runs(entry).await.unwrap_or(false) {
        tokio::time::sleep(DENIAL_LOOK).await;
    }
}

/// Ends when the output of a job's attempt gets another reader.
async fn passed_on(entry: &Entry) {
    match entry.attempt() {
        Some(attempt) => attempt.passed_on().await,
        None => std::future::pending().await,
    }
}

/// Ends when a route to the node appears.
async fn appears(remotes: &Remotes, entry: &Entry) {
    match node_of(entry) {
        Some(node) => remotes.far.dialer().appears(node).await,
        None => std::future::pending().await,
    }
}

/// Ends when there is no route to the node.
async fn disappears(remotes: &Remotes, entry: &Entry) {
    match node_of(entry) {
        Some(node) => remotes.far.dialer().disappears(node).await,
        None => std::future::pending().await,
    }
}

fn node_of(entry: &Entry) -> Option<NodeId> {
    entry.status().remote().and_then(|remote| NodeId::new(&remote.remote_node).ok())
}

impl Remotes {
    /// Takes a step. `started` is the connection of the last step, if that started the unit; following continues on it.
    async fn perform(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        step: DriverStep,
        started: Option<Box<ControlSession>>,
    ) -> Result<Option<Box<ControlSession>>, StepError> {
        match step {
            DriverStep::Start => return self.submit_there(entry).await,
            DriverStep::Follow => self.follow_there(entry, started).await,
            DriverStep::Cancel => {
                self.far.cancel(&extra(entry)).await?;
                entry.link().news.send_modify(|news| news.cancelled = Some(Instant::now()));
                Ok(())
            }
            DriverStep::CancelHere => {
                entry.apply(self.units.store(), UnitEvent::CancelledLocally).await;
                Ok(())
            }
            DriverStep::Release => {
                self.far.release(&extra(entry)).await?;
                // The control node that sent the unit may send it again.
                if entry.status().remote().is_some_and(is_inherited) {
                    self.ask_promise(entry).await?;
                }
                self.delete(entry).await
            }
            DriverStep::Tidy => {
                self.far.release(&extra(entry)).await?;
                self.note(entry, Durability::Durable, |remote| remote.remote_unit_id = Box::default()).await
            }
            DriverStep::Delete => self.delete_unless_there(entry).await,
            DriverStep::Rest => Ok(()),
        }
        .map(|()| None)
    }

    /// Whether its node says that a unit runs.
    async fn still_runs(&self, entry: &Entry) -> Result<bool, StepError> {
        Ok(!self.far.status(&extra(entry)).await?.state.is_final())
    }

    /// Ends a unit here whose node agreed to end it but says that it still runs.
    async fn end_denied(&self, entry: &Arc<Entry>) {
        let status = entry.status();
        let Some(RemoteExtra { remote_node: node, stopped, .. }) = status.remote() else { return };
        tracing::warn!(unit = %entry.id, %node, "the node of a unit agreed to end it, but says that it still runs: it counts as ended");
        let (state, why) = match stopped.is_empty() {
            true => (State::Canceled, "Canceled".to_owned()),
            false => (State::Failed, format!("Killed: {stopped}")),
        };
        let detail = format!("{why}; {node} says that it still runs");
        entry.apply(self.units.store(), UnitEvent::Reported(state, detail, entry.printed())).await;
    }

    /// Deletes a unit that the other node was not known to have, unless it has it by now.
    async fn delete_unless_there(&self, entry: &Arc<Entry>) -> Result<(), StepError> {
        let writer = entry.writer(self.units.store()).await;
        if writer.status().remote().is_some_and(|remote| !remote.remote_unit_id.is_empty()) {
            return Ok(());
        }
        drop(writer);
        self.delete(entry).await
    }

    async fn delete(&self, entry: &Arc<Entry>) -> Result<(), StepError> {
        // A reader of the results has to see an end.
        entry.writer(self.units.store()).await.apply(UnitEvent::CancelledLocally, Durability::Volatile).await;
        entry.forget_unsaved();
        self.units.remove(entry, |_| ()).await?;
        entry.link().news.send_modify(|news| news.released = true);
        Ok(())
    }
}

/// If the payload is still arriving when this is called, ends when all of it has arrived: from then on its client waits
/// for an attempt.
fn payload_ends(entry: &Entry) -> impl Future<Output = ()> + use<> {
    let mut status = entry.subscribe();
    let awaited = status.borrow().life.awaits_payload;
    async move {
        if !awaited {
            return std::future::pending().await;
        }
        // The follower keeps the sender, so this cannot fail.
        let _ = status.wait_for(|status| !status.life.awaits_payload).await;
    }
}

/// Ends when the unit may no longer start. Never ends if the unit has no expiration, or has started.
async fn expiry(entry: &Arc<Entry>) {
    let status = entry.status();
    let limit = status.remote().filter(|remote| !remote.remote_started).and_then(|remote| remote.expiration);
    let Some(limit) = limit.filter(|_| !status.life.state.is_final()) else {
        return std::future::pending().await;
    };
    let left = limit.duration_since(Timestamp::now());
    tokio::time::sleep(left.try_into().unwrap_or(Duration::ZERO)).await;
}

async fn expire(remotes: &Remotes, entry: &Arc<Entry>) {
    let mut writer = entry.writer(remotes.units.store()).await;
    let status = writer.status();
    let Some(RemoteExtra { expiration: Some(limit), remote_started: false, .. }) = status.remote() else {
        return;
    };
    writer.apply(UnitEvent::Expired(time_of_day(*limit)), Durability::Durable).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::status::{Extra, REMOTE, Status};
    use crate::work::store::UnitStore;
    use crate::work::unit::UnitId;

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_and_a_useful_connection_resets_them() {
        let broken = StepError::Connection("x".into());
        let mut pauses = Pauses::new();
        let is_first = |pause: Duration| (SHORT_PAUSE * 2..=FIRST_PAUSE).contains(&pause);
        assert!(is_first(pauses.next(&broken)));
        let last = (0..20).map(|_| pauses.next(&broken)).last().unwrap();
        assert!(last > LONGEST_PAUSE / 2 && last <= LONGEST_PAUSE, "{last:?}");
        pauses.note_progress();
        assert_eq!(pauses.next(&broken), SHORT_PAUSE);
        assert!(is_first(pauses.next(&broken)));
        // A connection that always breaks at once is not retried at full speed.
        pauses.note_progress();
        assert!(is_first(pauses.next(&broken)));
        tokio::time::advance(SHORT_PAUSES_APART).await;
        pauses.note_progress();
        assert_eq!(pauses.next(&broken), SHORT_PAUSE);
    }

    #[tokio::test]
    async fn a_pause_ends_with_the_payload() {
        use futures_util::FutureExt as _;
        let temp = tempfile::tempdir().unwrap();
        let store = UnitStore::open(&temp.path().join("d"), &NodeId::new("n1").unwrap()).unwrap();
        for (event, ends) in [
            (UnitEvent::PayloadComplete, true),
            (UnitEvent::PayloadCut("x".into()), true),
            (UnitEvent::Waiting("no route".into()), false),
        ] {
            let (id, status) = (
                UnitId::made_by(&NodeId::new("n1").unwrap()),
                Status::new(REMOTE, Extra::Remote(Box::default())),
            );
            let entry = Entry::new(id.clone(), store.unit(&id), status);
            let mut pause = std::pin::pin!(payload_ends(&entry));
            assert!(pause.as_mut().now_or_never().is_none());
            entry.writer(&store).await.apply(event.clone(), Durability::Volatile).await;
            assert_eq!(pause.as_mut().now_or_never().is_some(), ends, "{event:?}");
            assert!(payload_ends(&entry).now_or_never().is_none(), "only an end that is still to come");
        }
    }
}
