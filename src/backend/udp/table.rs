//! The sessions of a UDP listener by source address, and which of them makes room for a new one.
//!
//! Anybody can write any source address on a datagram. So nothing is kept for a source before it has sent a valid
//! routing update, and new sources share a small number of places, each for a while. A flood of invented sources
//! costs little, and an honest source that gets a place has the time to prove itself. Time is an argument. It knows
//! no sockets.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::inbox::Inbox;

/// The most sessions of one listener.
pub(super) const MAX_SESSIONS: usize = 4_096;
/// The most sessions among them that are younger than [`PROOF`] or have been silent since.
pub(super) const MAX_NEW: usize = 256;
/// A source that still sends this long after its first datagram counts as real; one that does not may be displaced.
/// Until then other sources wait, which is harmless because a neighbour repeats its first message every second.
pub(super) const PROOF: Duration = Duration::from_secs(2);

/// The sessions of a listener.
#[derive(Debug, Default)]
pub(super) struct Table {
    entries: BTreeMap<SocketAddr, SessionEntry>,
    /// Sources that are not proven, oldest first.
    new: BTreeMap<u64, SocketAddr>,
    next_serial: u64,
}

#[derive(Debug)]
struct SessionEntry {
    serial: u64,
    inbox: Arc<Inbox>,
    since: Instant,
    proven: bool,
}

/// Why there is no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoPlace {
    /// Too many new sources; some of them soon make room.
    #[error("{MAX_NEW} new sources appeared within {} s, and no more are admitted at once", PROOF.as_secs())]
    ForNow,
    /// As many sources as there are places have proved real.
    #[error("the port has {MAX_SESSIONS} sessions: limit it to known neighbours")]
    Full,
}

/// A place in the table.
#[derive(Debug)]
pub(super) struct Place {
    /// Tells this session from earlier and later ones of the same source.
    pub(super) serial: u64,
    pub(super) inbox: Arc<Inbox>,
}

impl Table {
    /// Hands a datagram to the session of its source; false if there is none.
    pub(super) fn deliver(&mut self, source: SocketAddr, datagram: &[u8], now: Instant) -> bool {
        let Some(entry) = self.entries.get_mut(&source) else { return false };
        if !entry.proven && now.duration_since(entry.since) >= PROOF {
            entry.proven = true;
            self.new.remove(&entry.serial);
        }
        entry.inbox.push(datagram);
        true
    }

    /// Makes a place for a new source. If there is none, the oldest new session loses its place and its inbox is
    /// closed, provided that it had the time to prove itself and did not.
    pub(super) fn admit(&mut self, source: SocketAddr, now: Instant) -> Result<Place, NoPlace> {
        if self.new.len() >= MAX_NEW || self.entries.len() >= MAX_SESSIONS {
            self.displace_oldest_new(now)?;
        }
        let serial = self.next_serial;
        self.next_serial += 1;
        let inbox = Arc::<Inbox>::default();
        let entry = SessionEntry { serial, inbox: inbox.clone(), since: now, proven: false };
        if let Some(old) = self.entries.insert(source, entry) {
            old.inbox.close();
            self.new.remove(&old.serial);
        }
        self.new.insert(serial, source);
        Ok(Place { serial, inbox })
    }

    fn displace_oldest_new(&mut self, now: Instant) -> Result<(), NoPlace> {
        let oldest = self.new.first_entry().ok_or(NoPlace::Full)?;
        let had_time = |entry: &SessionEntry| now.duration_since(entry.since) >= PROOF;
        if !self.entries.get(oldest.get()).is_none_or(had_time) {
            return Err(NoPlace::ForNow);
        }
        if let Some(entry) = self.entries.remove(&oldest.remove()) {
            entry.inbox.close();
        }
        Ok(())
    }

    /// Gives a place back, unless another session has it by now.
    pub(super) fn release(&mut self, source: SocketAddr, serial: u64) {
        if self.entries.get(&source).is_some_and(|entry| entry.serial == serial) {
            self.entries.remove(&source);
            self.new.remove(&serial);
        }
    }

    /// The number of sessions with a place.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(number: usize) -> SocketAddr {
        SocketAddr::from(([10, (number >> 16) as u8, (number >> 8) as u8, number as u8], 27_199))
    }

    #[test]
    fn a_flood_of_invented_sources_costs_few_places_and_no_neighbour_its_own() {
        let (mut table, start) = (Table::default(), Instant::now());
        let _real = table.admit(source(0), start).unwrap();
        assert!(table.deliver(source(0), b"x", start + PROOF));
        let mut admitted = 0;
        for number in 1..100_000_u32 {
            // Ten thousand sources a second.
            let now = start + PROOF + Duration::from_micros(100) * number;
            admitted += usize::from(table.admit(source(number as usize), now).is_ok());
            assert!(table.len() <= MAX_NEW + 1);
        }
        // Ten seconds are five times `PROOF`, and all new places are given out once in each.
        assert_eq!(admitted, MAX_NEW * 5);
        assert!(table.deliver(source(0), b"y", start + 20 * PROOF), "the real neighbour lost its place");
        assert!(!table.deliver(source(1), b"y", start + 20 * PROOF));
    }

    #[test]
    fn a_source_with_a_place_keeps_it_until_it_can_prove_itself() {
        let (mut table, start) = (Table::default(), Instant::now());
        for number in 0..MAX_NEW {
            table.admit(source(number), start).unwrap();
        }
        let soon = start + PROOF - Duration::from_millis(1);
        assert_eq!(table.admit(source(MAX_NEW), soon).unwrap_err(), NoPlace::ForNow);
        assert!(table.deliver(source(0), b"x", start + PROOF));
        table.admit(source(MAX_NEW), start + PROOF).unwrap();
        table.admit(source(MAX_NEW + 1), start + PROOF).unwrap();
        assert!(table.deliver(source(0), b"y", start + PROOF), "proven just in time");
        assert!(!table.deliver(source(1), b"y", start + PROOF), "it had its time");
    }

    #[tokio::test]
    async fn the_displaced_session_is_told() {
        let (mut table, now) = (Table::default(), Instant::now());
        let oldest = table.admit(source(0), now).unwrap();
        for number in 1..=MAX_NEW {
            table.admit(source(number), now + PROOF).unwrap();
        }
        assert!(oldest.inbox.take(&mut Vec::new()).await.is_err());
    }

    #[test]
    fn proven_sources_keep_their_places_and_the_table_has_an_end() {
        let (mut table, start) = (Table::default(), Instant::now());
        for number in 0..MAX_SESSIONS {
            table.admit(source(number), start).unwrap();
            assert!(table.deliver(source(number), b"x", start + PROOF));
        }
        assert_eq!(table.admit(source(MAX_SESSIONS), start + PROOF).unwrap_err(), NoPlace::Full);
        assert_eq!(table.len(), MAX_SESSIONS);
    }

    #[test]
    fn a_place_is_released_by_its_own_session_only() {
        let (mut table, now) = (Table::default(), Instant::now());
        let first = table.admit(source(1), now).unwrap();
        table.release(source(1), first.serial);
        assert_eq!((table.len(), table.new.len()), (0, 0));
        let second = table.admit(source(1), now).unwrap();
        table.release(source(1), first.serial);
        assert_eq!(table.len(), 1);
        table.release(source(1), second.serial);
        assert_eq!((table.len(), table.new.len()), (0, 0));
    }
}
