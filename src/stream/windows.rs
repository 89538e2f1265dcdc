//! How many bytes of streams this node buffers: received bytes that nobody has read yet, and sent bytes that a peer has
//! not acknowledged yet.
//!
//! Owns the node's budget for both, and the windows of each connection, which are its share of the budget. A window
//! begins small and grows while bytes pass and the window limits them: a peer reports that it is blocked by the receive
//! window, and a waiting writer is blocked by the send window. So a long and fast route gets the megabytes that it
//! needs, and a connection on which nothing is read keeps its first windows. It refuses to know who reads and writes.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use quinn::{Connection, VarInt};

use crate::congestion::InFlight;
use crate::wire::NameHash;

/// The first size of each window, in bytes.
pub(super) const FIRST_WINDOW: u32 = 32 << 10;
/// The most bytes that may be in flight on one stream: 160 MB/s with a round trip of 100 ms.
pub(super) const MOST_OF_A_STREAM: u32 = 16 << 20;
/// The first receive window of a shared connection: room for the first lines of all its streams.
const FIRST_OF_MANY: u64 = 1 << 20;
/// The largest receive window of a shared connection. Once streams that nobody reads have filled it, they hold up the
/// connection's other streams, and the dialer opens another connection for the next stream.
const MOST_OF_MANY: u64 = 64 << 20;

/// A limit on the bytes of one node, as a fraction (numerator, denominator) of the bytes that are left for others.
type NodeShare = (u64, u64);
/// For another connection that carries many streams, jobs among them.
const OF_SHARED: NodeShare = (1, 1);
/// For another connection of a single stream. Smaller, because clients of proxies open as many as they like.
const OF_SINGLE: NodeShare = (2, 3);
/// For a larger window. Smaller still, so that a node with large windows can open further connections.
const OF_GROWTH: NodeShare = (1, 2);

/// How much memory the buffers of all streams may have by default: an eighth of the machine's memory, or of the
/// container's limit.
pub fn default_buffers() -> u64 {
    let info = rustix::system::sysinfo();
    let all = u64::from(info.mem_unit).saturating_mul(info.totalram);
    let container = std::fs::read_to_string("/sys/fs/cgroup/memory.max");
    let limit = container.ok().and_then(|limit| limit.trim().parse::<u64>().ok());
    limit.unwrap_or(all).min(all) / 8
}

/// The bytes of all windows of this node, counted by the node at the other end. Clones share the counts.
#[derive(Debug, Clone)]
pub(super) struct WindowBudget {
    /// A plain lock, because it is held only for arithmetic.
    taken: Arc<Mutex<TakenBytes>>,
}

#[derive(Debug)]
struct TakenBytes {
    most: u64,
    sum: u64,
    /// Only nodes that have some.
    by_node: HashMap<NameHash, u64>,
}

impl WindowBudget {
    pub(super) fn new(most: u64) -> Self {
        Self { taken: Arc::new(Mutex::new(TakenBytes { most, sum: 0, by_node: HashMap::new() })) }
    }

    /// Sets the size of the budget. Bytes that are taken already stay taken.
    pub(super) fn set(&self, most: u64) {
        self.taken().most = most;
    }

    /// Bytes of all windows.
    #[cfg(test)]
    pub(super) fn sum(&self) -> u64 {
        self.taken().sum
    }

    fn taken(&self) -> MutexGuard<'_, TakenBytes> {
        self.taken.lock()
    }
}

impl TakenBytes {
    /// Takes bytes for a node, unless the node would then have more than the fraction `most` of what is left for
    /// others.
    fn take(&mut self, node: NameHash, bytes: u64, most: NodeShare) -> bool {
        let own = self.by_node.get(&node).copied().unwrap_or_default() + bytes;
        let (part, of) = most;
        let fits = own * of <= self.most.saturating_sub(self.sum + bytes) * part;
        if fits {
            self.take_anyway(node, bytes);
        }
        fits
    }

    fn take_anyway(&mut self, node: NameHash, bytes: u64) {
        self.sum += bytes;
        *self.by_node.entry(node).or_default() += bytes;
    }

    fn give_back(&mut self, node: NameHash, bytes: u64) {
        self.sum -= bytes;
        if let Entry::Occupied(mut own) = self.by_node.entry(node) {
            *own.get_mut() -= bytes;
            if *own.get() == 0 {
                own.remove();
            }
        }
    }
}

