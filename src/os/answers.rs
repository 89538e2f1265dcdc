//! Large answers. They are made off the threads that serve links, a few at a time, and the bytes that clients have
//! not read yet are bounded in sum. Each door has turns and room of its own, and no caller has more than half of
//! them. It does not know what an answer says, nor how callers are told apart.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use super::places::{Places, Share};

/// The approximate bytes of one page of a list: a page ends with the item that exceeds them.
pub(crate) const PAGE: usize = 1 << 20;
/// Unread bytes that one client may have; all clients of a door together may have twice as many.
const UNREAD: usize = 32 << 20;
/// The size up to which an answer needs no room.
const FREE: usize = 64 << 10;
/// Answers of a door that are made at the same time, each for another caller.
const MAKERS: usize = 2;

/// Turns and room for the answers to callers of type `K`. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct AnswerDoor<K> {
    room: Places<K>,
    makers: Arc<Semaphore>,
    /// The one turn of each caller: a caller queues only once for the door's turns, however often it asks.
    // A lock rather than a task, because it is held for a look only.
    turns: Arc<Mutex<BTreeMap<K, Weak<Semaphore>>>>,
}

/// One client's share of a door.
#[derive(Debug)]
pub(crate) struct AnswerRoom<K: Ord + Clone> {
    unread: Share<K>,
    turn: Arc<Semaphore>,
    makers: Arc<Semaphore>,
}

impl<K: Ord + Clone> AnswerDoor<K> {
    pub(crate) fn new() -> Self {
        let makers = Arc::new(Semaphore::new(MAKERS));
        Self { room: Places::new(UNREAD), makers, turns: Arc::default() }
    }

    /// The share of one client of this caller.
    pub(crate) fn room(&self, caller: K) -> AnswerRoom<K> {
        let mut turns = self.turns.lock();
        let turn = turns.get(&caller).and_then(Weak::upgrade).unwrap_or_else(|| {
            turns.retain(|_, turn| turn.strong_count() > 0);
            let turn = Arc::new(Semaphore::new(1));
            turns.insert(caller.clone(), Arc::downgrade(&turn));
            turn
        });
        AnswerRoom { unread: self.room.none_yet(caller), turn, makers: self.makers.clone() }
    }
}

impl<K: Ord + Clone> AnswerRoom<K> {
    /// Runs a function that may take long on a thread of its own, in the caller's turn. `None` only if it could not
    /// run, as at the end of the process.
    pub(crate) async fn off_thread<T: Send + 'static>(
        &self,
        make: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let turn = self.turn.clone().acquire_owned().await.ok()?;
        let maker = self.makers.clone().acquire_owned().await.ok()?;
        let made = spawn_blocking(move || {
            let made = make();
            drop((maker, turn));
            made
        });
        made.await.ok()
    }

    /// Makes an answer of any size, which holds its room until the room is given back. An answer without room is
    /// dropped, and made again once there is room. `None` as with [`Self::off_thread`].
    pub(crate) async fn print(
        &mut self,
        make: impl Fn() -> Vec<u8> + Send + Sync + 'static,
    ) -> Option<Vec<u8>> {
        let make = Arc::new(make);
        loop {
            let again = make.clone();
            let made = self.off_thread(move || again()).await?;
            // A longer answer takes all the room that one client may have.
            let needed = if made.len() <= FREE { 0 } else { made.len().min(UNREAD) };
            let more = needed.saturating_sub(self.unread.count());
            if more == 0 || self.unread.take(more) {
                return Some(made);
            }
            drop(made);
            // Gives back what it holds before waiting, so that clients do not wait for each other.
            self.unread.give_back();
            self.unread.grow(needed).await;
        }
    }

    /// The client has read its answer.
    pub(crate) fn give_back(&mut self) {
        self.unread.give_back();
    }
}

/// Whether printing this takes less time than waiting for a turn.
pub(crate) fn is_small(told: &impl Serialize) -> bool {
    serde_json::to_writer(&mut vec![0; FREE][..], told).is_ok()
}

