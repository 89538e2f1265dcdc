//! One watch for many pods: of a namespace and a label, or of one pod. Owns the list and the watch after it, and
//! repeats both for as long as anybody subscribes. Passes each pod's news to the units that follow it, and judges no
//! news.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::StreamExt as _;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use super::api::{Api, PodChange, Select};
use super::api_error::ApiError;
use super::pod_status::PodSeen;
use crate::os::back_off::BackOff;

/// Pauses after failures.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// A watch that is silent for longer counts as lost, because the server ends each watch after 290 s.
const SILENT_FOR: Duration = Duration::from_secs(360);

/// What a watch says about one pod.
#[derive(Debug, Clone)]
pub enum WatchNews {
    /// It was created or changed, or a new list shows it.
    Applied(PodSeen),
    /// It is gone; this is its last state.
    Deleted(PodSeen),
    /// A new list does not show it.
    Absent,
    /// The API server answers again.
    ServerIsBack,
    /// Nothing can be watched, for this reason.
    Refused(ApiError),
}

/// The followers of a pod, each with the ID of its subscription. News are boxed because a new channel already has room
/// for 32 of them.
type Followers = Vec<(u64, mpsc::UnboundedSender<Box<WatchNews>>)>;

/// A shared watch.
#[derive(Debug)]
pub struct PodWatch {
    /// By the pod's name. A plain lock, for single operations.
    followers: Mutex<BTreeMap<String, Followers>>,
    next_id: Mutex<u64>,
    task: Mutex<Option<AbortHandle>>,
}

/// A subscription to a pod's news. The watch ends with its last subscription.
#[derive(Debug)]
pub struct PodSubscription {
    name: String,
    id: u64,
    news: mpsc::UnboundedReceiver<Box<WatchNews>>,
    watch: Arc<PodWatch>,
}

impl PodWatch {
    /// Begins to watch.
    pub fn start(api: Arc<dyn Api>, namespace: String, select: Select) -> Arc<Self> {
        let watch =
            Arc::new(Self { followers: Mutex::default(), next_id: Mutex::default(), task: Mutex::default() });
        let keeper = Keeper {
            watch: Arc::downgrade(&watch),
            api,
            namespace,
            select,
            had_outage: false,
            pauses: BackOff::new(FIRST_PAUSE, LONGEST_PAUSE),
        };
        *watch.task.lock() = Some(tokio::spawn(keeper.run()).abort_handle());
        watch
    }

    /// Follows the pod of this name, which need not exist yet.
    pub fn subscribe(self: &Arc<Self>, name: &str) -> PodSubscription {
        let (sender, news) = mpsc::unbounded_channel();
        let id = {
            let mut next = self.next_id.lock();
            *next += 1;
            *next
        };
        self.followers.lock().entry(name.to_owned()).or_default().push((id, sender));
        PodSubscription { name: name.to_owned(), id, news, watch: self.clone() }
    }

    fn publish(&self, name: &str, news: &WatchNews) {
        for (_, follower) in self.followers.lock().get(name).into_iter().flatten() {
            // A dropped follower leaves the list a moment later.
            let _ = follower.send(Box::new(news.clone()));
        }
    }

    fn publish_to_all(&self, news: &WatchNews) {
        for (_, follower) in self.followers.lock().values().flatten() {
            let _ = follower.send(Box::new(news.clone()));
        }
    }

    fn publish_list(&self, pods: &[Value]) {
        let mut seen: BTreeMap<String, PodSeen> =
            pods.iter().map(PodSeen::read).map(|pod| (pod.name.clone(), pod)).collect();
        let names: Vec<String> = self.followers.lock().keys().cloned().collect();
        for name in names {
            let news = seen.remove(&name).map_or(WatchNews::Absent, WatchNews::Applied);
            self.publish(&name, &news);
        }
    }
}

impl Drop for PodWatch {
    fn drop(&mut self) {
        if let Some(task) = self.task.lock().take() {
            task.abort();
        }
    }
}

impl PodSubscription {
    /// The pod's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The next news.
    pub async fn next(&mut self) -> WatchNews {
        match self.news.recv().await {
            Some(news) => *news,
            None => std::future::pending().await,
        }
    }
}