/// The windows of one connection with a node. Hold it while the connection is open: a drop gives the bytes back.
#[derive(Debug)]
pub(super) struct Windows {
    budget: WindowBudget,
    node: NameHash,
    /// Locked only for arithmetic and to set quinn's windows.
    both: Mutex<Both>,
}

#[derive(Debug)]
struct Both {
    receiving: Window,
    sending: Window,
    /// How often the peer had reported, at the last look, that it is blocked.
    blocked: u64,
    /// Set at the first read.
    in_flight: Option<InFlight>,
    /// The tickets of writers that wait for room, and the next one.
    waiting: BTreeSet<u64>,
    next_ticket: u64,
}

/// A writer's place in the queue for room on its connection. Without it, a stream that always writes would starve the
/// others, because quinn wakes all writers of a connection at once, the latest to wait first, and that writer takes all
/// the room.
#[derive(Debug, Default)]
pub(super) struct Turn {
    ticket: Option<u64>,
    /// Whether the writer has let earlier ones go first. It does so only once, because their own streams may be full.
    yielded: bool,
}

#[derive(Debug)]
struct Window {
    size: u64,
    most: u64,
    /// Bytes that have passed since growth was last considered.
    passed: u64,
}

impl Window {
    fn new() -> Self {
        Self { size: u64::from(FIRST_WINDOW), most: u64::from(MOST_OF_A_STREAM), passed: 0 }
    }

    /// Counts bytes that have passed. True if they are `enough` to consider growth.
    fn pass(&mut self, bytes: usize, enough: u64) -> bool {
        self.passed += bytes as u64;
        self.passed >= enough
    }

    /// By how many bytes the window may grow towards `wanted`.
    fn growth(&self, wanted: u64) -> Option<u64> {
        wanted.min(self.most).checked_sub(self.size).filter(|more| *more > 0)
    }
}

impl Windows {
    /// The first windows of a connection that a node has opened; `None` if the node has its share already. The share
    /// for connections of single streams leaves room for shared connections, which carry jobs.
    pub(super) fn of_visitor(budget: &WindowBudget, node: NameHash, is_shared: bool) -> Option<Arc<Self>> {
        let share = if is_shared { OF_SHARED } else { OF_SINGLE };
        let fits = budget.taken().take(node, 2 * u64::from(FIRST_WINDOW), share);
        fits.then(|| Self::first(budget, node))
    }

    /// The first windows of a connection that this node opens. They are always granted, because this node decides how
    /// many connections it opens.
    pub(super) fn of_our_own(budget: &WindowBudget, node: NameHash) -> Arc<Self> {
        budget.taken().take_anyway(node, 2 * u64::from(FIRST_WINDOW));
        Self::first(budget, node)
    }

    fn first(budget: &WindowBudget, node: NameHash) -> Arc<Self> {
        let both = Both {
            receiving: Window::new(),
            sending: Window::new(),
            blocked: 0,
            in_flight: None,
            waiting: BTreeSet::new(),
            next_ticket: 0,
        };
        Arc::new(Self { budget: budget.clone(), node, both: Mutex::new(both) })
    }

    /// Makes room for many streams on the connection.
    pub(super) fn allow_many(&self, connection: &Connection) {
        let mut both = self.both();
        both.receiving.most = MOST_OF_MANY;
        let more = FIRST_OF_MANY.saturating_sub(both.receiving.size);
        self.receive_more(connection, &mut both.receiving, more);
    }

    /// Notes that bytes were read, and enlarges the receive window if it limits the peer.
    pub(super) fn read(&self, connection: &Connection, bytes: usize) {
        let mut both = self.both();
        if both.in_flight.is_none() {
            both.in_flight = InFlight::on(connection);
        }
        if both.in_flight.as_ref().is_some_and(InFlight::let_acknowledge) {
            connection.set_receive_window(window(both.receiving.size));
        }
        let enough = both.receiving.size / 2;
        if !both.receiving.pass(bytes, enough) {
            return;
        }
        both.receiving.passed = 0;
        let frames = connection.stats().frame_rx;
        let blocked = frames.data_blocked + frames.stream_data_blocked;
        if std::mem::replace(&mut both.blocked, blocked) != blocked
            && let Some(more) = both.receiving.growth(both.receiving.size * 2)
        {
            self.receive_more(connection, &mut both.receiving, more);
        }
    }

