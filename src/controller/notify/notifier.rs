//! Follows the ends of jobs for each target, and has notices delivered in their order. Owns the tasks and what is counted of them;
//! what the store keeps of a target is a document of its own, which one control node at a time may advance.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::courier::{Deliver, Receipt};
use super::cursor::{NoticeCursor, OLDEST};
use super::event::{self, JobNotice};
use super::{NotifyTarget, event::NoticeEvent};
use crate::controller::core::Time;
use crate::controller::driver::JobDriver;
use crate::controller::store::{EndedJob, Error, Store, StoredDocument};
use crate::counters::NoticeFigures;

/// The kind of the documents.
const KIND: &str = "notify";
/// Ended jobs that are looked at in one go.
const PAGE: u32 = 100;
/// The most ended jobs that a target which fails may be behind.
const MOST_BEHIND: u32 = 10_000;
/// How long a control node that delivers may be silent, beside the time of one delivery.
const CLAIM: Duration = Duration::from_secs(60);
/// How often new ends are looked for, and how often at least if nothing seems to have changed.
const AT_MOST: Duration = Duration::from_secs(1);
const AT_LEAST: Duration = Duration::from_secs(20);

/// Delivers notices for a control node. Clones share it.
#[derive(Clone)]
pub(crate) struct Notifier {
    driver: Arc<JobDriver>,
    courier: Arc<dyn Deliver>,
    figures: Arc<Mutex<BTreeMap<String, NoticeFigures>>>,
}

/// How a target stands.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TargetState {
    /// Its settings.
    pub target: NotifyTarget,
    /// How far it is; none before it has begun.
    pub cursor: Option<NoticeCursor>,
    /// Ended jobs that it has not been told of, at most as many as are kept for it.
    pub behind: u64,
}

impl std::fmt::Debug for Notifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Notifier").field("figures", &self.figures).finish_non_exhaustive()
    }
}

impl Notifier {
    pub(crate) fn new(driver: Arc<JobDriver>, courier: Arc<dyn Deliver>) -> Self {
        Self { driver, courier, figures: Arc::default() }
    }

