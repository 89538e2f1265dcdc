//! The table of a UDP proxy: one flow for each source, each a task with a small inbox of its own.
//!
//! Owns the bounds: how many flows there are in all and of one neighbour, how many datagrams wait for a flow, and how
//! long a silent flow is kept. Refuses to know what a flow does with its datagrams.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use super::pulse::Pulse;
use crate::os::places::{Places, Share};

/// Most datagrams that may wait for a flow; further ones are dropped, as by any full socket.
const INBOX: usize = 256;

/// Limits on the flows of one proxy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FlowLimits {
    /// Most flows of one neighbour at a time. All neighbours together may have twice as many.
    pub flows: usize,
    /// How long a flow may be silent, in both directions, before it ends.
    pub idle: Duration,
}

impl Default for FlowLimits {
    fn default() -> Self {
        Self { flows: 4096, idle: Duration::from_secs(300) }
    }
}

/// All flows of a proxy by source `K`. A neighbour `N` may have several. The flows end when this is dropped.
#[derive(Debug)]
pub(super) struct Flows<K, N: Ord + Clone> {
    limits: FlowLimits,
    places: Places<N>,
    table: BTreeMap<K, FlowEntry<N>>,
    stop: CancellationToken,
    tasks: TaskTracker,
    full: bool,
}

#[derive(Debug)]
struct FlowEntry<N: Ord + Clone> {
    neighbour: N,
    _place: Share<N>,
    inbox: mpsc::Sender<Bytes>,
    end: CancellationToken,
    pulse: Pulse,
}

impl<K: Ord + Clone + std::fmt::Debug, N: Ord + Clone> Flows<K, N> {
    pub(super) fn new(limits: FlowLimits) -> Self {
        Self {
            limits,
            places: Places::new(limits.flows),
            table: BTreeMap::new(),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
            full: false,
        }
    }

    /// Ends all flows and waits until they have closed their sockets.
    pub(super) async fn end(self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Hands a datagram to the flow of its source. For a new source, `run` makes the flow, which is dropped when it was
    /// silent for too long.
    pub(super) fn deliver<F>(
        &mut self,
        source: &K,
        neighbour: &N,
        datagram: Bytes,
        run: impl FnOnce(FlowInbox) -> F,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let open = self.table.get(source).filter(|entry| !entry.inbox.is_closed());
        if open.is_none() && !self.start(source, neighbour, run) {
            return;
        }
        if let Some(entry) = self.table.get(source) {
            entry.pulse.beat();
            // A flow that cannot keep up loses datagrams.
            let _dropped = entry.inbox.try_send(datagram);
        }
    }

    /// Starts a flow; false if there is no room for another one.
    fn start<F>(&mut self, source: &K, neighbour: &N, run: impl FnOnce(FlowInbox) -> F) -> bool
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let place = self.places.take(neighbour).or_else(|| self.make_room(neighbour));
        let Some(place) = place else { return false };
        debug!(?source, "new datagram flow");
        let (inbox, datagrams) = mpsc::channel(INBOX);
        let (end, pulse) = (self.stop.child_token(), Pulse::new());
        let flow = run(FlowInbox { datagrams, pulse: pulse.clone() });
        self.tasks.spawn(watch(flow, end.clone(), pulse.clone(), self.limits.idle));
        let neighbour = neighbour.clone();
        self.table.insert(source.clone(), FlowEntry { neighbour, _place: place, inbox, end, pulse });
        true
    }

    /// Forgets flows that have ended. If that is not enough, ends those that were silent for longest: a quarter of the
    /// neighbour's, or one of any neighbour's if it has none. Their last datagram may be recent, because a sender can
    /// forge any number of sources and keep them busy.
    fn make_room(&mut self, neighbour: &N) -> Option<Share<N>> {
        self.table.retain(|_, entry| !entry.inbox.is_closed());
        if let Some(place) = self.places.take(neighbour) {
            self.full = false;
            return Some(place);
        }
        let of_neighbour = self.table.values().filter(|entry| entry.neighbour == *neighbour).count();
        let may_end = |entry: &FlowEntry<N>| of_neighbour == 0 || entry.neighbour == *neighbour;
        let silent = self.table.iter().filter(|(_, entry)| may_end(entry));
        let mut silent: Vec<_> = silent.map(|(source, entry)| (entry.pulse.last(), source.clone())).collect();
        silent.sort();
        for (_, source) in silent.into_iter().take((of_neighbour / 4).max(1)) {
            if let Some(entry) = self.table.remove(&source) {
                entry.end.cancel();
            }
        }
        if !self.full {
            warn!(
                flows = self.limits.flows,
                "a UDP proxy has reached its limit of sources, dropping silent ones to make room"
            );
        }
        self.full = true;
        self.places.take(neighbour)
    }

