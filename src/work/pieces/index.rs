//! Which pieces are there, of whom, and when each was last used; pure. Owns the bounds: no caller can fill the store or
//! push out the pieces of another one. It touches no file.

use std::collections::BTreeMap;

use super::PieceId;
use crate::work::Submitter;

/// The most pieces of all callers, so that this index stays within some 10 MiB.
pub(super) const MOST_PIECES: usize = 128 * 1024;
/// The most callers with pieces.
const MOST_CALLERS: usize = 4096;
/// Milliseconds after its last use at which a piece is removed, and between two looks for such pieces.
const KEPT: u64 = 30 * DAY;
const DAY: u64 = 24 * 3600 * 1000;
/// A file takes whole blocks of the disk, and so it is counted.
const BLOCK: u64 = 4096;
/// One part in this many of a caller's share is freed at a time, so that the oldest pieces are not looked for at each
/// new one.
const FREED: u64 = 64;

/// A piece that is not in the index any more, and whose file is to be removed.
pub(super) type Gone = (Submitter, [u8; 32]);

/// The disk space that a file of this length takes.
pub(super) fn on_disk(bytes: u64) -> u64 {
    bytes.next_multiple_of(BLOCK)
}

/// What a caller has in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CallerPieces {
    pub(crate) caller: Submitter,
    pub(crate) pieces: usize,
    /// Bytes of the disk.
    pub(crate) bytes: u64,
}

/// Times are milliseconds since 1970.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// The most bytes of all callers; 0 for no pieces at all.
    most: u64,
    callers: BTreeMap<Submitter, Owned>,
    pieces: usize,
    bytes: u64,
    /// The time of the last use of any piece. No two uses by this process have the same one.
    clock: u64,
    /// When pieces were last looked for that nobody uses any more.
    expired: u64,
}

/// The pieces of one caller.
#[derive(Debug, Default)]
struct Owned {
    pieces: BTreeMap<[u8; 32], KnownPiece>,
    bytes: u64,
}

#[derive(Debug, Clone, Copy)]
struct KnownPiece {
    length: u32,
    used: u64,
}

/// Orders pieces by their last use. The beginning of the hash parts those that have the same time, as files that were
/// written in a row do.
type Age = (u64, [u8; 8]);

impl KnownPiece {
    fn bytes(self) -> u64 {
        on_disk(self.length.into())
    }

    fn age(self, hash: &[u8; 32]) -> Age {
        (self.used, hash.first_chunk().copied().unwrap_or_default())
    }
}

impl Index {
    pub(super) fn new(most: u64) -> Self {
        Self { most, ..Self::default() }
    }

    pub(super) fn most(&self) -> u64 {
        self.most
    }

    /// How many pieces there are, and how many bytes they have.
    pub(super) fn total(&self) -> (usize, u64) {
        (self.pieces, self.bytes)
    }

    pub(super) fn knows(&self, caller: Submitter) -> bool {
        self.callers.contains_key(&caller)
    }

    /// Whether a caller has this piece, which counts as a use.
    pub(super) fn use_piece(&mut self, caller: Submitter, id: PieceId, now: u64) -> bool {
        let owned = self.callers.get_mut(&caller);
        let known = owned.and_then(|owned| owned.pieces.get_mut(&id.hash));
        let Some(known) = known.filter(|known| known.length == id.length) else { return false };
        self.clock = now.max(self.clock + 1);
        known.used = self.clock;
        true
    }

    /// The pieces and bytes that a caller may have: half of what the others leave, so that all of them never have more
    /// than there may be.
    fn share(&self, caller: Submitter) -> (usize, u64) {
        let (pieces, bytes) =
            self.callers.get(&caller).map_or((0, 0), |owned| (owned.pieces.len(), owned.bytes));
        let left = self.most.saturating_sub(self.bytes - bytes);
        (MOST_PIECES.saturating_sub(self.pieces - pieces) / 2, left / 2)
    }

    /// The bytes that a caller may have and keep while it adds others.
    pub(super) fn room(&self, caller: Submitter) -> u64 {
        let (_, bytes) = self.share(caller);
        bytes - bytes / FREED
    }

    /// Whether a caller may have this piece if its other ones make room.
    pub(super) fn has_room(&self, caller: Submitter, id: PieceId) -> bool {
        let (pieces, _) = self.share(caller);
        let is_listed = self.knows(caller) || self.callers.len() < MOST_CALLERS;
        let piece = KnownPiece { length: id.length, used: 0 };
        is_listed && pieces > 0 && piece.bytes() <= self.room(caller)
    }

    /// Adds a piece that was used at this time. Returns the pieces of the same caller that make room for it.
    pub(super) fn add(&mut self, caller: Submitter, id: PieceId, now: u64) -> Vec<Gone> {
        self.clock = now.max(self.clock + 1);
        self.restore(caller, id, self.clock);
        let (pieces, bytes) = self.share(caller);
        let owned = &self.callers[&caller];
        let over = |has: u64, may: u64| if has > may { has - may + may / FREED } else { 0 };
        match (over(owned.pieces.len() as u64, pieces as u64), over(owned.bytes, bytes)) {
            (0, 0) => Vec::new(),
            (pieces, bytes) => self.free(Some(caller), pieces, bytes),
        }
    }

