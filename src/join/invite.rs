//! An invitation: what a new node may become, and the token with which its host asks for that.
//!
//! Owns the token's text. The authority keeps no secret of an invitation, only the public half of the key that the
//! secret makes.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::JoinError;
use super::address::NodeAddress;
use super::record::{Record, check_name};
use crate::tls::proof::{HASH, SecretKey};

/// What a token begins with.
pub(crate) const SCHEME: &str = "mesh:";
/// Bytes of a secret.
const SECRET: usize = 16;
/// How often a host may fetch the same certificate, in case answers get lost.
const MOST_ANSWERS: u32 = 10;

/// What the authority keeps of an invitation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Invitation {
    /// What the node becomes.
    pub(crate) record: Record,
    /// The public half of the key that the secret makes, in base64.
    pub(crate) key: String,
    /// When it was made.
    pub(crate) made: Timestamp,
    /// Until when it can be used.
    pub(crate) expires: Timestamp,
    /// How many hosts may use it, one after the other: each takes the name over from the one before.
    pub(crate) uses: u32,
    /// Who has used it.
    pub(crate) used: Vec<InviteUse>,
}

/// A host that has used an invitation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InviteUse {
    /// The hash of its key, in hexadecimal.
    pub(crate) key: String,
    /// When it came first.
    pub(crate) at: Timestamp,
    /// Its address, as the node saw it that let it in.
    pub(crate) from: String,
    /// How often it was answered.
    pub(crate) answers: u32,
}

/// What the owner of a key gets by an invitation.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum InviteAnswer {
    /// The key has used it before, and its answer may have got lost.
    Again,
    /// It is the first, or takes the name over from the one before.
    First,
    /// Nothing, and why.
    Refused(String),
}

impl Invitation {
    /// An invitation, and its secret, which nobody keeps.
    ///
    /// # Errors
    /// The library refuses.
    pub(crate) fn new(
        record: Record,
        lifetime: Duration,
        uses: u32,
        now: Timestamp,
    ) -> Result<(Self, TokenSecret), JoinError> {
        let secret = TokenSecret(rand::random());
        let key = URL_SAFE_NO_PAD.encode(secret.key()?.public());
        let expires = now.checked_add(lifetime).unwrap_or(Timestamp::MAX);
        Ok((Self { record, key, made: now, expires, uses, used: Vec::new() }, secret))
    }

    /// Whether it can still be used.
    pub(crate) fn is_open(&self, now: Timestamp) -> bool {
        now < self.expires && self.used.len() < self.uses as usize
    }

    /// Notes that a host asks with this key, and says what it gets. The host has proved that it knows the secret.
    pub(super) fn use_up(&mut self, key: &str, from: &str, now: Timestamp) -> InviteAnswer {
        let node = &self.record.node;
        if now >= self.expires {
            return InviteAnswer::Refused(format!("the token for {node} expired at {}", self.expires));
        }
        let is_open = self.used.len() < self.uses as usize;
        match self.used.last_mut() {
            // Only the last one, because it has taken the name over.
            Some(last) if last.key == key && last.answers < MOST_ANSWERS => {
                last.answers += 1;
                InviteAnswer::Again
            }
            Some(last) if last.key == key => {
                InviteAnswer::Refused(format!("the token for {node} was used too often by this host"))
            }
            Some(last) if !is_open => InviteAnswer::Refused(format!(
                "the token for {node} is used up, at {} by {}",
                last.at, last.from
            )),
            Some(_) | None => {
                self.used.push(InviteUse { key: key.to_owned(), at: now, from: from.to_owned(), answers: 1 });
                InviteAnswer::First
            }
        }
    }
}

/// 128 random bits, which are in the token alone.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct TokenSecret([u8; SECRET]);

impl TokenSecret {
    /// The key that proves that its owner knows the secret.
    ///
    /// # Errors
    /// The library refuses.
    pub(crate) fn key(&self) -> Result<SecretKey, JoinError> {
        Ok(SecretKey::of(&[b"meshd invitation".as_slice(), &self.0].concat())?)
    }
}

impl fmt::Debug for TokenSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenSecret")
    }
}

