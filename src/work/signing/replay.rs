//! The IDs of used tokens, kept until the tokens expire. Pure and bounded.

use std::collections::{BTreeSet, HashSet};

use super::SignatureError;

/// The most tokens remembered at a time. As tokens live a few minutes, this allows hundreds of requests a second.
const MOST_TOKENS: usize = 100_000;
/// The longest ID that is accepted, in bytes. Ours have 32.
const LONGEST_ID: usize = 128;

/// Used tokens.
#[derive(Debug, Default)]
pub(super) struct Seen {
    ids: HashSet<String>,
    /// The same IDs, in order of their expiry in Unix seconds.
    ends: BTreeSet<(i64, String)>,
}

impl Seen {
    /// Uses up a token that expires at `end`.
    ///
    /// # Errors
    /// If the token was used before, or cannot be remembered.
    pub(super) fn once(&mut self, id: String, end: i64, now: i64) -> Result<(), SignatureError> {
        while let Some((first, _)) = self.ends.first()
            && *first < now
        {
            if let Some((_, old)) = self.ends.pop_first() {
                self.ids.remove(&old);
            }
        }
        if id.len() > LONGEST_ID {
            return Err(SignatureError::Malformed("its ID is too long".to_owned()));
        }
        if self.ids.contains(&id) {
            return Err(SignatureError::Replayed);
        }
        if self.ids.len() >= MOST_TOKENS {
            return Err(SignatureError::Busy);
        }
        self.ids.insert(id.clone());
        self.ends.insert((end, id));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_accepted_once_until_it_has_ended() {
        let mut seen = Seen::default();
        assert_eq!(seen.once("a".into(), 10, 0), Ok(()));
        assert_eq!(seen.once("a".into(), 10, 10), Err(SignatureError::Replayed));
        assert_eq!(seen.once("b".into(), 99, 11), Ok(()));
        assert_eq!((seen.ids.len(), seen.ends.len()), (1, 1), "what has ended is forgotten");
    }

    #[test]
    fn memory_is_bounded() {
        let mut seen = Seen::default();
        for number in 0..MOST_TOKENS {
            seen.once(number.to_string(), 10, 0).unwrap();
        }
        assert_eq!(seen.once("one more".into(), 10, 0), Err(SignatureError::Busy));
        assert_eq!(
            seen.once("x".repeat(LONGEST_ID + 1), 10, 0),
            Err(SignatureError::Malformed("its ID is too long".into()))
        );
        assert_eq!(seen.once("later".into(), 20, 11), Ok(()));
    }
}
