//! A host that asks without a token: what is kept of it until a person has decided.
//!
//! Owns how many may wait, and for how long, and the fingerprint that both sides show. It refuses to know who decides.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::JoinError;
use super::authority::Authority;
use super::record::Record;
use super::request::WantedCertificate;
use crate::tls::proof::{self, HASH};

/// Hosts that may wait at a time, and those of one address.
const MOST: usize = 100;
const MOST_OF_ONE: usize = 3;
/// A host that has not asked for so long has gone.
const GONE: SignedDuration = SignedDuration::from_hours(1);
/// How often it is noted that a host still asks.
const NOTED: SignedDuration = SignedDuration::from_mins(1);
/// The characters of a fingerprint, without those that look alike; five bits each.
const LETTERS: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
/// Characters of a fingerprint: nobody makes two keys that agree in 100 bits while a person compares them.
const LENGTH: usize = 20;

/// A host that asks to become a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Asker {
    /// What it asks for.
    pub(crate) asked: WantedCertificate,
    /// The hash of its key, in hexadecimal.
    pub(crate) key: String,
    /// Its address, as the node saw it that it asked.
    pub(crate) from: String,
    /// When it asked first, and when last.
    pub(crate) since: Timestamp,
    pub(crate) seen: Timestamp,
    /// What was decided.
    pub(crate) decided: Option<Decided>,
}

/// What a person has decided about a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Decided {
    /// It becomes this node.
    Approved(Box<Record>),
    /// It does not.
    Rejected,
}

/// What becomes of a host that asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AskOutcome {
    /// It waits from now on.
    Begins,
    /// It waits as before.
    Waits,
    /// Somebody has decided.
    Decided(Decided),
}

/// The fingerprint of a host's key together with the authority's, as both sides show it.
pub(crate) fn fingerprint(key: &[u8; HASH], authority: &[u8; HASH]) -> String {
    let hash = proof::hash(&[key.as_slice(), authority].concat());
    let bits = |at: usize| {
        let pair = u16::from_be_bytes([hash[at * 5 / 8], hash[at * 5 / 8 + 1]]);
        usize::from(pair >> (11 - at * 5 % 8) & 31)
    };
    let letters: Vec<u8> = (0..LENGTH).map(|at| LETTERS[bits(at)]).collect();
    letters.chunks(4).map(String::from_utf8_lossy).collect::<Vec<_>>().join("-")
}

impl Asker {
    /// Its fingerprint.
    ///
    /// # Errors
    /// The authority's certificate or the request cannot be read.
    pub(crate) fn fingerprint(&self, authority: &Authority) -> Result<String, JoinError> {
        let key = proof::key_of_request(&self.asked.request)?;
        Ok(fingerprint(&key, &proof::key_of_certificate(authority.certificate())?))
    }

    fn is_here(&self, now: Timestamp) -> bool {
        now.duration_since(self.seen) < GONE
    }
}

/// The hosts that wait; those that have gone are forgotten.
///
/// # Errors
/// What is kept cannot be read or removed.
pub(crate) fn waiting(authority: &Authority, now: Timestamp) -> Result<Vec<Asker>, JoinError> {
    let (here, gone): (Vec<_>, Vec<_>) =
        authority.askers()?.into_iter().partition(|asker| asker.is_here(now));
    gone.iter().try_for_each(|asker| authority.remove_asker(&asker.key).map(drop))?;
    Ok(here)
}

/// What becomes of a host that asks now: it waits, unless somebody has decided.
///
/// # Errors
/// Outside, what is kept cannot be read or written; inside, why it may not wait.
pub(super) fn ask(
    authority: &Authority,
    asked: &WantedCertificate,
    key: &str,
    from: &str,
    now: Timestamp,
) -> Result<Result<AskOutcome, String>, JoinError> {
    let known = waiting(authority, now)?;
    if let Some(asker) = known.iter().find(|asker| asker.key == key) {
        if now.duration_since(asker.seen) >= NOTED {
            authority.write_asker(&Asker { seen: now, ..asker.clone() })?;
        }
        return Ok(Ok(asker.decided.clone().map_or(AskOutcome::Waits, AskOutcome::Decided)));
    }
    if known.len() >= MOST
        || known.iter().filter(|asker| network(&asker.from) == network(from)).count() >= MOST_OF_ONE
    {
        return Ok(Err("too many hosts wait for an approval: try again later".to_owned()));
    }
    let (asked, key, from) = (asked.clone(), key.to_owned(), from.to_owned());
    authority.write_asker(&Asker { asked, key, from, since: now, seen: now, decided: None })?;
    Ok(Ok(AskOutcome::Begins))
}

/// Where a host comes from, with all of an IPv6 network of 64 bits as one place.
fn network(from: &str) -> String {
    let address = from.split(' ').next().unwrap_or_default();
    match address.parse::<std::net::Ipv6Addr>() {
        Ok(address) => std::net::Ipv6Addr::from(u128::from(address) >> 64 << 64).to_string(),
        Err(_) => address.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(node: &str) -> WantedCertificate {
        WantedCertificate { node: node.to_owned(), request: String::new(), dials: None }
    }

    #[test]
    fn a_fingerprint_is_twenty_letters_of_all_bits() {
        let one = fingerprint(&[0; HASH], &[0; HASH]);
        assert_eq!((one.len(), one.matches('-').count()), (24, 4));
        let all: std::collections::BTreeSet<String> =
            (0..200).map(|number| fingerprint(&[number; HASH], &[1; HASH])).collect();
        assert_eq!(all.len(), 200);
        for at in (0..24).filter(|at| at % 5 != 4) {
            let letters: std::collections::BTreeSet<u8> = all.iter().map(|one| one.as_bytes()[at]).collect();
            assert!(letters.len() > 25, "{at}: {letters:?}");
        }
        assert_ne!(fingerprint(&[1; HASH], &[2; HASH]), fingerprint(&[2; HASH], &[1; HASH]));
    }

    #[test]
    fn few_wait_and_who_does_not_ask_again_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let authority = Authority::create(&dir.path().join("ca"), "control", now).unwrap();
        let ask_of = |key: usize, from: usize, at| {
            ask(&authority, &asked("e1"), &format!("{key:064x}"), &format!("h{from}"), at).unwrap()
        };
        for key in 0..MOST_OF_ONE {
            assert_eq!(ask_of(key, 0, now), Ok(AskOutcome::Begins));
            assert_eq!(ask_of(key, 0, now), Ok(AskOutcome::Waits));
        }
        assert!(ask_of(99, 0, now).unwrap_err().contains("too many"));
        for key in MOST_OF_ONE..MOST {
            assert_eq!(ask_of(key, key, now), Ok(AskOutcome::Begins));
        }
        assert!(ask_of(MOST, MOST, now).is_err());
        // The first still asks, the others have gone.
        let later = now + GONE - SignedDuration::from_mins(1);
        assert_eq!(ask_of(0, 0, later), Ok(AskOutcome::Waits));
        assert_eq!(ask_of(MOST, MOST, now + GONE), Ok(AskOutcome::Begins));
        let keys: Vec<String> =
            waiting(&authority, now + GONE).unwrap().into_iter().map(|one| one.key).collect();
        assert_eq!(keys, [format!("{:064x}", 0), format!("{MOST:064x}")]);
    }
}
