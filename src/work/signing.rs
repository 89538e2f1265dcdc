//! Signatures of requests between nodes: JSON web tokens that name the node they are for and when they expire.
//!
//! A token of our own is also bound to a request (command, work type, parameters, the payload's hash), and carries the
//! time when it was made and an ID that is accepted only once. Receptor nodes ignore these claims, and their own tokens
//! are accepted without them. This module does not know when a signature is needed, nor how it travels.

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
use crate::os::hex;
use crate::rpc::request::{CHOSEN_ID, SUBMIT_KEYS};
use crate::wire::NodeId;

pub use keys::KeyError;

/// How far the clocks of two nodes may be apart, in seconds.
const LEEWAY: u64 = 60;

/// The SHA-256 of a payload.
pub type PayloadHash = [u8; 32];

/// Why a signature is not accepted. The text follows `could not verify signature: `.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// No signature came.
    #[error("signature is empty")]
    Empty,
    /// This node has no key to check signatures with.
    #[error("verifying key not specified")]
    NoKey,
    /// This is not a token, or a token without a required claim.
    #[error("the token is malformed: {0}")]
    Malformed(String),
    /// The token's algorithm is not that of this node's key.
    #[error("the token is not signed with {0}, the algorithm of the key in work-verification")]
    Algorithm(&'static str),
    /// The token was made with another key.
    #[error("the token was not made with the key whose public half is in work-verification")]
    Signature,
    /// The token has expired.
    #[error("token is expired by {late} s, which is more than {LEEWAY} s: compare the clocks of both nodes")]
    Expired {
        /// Seconds since the token expired.
        late: i64,
    },
    /// The token never expires.
    #[error("the token has no expiry")]
    NoExpiry,
    /// The token is for another node.
    #[error("token audience did not match node ID: it is for {found}, this is {own}")]
    Audience {
        /// The nodes that the token is for.
        found: String,
        /// This node.
        own: String,
    },
    /// The token was used before.
    #[error("the token was used before")]
    Replayed,
    /// There are too many tokens to remember them all.
    #[error("too many signed requests at once: try again in a minute")]
    Busy,
    /// The token is older than this process, which therefore cannot know whether the token was used before.
    #[error("the token was made before this node started: make another")]
    Earlier,
    /// The token was made for another request.
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
    /// Send a unit's output, and with `follow` its states.
    Results,
    /// End a unit.
    Cancel,
    /// End a unit and delete it.
    Release,
    /// Promise never to run a unit.
    Disclaim,
    /// A request of another control node about a job. Its parameters say what is asked.
    Peer,
    /// Report what is wrong with the node.
    Doctor,
}

impl Verb {
    /// The name that is signed. Most are also subcommands of `work`.
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
    /// The command.
    pub verb: Verb,
    /// The work type of a submission.
    pub work_type: Option<&'a str>,
    /// The parameters of a submission.
    pub params: Option<&'a BTreeMap<String, String>>,
    /// The hash of the payload, if it is known.
    pub payload: Option<PayloadHash>,
    /// The unit, for a request about one.
    pub unit: Option<&'a str>,
    /// The ID that the submitter chose for the unit.
    pub chosen_id: Option<&'a str>,
}

/// A token's claims.
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

/// What a token of our own is bound to.
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
    /// When the token was made, in Unix milliseconds. This is not the registered claim `iat`, because Go nodes refuse a
    /// token if its `iat` is even a little ahead of their clock.
    iat: i64,
}

impl Bound {
    fn to(subject: &Subject<'_>, now: Timestamp) -> Self {
        Self {
            work_type: subject.work_type.map(str::to_owned),
            params: subject.params.map(|params| params_hash(params, subject.chosen_id)),
            payload: subject.payload.as_ref().map(|hash| hex::print(hash)),
            unit: subject.unit.map(str::to_owned),
            verb: subject.verb.name().to_owned(),
            iat: now.as_millisecond(),
        }
    }
}

