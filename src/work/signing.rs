//! Signatures of requests between nodes: JSON web tokens that say for which node they are and until when.
//!
//! A token of our own also says what it is for (command, work type, parameters, the payload's hash), when it was made,
//! and an ID that is accepted once. Receptor nodes ignore that, and their tokens, which lack it, are accepted without.
//! It refuses to know when a signature is needed, and how it travels.

mod keys;
mod openssh;
mod replay;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use aws_lc_rs::digest::{SHA256, digest};
use jiff::Timestamp;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, Header, Validation};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use self::keys::{KeyFile, PrivateKey, PublicKey};
use self::replay::Seen;
use crate::rpc::request::{CHOSEN_ID, SUBMIT_KEYS};
use crate::wire::NodeId;

pub use keys::KeyError;

/// How far the clocks of two nodes may be apart, in seconds.
const LEEWAY: u64 = 60;

/// The SHA-256 of a payload.
pub type PayloadHash = [u8; 32];

/// Why a signature is not accepted; stands behind `could not verify signature: `.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// There is none.
    #[error("signature is empty")]
    Empty,
    /// This node has no key to check it with.
    #[error("verifying key not specified")]
    NoKey,
    /// It is no token, or one that lacks what it must say.
    #[error("the token is malformed: {0}")]
    Malformed(String),
    /// Its algorithm is not the key's.
    #[error("the token is signed with another algorithm than {0}, which the key in work-verification is for")]
    Algorithm(&'static str),
    /// Another key made it.
    #[error("the token was not made with the key whose public half is in work-verification")]
    Signature,
    /// It is out of date.
    #[error("token is expired by {late} s, which is more than {LEEWAY} s: compare the clocks of both nodes")]
    Expired {
        /// Seconds since its end.
        late: i64,
    },
    /// It never ends.
    #[error("the token has no expiry")]
    NoExpiry,
    /// It is for somebody else.
    #[error("token audience did not match node ID: it is for {found}, this is {own}")]
    Audience {
        /// Whom it is for.
        found: String,
        /// Who we are.
        own: String,
    },
    /// It was used before.
    #[error("the token was used before")]
    Replayed,
    /// Too many tokens to remember them all.
    #[error("too many signed requests at once: try again in a minute")]
    Busy,
    /// It may have been used before this node started, which nothing is remembered of.
    #[error("the token was made before this node started: make another")]
    Earlier,
    /// It was made for other work.
    #[error("the token was made for another {0}")]
    OtherWork(&'static str),
}

/// What a signed request asks for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Verb {
    /// Make a unit.
    #[default]
    Submit,
    /// Take over a unit that runs on another node.
    Adopt,
    /// Send its output, and with `follow` its states.
    Results,
    /// End it.
    Cancel,
    /// End it and delete it.
    Release,
    /// Never run it.
    Disclaim,
    /// Something about a job, asked by another control node; its parameters say what.
    Peer,
    /// Say what is wrong with the node.
    Doctor,
}

impl Verb {
    /// The name that is signed; of most, the subcommand of `work` too.
    pub fn name(self) -> &'static str {
        match self {
            Self::Submit => "submit",
            Self::Adopt => "adopt",
            Self::Results => "results",
            Self::Cancel => "cancel",
            Self::Release => "release",
            Self::Disclaim => "disclaim",
            Self::Peer => "peer",
            Self::Doctor => "doctor",
        }
    }
}

/// What a signature is about.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Subject<'a> {
    /// What is asked for.
    pub verb: Verb,
    /// The work type of a submission.
    pub work_type: Option<&'a str>,
    /// Its parameters.
    pub params: Option<&'a BTreeMap<String, String>>,
    /// The hash of its payload, where that is known.
    pub payload: Option<PayloadHash>,
    /// The unit, for a request about one.
    pub unit: Option<&'a str>,
    /// The ID that the submitter chose for the unit.
    pub chosen_id: Option<&'a str>,
}

/// A token's contents, as they travel.
#[derive(Debug, Serialize, Deserialize)]
struct Claims {
    exp: Option<i64>,
    #[serde(default)]
    aud: Audience,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    jti: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    work: Option<Bound>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Many(Vec<String>),
    #[default]
    Nobody,
}

impl Audience {
    fn names(&self) -> &[String] {
        match self {
            Self::One(name) => std::slice::from_ref(name),
            Self::Many(names) => names,
            Self::Nobody => &[],
        }
    }
}

