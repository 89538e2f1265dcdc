//! The IDs of units that this node has promised not to run, so that the caller who got the promise may run the job
//! elsewhere. Notes which of these units had run here, because nobody may conclude that they never ran. Owns how long a
//! promise lasts, how many a caller may have, and the file that keeps them across restarts. A promise ages only while a
//! daemon runs, by its monotonic clock: a clock that jumps does not end it early, and it lasts longer if the node is
//! down. Knows nothing of units.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::quota::Account;
use crate::os::replace::replace;
use crate::work::store::UnitStore;
use crate::work::unit::UnitId;
use crate::work::{OpenError, Submitter, WorkError};

/// How long a promise lasts, and how long one to a caller without a certificate lasts. Such callers share an account.
/// When it is full, its oldest promise makes room for a new one, so that nobody can keep all others from getting one.
const LASTS: Duration = Duration::from_secs(48 * 3600);
const LASTS_UNCERTIFIED: Duration = Duration::from_secs(3600);
/// A promise is made anew only once more than one part in so many of its time is over.
const FRESH: u32 = 48;
/// Promises that one caller may have.
const MOST_PROMISES: usize = 1024;
/// A line each: ID, caller, how many seconds it has left, and [`RAN`] if a unit of that ID was here.
const FILE: &str = ".disclaimed";
const RAN: &str = "ran";

#[derive(Debug)]
pub(crate) struct Disclaimed {
    store: UnitStore,
    /// A plain lock, held for single operations.
    promises: Mutex<BTreeMap<UnitId, Promise>>,
    /// Held while the file is written, so that an earlier version never replaces a later one.
    writing: tokio::sync::Mutex<()>,
}

#[derive(Debug, Clone, Copy)]
struct Promise {
    to: Submitter,
    until: Instant,
    has_run: bool,
}

impl Disclaimed {
    /// Loads the promises that earlier daemons made.
    pub(crate) fn load(store: &UnitStore) -> Result<Self, OpenError> {
        let path = store.root().join(FILE);
        let now = Instant::now();
        let read = || match fs::read_to_string(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(BTreeMap::new()),
            text => text?.lines().map(|line| parse(line, now).ok_or_else(|| unreadable(line))).collect(),
        };
        let promises =
            read().map_err(|source: io::Error| OpenError::Io { what: "read", path: path.clone(), source })?;
        Ok(Self { store: store.clone(), promises: promises.into(), writing: tokio::sync::Mutex::default() })
    }

    /// Whether a unit of that ID is refused.
    pub(crate) fn has(&self, id: &UnitId) -> bool {
        self.promises.lock().get(id).is_some_and(|promise| promise.until > Instant::now())
    }

    /// How long ago the promise was made, if it still holds and the unit had run here.
    pub(crate) fn has_run(&self, id: &UnitId) -> Option<Duration> {
        let promises = self.promises.lock();
        let made = promises.get(id).filter(|promise| promise.has_run)?;
        let left = made.until.checked_duration_since(Instant::now());
        left.map(|left| lasts(made.to).saturating_sub(left))
    }

    /// Promises that no unit of that ID will run here. The promise is durable when this returns.
    ///
    /// # Errors
    /// The caller has as many promises as it may have, or the promise cannot be written.
    pub(crate) async fn promise(&self, id: UnitId, to: Submitter, has_run: bool) -> Result<(), WorkError> {
        let _turn = self.writing.lock().await;
        let (now, lasts) = (Instant::now(), lasts(to));
        let until = now + lasts;
        let (former, displaced) = {
            let mut displaced = None;
            let mut promises = self.promises.lock();
            promises.retain(|_, promise| promise.until > now);
            let has_run = has_run || promises.get(&id).is_some_and(|made| made.has_run);
            match promises.get(&id) {
                Some(made) if made.until > until - lasts / FRESH && made.has_run == has_run => return Ok(()),
                Some(_) => {}
                None => {
                    let account = Account::of(to);
                    let theirs = promises.iter().filter(|(_, made)| Account::of(made.to) == account);
                    if theirs.clone().count() >= MOST_PROMISES {
                        if account != Some(Account::Uncertified) {
                            return Err(WorkError::NoPromise { unit: id.to_string(), most: MOST_PROMISES });
                        }
                        let oldest = theirs.min_by_key(|(_, made)| made.until).map(|(id, _)| id.clone());
                        displaced = oldest.and_then(|id| promises.remove_entry(&id));
                    }
                }
            }
            (promises.insert(id.clone(), Promise { to, until, has_run }), displaced)
        };
        self.write().await.inspect_err(|_| {
            // The earlier promises still hold.
            let mut promises = self.promises.lock();
            match former {
                Some(former) => drop(promises.insert(id, former)),
                None => drop(promises.remove(&id)),
            }
            promises.extend(displaced);
        })
    }