    /// Adds a piece that was found on disk, without regard to anybody's share.
    pub(super) fn restore(&mut self, caller: Submitter, id: PieceId, used: u64) {
        self.forget(caller, id.hash);
        let known = KnownPiece { length: id.length, used };
        let owned = self.callers.entry(caller).or_default();
        owned.pieces.insert(id.hash, known);
        owned.bytes += known.bytes();
        self.pieces += 1;
        self.bytes += known.bytes();
    }

    /// Removes a piece whose file is gone or changed.
    pub(super) fn forget(&mut self, caller: Submitter, hash: [u8; 32]) {
        let owned = self.callers.get_mut(&caller);
        if let Some(known) = owned.and_then(|owned| owned.pieces.remove(&hash)) {
            self.count_off(caller, &[known]);
        }
    }

    /// Once a day, removes the pieces that nobody uses any more.
    pub(super) fn expire(&mut self, now: u64) -> Vec<Gone> {
        if now.saturating_sub(self.expired) < DAY {
            return Vec::new();
        }
        self.expired = now;
        self.remove_until(None, (now.saturating_sub(KEPT), [u8::MAX; 8]))
    }

    /// Sets how many bytes all callers may have.
    pub(super) fn set_most(&mut self, most: u64) -> Vec<Gone> {
        self.most = most;
        self.shrink(most)
    }

    /// Removes the pieces that were not used for longest, whose ever they are, until at most this many bytes are left.
    pub(super) fn shrink(&mut self, bytes: u64) -> Vec<Gone> {
        if self.bytes <= bytes { Vec::new() } else { self.free(None, 0, self.bytes - bytes) }
    }

    /// What each caller has, in the order of callers.
    pub(super) fn figures(&self) -> Vec<CallerPieces> {
        let figures = |(caller, owned): (&Submitter, &Owned)| CallerPieces {
            caller: *caller,
            pieces: owned.pieces.len(),
            bytes: owned.bytes,
        };
        self.callers.iter().map(figures).collect()
    }

    /// Removes the least recently used pieces, of one caller or of all, until so many pieces and bytes are gone.
    fn free(&mut self, of: Option<Submitter>, pieces: u64, bytes: u64) -> Vec<Gone> {
        let owned = self.callers.iter().filter(|(caller, _)| of.is_none_or(|of| of == **caller));
        let known = owned.flat_map(|(_, owned)| &owned.pieces);
        let mut all: Vec<(Age, u64)> = known.map(|(hash, known)| (known.age(hash), known.bytes())).collect();
        all.sort_unstable_by_key(|(age, _)| *age);
        let mut freed = (0, 0);
        let last = all.iter().find(|(_, length)| {
            freed = (freed.0 + 1, freed.1 + length);
            freed.0 >= pieces && freed.1 >= bytes
        });
        match last.or(all.last()).map(|(age, _)| *age) {
            Some(age) => self.remove_until(of, age),
            None => Vec::new(),
        }
    }

    /// Removes the pieces, of one caller or of all, that are of this age or older.
    fn remove_until(&mut self, of: Option<Submitter>, age: Age) -> Vec<Gone> {
        let mut gone = Vec::new();
        let callers: Vec<_> = of.map_or_else(|| self.callers.keys().copied().collect(), |of| vec![of]);
        for caller in callers {
            let Some(owned) = self.callers.get_mut(&caller) else { continue };
            let old = owned.pieces.extract_if(.., |hash, known| known.age(hash) <= age);
            let (hashes, known): (Vec<_>, Vec<_>) = old.unzip();
            gone.extend(hashes.into_iter().map(|hash| (caller, hash)));
            self.count_off(caller, &known);
        }
        gone
    }