    /// Serves the targets of the settings, as they change, until the controller stops.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut serving: BTreeMap<String, (NotifyTarget, AbortOnDropHandle<()>)> = BTreeMap::new();
        while !stop.is_cancelled() {
            let wanted = &self.driver.options().notify;
            serving.retain(|name, (target, _)| wanted.get(name) == Some(target));
            self.figures.lock().retain(|name, _| wanted.contains_key(name));
            for (name, target) in wanted {
                if !serving.contains_key(name) {
                    let task = tokio::spawn(self.clone().serve(name.clone(), target.clone()));
                    serving.insert(name.clone(), (target.clone(), AbortOnDropHandle::new(task)));
                }
            }
            tokio::select! {
                () = sleep(AT_MOST) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// Delivers to one target for as long as this is not dropped.
    pub(in crate::controller) async fn serve(self, name: String, target: NotifyTarget) {
        let mut changes = self.store().changes();
        loop {
            // What changes from here on is seen by the next turn.
            changes.mark_unchanged();
            let pause = match self.turn(&name, &target).await {
                Ok(pause) => pause,
                Err(error) => {
                    tracing::debug!(target = name, %error, "cannot read what to give notice of, trying again");
                    Some(AT_LEAST)
                }
            };
            match pause {
                Some(pause) => sleep(pause).await,
                None => {
                    let _woken = tokio::time::timeout(AT_LEAST, changes.changed()).await;
                    sleep(AT_MOST).await;
                }
            }
        }
    }

    fn store(&self) -> &Store {
        &self.driver.store
    }

    /// Delivers what is due. Returns after which time there is more; none if nothing is known to come.
    async fn turn(&self, name: &str, target: &NotifyTarget) -> Result<Option<Duration>, Error> {
        if !self.driver.lease.may_act() {
            return Ok(Some(AT_MOST));
        }
        let Some(mut at) = self.load(name).await? else { return Ok(Some(AT_MOST)) };
        let (store, node) = (self.store(), self.driver.node.as_str());
        let now = store.now().await?.0;
        if let Some(wait) = at.cursor.wait(node, now) {
            return Ok(Some(wait));
        }
        let page = store.ended(at.cursor.cursor, PAGE).await?;
        if page.is_empty() {
            self.count(name, |figures| figures.behind = 0);
            return Ok(None);
        }
        // What is this node's own was left by a turn that was cut off.
        at.cursor.release();
        for ended in &page {
            if ended.number <= at.cursor.cursor {
                continue;
            }
            let Some(event) = self.event(name, target, ended).await? else {
                at.cursor.pass(ended.number);
                continue;
            };
            if at.cursor.holder != node {
                at.cursor.claim(node, now, CLAIM + target.timeout);
                if !at.save(store).await? {
                    return Ok(Some(AT_MOST));
                }
            }
            let is_old = ended.row.finished.is_some_and(|end| Time(now).since(end) > OLDEST);
            let is_done = if is_old {
                at.cursor.dropped += 1;
                at.cursor.pass(ended.number);
                self.count(name, |figures| figures.dropped += 1);
                true
            } else {
                let notice = JobNotice::of(ended, event, self.driver.install, name, node);
                self.deliver(name, target, ended.number, &notice, &mut at.cursor).await?
            };
            let now = store.now().await?.0;
            if !is_done {
                at.cursor.release();
                at.save(store).await?;
                return Ok(at.cursor.wait(node, now).or(Some(AT_MOST)));
            }
            at.cursor.claim(node, now, CLAIM + target.timeout);
            if !at.save(store).await? {
                return Ok(Some(AT_MOST));
            }
        }
        at.cursor.release();
        at.save(store).await?;
        Ok(Some(if page.len() < PAGE as usize { AT_MOST } else { Duration::ZERO }))
    }

    /// Tries one notice. Returns whether it is done with.
    async fn deliver(
        &self,
        name: &str,
        target: &NotifyTarget,
        number: i64,
        notice: &JobNotice,
        cursor: &mut NoticeCursor,
    ) -> Result<bool, Error> {
        let store = self.store();
        let receipt = self.courier.deliver(name, target, notice).await;
        let (dropped, was_failing) = (cursor.dropped, cursor.failing_since.is_some());
        let is_delivered = matches!(receipt, Receipt::Delivered(_));
        let is_done = cursor.note(number, receipt, store.now().await?.0);
        if is_delivered {
            if was_failing {
                tracing::info!(target = name, "notices are delivered again");
            }
            self.count(name, |figures| figures.delivered += 1);
            return Ok(true);
        }
        if !was_failing {
            let error = cursor.error.as_deref().unwrap_or_default();
            tracing::warn!(
                target = name,
                error,
                "cannot deliver a notice, trying again: meshctl notify list"
            );
        }
        let (behind, gone) = store.ended_behind(cursor.cursor, MOST_BEHIND).await?;
        if let Some((last, count)) = gone {
            cursor.dropped += count;
            cursor.cursor = last;
        }
        let dropped = cursor.dropped - dropped;
        self.count(name, |figures| {
            figures.failed += 1;
            figures.dropped += dropped;
            figures.behind = behind;
        });
        Ok(is_done)
    }

    async fn event(
        &self,
        name: &str,
        target: &NotifyTarget,
        ended: &EndedJob,
    ) -> Result<Option<NoticeEvent>, Error> {
        let wanted = event::wanted(name, target, ended);
        let before = if event::compare(&wanted) { self.store().ended_before(ended).await? } else { None };
        Ok(event::event_of(&wanted, ended, before))
    }

    /// How far a target is. One that is new begins with the jobs that end from now on. None if another node has just
    /// made it.
    async fn load(&self, name: &str) -> Result<Option<KeptCursor>, Error> {
        let store = self.store();
        if let Some(document) = store.document(KIND.to_owned(), name.to_owned()).await? {
            return KeptCursor::read(document).map(Some);
        }
        let cursor = NoticeCursor { cursor: store.last_ended().await?, ..NoticeCursor::default() };
        let mut new = KeptCursor { name: name.to_owned(), version: 0, cursor };
        new.save(store).await?;
        Ok(None)
    }

    fn count(&self, name: &str, change: impl FnOnce(&mut NoticeFigures)) {
        change(self.figures.lock().entry(name.to_owned()).or_default());
    }

    /// What this node has counted, by target.
    pub(crate) fn figures(&self) -> BTreeMap<String, NoticeFigures> {
        self.figures.lock().clone()
    }

    /// How the targets of this node stand.
    ///
    /// # Errors
    /// The store is away.
    pub(crate) async fn targets(&self) -> Result<BTreeMap<String, TargetState>, Error> {
        let store = self.store();
        let kept = store.documents(KIND.to_owned()).await?.into_iter().map(KeptCursor::read);
        let mut kept: BTreeMap<String, NoticeCursor> =
            kept.map(|kept| kept.map(|kept| (kept.name, kept.cursor))).collect::<Result<_, _>>()?;
        let mut states = BTreeMap::new();
        for (name, target) in self.driver.options().notify.clone() {
            let cursor = kept.remove(&name);
            let behind = match &cursor {
                Some(cursor) => store.ended_behind(cursor.cursor, MOST_BEHIND).await?.0,
                None => 0,
            };
            states.insert(name, TargetState { target, cursor, behind });
        }
        Ok(states)
    }

    /// Tries a target now, aside from its notices.
    pub(crate) async fn test(&self, name: &str, target: &NotifyTarget) -> Receipt {
        let notice = JobNotice::test(name, self.driver.node.as_str());
        self.courier.deliver(name, target, &notice).await
    }
}

/// How far a target is, as the store has it.
struct KeptCursor {
    name: String,
    /// The version that was read last.
    version: i64,
    cursor: NoticeCursor,
}

impl KeptCursor {
    fn read(document: StoredDocument) -> Result<Self, Error> {
        let StoredDocument { name, version, body, .. } = document;
        let cursor = serde_json::from_str(&body)
            .map_err(|error| Error::Corrupt(format!("how far the target {name} is: {error}")))?;
        Ok(Self { name, version, cursor })
    }

    /// Returns whether nobody else has written since.
    async fn save(&mut self, store: &Store) -> Result<bool, Error> {
        let body = serde_json::to_string(&self.cursor).map_err(|error| Error::Corrupt(error.to_string()))?;
        let (kind, name, version) = (KIND.to_owned(), self.name.clone(), self.version);
        let is_saved = store.write_document(StoredDocument { kind, name, version, body }).await?;
        self.version += 1;
        Ok(is_saved)
    }
}
