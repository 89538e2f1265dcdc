//! Events for all viewers: while there is a viewer, one task looks at the node each second and tells what has changed.
//! Owns which events are kept for viewers that come back, and that a viewer who does not keep up is dropped. Does not
//! know what an event is: `rpc` defines that.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::{BoxStream, iter, unfold};
use http::HeaderName;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::{broadcast, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::refusal::ApiRefusal;
use super::{Web, WebRequest};
use crate::control::Context;
use crate::http::answer::HttpAnswer;
use crate::http::hosts::only;
use crate::os::answers::AnswerRoom;
use crate::rpc::operation::{self, InstanceFilter, JobFilter, Nothing, Operation};
use crate::rpc::report::events::{EventLog, MeshEvent, Snapshot};
use crate::work::Caller;
use crate::work::jobs::Operations;

pub(in crate::http) const SNAPSHOT_EVERY: Duration = Duration::from_secs(1);
/// How long the controller may take for a list.
pub(in crate::http) const LIST_WITHIN: Duration = Duration::from_secs(5);
/// How many events are kept, and how many a viewer may be behind.
const KEPT: usize = 1000;
/// How long the watch goes on without a viewer, so that one that reconnects misses nothing.
const LINGER: Duration = Duration::from_secs(10);

const LAST_SEEN: HeaderName = HeaderName::from_static("last-event-id");
pub(super) const EVENT_STREAM: &str = "text/event-stream";

/// The watch. Dropping it ends its task.
pub(super) struct EventWatch {
    shared: Arc<Lookout>,
    task: Mutex<Option<AbortOnDropHandle<()>>>,
}

struct Lookout {
    context: Context,
    // A lock rather than a task. It is held while events are noted or a viewer comes, so that each gets every event
    // once.
    state: Mutex<KeptEvents>,
    news: broadcast::Sender<Bytes>,
    /// Gives the watch its turns among the clients.
    room: AnswerRoom<String>,
    /// Whether there is a first snapshot: every change after it is told.
    has_begun: watch::Sender<bool>,
}

struct KeptEvents {
    /// The latest events, as they are sent.
    kept: VecDeque<Bytes>,
    /// The number of the next event. Numbers of an earlier process, or of a watch that has ended, do not continue here,
    /// so that their viewers are told of a gap.
    next: u64,
    is_running: bool,
}

impl KeptEvents {
    fn note(&mut self, event: &MeshEvent) -> Bytes {
        let text = sent(event);
        if self.kept.len() == KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back(text.clone());
        self.next = event.seq + 1;
        text
    }

    /// What a viewer gets first. `last` is the last event that it has seen, if any.
    fn missed(&self, last: Option<u64>, node: &str) -> VecDeque<Bytes> {
        let begin = || VecDeque::from([Bytes::from(format!("id: {}\n\n", self.next.wrapping_sub(1)))]);
        let Some(last) = last else { return begin() };
        let first = self.next - self.kept.len() as u64;
        match last.checked_add(1).and_then(|from| from.checked_sub(first)) {
            Some(skipped) if last < self.next => self.kept.iter().skip(skipped as usize).cloned().collect(),
            _ => {
                let gap = MeshEvent::gap(self.next.wrapping_sub(1), node.to_owned(), None, Timestamp::now());
                VecDeque::from([sent(&gap)])
            }
        }
    }
}

/// An event as browsers read it.
fn sent(event: &MeshEvent) -> Bytes {
    Bytes::from(format!("id: {}\nevent: {}\ndata: {}\n\n", event.seq, event.event, json!(event)))
}

impl EventWatch {
    pub(super) fn new(context: &Context, room: AnswerRoom<String>) -> Self {
        let (news, _) = broadcast::channel(KEPT);
        let next = u64::try_from(Timestamp::now().as_millisecond()).unwrap_or_default();
        let state = Mutex::new(KeptEvents { kept: VecDeque::new(), next, is_running: false });
        let (context, has_begun) = (context.clone(), watch::Sender::new(false));
        let shared = Arc::new(Lookout { context, state, news, room, has_begun });
        Self { shared, task: Mutex::default() }
    }

    /// The events for one more viewer. `last` is the last event that it has seen, if any.
    async fn follow(&self, last: Option<u64>) -> BoxStream<'static, Bytes> {
        let viewer = self.join(last);
        let mut has_begun = self.shared.has_begun.subscribe();
        // An error would mean that the sender is gone, but `self` keeps it.
        let _begun = has_begun.wait_for(|has_begun| *has_begun).await;
        viewer
    }

    fn join(&self, last: Option<u64>) -> BoxStream<'static, Bytes> {
        let mut state = self.shared.state.lock();
        let news = self.shared.news.subscribe();
        let missed = state.missed(last, self.shared.context.node.id().as_str());
        if !std::mem::replace(&mut state.is_running, true) {
            let run = tokio::spawn(self.shared.clone().run());
            *self.task.lock() = Some(AbortOnDropHandle::new(run));
        }
        // A viewer that is too far behind is dropped, and is told of a gap when it comes back.
        let news = unfold(news, async |mut news| news.recv().await.ok().map(|event| (event, news)));
        iter(missed).chain(news).boxed()
    }
}