    #[cfg(test)]
    pub(super) fn open(&self) -> usize {
        self.table.values().filter(|entry| !entry.inbox.is_closed()).count()
    }
}

impl<K, N: Ord + Clone> Drop for Flows<K, N> {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Runs a flow until it ends, is cancelled, or was silent for too long.
async fn watch(flow: impl Future<Output = ()> + Send, end: CancellationToken, pulse: Pulse, idle: Duration) {
    tokio::select! {
        () = end.cancelled() => {}
        () = flow => {}
        () = pulse.silence(idle) => {}
    }
}

/// The receiving end of a flow's inbox.
#[derive(Debug)]
pub(super) struct FlowInbox {
    datagrams: mpsc::Receiver<Bytes>,
    pulse: Pulse,
}

impl FlowInbox {
    /// The next datagram from the source; `None` once the proxy has ended.
    pub(super) async fn receive(&mut self) -> Option<Bytes> {
        self.datagrams.recv().await
    }

    /// Notes a sign of life in the other direction.
    pub(super) fn beat(&self) {
        self.pulse.beat();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: FlowLimits = FlowLimits { flows: 8, idle: Duration::from_secs(60) };

    fn deliver(flows: &mut Flows<u8, u8>, source: u8, seen: &mpsc::UnboundedSender<(u8, Bytes)>) {
        let seen = seen.clone();
        flows.deliver(&source, &(source / 100), Bytes::from_static(b"x"), move |mut inbox| async move {
            while let Some(datagram) = inbox.receive().await {
                seen.send((source, datagram)).unwrap();
            }
        });
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_flow_ends_and_its_source_may_come_again() {
        let mut flows = Flows::new(LIMITS);
        let (seen, mut log) = mpsc::unbounded_channel();
        deliver(&mut flows, 1, &seen);
        tokio::time::advance(Duration::from_secs(59)).await;
        deliver(&mut flows, 1, &seen);
        tokio::time::sleep(Duration::from_secs(59)).await;
        assert_eq!(flows.open(), 1, "the second datagram kept it");
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(flows.open(), 0);
        deliver(&mut flows, 1, &seen);
        for _ in 0..3 {
            assert_eq!(log.recv().await.unwrap().0, 1);
        }
    }

    fn sources(flows: &Flows<u8, u8>) -> Vec<u8> {
        flows.table.keys().copied().collect()
    }

    #[tokio::test(start_paused = true)]
    async fn who_was_silent_for_longest_makes_way_at_once_a_quarter_at_a_time() {
        let mut flows = Flows::new(LIMITS);
        let (seen, mut log) = mpsc::unbounded_channel();
        for source in 1..=8 {
            deliver(&mut flows, source, &seen);
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        deliver(&mut flows, 1, &seen);
        tokio::time::advance(Duration::from_millis(1)).await;
        deliver(&mut flows, 9, &seen);
        assert_eq!(sources(&flows), [1, 4, 5, 6, 7, 8, 9], "2 and 3 were silent for longest");
        deliver(&mut flows, 10, &seen);
        assert_eq!(sources(&flows), [1, 4, 5, 6, 7, 8, 9, 10], "nobody else has to go for that");
        for expected in [1, 2, 3, 4, 5, 6, 7, 8, 1, 9, 10] {
            assert_eq!(log.recv().await.unwrap().0, expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_neighbour_that_takes_all_it_can_keeps_no_other_out() {
        let mut flows = Flows::new(LIMITS);
        let (seen, _log) = mpsc::unbounded_channel();
        deliver(&mut flows, 100, &seen);
        for source in 1..=99 {
            tokio::time::advance(Duration::from_millis(1)).await;
            deliver(&mut flows, source, &seen);
        }
        for source in [101, 102] {
            deliver(&mut flows, source, &seen);
        }
        let left = sources(&flows);
        assert!(left.ends_with(&[98, 99, 100, 101, 102]), "{left:?}");
        assert!(left.len() <= 12, "{left:?}");
    }
}