impl Drop for PodSubscription {
    fn drop(&mut self) {
        let mut followers = self.watch.followers.lock();
        if let Some(of_name) = followers.get_mut(&self.name) {
            of_name.retain(|(id, _)| *id != self.id);
            if of_name.is_empty() {
                followers.remove(&self.name);
            }
        }
    }
}

/// The task of a watch.
struct Keeper {
    watch: Weak<PodWatch>,
    api: Arc<dyn Api>,
    namespace: String,
    select: Select,
    had_outage: bool,
    pauses: BackOff,
}

/// Nobody follows any pod any more.
struct Unwatched;

impl Keeper {
    async fn run(mut self) {
        loop {
            if let Err(Unwatched) = self.list_and_watch().await {
                return;
            }
        }
    }

    /// Lists, and watches from the list's version on until the server no longer knows the version.
    async fn list_and_watch(&mut self) -> Result<(), Unwatched> {
        let list = match self.api.list(&self.namespace, &self.select).await {
            Ok(list) => list,
            Err(error) => return self.note_failure(&error).await,
        };
        self.note_success()?;
        self.watch()?.publish_list(&list.pods);
        let mut version = list.version;
        loop {
            let mut changes = match self.api.watch(&self.namespace, &self.select, &version).await {
                Ok(changes) => changes,
                // Most often because the version is too old.
                Err(ApiError::Rejected(_)) => return self.pause().await,
                Err(error) => {
                    self.note_failure(&error).await?;
                    continue;
                }
            };
            self.note_success()?;
            let begun = tokio::time::Instant::now();
            loop {
                match timeout(SILENT_FOR, changes.next()).await {
                    Ok(Some(Ok(PodChange::Expired))) => return Ok(()),
                    Ok(Some(Ok(change))) => self.pass_on(change, &mut version)?,
                    Ok(Some(Err(error))) => {
                        self.note_failure(&error).await?;
                        break;
                    }
                    Ok(None) | Err(_) => break,
                }
            }
            if begun.elapsed() < FIRST_PAUSE {
                self.pause().await?;
            }
        }
    }

    fn pass_on(&self, change: PodChange, version: &mut String) -> Result<(), Unwatched> {
        let moment = |object: &Value| object["metadata"]["resourceVersion"].as_str().map(str::to_owned);
        let (object, is_gone) = match change {
            PodChange::Bookmark(moment) => {
                *version = moment;
                return Ok(());
            }
            PodChange::Expired => return Ok(()),
            PodChange::Applied(pod) => (pod, false),
            PodChange::Deleted(pod) => (pod, true),
        };
        if let Some(moment) = moment(&object) {
            *version = moment;
        }
        let pod = PodSeen::read(&object);
        let name = pod.name.clone();
        let news = if is_gone { WatchNews::Deleted(pod) } else { WatchNews::Applied(pod) };
        self.watch()?.publish(&name, &news);
        Ok(())
    }

    fn watch(&self) -> Result<Arc<PodWatch>, Unwatched> {
        self.watch.upgrade().ok_or(Unwatched)
    }

    fn note_success(&mut self) -> Result<(), Unwatched> {
        self.pauses.reset();
        if std::mem::take(&mut self.had_outage) {
            self.watch()?.publish_to_all(&WatchNews::ServerIsBack);
        }
        Ok(())
    }

    async fn note_failure(&mut self, error: &ApiError) -> Result<(), Unwatched> {
        tracing::debug!(namespace = self.namespace, %error, "cannot watch pods");
        self.had_outage = true;
        if !error.is_passing() && !matches!(error, ApiError::Unauthorized(_)) {
            self.watch()?.publish_to_all(&WatchNews::Refused(error.clone()));
        }
        let asked = error.retry_after().unwrap_or_default();
        sleep(asked.min(LONGEST_PAUSE)).await;
        self.pause().await
    }

    async fn pause(&mut self) -> Result<(), Unwatched> {
        sleep(self.pauses.next()).await;
        self.watch().map(drop)
    }
}
