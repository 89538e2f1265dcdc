//! How many bytes of streams this node keeps: those that nobody has read yet, and those that a peer has not
//! acknowledged yet.
//!
//! Owns the node's budget for both, and the windows of each connection, which are its share of it. A window begins
//! small and doubles while it is what limits a stream, so a long and fast way gets the megabytes that it needs, and
//! a peer that neither reads nor is read holds what it began with. It refuses to know who reads and writes.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use quinn::{Connection, VarInt};
use tokio::time::Instant;

use crate::wire::NameHash;

/// The first size of each window, in bytes.
pub(super) const FIRST_WINDOW: u32 = 32 << 10;
/// The most that may be under way on one stream, in bytes: 160 MB/s over a way of 100 ms.
pub(super) const MOST_OF_A_STREAM: u32 = 16 << 20;
/// The first window of a shared connection: room for the first lines of all the streams that it may have.
const FIRST_OF_MANY: u64 = 1 << 20;
/// Bytes that may wait on such a connection to be read. Streams that nobody reads hold up the others of
/// their dialer once they have filled it, and it opens another connection for the next one.
const MOST_OF_MANY: u64 = 64 << 20;
/// A window that is used up within two round trips and this is too small. On a short way, the time counts for which a
/// reader or a writer may have to wait for a processor.
const PROMPT: Duration = Duration::from_millis(10);

/// How much memory the buffers of all streams may have where nothing else is said: an eighth of what there is, or of
/// what the container may use.
pub fn default_buffers() -> u64 {
    let info = rustix::system::sysinfo();
    let all = u64::from(info.mem_unit).saturating_mul(info.totalram);
    let container = std::fs::read_to_string("/sys/fs/cgroup/memory.max");
    let limit = container.ok().and_then(|limit| limit.trim().parse::<u64>().ok());
    limit.unwrap_or(all).min(all) / 8
}

/// The bytes of all windows of a node, and the nodes that have them. Clones are the same.
#[derive(Debug, Clone)]
pub(super) struct Budget {
    /// A plain lock, held for arithmetic alone.
    taken: Arc<Mutex<Taken>>,
}

#[derive(Debug)]
struct Taken {
    most: u64,
    sum: u64,
    /// Nodes that have none are not in it.
    by_node: HashMap<NameHash, u64>,
}

impl Budget {
    pub(super) fn new(most: u64) -> Self {
        Self { taken: Arc::new(Mutex::new(Taken { most, sum: 0, by_node: HashMap::new() })) }
    }

    /// Sets how much there is. What has been taken stays.
    pub(super) fn set(&self, most: u64) {
        self.taken().most = most;
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock()
    }
}

impl Taken {
    /// Takes a connection's first bytes for a node unless it would then have more than it leaves for others.
    fn take_first(&mut self, node: NameHash, bytes: u64) -> bool {
        self.take(node, bytes, 1)
    }

    /// Takes more for a node, of which there has to be twice as much left: what its connections have more shall not
    /// keep it from opening others.
    fn take_more(&mut self, node: NameHash, bytes: u64) -> bool {
        self.take(node, bytes, 2)
    }

