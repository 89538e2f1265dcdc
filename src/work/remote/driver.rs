//! The driver of one remote unit: decides from its status what is to be done next, does it, and tries again when
//! the other node cannot be reached. Ends when nothing is left to do; a client's new intent starts another.
//! A unit that was released by force lives on here, hidden, until the other node has released its part too.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::Instant;

use super::Remotes;
use super::disclaim::is_inherited;
use super::failures::{Trouble, time_of_day};
use super::submit::extra;
use crate::os::back_off::BackOff;
use crate::wire::NodeId;
use crate::work::far::{ControlSession, StepError};
use crate::work::status::{RemoteExtra, Status};
use crate::work::store::Durability;
use crate::work::unit::{Event, State};
use crate::work::units::Entry;

/// First and longest pause between attempts.
pub(super) const FIRST_PAUSE: Duration = Duration::from_secs(1);
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// The pause after a connection that had come far enough to be of use, but not more often than every so often.
const SHORT_PAUSE: Duration = Duration::from_millis(50);
const SHORT_PAUSES_APART: Duration = Duration::from_secs(5);
/// How long a connection that has outlived the route to its node may be silent: the node may have restarted and know
/// nothing of it. Following again costs little, a submission has its payload to send again.
const SILENCE: Duration = Duration::from_secs(1);
const SILENCE_WHILE_FOLLOWING: Duration = Duration::from_millis(400);
/// How long a node that agreed to end a unit is believed when it says that the unit still runs. Without an end to that, a job
/// that was cancelled, or printed too much, would keep its place for ever.
const BELIEVED_FOR: Duration = Duration::from_secs(600);
/// Between looks whether it still says so.
const DENIAL_LOOK: Duration = Duration::from_secs(60);

/// What is to be done next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Have the other node release its part, then delete ours.
    Release,
    /// Nothing is there: delete ours.
    Delete,
    /// It never started and shall not.
    CancelHere,
    /// Have the other node cancel it.
    Cancel,
    /// Submit it, with its payload.
    Start,
    /// Follow it to its end.
    Follow,
    /// It ended here before the other node said that it had all of it: have what is there released.
    Tidy,
    /// Nothing.
    Rest,
}

impl Step {
    /// One line and its answer, for which a client waits: worth a fresh attempt once the way is back. The others
    /// move bytes, and go on over a connection that outlives a change of routes.
    fn is_brief(self) -> bool {
        match self {
            Self::Release | Self::Cancel | Self::Tidy => true,
            Self::Delete | Self::CancelHere | Self::Start | Self::Follow | Self::Rest => false,
        }
    }
}

/// Whether anything is to be done about a unit.
pub(super) fn has_work(status: &Status) -> bool {
    next_step(status, false) != Step::Rest
}

/// Whether a unit is to be started.
pub(super) fn is_starting(status: &Status) -> bool {
    next_step(status, false) == Step::Start
}

