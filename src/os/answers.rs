//! Large answers: they are made off the threads that serve links, a few at a time, and what clients have not read of them is
//! bounded in sum. It does not know what an answer says.

use std::sync::{Arc, LazyLock};

use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use super::places::Share;

/// Bytes of one page of a list, about: a page ends with the item that passes it.
pub(crate) const PAGE: usize = 1 << 20;
/// Unread bytes that one client may have; all of a door may have twice as many.
pub(crate) const UNREAD: usize = 32 << 20;
/// Bytes of an answer that need no room.
const FREE: usize = 64 << 10;

/// Answers that are made at a time.
static MAKERS: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(2)));

/// What a function returns that may take long, on a thread of its own and after those who came before. `None` only if it
/// cannot be carried out, as at the end of the process.
pub(crate) async fn off_thread<T: Send + 'static>(make: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let turn = MAKERS.clone().acquire_owned().await.ok()?;
    let made = spawn_blocking(move || {
        let made = make();
        drop(turn);
        made
    });
    made.await.ok()
}

/// An answer of any size, which holds its room until the share is given back. One for which there is no room is not kept: it
/// is made again once there is. `None` as with [`off_thread`].
pub(crate) async fn print<K: Ord + Clone>(
    room: &mut Share<K>,
    make: impl Fn() -> Vec<u8> + Send + Sync + 'static,
) -> Option<Vec<u8>> {
    let make = Arc::new(make);
    loop {
        let again = make.clone();
        let made = off_thread(move || again()).await?;
        // A longer one takes all that one client may have.
        let needed = if made.len() <= FREE { 0 } else { made.len().min(UNREAD) };
        let more = needed.saturating_sub(room.count());
        if more == 0 || room.take(more) {
            return Some(made);
        }
        drop(made);
        // Nobody waits for more while it holds some.
        room.give_back();
        room.grow(needed).await;
    }
}

/// As many of these as fit into so many bytes of JSON, one at least, and how many are left.
pub(crate) fn fitting<T: serde::Serialize, C: FromIterator<T>>(
    all: impl IntoIterator<Item = T>,
    bytes: usize,
) -> (C, usize) {
    let (mut rest, mut size) = (all.into_iter().peekable(), 0);
    let kept = std::iter::from_fn(|| {
        let is_first = size == 0;
        size += serde_json::to_vec(rest.peek()?).map_or(0, |text| text.len() + 1);
        if is_first || size <= bytes { rest.next() } else { None }
    });
    let kept = kept.collect();
    (kept, rest.count())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;
    use crate::os::places::Places;

    #[tokio::test(start_paused = true)]
    async fn an_answer_waits_for_room_but_not_a_small_one_nor_that_of_another_client() {
        let places = Places::new(UNREAD);
        let mut first = places.none_yet("a");
        assert_eq!(print(&mut first, || vec![0; 2 * UNREAD]).await.map(|made| made.len()), Some(2 * UNREAD));
        assert_eq!(first.count(), UNREAD);
        let mut small = places.none_yet("a");
        assert!(print(&mut small, || vec![0; FREE]).await.is_some(), "it needs no room");
        let (mut second, mut other) = (places.none_yet("a"), places.none_yet("b"));
        let mut waiting = Box::pin(print(&mut second, || vec![0; PAGE]));
        assert!(timeout(Duration::from_secs(60), &mut waiting).await.is_err());
        assert!(print(&mut other, || vec![0; PAGE]).await.is_some(), "another one has room");
        first.give_back();
        assert_eq!(waiting.await.map(|made| made.len()), Some(PAGE));
    }

    #[tokio::test]
    async fn two_answers_are_made_at_a_time() {
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let make = || {
            let (now, most) = (now.clone(), most.clone());
            off_thread(move || {
                most.fetch_max(now.fetch_add(1, Relaxed) + 1, Relaxed);
                std::thread::yield_now();
                now.fetch_sub(1, Relaxed);
            })
        };
        futures_util::future::join_all((0..50).map(|_| make())).await;
        assert!(most.load(Relaxed) <= 2, "{most:?}");
    }

    #[test]
    fn a_page_ends_by_its_bytes_and_has_one_item_at_least() {
        assert_eq!(fitting::<_, Vec<_>>(["aa", "bb", "cc"], 10), (vec!["aa", "bb"], 1));
        assert_eq!(fitting::<_, Vec<_>>(["aa", "bb"], 1), (vec!["aa"], 1));
        assert_eq!(fitting::<&str, Vec<_>>([], 10), (vec![], 0));
    }
}
