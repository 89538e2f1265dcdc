//! Repairs what floods have missed: every probe carries a digest of all that a node knows of the nodes it can reach.
//!
//! A flood is sent once, and a link may lose it. If two neighbours' digests differ and have both stopped changing, each
//! sends the other what it knows in the parts that differ, less and less often while this does not help. So meshd nodes
//! rarely need regular rounds of updates.

use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;

use super::{Mesh, Now, QueueClass, SessionId, Tick};
use crate::wire::{NameHash, NodeId, ServiceName};

/// Parts of a digest.
const PARTS: usize = 16;
/// Bytes of a digest.
pub(super) const DIGEST_LEN: usize = PARTS * 4;
/// The shortest time between two comparisons, so that floods on their way do not count as lost.
const APART: Duration = Duration::from_millis(300);
/// The pause between the first two repairs of a session; it doubles with each further repair.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(128);

/// Checksums of what a node knows; the hash of the node that a fact is about decides its part.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Digest([u32; PARTS]);

impl Digest {
    /// Adds a fact, or removes it if the digest contains it.
    pub(super) fn toggle(&mut self, node: NameHash, facts: [u64; 2]) {
        // Mixed as in splitmix64, so that different facts do not cancel each other in the XOR below.
        let mix = |x: u64| {
            let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            x ^ (x >> 31)
        };
        let sum = facts.into_iter().fold(mix(node.0), |sum, fact| mix(sum.wrapping_add(mix(fact))));
        self.0[part(node)] ^= (sum >> 16) as u32;
    }

    /// The digest of both sets of facts together.
    fn with(self, other: Self) -> Self {
        Self(std::array::from_fn(|part| self.0[part] ^ other.0[part]))
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
pub(super) fn dated(service: ServiceName, time: Timestamp) -> [u64; 2] {
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
    /// Takes both digests and returns the parts whose facts are to be sent, if any.
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
    /// The digest of what is known now of this node and of the nodes that it can reach.
    pub(super) fn digest(&self) -> Digest {
        let mut digest = self.lsdb.digest().with(self.services.digest());
        digest.toggle(self.hash, [self.epoch, self.own_update.sequence()]);
        digest
    }

    /// Compares digests with a neighbour, and sends it what it seems to lack.
    pub(super) fn compare(&mut self, session: SessionId, ours: &Digest, theirs: &Digest, now: Now) {
        let Some(established) = self.established_mut(session) else { return };
        let peer = established.peer.clone();
        let parts = established.comparison.take(ours, theirs, now.tick);
        if parts.is_empty() {
            return;
        }
        self.counters.repairs += 1;
        for message in self.known_in(&parts, &peer, now) {
            self.outbox.send(session, message, QueueClass::Control);
        }
    }

    /// All that is known of the nodes in these parts. Of `peer` itself, only the services: if its clock was set back,
    /// nobody believes it until it has heard which dates it gave in the past. A meshd node corrects them then; a
    /// receptor node would believe them, but it sends no digest.
    fn known_in(&mut self, parts: &[usize], peer: &NodeId, now: Now) -> Vec<Bytes> {
        let mut messages = Vec::new();
        if parts.contains(&part(self.hash)) {
            messages.push(self.own_update.message());
            messages.extend(self.services.announced_messages(now.wall));
        }
        let wanted = |node: &NodeId| parts.contains(&part(node.hash())) && self.lsdb.reaches(node);
        let links = self.lsdb.messages_after(None).filter(|(node, _)| *node != peer && wanted(node));
        messages.extend(links.map(|(_, message)| message));
        let services = self.services.messages_after(None).filter(|((node, _), _)| wanted(node));
        messages.extend(services.map(|(_, message)| message));
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
    fn only_what_stays_different_is_sent_and_ever_more_rarely() {
        let mut memory = Comparison::default();
        let (ours, theirs) = (digest(&[(1, 5), (2, 9)]), digest(&[(1, 6), (2, 9)]));
        assert_eq!(memory.take(&digest(&[(1, 4)]), &theirs, at(0)), [] as [usize; 0]);
        assert_eq!(memory.take(&ours, &theirs, at(1_000)), [] as [usize; 0], "still moving");
        let sent: Vec<u64> =
            (2..200).filter(|&s| memory.take(&ours, &theirs, at(s * 1_000)) == [1]).collect();
        assert_eq!(sent, [2, 3, 5, 9, 17, 33, 65, 129]);
        assert_eq!(memory.take(&ours, &ours, at(201_000)), [] as [usize; 0]);
        assert_eq!(memory.take(&ours, &theirs, at(202_000)), [] as [usize; 0]);
        assert_eq!(memory.take(&ours, &theirs, at(203_000)), [1], "a new difference is repaired at once");
    }
}