/// Decides; `cancelled` says that the other node has cancelled it already.
fn next_step(status: &Status, cancelled: bool) -> Step {
    let Some(remote) = status.remote() else { return Step::Rest };
    let over_there = !remote.remote_unit_id.is_empty();
    match remote {
        RemoteExtra { local_released: true, .. } if over_there => Step::Release,
        RemoteExtra { local_released: true, .. } => Step::Delete,
        RemoteExtra { remote_started: false, .. } if status.life.state.is_final() && over_there => Step::Tidy,
        _ if status.life.state.is_final() => Step::Rest,
        RemoteExtra { local_cancelled: true, remote_started: false, .. } => Step::CancelHere,
        RemoteExtra { local_cancelled: true, .. } if !cancelled => Step::Cancel,
        RemoteExtra { remote_started: false, .. } => Step::Start,
        _ => Step::Follow,
    }
}

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
        if step == Step::Rest || link.news.borrow().released || entry.is_gone() {
            // Under the lock, so that an intent recorded just now finds either this driver or none.
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
        // From before the attempt on: a way that comes back while one fails is no news afterwards.
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
            Attempt::Overtaken => {}
            Attempt::Done(Ok(following)) => {
                started = following;
                pauses.attempts.reset();
                trouble = Trouble::default();
            }
            Attempt::Done(Err(error)) => {
                if link.progress.load(Ordering::Relaxed) != before {
                    pauses.note_progress();
                    trouble = Trouble::default();
                }
                remotes.note_failure(entry, step, &error, &mut trouble).await;
                let pause = pauses.next(&error);
                // A failed write is tried again beside.
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

/// What came of an attempt.
enum Attempt {
    Done(Result<Option<Box<ControlSession>>, StepError>),
    /// Something else is to be done now.
    Overtaken,
}

/// Takes a step, for as long as it is the one to take and its connection is alive.
async fn attempt(
    remotes: &Arc<Remotes>,
    entry: &Arc<Entry>,
    step: Step,
    started: Option<Box<ControlSession>>,
    intents: &mut watch::Receiver<u64>,
) -> Attempt {
    let lost = |text: &str| Attempt::Done(Err(StepError::Connection(text.into())));
    tokio::select! {
        done = remotes.perform(entry, step, started) => Attempt::Done(done),
        () = stalls(remotes, entry, step) => lost("the way to the node was lost and found again, and the connection did not go on"),
        () = disappears(remotes, entry), if step.is_brief() => lost("the way to the node was lost"),
        _ = intents.changed() => Attempt::Overtaken,
        () = remotes.gate.closes(&entry.id, step) => Attempt::Overtaken,
        // Its output is wanted by somebody else, perhaps from an earlier byte on.
        () = passed_on(entry), if step == Step::Follow => Attempt::Overtaken,
        () = denial(remotes, entry), if step == Step::Follow => {
            remotes.end_denied(entry).await;
            Attempt::Overtaken
        }
        // Its payload has stopped half way.
        () = entry.finished(), if step == Step::Start => Attempt::Overtaken,
        () = expiry(entry) => {
            expire(remotes, entry).await;
            Attempt::Overtaken
        }
    }
}

/// How long to wait before the next attempt.
struct Pauses {
    attempts: BackOff,
    /// The next one is short.
    is_short: bool,
    /// When the last short one was granted.
    short: Option<Instant>,
}

impl Pauses {
    fn new() -> Self {
        Self { attempts: BackOff::new(FIRST_PAUSE, LONGEST_PAUSE), is_short: false, short: None }
    }

    /// The connection was of use before it broke.
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
            // A full disk, say: nobody else is burdened by looking often.
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

/// Ends when the way to the node was lost and is back and nothing moves: every step can be repeated.
async fn stalls(remotes: &Remotes, entry: &Entry, step: Step) {
    let silence = if step == Step::Follow { SILENCE_WHILE_FOLLOWING } else { SILENCE };
    loop {
        appears(remotes, entry).await;
        let before = entry.link().progress.load(Ordering::Relaxed);
        tokio::time::sleep(silence).await;
        if entry.link().progress.load(Ordering::Relaxed) == before {
            return;
        }
    }
}

/// Ends when a node has said for too long that a unit runs which it agreed to end. Its output may come for longer than that.
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

/// Ends when a way to the node appears.
async fn appears(remotes: &Remotes, entry: &Entry) {
    match node_of(entry) {
        Some(node) => remotes.far.dialer().appears(node).await,
        None => std::future::pending().await,
    }
}

/// Ends when there is no way to the node.
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
    /// Takes a step. `started` is what the last one has begun, which goes on if this follows it.
    async fn perform(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        step: Step,
        started: Option<Box<ControlSession>>,
    ) -> Result<Option<Box<ControlSession>>, StepError> {
        match step {
            Step::Start => return self.submit_there(entry).await,
            Step::Follow => self.follow_there(entry, started).await,
            Step::Cancel => {
                self.far.cancel(&extra(entry)).await?;
                entry.link().news.send_modify(|news| news.cancelled = Some(Instant::now()));
                Ok(())
            }
            Step::CancelHere => {
                entry.apply(self.units.store(), Event::CancelledLocally).await;
                Ok(())
            }
            Step::Release => {
                self.far.release(&extra(entry)).await?;
                // The control node that sent it may do so again.
                if entry.status().remote().is_some_and(is_inherited) {
                    self.ask_promise(entry).await?;
                }
                self.delete(entry).await
            }
            Step::Tidy => {
                self.far.release(&extra(entry)).await?;
                self.note(entry, Durability::Durable, |remote| remote.remote_unit_id = Box::default()).await
            }
            Step::Delete => self.delete_unless_there(entry).await,
            Step::Rest => Ok(()),
        }
        .map(|()| None)
    }

    /// Whether its node says that a unit runs.
    async fn still_runs(&self, entry: &Entry) -> Result<bool, StepError> {
        Ok(!self.far.status(&extra(entry)).await?.state.is_final())
    }

    /// Ends a unit here that its node agreed to end, and says runs.
    async fn end_denied(&self, entry: &Arc<Entry>) {
        let status = entry.status();
        let Some(RemoteExtra { remote_node: node, stopped, .. }) = status.remote() else { return };
        tracing::warn!(unit = %entry.id, %node, "a unit counts as ended that its node was told to end, and says runs");
        let (state, why) = match stopped.is_empty() {
            true => (State::Canceled, "Canceled".to_owned()),
            false => (State::Failed, format!("Killed: {stopped}")),
        };
        let detail = format!("{why}; {node} says that it still runs");
        entry.apply(self.units.store(), Event::Reported(state, detail, entry.printed())).await;
    }

    /// Deletes a unit of which nothing was known to be on the other node, unless something is by now.
    async fn delete_unless_there(&self, entry: &Arc<Entry>) -> Result<(), StepError> {
        let writer = entry.writer(self.units.store()).await;
        if writer.status().remote().is_some_and(|remote| !remote.remote_unit_id.is_empty()) {
            return Ok(());
        }
        drop(writer);
        self.delete(entry).await
    }

    async fn delete(&self, entry: &Arc<Entry>) -> Result<(), StepError> {
        // A reader of results shall see an end.
        entry.writer(self.units.store()).await.apply(Event::CancelledLocally, Durability::Volatile).await;
        entry.forget_unsaved();
        self.units.remove(entry, |_| ()).await?;
        entry.link().news.send_modify(|news| news.released = true);
        Ok(())
    }
}

/// Ends with a payload that still comes when this is called: its client waits for an attempt from then on.
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

/// Ends when the unit may no longer start; never if it always may, or has.
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
    writer.apply(Event::Expired(time_of_day(*limit)), Durability::Durable).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::status::{Extra, REMOTE};
    use crate::work::store::Store;
    use crate::work::unit::{State, UnitId};

    fn step(state: State, cancelled: bool, change: impl FnOnce(&mut RemoteExtra)) -> Step {
        let mut remote = RemoteExtra::default();
        change(&mut remote);
        let mut status = Status::new(REMOTE, Extra::Remote(Box::new(remote)));
        status.life.state = state;
        next_step(&status, cancelled)
    }

    fn there(remote: &mut RemoteExtra) {
        remote.remote_unit_id = "abcd1234".into();
        remote.remote_started = true;
    }

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
        // One that always breaks at once is not hammered.
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
        let store = Store::open(&temp.path().join("d"), &NodeId::new("n1").unwrap()).unwrap();
        for (event, ends) in [
            (Event::PayloadComplete, true),
            (Event::PayloadCut("x".into()), true),
            (Event::Waiting("no route".into()), false),
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

    #[test]
    fn every_standing_has_its_next_step() {
        use State::{Failed, Pending, Running, Succeeded};
        assert_eq!(step(Pending, false, |_| {}), Step::Start);
        assert_eq!(step(Pending, false, |r| r.remote_unit_id = "x".into()), Step::Start);
        assert_eq!(step(Running, false, there), Step::Follow);
        assert_eq!(step(Succeeded, false, there), Step::Rest);
        assert_eq!(step(Pending, false, |r| r.local_cancelled = true), Step::CancelHere);
        let half = |r: &mut RemoteExtra| r.remote_unit_id = "x".into();
        assert_eq!(step(Failed, false, half), Step::Tidy);
        assert_eq!(step(Failed, false, |_| {}), Step::Rest);
        let cancel = |r: &mut RemoteExtra| {
            there(r);
            r.local_cancelled = true;
        };
        assert_eq!(step(Running, false, cancel), Step::Cancel);
        assert_eq!(step(Running, true, cancel), Step::Follow);
        let release = |r: &mut RemoteExtra| {
            cancel(r);
            r.local_released = true;
        };
        assert_eq!(step(Running, false, release), Step::Release);
        assert_eq!(step(Failed, true, release), Step::Release);
        assert_eq!(step(Failed, false, |r| r.local_released = true), Step::Delete);
    }
}