    /// Writes down how long each promise still lasts.
    pub(crate) async fn save(&self) -> Result<(), WorkError> {
        let _turn = self.writing.lock().await;
        if self.promises.lock().is_empty() { Ok(()) } else { self.write().await }
    }

    async fn write(&self) -> Result<(), WorkError> {
        let (path, now) = (self.path(), Instant::now());
        let line = |(id, promise): (&UnitId, &Promise)| {
            // A second too many does no harm.
            let left = promise.until.duration_since(now).as_secs() + 1;
            let ran = if promise.has_run { format!(" {RAN}") } else { String::new() };
            format!("{id} {} {left}{ran}\n", promise.to)
        };
        let text: String = self.promises.lock().iter().map(line).collect();
        let written = self.store.blocking(move || replace(&path, text.as_bytes(), 0o600)).await;
        written.map_err(|error| WorkError::io("write", self.path(), error))
    }

    fn path(&self) -> PathBuf {
        self.store.root().join(FILE)
    }
}

fn lasts(to: Submitter) -> Duration {
    match Account::of(to) {
        Some(Account::Uncertified) => LASTS_UNCERTIFIED,
        Some(Account::Node(_)) | None => LASTS,
    }
}

fn unreadable(line: &str) -> io::Error {
    let why = "is not an ID, a caller, and seconds, perhaps with `ran`: remove the line, once no control node may still send that unit here";
    io::Error::new(ErrorKind::InvalidData, format!("the line {line:?} {why}"))
}

