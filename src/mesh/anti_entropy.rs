//! Neighbours that know different things, and how they notice: a digest of all that a node knows of the
//! nodes it can reach travels with every probe.
//!
//! A flood is sent once, and a link may lose it. Where two neighbours' digests differ and neither changes
//! any more, each tells the other what it knows in the parts that differ, ever more rarely while that does
//! not help. This is what makes rounds of updates unnecessary between nodes of our kind.

use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;

use super::core::{Class, Mesh};
use super::{Now, SessionId, Tick};
use crate::wire::{NameHash, NodeId, ServiceName};

/// Parts of a digest.
const PARTS: usize = 16;
/// Bytes of a digest.
pub(super) const DIGEST_LEN: usize = PARTS * 4;
/// Digests are compared that far apart, so that floods on their way are not taken for losses.
const APART: Duration = Duration::from_millis(300);
/// Between the first two repairs of a session; twice that between the next ones, and so on.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(128);

/// What a node knows, in parts by node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Digest([u32; PARTS]);

impl Digest {
    /// Takes a fact in, or, if it is in, out again.
    fn toggle(&mut self, node: NameHash, facts: [u64; 2]) {
        // Mixed as splitmix64 does, so that the order of additions does not matter and none cancels another.
        let mix = |x: u64| {
            let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            x ^ (x >> 31)
        };
        let sum = facts.into_iter().fold(mix(node.0), |sum, fact| mix(sum.wrapping_add(mix(fact))));
        self.0[part(node)] ^= (sum >> 16) as u32;
    }

    pub(super) fn to_bytes(self) -> [u8; DIGEST_LEN] {
        let mut bytes = [0; DIGEST_LEN];
        for (chunk, sum) in bytes.chunks_exact_mut(4).zip(self.0) {
            chunk.copy_from_slice(&sum.to_be_bytes());
        }
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8; DIGEST_LEN]) -> Self {
        let mut sums = [0; PARTS];
        for (sum, chunk) in sums.iter_mut().zip(bytes.chunks_exact(4)) {
            *sum = chunk.iter().fold(0, |sum, &byte| sum << 8 | u32::from(byte));
        }
        Self(sums)
    }
}

/// A service and its date, as facts.
fn dated(service: ServiceName, time: Timestamp) -> [u64; 2] {
    [u64::from_be_bytes(service.to_wire()), time.as_nanosecond() as u64]
}

fn part(node: NameHash) -> usize {
    (node.0 % PARTS as u64) as usize
}

/// A session's memory of the last comparison.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    last: Option<(Digest, Digest, Tick)>,
    pause: Duration,
    not_before: Tick,
}

impl Comparison {
    /// Takes both digests; says which parts are to be told, if any.
    fn take(&mut self, ours: &Digest, theirs: &Digest, now: Tick) -> Vec<usize> {
        if ours == theirs {
            *self = Self::default();
            return Vec::new();
        }
        let Some((our_last, their_last, when)) = self.last else {
            self.last = Some((*ours, *theirs, now));
            return Vec::new();
        };
        if now.since(when) < APART {
            return Vec::new();
        }
        self.last = Some((*ours, *theirs, now));
        let stuck = |&part: &usize| {
            let (a, b) = (ours.0[part], theirs.0[part]);
            a != b && a == our_last.0[part] && b == their_last.0[part]
        };
        let stuck: Vec<usize> = (0..PARTS).filter(stuck).collect();
        if stuck.is_empty() || now < self.not_before {
            return Vec::new();
        }
        self.pause = (self.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        self.not_before = now + self.pause;
        stuck
    }
}

impl Mesh {
    /// The digest of what is known at the moment of this node and of those that it can reach.
    pub(super) fn digest(&mut self) -> Digest {
        if let Some(digest) = self.digest {
            return digest;
        }
        let mut digest = Digest::default();
        digest.toggle(self.own, [self.epoch, self.told_sequence]);
        for (service, time) in self.adverts.own_dates() {
            digest.toggle(self.own, dated(service, time));
        }
        self.links.versions().for_each(|(hash, version)| digest.toggle(hash, version));
        let paths = self.links.paths();
        for ((node, service), time) in
            self.adverts.dates().filter(|((node, _), _)| paths.reaches(node.as_str()))
        {
            digest.toggle(node.hash(), dated(*service, time));
        }
        self.digest = Some(digest);
        digest
    }