/// What a token of our own is bound to; what is missing is not bound.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Bound {
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    work_type: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    params: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    payload: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unit: Option<String>,
    verb: String,
    /// When the token was made, in Unix milliseconds. Not the registered claim of that name, as Go nodes refuse a token
    /// that a clock a little ahead of theirs has dated.
    iat: i64,
}

impl Bound {
    fn to(subject: &Subject<'_>, now: Timestamp) -> Self {
        Self {
            work_type: subject.work_type.map(str::to_owned),
            params: subject.params.map(|params| params_hash(params, subject.chosen_id)),
            payload: subject.payload.as_ref().map(|hash| hex(hash)),
            unit: subject.unit.map(str::to_owned),
            verb: subject.verb.name().to_owned(),
            iat: now.as_millisecond(),
        }
    }
}

/// The unit's ID is no parameter, and yet among them here: it is bound as they are.
fn params_hash(params: &BTreeMap<String, String>, chosen_id: Option<&str>) -> String {
    let own = params.iter().filter(|(name, _)| !SUBMIT_KEYS.contains(&name.as_str()));
    let mut own: BTreeMap<&str, &str> = own.map(|(name, value)| (name.as_str(), value.as_str())).collect();
    own.extend(chosen_id.map(|id| (CHOSEN_ID, id)));
    let mut text = Vec::new();
    for part in own.into_iter().flat_map(|(name, value)| [name, value]) {
        // With their lengths, so that no two sets of parameters make one text.
        text.extend((part.len() as u64).to_be_bytes());
        text.extend(part.as_bytes());
    }
    hex(digest(&SHA256, &text).as_ref())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Makes signatures with the key in a file, which is read again when it changes.
#[derive(Debug)]
pub struct Signer {
    key: KeyFile<PrivateKey>,
    lifetime: Duration,
}

impl Signer {
    /// Reads the key: RSA in PKCS#1 or PKCS#8, or Ed25519 in PKCS#8. Tokens are good for `lifetime`.
    ///
    /// # Errors
    /// [`KeyError`] names the file and what is wrong with it.
    pub fn open(path: &Path, lifetime: Duration) -> Result<Self, KeyError> {
        Ok(Self { key: KeyFile::open(path)?, lifetime })
    }

    /// A signature for a request to `node` about `subject`.
    ///
    /// # Errors
    /// In words for the operator; nothing that the other node does causes it.
    pub fn sign(&self, node: &NodeId, subject: &Subject<'_>) -> Result<String, String> {
        let lifetime = i64::try_from(self.lifetime.as_secs()).unwrap_or(i64::MAX / 2);
        let now = Timestamp::now();
        let claims = Claims {
            exp: Some(now.as_second().saturating_add(lifetime)),
            aud: Audience::Many(vec![node.to_string()]),
            jti: Some(format!("{:032x}", rand::random::<u128>())),
            work: Some(Bound::to(subject, now)),
        };
        let key = self.key.current();
        jsonwebtoken::encode(&Header::new(key.algorithm), &claims, &key.key)
            .map_err(|error| format!("failed to sign with {}: {error}", self.path().display()))
    }

    fn path(&self) -> &PathBuf {
        self.key.path()
    }
}

/// Checks signatures with the key in a file, which is read again when it changes.
#[derive(Debug)]
pub struct Verifier {
    key: KeyFile<PublicKey>,
    node: NodeId,
    seen: Mutex<Seen>,
    /// Since when used tokens are remembered.
    since: Instant,
}

impl Verifier {
    /// Reads the key: RSA or Ed25519 in SPKI (`PUBLIC KEY`), or RSA in PKCS#1. `node` is this node.
    ///
    /// # Errors
    /// [`KeyError`] names the file and what is wrong with it.
    pub fn open(path: &Path, node: NodeId) -> Result<Self, KeyError> {
        Ok(Self { key: KeyFile::open(path)?, node, seen: Mutex::default(), since: Instant::now() })
    }

    /// Checks a signature against what it came with, except for the payload: that is still to come, and must
    /// have the hash that this gives, if it gives one. A token of our own is used up by this.
    ///
    /// # Errors
    /// Why it is not accepted.
    pub fn verify(&self, token: &str, subject: &Subject<'_>) -> Result<Option<PayloadHash>, SignatureError> {
        let claims = self.genuine(token)?;
        let names = claims.aud.names();
        if !names.iter().any(|name| name == self.node.as_str()) {
            let found = if names.is_empty() { "nobody".to_owned() } else { names.join(", ") };
            return Err(SignatureError::Audience { found, own: self.node.to_string() });
        }
        let payload = check_bound(claims.work.as_ref(), subject)?;
        if let Some(id) = claims.jti {
            if claims.work.is_some_and(|bound| self.is_from_before(bound.iat)) {
                return Err(SignatureError::Earlier);
            }
            let until = claims.exp.unwrap_or(i64::MAX).saturating_add(LEEWAY as i64);
            let mut seen = self.seen.lock();
            seen.once(id, until, Timestamp::now().as_second())?;
        }
        Ok(payload)
    }

    /// The same for a request that Go nodes do not make: a token that is bound to nothing, or can be used twice, is
    /// not enough.
    ///
    /// # Errors
    /// Why it is not accepted.
    pub fn verify_bound(&self, token: &str, subject: &Subject<'_>) -> Result<(), SignatureError> {
        let claims = self.genuine(token)?;
        if claims.work.is_none() || claims.jti.is_none() {
            return Err(SignatureError::OtherWork("command"));
        }
        self.verify(token, subject).map(drop)
    }

    /// Whether a token was made, in Unix milliseconds, before any was remembered. By its age: the clock may have been
    /// set since.
    fn is_from_before(&self, made: i64) -> bool {
        let age = Timestamp::now().as_millisecond().saturating_sub(made);
        // Both have been rounded.
        u128::try_from(age).is_ok_and(|age| age > self.since.elapsed().as_millis() + 1)
    }

    /// The contents of a token that our key's other half made, and that is not out of date.
    fn genuine(&self, token: &str) -> Result<Claims, SignatureError> {
        if token.is_empty() {
            return Err(SignatureError::Empty);
        }
        let key = self.key.current();
        let mut validation = Validation::new(key.algorithm);
        validation.leeway = LEEWAY;
        // The audience is looked at below, where both names can be reported.
        validation.validate_aud = false;
        validation.required_spec_claims = HashSet::from(["exp".to_owned()]);
        match jsonwebtoken::decode::<Claims>(token, &key.key, &validation) {
            Ok(decoded) => Ok(decoded.claims),
            Err(error) => Err(explain(&error, token, key.algorithm)),
        }
    }
}

fn explain(error: &jsonwebtoken::errors::Error, token: &str, algorithm: Algorithm) -> SignatureError {
    match error.kind() {
        ErrorKind::ExpiredSignature => {
            // Its signature was found good before its dates were looked at.
            let claims = jsonwebtoken::dangerous::insecure_decode::<Claims>(token);
            let end = claims.ok().and_then(|decoded| decoded.claims.exp).unwrap_or_default();
            SignatureError::Expired { late: Timestamp::now().as_second().saturating_sub(end) }
        }
        ErrorKind::MissingRequiredClaim(_) => SignatureError::NoExpiry,
        ErrorKind::InvalidSignature => SignatureError::Signature,
        ErrorKind::InvalidAlgorithm => SignatureError::Algorithm(match algorithm {
            Algorithm::EdDSA => "EdDSA",
            _ => "RS512",
        }),
        other => SignatureError::Malformed(format!("{other:?}")),
    }
}

/// Compares what a token is bound to with what it came with; gives the payload's hash that it promises.
fn check_bound(bound: Option<&Bound>, subject: &Subject<'_>) -> Result<Option<PayloadHash>, SignatureError> {
    // A receptor node's token is bound to nothing.
    let Some(bound) = bound else { return Ok(None) };
    let actual = Bound::to(subject, Timestamp::now());
    let differs = |promised: &Option<String>, actual: &Option<String>| promised != actual;
    if bound.verb != actual.verb {
        return Err(SignatureError::OtherWork("command"));
    }
    if differs(&bound.unit, &actual.unit) {
        return Err(SignatureError::OtherWork("unit"));
    }
    if differs(&bound.work_type, &actual.work_type) {
        return Err(SignatureError::OtherWork("work type"));
    }
    if differs(&bound.params, &actual.params) {
        return Err(SignatureError::OtherWork("set of parameters"));
    }
    bound.payload.as_deref().map(unhex).transpose()
}

fn unhex(text: &str) -> Result<PayloadHash, SignatureError> {
    let wrong = || SignatureError::Malformed("the payload's hash is no SHA-256".to_owned());
    let digits: Option<Vec<u8>> = text.chars().map(|c| c.to_digit(16).map(|digit| digit as u8)).collect();
    let digits = digits.ok_or_else(wrong)?;
    let bytes: Vec<u8> = digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect();
    if digits.len() != 64 {
        return Err(wrong());
    }
    bytes.try_into().map_err(|_| wrong())
}