    fn count_off(&mut self, caller: Submitter, gone: &[KnownPiece]) {
        let bytes: u64 = gone.iter().map(|known| known.bytes()).sum();
        self.pieces -= gone.len();
        self.bytes -= bytes;
        if let Some(owned) = self.callers.get_mut(&caller) {
            owned.bytes -= bytes;
            if owned.pieces.is_empty() {
                self.callers.remove(&caller);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::NameHash;

    const MIB: u64 = 1 << 20;

    fn caller(number: u64) -> Submitter {
        Submitter::Node { node: NameHash(number), certified: true }
    }

    fn piece(number: u64, length: u32) -> PieceId {
        let mut hash = [0; 32];
        hash[..8].copy_from_slice(&number.to_be_bytes());
        PieceId { hash, length }
    }

    fn numbers(gone: &[Gone]) -> Vec<u64> {
        gone.iter().map(|(_, hash)| u64::from_be_bytes(hash[..8].try_into().unwrap())).collect()
    }

    fn bytes(index: &Index, of: u64) -> u64 {
        index.figures().iter().find(|one| one.caller == caller(of)).map_or(0, |one| one.bytes)
    }

    /// Adds pieces of 64 KiB, and returns which of the caller's pieces went.
    fn fill(index: &mut Index, of: u64, numbers: std::ops::Range<u64>) -> Vec<Gone> {
        let mut gone = Vec::new();
        for number in numbers {
            assert!(index.has_room(caller(of), piece(number, 65536)));
            gone.extend(index.add(caller(of), piece(number, 65536), 1));
        }
        gone
    }

    #[test]
    fn a_caller_has_half_of_what_the_others_leave_and_its_own_oldest_pieces_make_room() {
        let mut index = Index::new(64 * MIB);
        assert!(fill(&mut index, 1, 0..512).is_empty());
        assert_eq!(bytes(&index, 1), 32 * MIB);
        assert!(index.use_piece(caller(1), piece(0, 65536), 1));
        let gone = fill(&mut index, 1, 512..513);
        assert_eq!(
            numbers(&gone),
            (1..=9).collect::<Vec<_>>(),
            "the new one and a 64th of 512, from the oldest on"
        );
        assert!(index.use_piece(caller(1), piece(0, 65536), 1), "it was used");
        // The next caller has half of the rest, and pushes out nobody's pieces but its own.
        let before = bytes(&index, 1);
        assert!(fill(&mut index, 2, 0..600).iter().all(|(of, _)| *of == caller(2)));
        assert_eq!(bytes(&index, 1), before);
        assert!(bytes(&index, 2) <= (64 * MIB - before) / 2 && bytes(&index, 2) > 15 * MIB);
        // The first one's share is smaller now.
        fill(&mut index, 1, 513..514);
        assert!(bytes(&index, 1) <= (64 * MIB - bytes(&index, 2)) / 2);
    }

    #[test]
    fn two_thousand_callers_never_have_more_than_there_may_be() {
        let mut index = Index::new(64 * MIB);
        for round in 0..3 {
            for of in 0..2000 {
                for number in 0..20 {
                    if index.has_room(caller(of), piece(number, 65536)) {
                        index.add(caller(of), piece(number, 65536), round);
                    }
                    assert!(index.total().1 <= 64 * MIB);
                }
            }
        }
        let all: u64 = index.figures().iter().map(|one| one.bytes).sum();
        assert_eq!(index.total().1, all);
        assert!(all > 60 * MIB);
    }

    #[test]
    fn small_pieces_are_bounded_by_their_number_and_callers_too() {
        let mut index = Index::new(u64::MAX);
        for number in 0..MOST_PIECES as u64 {
            index.add(caller(1), piece(number, 1), 1);
        }
        assert!(index.total().0 <= MOST_PIECES / 2);
        for of in 2..MOST_CALLERS as u64 + 100 {
            if index.has_room(caller(of), piece(0, 1)) {
                index.add(caller(of), piece(0, 1), 1);
            }
        }
        assert_eq!(index.figures().len(), MOST_CALLERS);
        assert!(!index.has_room(caller(1 << 32), piece(0, 1)) && index.has_room(caller(1), piece(0, 1)));
    }

    #[test]
    fn what_is_not_used_for_a_month_goes_and_a_piece_counts_once() {
        let mut index = Index::new(64 * MIB);
        for (number, then) in [(1, 0), (2, 0), (3, DAY)] {
            index.add(caller(1), piece(number, 1), then);
        }
        assert!(index.use_piece(caller(1), piece(2, 1), 2 * DAY));
        index.add(caller(1), piece(2, 1), 2 * DAY);
        assert_eq!(index.total(), (3, 3 * BLOCK));
        assert_eq!(numbers(&index.expire(KEPT + DAY - 1)), [1]);
        assert_eq!(numbers(&index.expire(2 * KEPT)), [2, 3]);
        assert_eq!((index.total(), index.knows(caller(1))), ((0, 0), false));
        index.restore(caller(1), piece(1, 1), 0);
        assert!(index.expire(2 * KEPT + DAY - 1).is_empty(), "it was looked through on this day");
    }

    #[test]
    fn what_has_to_shrink_loses_the_oldest_pieces_of_all() {
        let mut index = Index::new(64 * MIB);
        fill(&mut index, 1, 0..4);
        fill(&mut index, 2, 0..4);
        assert!(index.use_piece(caller(1), piece(3, 65536), 1));
        assert!(index.shrink(8 * 65536).is_empty());
        let gone = index.shrink(5 * 65536);
        assert!(gone.iter().all(|(of, _)| *of == caller(1)));
        assert_eq!(numbers(&gone), [0, 1, 2]);
        assert_eq!(index.set_most(2 * 65536).len(), 3);
        assert_eq!((bytes(&index, 1), bytes(&index, 2)), (65536, 65536));
        assert_eq!(index.set_most(0).len(), 2);
        assert!(!index.has_room(caller(1), piece(9, 1)));
    }

    #[test]
    fn of_pieces_of_one_time_no_more_go_than_must() {
        let mut index = Index::new(64 * MIB);
        (0..20).for_each(|number| index.restore(caller(1), piece(number, 65536), 7));
        assert_eq!(index.set_most(8 * 65536).len(), 12);
        assert_eq!(bytes(&index, 1), 8 * 65536);
        assert_eq!(index.expire(KEPT + 7).len(), 8);
    }
}