/// A unit ID that the submitter chose is hashed like a parameter, so that the token is bound to it too.
fn params_hash(params: &BTreeMap<String, String>, chosen_id: Option<&str>) -> String {
    let own = params.iter().filter(|(name, _)| !SUBMIT_KEYS.contains(&name.as_str()));
    let mut own: BTreeMap<&str, &str> = own.map(|(name, value)| (name.as_str(), value.as_str())).collect();
    own.extend(chosen_id.map(|id| (CHOSEN_ID, id)));
    let mut text = Vec::new();
    for part in own.into_iter().flat_map(|(name, value)| [name, value]) {
        // The lengths are hashed too, so that no two sets of parameters yield the same bytes.
        text.extend((part.len() as u64).to_be_bytes());
        text.extend(part.as_bytes());
    }
    hex::print(digest(&SHA256, &text).as_ref())
}

/// Makes signatures with the key in a file. The file is read again when it changes.
#[derive(Debug)]
pub struct Signer {
    key: KeyFile<PrivateKey>,
    lifetime: Duration,
}

impl Signer {
    /// Reads the key: RSA in PKCS#1 or PKCS#8, or Ed25519 in PKCS#8. Tokens expire after `lifetime`.
    ///
    /// # Errors
    /// [`KeyError`] names the file and what is wrong with it.
    pub fn open(path: &Path, lifetime: Duration) -> Result<Self, KeyError> {
        Ok(Self { key: KeyFile::open(path)?, lifetime })
    }

    /// A signature for a request to `node` about `subject`.
    ///
    /// # Errors
    /// The cause, in words for the operator. It always lies in this node.
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

/// Checks signatures with the key in a file. The file is read again when it changes.
#[derive(Debug)]
pub struct Verifier {
    key: KeyFile<PublicKey>,
    node: NodeId,
    seen: Mutex<Seen>,
    /// When this verifier began to remember used tokens.
    since: Instant,
}

impl Verifier {
    /// Reads the key: RSA or Ed25519 in SPKI (`PUBLIC KEY`), or RSA in PKCS#1. `node` is this node's ID.
    ///
    /// # Errors
    /// [`KeyError`] names the file and what is wrong with it.
    pub fn open(path: &Path, node: NodeId) -> Result<Self, KeyError> {
        Ok(Self { key: KeyFile::open(path)?, node, seen: Mutex::default(), since: Instant::now() })
    }

    /// Checks a signature against its request. If this returns a hash, the payload, which is still to come, must have
    /// it. Uses up a token of our own.
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

    /// As [`Self::verify`], for requests that Go nodes never make: refuses a token that is bound to no request, or
    /// could be used twice.
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

    /// Whether a token with this time (in Unix milliseconds) was made before this verifier remembered tokens. Compares
    /// ages, because the clock may have been set since.
    fn is_from_before(&self, made: i64) -> bool {
        let age = Timestamp::now().as_millisecond().saturating_sub(made);
        // One millisecond more, because both ages are rounded.
        u128::try_from(age).is_ok_and(|age| age > self.since.elapsed().as_millis() + 1)
    }

    /// The claims of a token that was made with the private half of our key and has not expired.
    fn genuine(&self, token: &str) -> Result<Claims, SignatureError> {
        if token.is_empty() {
            return Err(SignatureError::Empty);
        }
        let key = self.key.current();
        let mut validation = Validation::new(key.algorithm);
        validation.leeway = LEEWAY;
        // `verify` checks the audience itself, because its error names both nodes.
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
            // Its claims can be trusted: the signature was verified before the expiry was checked.
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

/// Compares what a token is bound to with its request. Returns the payload's hash that the token promises, if any.
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
    let wrong = || SignatureError::Malformed("the payload's hash is not a SHA-256".to_owned());
    hex::parse(text.as_bytes()).and_then(|bytes| bytes.try_into().ok()).ok_or_else(wrong)
}