    /// True if a writer that has waited has to let one that has waited for longer write first.
    pub(super) fn yields(&self, turn: &mut Turn) -> bool {
        let yields = !turn.yielded
            && turn.ticket.is_some_and(|own| self.both().waiting.first().is_some_and(|first| *first < own));
        turn.yielded |= yields;
        yields
    }

    /// Notes that a writer has written this many bytes, or has ended, and no longer waits.
    pub(super) fn wrote(&self, turn: &mut Turn, bytes: usize) {
        let mut both = self.both();
        both.sending.passed += bytes as u64;
        if let Some(ticket) = std::mem::take(turn).ticket {
            both.waiting.remove(&ticket);
        }
    }

    /// Notes that a writer waits, and enlarges the send window once more bytes were written than the window holds,
    /// because then the peer has acknowledged some. It grows only to twice the congestion window: further bytes would
    /// only wait here.
    pub(super) fn blocked(&self, connection: &Connection, turn: &mut Turn) {
        let mut both = self.both();
        turn.yielded = false;
        if turn.ticket.is_none() {
            let ticket = both.next_ticket;
            both.next_ticket += 1;
            both.waiting.insert(ticket);
            turn.ticket = Some(ticket);
        }
        let enough = both.sending.size + both.sending.size / 4;
        if !both.sending.pass(0, enough) {
            return;
        }
        both.sending.passed = 0;
        if let Some(more) = both.sending.growth(connection.stats().path.cwnd * 2)
            && self.budget.taken().take(self.node, more, OF_GROWTH)
        {
            both.sending.size += more;
            connection.set_send_window(both.sending.size);
        }
    }

    /// Sends the peer something that it has to acknowledge. quinn offers no ping, so this announces the window again.
    pub(super) fn ask(&self, connection: &Connection) {
        let size = self.both().receiving.size;
        connection.set_receive_window(window(size - 1));
        connection.set_receive_window(window(size));
    }

    fn receive_more(&self, connection: &Connection, receiving: &mut Window, more: u64) {
        if self.budget.taken().take(self.node, more, OF_GROWTH) {
            receiving.size += more;
            connection.set_receive_window(window(receiving.size));
        }
    }

    fn both(&self) -> MutexGuard<'_, Both> {
        self.both.lock()
    }
}

fn window(size: u64) -> VarInt {
    // Cannot fail: windows are megabytes.
    VarInt::try_from(size).unwrap_or(VarInt::MAX)
}

impl Drop for Windows {
    fn drop(&mut self) {
        let size = {
            let both = self.both();
            both.receiving.size + both.sending.size
        };
        self.budget.taken().give_back(self.node, size);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_leaves_as_much_to_others_as_it_takes() {
        let first = 2 * u64::from(FIRST_WINDOW);
        let budget = WindowBudget::new(8 * first);
        let (one, other) = (NameHash(1), NameHash(2));
        let grown =
            std::iter::from_fn(|| budget.taken().take(one, first, OF_GROWTH).then_some(())).count() as u64;
        assert_eq!(grown, 2, "it leaves twice as much");
        assert_eq!(
            Windows::of_visitor(&budget, one, false).iter().count(),
            1,
            "though its windows have grown"
        );
        budget.taken().give_back(one, grown * first);
        let single: Vec<_> = std::iter::from_fn(|| Windows::of_visitor(&budget, one, false)).collect();
        assert_eq!(single.len(), 3, "it leaves half as much again");
        let held: Vec<_> = std::iter::from_fn(|| Windows::of_visitor(&budget, one, true)).collect();
        assert_eq!(single.len() + held.len(), 4, "half of all");
        let others: Vec<_> = std::iter::from_fn(|| Windows::of_visitor(&budget, other, true)).collect();
        assert_eq!(others.len(), 2, "half of what is left");
        let own = Windows::of_our_own(&budget, one);
        drop((single, held));
        assert!(Windows::of_visitor(&budget, one, true).is_some(), "there is room again");
        drop((others, own));
        assert!(
            budget.taken().by_node.is_empty() && budget.taken().sum == 0,
            "nodes without windows are forgotten"
        );
    }

    #[test]
    fn a_window_grows_up_to_what_is_wanted_and_allowed() {
        let mut window = Window::new();
        assert!(!window.pass(9_999, 10_000), "not used up");
        assert!(window.pass(1, 10_000));
        assert_eq!(window.growth(window.size), None, "it is large enough");
        assert_eq!(window.growth(window.size * 3), Some(window.size * 2));
        window.size = window.most;
        assert_eq!(window.growth(u64::MAX), None, "it is as large as it may be");
    }
}