/// As many items as fit into this many bytes of JSON, but at least one, and whether there are more.
pub(crate) fn fitting<T: Serialize, C: FromIterator<T>>(
    all: impl IntoIterator<Item = T>,
    bytes: usize,
) -> (C, bool) {
    let (mut rest, mut size) = (all.into_iter().peekable(), 0);
    let kept = std::iter::from_fn(|| {
        let is_first = size == 0;
        size += serde_json::to_vec(rest.peek()?).map_or(0, |text| text.len() + 1);
        if is_first || size <= bytes { rest.next() } else { None }
    });
    let kept = kept.collect();
    (kept, rest.peek().is_some())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use futures_util::FutureExt as _;
    use futures_util::future::{self, join_all};
    use tokio::sync::mpsc::unbounded_channel;
    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_answer_waits_for_room_but_not_a_small_one_nor_that_of_another_client() {
        let door = AnswerDoor::new();
        let mut first = door.room("a");
        assert_eq!(first.print(|| vec![0; 2 * UNREAD]).await.map(|made| made.len()), Some(2 * UNREAD));
        assert_eq!(first.unread.count(), UNREAD);
        let mut small = door.room("a");
        assert!(small.print(|| vec![0; FREE]).await.is_some(), "it needs no room");
        let (mut second, mut other) = (door.room("a"), door.room("b"));
        let mut waiting = Box::pin(second.print(|| vec![0; PAGE]));
        assert!(timeout(Duration::from_secs(60), &mut waiting).await.is_err());
        assert!(other.print(|| vec![0; PAGE]).await.is_some(), "another one has room");
        first.give_back();
        assert_eq!(waiting.await.map(|made| made.len()), Some(PAGE));
    }

    /// Each maker reports when its turn comes, and stays until it may go, so the order does not depend on time.
    #[tokio::test]
    async fn however_often_one_asks_another_waits_for_no_more_than_the_pieces_that_are_being_made() {
        let door = AnswerDoor::new();
        let (go, gate) = mpsc::channel::<()>();
        let (came, mut turns) = unbounded_channel();
        let gate = Arc::new(Mutex::new(gate));
        let piece = |name| {
            let (gate, came, room) = (gate.clone(), came.clone(), door.room(name));
            async move {
                let make = move || {
                    came.send(name).unwrap();
                    gate.lock().recv().unwrap();
                };
                room.off_thread(make).await.unwrap();
            }
        };
        let mut many = Box::pin(join_all((0..1000).map(|_| piece("noisy"))));
        assert!((&mut many).now_or_never().is_none());
        let mut others = Box::pin(join_all([piece("second"), piece("third")]));
        assert!((&mut others).now_or_never().is_none());
        let all = tokio::spawn(future::join(many, others));
        let mut order = [turns.recv().await.unwrap(), turns.recv().await.unwrap()];
        order.sort_unstable();
        assert_eq!(order, ["noisy", "second"]);
        go.send(()).unwrap();
        assert_eq!(turns.recv().await, Some("third"));
        (1..1002).for_each(|_| go.send(()).unwrap());
        all.await.unwrap();
        drop(door.room("fourth"));
        assert_eq!(door.turns.lock().len(), 1, "callers that have gone are forgotten");
    }

    #[test]
    fn a_page_ends_by_its_bytes_and_has_one_item_at_least() {
        assert_eq!(fitting::<_, Vec<_>>(["aa", "bb", "cc"], 10), (vec!["aa", "bb"], true));
        assert_eq!(fitting::<_, Vec<_>>(["aa", "bb"], 1), (vec!["aa"], true));
        assert_eq!(fitting::<_, Vec<_>>(["aa", "bb"], 10), (vec!["aa", "bb"], false));
        assert_eq!(fitting::<&str, Vec<_>>([], 10), (vec![], false));
        // Items beyond the page are not made.
        fitting::<_, Vec<_>>((0..9).inspect(|&item| assert!(item < 2)), 2);
    }

    #[test]
    fn what_is_small_is_printed_at_once() {
        assert!(is_small(&"x".repeat(FREE - 2)) && !is_small(&"x".repeat(FREE - 1)));
    }
}
