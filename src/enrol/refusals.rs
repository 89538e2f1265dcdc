//! Who is refused again and again has to wait. Owns the counts, by address or by node; a token cannot be guessed anyway, but
//! guesses cost the authority signatures and lines of its log, and others their turn. Pure: it takes the time.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use tokio::time::Instant;

/// How long refusals count.
const PERIOD: Duration = Duration::from_secs(60);
/// Who is counted; more of them within one period are not.
const MOST: usize = 10_000;

/// The refusals of the current period.
#[derive(Debug)]
pub(super) struct Refusals<Who> {
    /// How many one may have.
    of_one: u32,
    since: Option<Instant>,
    counts: BTreeMap<Who, u32>,
}

impl<Who: Ord> Refusals<Who> {
    /// None yet; one may have `of_one` of them within a minute.
    pub(super) fn new(of_one: u32) -> Self {
        Self { of_one, since: None, counts: BTreeMap::new() }
    }

    /// Whether this one has to wait.
    pub(super) fn are_too_many(&mut self, who: &Who, now: Instant) -> bool {
        if self.since.is_none_or(|since| now - since >= PERIOD) {
            self.since = Some(now);
            self.counts.clear();
        }
        self.counts.get(who).is_some_and(|count| *count >= self.of_one)
    }

    /// Notes a refusal.
    pub(super) fn note(&mut self, who: Who) {
        if self.counts.len() < MOST || self.counts.contains_key(&who) {
            *self.counts.entry(who).or_default() += 1;
        }
    }
}

/// What one stranger may have: an IPv4 address, or an IPv6 network of 64 bits.
pub(super) fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => IpAddr::V6((u128::from(address) >> 64 << 64).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_guesses_waits_and_nobody_else() {
        const OF_ONE: u32 = 10;
        let (mut refusals, now) = (Refusals::new(OF_ONE), Instant::now());
        for _ in 0..OF_ONE {
            assert!(!refusals.are_too_many(&1, now));
            refusals.note(1);
        }
        assert!(refusals.are_too_many(&1, now) && !refusals.are_too_many(&2, now));
        (0..MOST).for_each(|number| refusals.note(1000 + number));
        assert!(!refusals.are_too_many(&2, now) && refusals.counts.len() == MOST);
        assert!(!refusals.are_too_many(&1, now + PERIOD) && refusals.counts.is_empty());
        let address = |text: &str| network(text.parse().unwrap());
        assert_eq!(address("2001:db8::1"), address("2001:db8::2"));
        assert_ne!(address("192.0.2.1"), address("192.0.2.2"));
    }
}