    /// Another version of what a node says is known: the digest follows, if there is one.
    pub(super) fn on_version(&mut self, node: &NodeId, before: Option<[u64; 2]>, now: [u64; 2]) {
        let Some(digest) = &mut self.digest else { return };
        if self.links.paths().reaches(node.as_str()) {
            let hash = node.hash();
            before.into_iter().chain([now]).for_each(|version| digest.toggle(hash, version));
        }
    }

    /// The same for a service: `None` stands for one that is not on offer.
    pub(super) fn on_date(
        &mut self,
        node: &NodeId,
        service: ServiceName,
        before: Option<Timestamp>,
        now: Option<Timestamp>,
    ) {
        let Some(digest) = &mut self.digest else { return };
        if self.links.paths().reaches(node.as_str()) {
            let hash = node.hash();
            before.into_iter().chain(now).for_each(|time| digest.toggle(hash, dated(service, time)));
        }
    }

    /// The own update was told anew.
    pub(super) fn on_own_sequence(&mut self, before: u64) {
        if let Some(digest) = &mut self.digest {
            digest.toggle(self.own, [self.epoch, before]);
            digest.toggle(self.own, [self.epoch, self.told_sequence]);
        }
    }

    /// Compares digests with a neighbour, and tells it what it seems to lack.
    pub(super) fn compare(&mut self, session: SessionId, ours: &Digest, theirs: &Digest, now: Now) {
        let Some(e) = self.established_mut(session) else { return };
        let peer = e.peer.clone();
        let parts = e.comparison.take(ours, theirs, now.tick);
        if parts.is_empty() {
            return;
        }
        self.counters.repairs += 1;
        for message in self.known_in(&parts, &peer, now) {
            self.transmit(session, message, Class::Control);
        }
    }

    /// All that is known of the nodes in these parts, `peer` aside: of itself it is told the services alone. After
    /// its clock was set back nobody believes it until it has heard which dates it has given in the past. One of our
    /// kind then corrects them, while a receptor node would believe them.
    fn known_in(&mut self, parts: &[usize], peer: &NodeId, now: Now) -> Vec<Bytes> {
        let mut messages = Vec::new();
        if parts.contains(&part(self.own)) {
            messages.push(self.told_message.clone());
            messages.extend(self.standing_services(now));
        }
        let wanted =
            |node: &NodeId| parts.contains(&part(node.hash())) && self.links.paths().reaches(node.as_str());
        messages.extend(self.links.messages(|node| node != peer && wanted(node)));
        messages.extend(self.adverts.messages(wanted));
        messages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(facts: &[(u64, u64)]) -> Digest {
        let mut digest = Digest::default();
        facts.iter().for_each(|&(node, fact)| digest.toggle(NameHash(node), [fact, 0]));
        digest
    }

    fn at(millis: u64) -> Tick {
        Tick::at(Duration::from_millis(millis))
    }

    #[test]
    fn a_digest_travels_and_does_not_depend_on_order() {
        let one = digest(&[(1, 5), (17, 6), (30, 7)]);
        assert_eq!(one, digest(&[(30, 7), (17, 6), (1, 5)]));
        assert_eq!(Digest::from_bytes(&one.to_bytes()), one);
        assert_ne!(one, digest(&[(1, 6), (17, 5), (30, 7)]));
    }

    #[test]
    fn only_what_stays_different_is_told_and_ever_more_rarely() {
        let mut memory = Comparison::default();
        let (ours, theirs) = (digest(&[(1, 5), (2, 9)]), digest(&[(1, 6), (2, 9)]));
        assert_eq!(memory.take(&digest(&[(1, 4)]), &theirs, at(0)), [] as [usize; 0]);
        assert_eq!(memory.take(&ours, &theirs, at(1_000)), [] as [usize; 0], "still moving");
        let told: Vec<u64> =
            (2..200).filter(|&s| memory.take(&ours, &theirs, at(s * 1_000)) == [1]).collect();
        assert_eq!(told, [2, 3, 5, 9, 17, 33, 65, 129]);
        assert_eq!(memory.take(&ours, &ours, at(201_000)), [] as [usize; 0]);
        assert_eq!(memory.take(&ours, &theirs, at(202_000)), [] as [usize; 0]);
        assert_eq!(memory.take(&ours, &theirs, at(203_000)), [1], "a new difference is told at once");
    }
}