impl Lookout {
    async fn run(self: Arc<Self>) {
        let seq = self.state.lock().next;
        let mut log = EventLog::new(look(&self.context, &self.room).await, seq);
        self.has_begun.send_replace(true);
        let (mut ticks, mut watched) = (interval(SNAPSHOT_EVERY), Instant::now());
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let (mut before, now) = (log, look(&self.context, &self.room).await);
            let compare = move || {
                let events = before.add(now);
                (before, events)
            };
            // `None` means that the process ends.
            let Some((after, events)) = self.room.off_thread(compare).await else { return };
            log = after;
            let mut state = self.state.lock();
            for event in &events {
                // An error only says that there are no viewers.
                let _viewers = self.news.send(state.note(event));
            }
            if self.news.receiver_count() > 0 {
                watched = Instant::now();
            } else if watched.elapsed() >= LINGER {
                state.kept = VecDeque::new();
                // A number is skipped, because even who has seen the last event misses what happens before the next
                // watch.
                state.next += 1;
                state.is_running = false;
                self.has_begun.send_replace(false);
                return;
            }
        }
    }
}

/// The node as it is now.
pub(in crate::http) async fn look(context: &Context, room: &AnswerRoom<String>) -> Snapshot {
    let observer = &context.observer;
    let seen = observer.look(&Snapshot::SECTIONS).await;
    let mesh = room.off_thread(move || seen.report()).await.unwrap_or_default();
    let controller = observer.controller().await;
    let controller = controller.map(|(report, _)| report);
    let mut snapshot = Snapshot { time: Timestamp::now(), mesh, controller, ..Snapshot::default() };
    if let Some(controller) = &context.controller
        && let Some(operation::Answer::ListEnrolment(report)) =
            ask(controller.as_ref(), Operation::ListEnrolment(Nothing {})).await
    {
        snapshot.enrolment = Some(report).filter(|report| report.authority);
    }
    if let Some(controller) = &context.controller
        && snapshot.controller.as_ref().is_some_and(|report| report.store.up)
    {
        let filter = JobFilter { limit: Some(Snapshot::JOBS), brief: true, ..JobFilter::default() };
        if let Some(operation::Answer::ListJobs(list)) =
            ask(controller.as_ref(), Operation::ListJobs(filter)).await
        {
            snapshot.jobs = Some(list.jobs);
        }
        let instances = Operation::ListInstances(InstanceFilter::default());
        if let Some(operation::Answer::ListInstances(list)) = ask(controller.as_ref(), instances).await {
            snapshot.instances = list.instances;
        }
    }
    snapshot
}

async fn ask(controller: &dyn Operations, operation: Operation) -> Option<operation::Answer> {
    let answered = timeout(LIST_WITHIN, controller.operate(operation, &Caller::default())).await;
    Some(answered.ok()?.ok()?.0)
}

impl Web {
    /// Events as they happen, from the last one that a returning viewer has seen.
    pub(super) async fn events(self: Arc<Self>, asked: WebRequest) -> Result<HttpAnswer, ApiRefusal> {
        let last = only(&asked.headers, &LAST_SEEN).map(|last| last.parse::<u64>());
        let last = last.transpose().map_err(|_| ApiRefusal::bad("Last-Event-ID: it must be a number"))?;
        let place = self.place(&asked.visitor)?;
        let events = self.watch.follow(last).await;
        Ok(self.follow(asked.visitor, place, EVENT_STREAM, events, Bytes::from_static(b": \n\n")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::report::events::EventKind;

    fn state(numbers: std::ops::Range<u64>) -> KeptEvents {
        let mut state = KeptEvents { kept: VecDeque::new(), next: numbers.start, is_running: true };
        for seq in numbers {
            let event = MeshEvent::gap(seq, "n".to_owned(), None, Timestamp::UNIX_EPOCH);
            state.note(&MeshEvent { event: EventKind::LinkUp, ..event });
        }
        state
    }

    fn ids(state: &KeptEvents, last: Option<u64>) -> Vec<String> {
        let missed = state.missed(last, "n").into_iter();
        missed
            .map(|text| String::from_utf8(text.to_vec()).unwrap())
            .map(|text| text.lines().take(2).collect::<Vec<_>>().join(" "))
            .collect()
    }

    #[test]
    fn who_comes_back_gets_what_it_has_missed_or_is_told_of_a_gap() {
        let state = state(100..1105);
        assert_eq!(state.kept.len(), KEPT);
        assert_eq!(ids(&state, Some(1103)), ["id: 1104 event: link.up"]);
        assert_eq!(ids(&state, Some(1104)), Vec::<String>::new());
        assert_eq!(ids(&state, Some(104)).len(), KEPT);
        for last in [103, 0, 1105, u64::MAX] {
            assert_eq!(ids(&state, Some(last)), ["id: 1104 event: gap"], "{last}");
        }
        assert_eq!(ids(&state, None), ["id: 1104 "], "where a new one begins");
    }

    #[test]
    fn an_event_is_one_of_a_browsers() {
        let event = MeshEvent::gap(7, "n\nx".to_owned(), None, Timestamp::UNIX_EPOCH);
        let text = String::from_utf8(sent(&event).to_vec()).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[..2], ["id: 7", "event: gap"]);
        assert!(lines[2].starts_with("data: {\"seq\":7,") && lines[3..] == [""], "{text}");
    }
}
