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
use super::cursor::{KIND, NoticeCursor, OLDEST};
use super::event::{self, JobNotice};
use super::{NoticeWay, NotifyTarget, event::NoticeEvent};
use crate::controller::core::Time;
use crate::controller::driver::{JobDriver, rfc3339};
use crate::controller::store::{EndedJob, Error, Store};
use crate::counters::NoticeFigures;
use crate::rpc::post::place;
use crate::rpc::report::controller::NotifyReport;

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
        let Some(mut cursor) = self.load(name).await? else { return Ok(Some(AT_MOST)) };
        let (store, node) = (self.store(), self.driver.node.as_str());
        if let Some(wait) = cursor.wait(node, store.now().await?.0) {
            return Ok(Some(wait));
        }
        let page = store.ended(cursor.cursor, PAGE).await?;
        if page.is_empty() {
            self.count(name, |figures| figures.behind = 0);
            return Ok(None);
        }
        for ended in &page {
            let Some(event) = self.event(name, target, ended).await? else {
                cursor.pass(ended.number);
                continue;
            };
            let now = store.now().await?.0;
            if ended.row.finished.is_some_and(|end| Time(now).since(end) > OLDEST) {
                cursor.drop(ended.number, 1);
                self.count(name, |figures| figures.dropped += 1);
                continue;
            }
            // This also notes what was delivered before.
            cursor.claim(node, now, CLAIM + target.timeout);
            if !cursor.save(store, name).await? {
                return Ok(Some(AT_MOST));
            }
            let notice = JobNotice::of(ended, event, self.driver.install, name, node);
            if !self.deliver(name, target, ended.number, &notice, &mut cursor).await? {
                break;
            }
        }
        cursor.release();
        cursor.save(store, name).await?;
        let usual = if page.len() < PAGE as usize { AT_MOST } else { Duration::ZERO };
        Ok(Some(cursor.wait(node, store.now().await?.0).unwrap_or(usual)))
    }

    /// Tries one notice. Returns whether the next one may be tried.
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
        let is_done = cursor.note(number, receipt, store.now().await?.0);
        let Some(error) = &cursor.error else {
            if was_failing {
                tracing::info!(target = name, "notices are delivered again");
            }
            self.count(name, |figures| figures.delivered += 1);
            return Ok(true);
        };
        if !was_failing {
            tracing::warn!(
                target = name,
                error,
                "cannot deliver a notice, trying again: meshctl notify list"
            );
        }
        let (behind, gone) = store.ended_behind(cursor.cursor, MOST_BEHIND).await?;
        if let Some((last, count)) = gone {
            cursor.drop(last, count);
        }
        let dropped = cursor.dropped - dropped;
        self.count(name, |figures| {
            figures.failed += 1;
            figures.dropped += dropped;
            figures.behind = behind;
        });
        Ok(is_done && gone.is_none())
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
    async fn load(&self, name: &str) -> Result<Option<NoticeCursor>, Error> {
        let store = self.store();
        if let Some(document) = store.document(KIND.to_owned(), name.to_owned()).await? {
            return NoticeCursor::read(&document).map(Some);
        }
        let mut new = NoticeCursor { cursor: store.last_ended().await?, ..NoticeCursor::default() };
        new.save(store, name).await?;
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
    pub(crate) async fn targets(&self) -> Result<Vec<NotifyReport>, Error> {
        let store = self.store();
        let mut reports = Vec::new();
        let kept = store.documents(KIND.to_owned()).await?;
        for (name, target) in &self.driver.options().notify {
            let cursor = kept.iter().find(|document| document.name == *name).map(NoticeCursor::read);
            let begun = cursor.transpose()?;
            let behind = match &begun {
                Some(cursor) => store.ended_behind(cursor.cursor, MOST_BEHIND).await?.0,
                None => 0,
            };
            reports.push(report(name, target, begun, behind));
        }
        Ok(reports)
    }

    /// Tries a target now, aside from its notices.
    pub(crate) async fn test(&self, name: &str, target: &NotifyTarget) -> Receipt {
        let notice = JobNotice::test(name, self.driver.node.as_str());
        self.courier.deliver(name, target, &notice).await
    }
}

/// Of an address its host alone is shown.
fn report(name: &str, target: &NotifyTarget, begun: Option<NoticeCursor>, behind: u64) -> NotifyReport {
    let time = |at: i64| rfc3339(Time(at));
    let to = match &target.way {
        NoticeWay::Webhook(hook) => place(&hook.url).0.to_owned(),
        NoticeWay::Command(program, _) => program.clone(),
    };
    let number = begun.as_ref().map(|cursor| cursor.cursor);
    let cursor = begun.unwrap_or_default();
    NotifyReport {
        name: name.to_owned(),
        to,
        events: target.events.iter().map(ToString::to_string).collect(),
        jobs: if target.only_named { "named" } else { "all" }.to_owned(),
        delivered: cursor.delivered.map(time),
        cursor: number,
        behind,
        dropped: cursor.dropped,
        failing_since: cursor.failing_since.map(time),
        error: cursor.error,
        next: Some(cursor.next).filter(|next| *next > 0).map(time),
    }
}