fn parse(line: &str, now: Instant) -> Option<(UnitId, Promise)> {
    let mut words = line.split(' ');
    let (id, to, left) = (words.next()?, words.next()?, words.next()?);
    let (to, left) = (to.parse().ok()?, Duration::from_secs(left.parse().ok()?));
    let has_run = match words.next() {
        None => false,
        Some(RAN) => true,
        Some(_) => return None,
    };
    Some((id.parse().ok()?, Promise { to, until: now + left.min(lasts(to)), has_run }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{NameHash, NodeId};

    fn id(text: &str) -> UnitId {
        UnitId::chosen(text).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_promise_lasts_for_48_hours_that_daemons_have_run() {
        let temp = tempfile::tempdir().unwrap();
        let store = || UnitStore::open(temp.path(), &NodeId::new("n").unwrap()).unwrap();
        let first = Disclaimed::load(&store()).unwrap();
        first.promise(id("a"), Submitter::Operator, true).await.unwrap();
        tokio::time::advance(LASTS / 2).await;
        // A promise to a second caller neither renews nor shortens the first.
        let other = Submitter::Node { node: NameHash(1), certified: true };
        first.promise(id("b"), other, false).await.unwrap();
        drop(first);
        let killed = Disclaimed::load(&store()).unwrap();
        assert!(killed.has(&id("a")) && killed.has(&id("b")) && !killed.has(&id("c")));
        // `has_run` stays if a caller that does not know it asks again.
        killed.promise(id("b"), other, true).await.unwrap();
        killed.promise(id("b"), other, false).await.unwrap();
        let half = LASTS / 2 - Duration::from_secs(1);
        assert!(killed.has_run(&id("a")) >= Some(half) && killed.has_run(&id("b")).is_some());
        tokio::time::advance(LASTS / 4).await;
        killed.save().await.unwrap();
        drop(killed);
        let last = Disclaimed::load(&store()).unwrap();
        let fresh = LASTS / FRESH;
        tokio::time::advance(LASTS / 4 - fresh).await;
        assert!(last.has(&id("a")));
        tokio::time::advance(fresh * 2).await;
        assert!(!last.has(&id("a")) && last.has(&id("b")));
        last.promise(id("c"), Submitter::Operator, false).await.unwrap();
        assert_eq!(last.promises.lock().len(), 2, "what is over goes");
    }

    #[tokio::test]
    async fn a_caller_has_a_bounded_number_of_promises_and_takes_them_from_nobody_else() {
        let temp = tempfile::tempdir().unwrap();
        let promises =
            Disclaimed::load(&UnitStore::open(temp.path(), &NodeId::new("n").unwrap()).unwrap()).unwrap();
        let node = |certified| Submitter::Node { node: NameHash(1), certified };
        let until = Instant::now() + LASTS;
        let many = (0..MOST_PROMISES)
            .map(|n| (id(&format!("x{n}")), Promise { to: node(true), until, has_run: false }));
        promises.promises.lock().extend(many);
        let refused = promises.promise(id("one"), node(true), false).await.unwrap_err();
        assert!(refused.to_string().starts_with("unknown work unit one: no promise"), "{refused}");
        assert!(!promises.has(&id("one")));
        promises.promise(id("x0"), node(true), false).await.unwrap();
        promises.promise(id("one"), node(false), false).await.unwrap();
        assert!(promises.has(&id("one")));
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_no_certificate_keeps_the_places_of_others_neither_long_nor_all_of_them() {
        let temp = tempfile::tempdir().unwrap();
        let store = || UnitStore::open(temp.path(), &NodeId::new("n").unwrap()).unwrap();
        let promises = Disclaimed::load(&store()).unwrap();
        let second = Duration::from_secs(1);
        let made = |n: usize| Promise {
            to: Submitter::Stranger,
            until: Instant::now() + LASTS_UNCERTIFIED - second * (MOST_PROMISES - n) as u32 / 1000,
            has_run: n == 1,
        };
        promises.promises.lock().extend((0..MOST_PROMISES).map(|n| (id(&format!("x{n}")), made(n))));
        promises.promises.lock().insert(id("theirs"), Promise { to: Submitter::Operator, ..made(0) });
        let other = Submitter::Node { node: NameHash(1), certified: false };
        promises.promise(id("one"), other, false).await.unwrap();
        assert!(promises.has(&id("one")) && promises.has(&id("theirs")) && !promises.has(&id("x0")));
        assert!(promises.has(&id("x1")) && promises.promises.lock().len() == MOST_PROMISES + 1);
        assert_eq!(promises.has_run(&id("x1")), Some(second * 1023 / 1000), "it was made so long ago");
        // If the write fails, the displaced promise comes back.
        fs::remove_dir_all(store().root()).unwrap();
        promises.promise(id("two"), other, false).await.unwrap_err();
        assert!(promises.has(&id("x1")) && !promises.has(&id("two")));
        tokio::time::advance(LASTS_UNCERTIFIED - second / 1000).await;
        assert!(promises.has(&id("one")) && !promises.has(&id("x1")));
        tokio::time::advance(second / 1000).await;
        assert!(!promises.has(&id("one")));
        // Longer promises to such callers, made by an earlier version, end after the hour too.
        fs::write(store().root().join(FILE), "a stranger 172800\nb operator 172800\n").unwrap();
        let before = Disclaimed::load(&store()).unwrap();
        tokio::time::advance(LASTS_UNCERTIFIED + second).await;
        assert!(!before.has(&id("a")) && before.has(&id("b")));
    }

    #[test]
    fn what_cannot_be_read_is_no_reason_to_forget_a_promise() {
        let temp = tempfile::tempdir().unwrap();
        let store = UnitStore::open(temp.path(), &NodeId::new("n").unwrap()).unwrap();
        for text in ["a operator", "a nobody 5", "a operator x", ".. operator 5", "a operator 5 x"] {
            fs::write(store.root().join(FILE), text).unwrap();
            Disclaimed::load(&store).unwrap_err();
        }
    }
}
