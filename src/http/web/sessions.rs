//! Sessions of browsers: for a while, a random word in a cookie stands for a token. Owns how long sessions last and how
//! many there are. They are kept in memory only, by the hash of their word. Does not know whether a session's token is
//! still in its file: `gate` looks that up for each request.

use std::collections::BTreeMap;
use std::time::Duration;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::tls::access::AccessToken;

/// How long a session lasts.
pub(super) const LASTS: Duration = Duration::from_secs(12 * 3600);
/// The most sessions of one token; a new one replaces the oldest. The number of tokens is bounded.
const OF_ONE_TOKEN: usize = 32;

pub(super) struct BrowserSessions {
    /// Signs form tokens. Each process has its own key.
    key: hmac::Key,
    // A lock rather than a task, because it is held only for a look or a change.
    by_hash: Mutex<BTreeMap<Vec<u8>, BrowserSession>>,
}

struct BrowserSession {
    token: AccessToken,
    since: Instant,
}

impl BrowserSessions {
    pub(super) fn new() -> Self {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &rand::random::<[u8; 32]>());
        Self { key, by_hash: Mutex::default() }
    }

    /// Begins a session of a token, and returns the word that stands for the session.
    pub(super) fn begin(&self, token: AccessToken) -> String {
        let (word, since) = (URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>()), Instant::now());
        let mut sessions = self.by_hash.lock();
        sessions.retain(|_, session| session.since.elapsed() < LASTS);
        let of_token = sessions.iter().filter(|(_, session)| session.token.name == token.name);
        let oldest = of_token.clone().min_by_key(|(_, session)| session.since);
        if of_token.clone().count() >= OF_ONE_TOKEN
            && let Some(oldest) = oldest.map(|(hash, _)| hash.clone())
        {
            sessions.remove(&oldest);
        }
        sessions.insert(hash_of(&word), BrowserSession { token, since });
        word
    }

    /// The token of a session.
    pub(super) fn find(&self, word: &str) -> Option<AccessToken> {
        let sessions = self.by_hash.lock();
        let session = sessions.get(&hash_of(word))?;
        (session.since.elapsed() < LASTS).then(|| session.token.clone())
    }

    pub(super) fn end(&self, word: &str) {
        self.by_hash.lock().remove(&hash_of(word));
    }

    /// The form token of a session or a certificate. A page that sends it has read an answer of this server, which a
    /// foreign page cannot.
    pub(super) fn form_token(&self, of: &str) -> String {
        URL_SAFE_NO_PAD.encode(hmac::sign(&self.key, of.as_bytes()))
    }

    pub(super) fn is_form_token(&self, of: &str, shown: &str) -> bool {
        verify_slices_are_equal(self.form_token(of).as_bytes(), shown.as_bytes()).is_ok()
    }
}

fn hash_of(word: &str) -> Vec<u8> {
    digest(&SHA256, word.as_bytes()).as_ref().to_vec()
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;
    use crate::tls::AccessLevel;
    use crate::tls::access::AccessTokens;

    fn tokens() -> Vec<AccessToken> {
        let temp = tempfile::tempdir().unwrap();
        let file = AccessTokens::new(temp.path().join("tokens"));
        file.add("a", AccessLevel::Read).unwrap();
        file.add("b", AccessLevel::Admin).unwrap();
        file.list().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_ends_in_time_and_one_token_has_so_many() {
        let (sessions, tokens) = (BrowserSessions::new(), tokens());
        let other = sessions.begin(tokens[1].clone());
        let first = sessions.begin(tokens[0].clone());
        advance(Duration::from_secs(1)).await;
        let words: Vec<String> = (0..OF_ONE_TOKEN - 1).map(|_| sessions.begin(tokens[0].clone())).collect();
        assert_eq!(sessions.find(&first), Some(tokens[0].clone()));
        let last = sessions.begin(tokens[0].clone());
        assert_eq!((sessions.find(&first), sessions.find(&other)), (None, Some(tokens[1].clone())));
        assert!(words.iter().all(|word| sessions.find(word).is_some()));
        sessions.end(&words[0]);
        assert_eq!(sessions.find(&words[0]), None);
        advance(LASTS - Duration::from_millis(1)).await;
        assert!(sessions.find(&last).is_some() && sessions.find(&other).is_none());
        advance(Duration::from_millis(1)).await;
        assert_eq!(sessions.find(&last), None);
        sessions.begin(tokens[1].clone());
        assert_eq!(sessions.by_hash.lock().len(), 1, "those that have ended go");
    }

    #[test]
    fn a_form_token_belongs_to_one_session_of_one_process() {
        let (sessions, other) = (BrowserSessions::new(), BrowserSessions::new());
        let token = sessions.form_token("a");
        assert!(sessions.is_form_token("a", &token));
        assert!(
            !sessions.is_form_token("b", &token)
                && !sessions.is_form_token("a", "")
                && !other.is_form_token("a", &token)
        );
    }
}