/// What a person pastes on the new host. Its text, `mesh:NAME/SECRET/AUTHORITY/ADDRESS,...`, means nothing to a shell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Token {
    /// The name of the new node.
    pub(crate) node: String,
    /// What proves that it was invited.
    pub(crate) secret: TokenSecret,
    /// The hash of the authority's public key.
    pub(crate) authority: [u8; HASH],
    /// Where to ask.
    pub(crate) addresses: Vec<NodeAddress>,
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, secret, authority, addresses } = self;
        let (secret, authority) = (URL_SAFE_NO_PAD.encode(secret.0), URL_SAFE_NO_PAD.encode(authority));
        // Brackets around an IPv6 address mean something to shells.
        let addresses: Vec<_> =
            addresses.iter().map(|one| one.to_string().replace(['[', ']'], "=")).collect();
        write!(f, "{SCHEME}{node}/{secret}/{authority}/{}", addresses.join(","))
    }
}

impl FromStr for Token {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |what: &str| {
            format!("this is not a whole token ({what}): copy the line that `meshctl node invite` printed")
        };
        let parts = text.strip_prefix(SCHEME).unwrap_or(text).splitn(4, '/').collect::<Vec<_>>();
        let [node, secret, authority, addresses] = parts[..] else { return Err(wrong("a part is missing")) };
        check_name(node).map_err(|error| error.to_string())?;
        let bytes = |text: &str| URL_SAFE_NO_PAD.decode(text).unwrap_or_default();
        let secret = bytes(secret).try_into().map_err(|_| wrong("the secret"))?;
        let authority = bytes(authority).try_into().map_err(|_| wrong("the authority"))?;
        let address = |text: &str| text.replacen('=', "[", 1).replacen('=', "]", 1).parse();
        let addresses = addresses.split(',').map(address).collect::<Result<Vec<_>, String>>();
        let addresses = addresses.map_err(|error| wrong(&error))?;
        Ok(Self { node: node.to_owned(), secret: TokenSecret(secret), authority, addresses })
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::NodeRole;
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn token() -> Token {
        let addresses = ["hop.example.org:27199", "wss://192.0.2.7:443/mesh", "quic://[2001:db8::1]:27200"];
        Token {
            node: "e1".to_owned(),
            secret: TokenSecret([0xfb; SECRET]),
            authority: [7; HASH],
            addresses: addresses.map(|one| one.parse().unwrap()).to_vec(),
        }
    }

    #[test]
    fn a_token_is_one_word_for_every_shell_and_comes_back_whole() {
        let text = token().to_string();
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b":/,.-_=".contains(&byte);
        assert!(text.starts_with("mesh:e1/") && text.bytes().all(is_plain), "{text}");
        assert_eq!(text.parse::<Token>().unwrap(), token());
    }

    #[test]
    fn a_token_that_was_cut_says_so() {
        let text = token().to_string();
        let ends = text.match_indices('/').nth(2).unwrap().0;
        for end in 0..ends {
            let error = text[..end].parse::<Token>().unwrap_err();
            assert!(error.contains("token") || error.contains("name of a node"), "{error}");
        }
        let error = text.replace("e1/", "../e1/").parse::<Token>().unwrap_err();
        assert!(error.contains("name of a node"), "{error}");
    }

    #[test]
    fn a_debug_text_does_not_hold_the_secret() {
        assert!(format!("{:?}", token()).contains("secret: TokenSecret,"));
    }

    #[test]
    fn it_is_used_once_by_each_and_again_by_who_lost_the_answer() {
        let record = Record::new("e1", NodeRole::Execution).unwrap();
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let (mut invite, _) = Invitation::new(record, HOUR, 2, now).unwrap();
        let mut asks = |key: &str, at| invite.use_up(key, "192.0.2.1", at);
        assert_eq!(asks("a", now), InviteAnswer::First);
        assert_eq!(asks("a", now), InviteAnswer::Again);
        assert_eq!(asks("b", now), InviteAnswer::First);
        for key in ["a", "c"] {
            let refused = asks(key, now);
            let InviteAnswer::Refused(why) = refused else { panic!("{key}: {refused:?}") };
            assert!(why.contains("used up") && why.contains("192.0.2.1"), "{why}");
        }
        for _ in 1..MOST_ANSWERS {
            assert_eq!(asks("b", now), InviteAnswer::Again);
        }
        assert!(matches!(asks("b", now), InviteAnswer::Refused(why) if why.contains("too often")));
        assert!(matches!(asks("b", now + HOUR), InviteAnswer::Refused(why) if why.contains("expired")));
    }
}