    fn take(&mut self, node: NameHash, bytes: u64, left: u64) -> bool {
        let own = self.by_node.get(&node).copied().unwrap_or_default() + bytes;
        let fits = own * left <= self.most.saturating_sub(self.sum + bytes);
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

/// The windows of one connection with a node. To be held for as long as the connection stands: their bytes are given
/// back when this is dropped.
#[derive(Debug)]
pub(super) struct Windows {
    budget: Budget,
    node: NameHash,
    /// Held for arithmetic and for setting quinn's windows.
    both: Mutex<Both>,
}

#[derive(Debug)]
struct Both {
    receiving: Window,
    sending: Window,
}

#[derive(Debug)]
struct Window {
    size: u64,
    most: u64,
    /// Bytes that have passed since it was last looked at, and when that was.
    passed: u64,
    since: Instant,
}

impl Window {
    fn new() -> Self {
        let (size, most) = (u64::from(FIRST_WINDOW), u64::from(MOST_OF_A_STREAM));
        Self { size, most, passed: 0, since: Instant::now() }
    }

    /// Bytes have passed. By how much the window should grow, if it is too small.
    fn pass(&mut self, bytes: usize, enough: u64, round_trip: impl FnOnce() -> Duration) -> Option<u64> {
        self.passed += bytes as u64;
        if self.passed < enough {
            return None;
        }
        let prompt = self.since.elapsed() <= round_trip() * 2 + PROMPT;
        (self.passed, self.since) = (0, Instant::now());
        Some(self.size.min(self.most - self.size)).filter(|more| prompt && *more > 0)
    }
}

impl Windows {
    /// The first windows of a connection that a node has opened; none if it has its share already.
    pub(super) fn of_visitor(budget: &Budget, node: NameHash) -> Option<Arc<Self>> {
        budget.taken().take_first(node, 2 * u64::from(FIRST_WINDOW)).then(|| Self::first(budget, node))
    }

    /// The first windows of a connection that we open: how many of these there are is up to us.
    pub(super) fn of_our_own(budget: &Budget, node: NameHash) -> Arc<Self> {
        budget.taken().take_anyway(node, 2 * u64::from(FIRST_WINDOW));
        Self::first(budget, node)
    }

    fn first(budget: &Budget, node: NameHash) -> Arc<Self> {
        let both = Both { receiving: Window::new(), sending: Window::new() };
        Arc::new(Self { budget: budget.clone(), node, both: Mutex::new(both) })
    }

    /// Makes room for many streams on the connection.
    pub(super) fn allow_many(&self, connection: &Connection) {
        let mut both = self.both();
        both.receiving.most = MOST_OF_MANY;
        let more = FIRST_OF_MANY.saturating_sub(both.receiving.size);
        self.receive_more(connection, &mut both.receiving, more);
    }

    /// Bytes were read.
    pub(super) fn read(&self, connection: &Connection, bytes: usize) {
        let mut both = self.both();
        let enough = both.receiving.size / 2;
        if let Some(more) = both.receiving.pass(bytes, enough, || connection.rtt()) {
            self.receive_more(connection, &mut both.receiving, more);
        }
    }

    /// Bytes were written. At most as many as the window has are not acknowledged, so beyond it they show that the
    /// peer takes some.
    pub(super) fn wrote(&self, connection: &Connection, bytes: usize) {
        let mut both = self.both();
        let enough = both.sending.size + both.sending.size / 4;
        if let Some(more) = both.sending.pass(bytes, enough, || connection.rtt())
            && self.budget.taken().take_more(self.node, more)
        {
            both.sending.size += more;
            connection.set_send_window(both.sending.size);
        }
    }

    /// Sends the peer something that it has to acknowledge. quinn has no other ping than to announce the window again.
    pub(super) fn ask(&self, connection: &Connection) {
        let size = self.both().receiving.size;
        connection.set_receive_window(window(size - 1));
        connection.set_receive_window(window(size));
    }

    fn receive_more(&self, connection: &Connection, receiving: &mut Window, more: u64) {
        if self.budget.taken().take_more(self.node, more) {
            receiving.size += more;
            connection.set_receive_window(window(receiving.size));
        }
    }

    fn both(&self) -> MutexGuard<'_, Both> {
        self.both.lock()
    }
}

fn window(size: u64) -> VarInt {
    // Windows are megabytes.
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
        let budget = Budget::new(8 * first);
        let (one, other) = (NameHash(1), NameHash(2));
        let held: Vec<_> = std::iter::from_fn(|| Windows::of_visitor(&budget, one)).collect();
        assert_eq!(held.len(), 4, "half of all");
        let others: Vec<_> = std::iter::from_fn(|| Windows::of_visitor(&budget, other)).collect();
        assert_eq!(others.len(), 2, "half of what is left");
        let own = Windows::of_our_own(&budget, one);
        drop(held);
        assert!(Windows::of_visitor(&budget, one).is_some(), "there is room again");
        drop((others, own));
        assert!(
            budget.taken().by_node.is_empty() && budget.taken().sum == 0,
            "nodes without windows are forgotten"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_window_grows_while_it_is_what_limits() {
        let round_trip = Duration::from_millis(100);
        let mut window = Window::new();
        let half = window.size / 2;
        assert_eq!(window.pass(half as usize - 1, half, || round_trip), None, "not used up");
        assert_eq!(window.pass(1, half, || round_trip), Some(2 * half));
        tokio::time::sleep(round_trip * 3).await;
        assert_eq!(window.pass(half as usize, half, || round_trip), None, "there was time enough");
        window.size = window.most;
        assert_eq!(window.pass(half as usize, half, || round_trip), None, "it is as large as it may be");
    }
}
