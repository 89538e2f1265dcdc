//! Keys for signatures, kept in memory and read again when their file changes.
//!
//! A file that cannot be used never takes the place of one that could. No key's bytes reach a message.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header};

/// Why a key file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct KeyError {
    path: PathBuf,
    problem: Problem,
}

#[derive(Debug, thiserror::Error)]
enum Problem {
    #[error("cannot be read: {0}")]
    Read(#[source] io::Error),
    #[error("holds a public key where the private one is needed")]
    NotPrivate,
    #[error("holds a private key where the public one is needed: a node that only verifies must not have it")]
    NotPublic,
    #[error(
        "holds no key that can be used: RSA and Ed25519 in PEM can (`meshctl key generate` makes a pair)"
    )]
    Unusable,
}

/// A key that a file may hold.
pub(super) trait Key: Sized + Send + Sync {
    /// Reads it from PEM, and makes sure that it can be used.
    fn parse(pem: &[u8]) -> Result<Self, &'static str>;
}

/// Signs.
pub(super) struct PrivateKey {
    pub(super) algorithm: Algorithm,
    pub(super) key: EncodingKey,
}

/// Verifies.
pub(super) struct PublicKey {
    pub(super) algorithm: Algorithm,
    pub(super) key: DecodingKey,
}

const NOT_PRIVATE: &str = "public";
const NOT_PUBLIC: &str = "private";
const UNUSABLE: &str = "unusable";

fn says(pem: &[u8], what: &str) -> bool {
    pem.windows(what.len()).any(|window| window == what.as_bytes())
}

impl Key for PrivateKey {
    fn parse(pem: &[u8]) -> Result<Self, &'static str> {
        if says(pem, "PUBLIC KEY") {
            return Err(NOT_PRIVATE);
        }
        let ed25519 = EncodingKey::from_ed_pem(pem).map(|key| Self { algorithm: Algorithm::EdDSA, key });
        let rsa = || EncodingKey::from_rsa_pem(pem).map(|key| Self { algorithm: Algorithm::RS512, key });
        let key = ed25519.or_else(|_| rsa()).map_err(|_| UNUSABLE)?;
        // The numbers in it are looked at when something is signed, so something is.
        let tried = jsonwebtoken::encode(&Header::new(key.algorithm), &serde_json::json!({}), &key.key);
        tried.map(|_| key).map_err(|_| UNUSABLE)
    }
}

impl Key for PublicKey {
    fn parse(pem: &[u8]) -> Result<Self, &'static str> {
        if says(pem, "PRIVATE KEY") {
            return Err(NOT_PUBLIC);
        }
        let ed25519 = DecodingKey::from_ed_pem(pem).map(|key| Self { algorithm: Algorithm::EdDSA, key });
        let rsa = || DecodingKey::from_rsa_pem(pem).map(|key| Self { algorithm: Algorithm::RS512, key });
        ed25519.or_else(|_| rsa()).map_err(|_| UNUSABLE)
    }
}

type Stamp = Option<(SystemTime, u64, u64)>;

/// A key and the file it comes from.
pub(super) struct KeyFile<K> {
    path: PathBuf,
    /// The key, and how its file looked when it was last tried. Held for a look at the file, never longer.
    state: Mutex<(Arc<K>, Stamp)>,
}

impl<K> fmt::Debug for KeyFile<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KeyFile").field(&self.path).finish()
    }
}

impl<K: Key> KeyFile<K> {
    pub(super) fn open(path: &Path) -> Result<Self, KeyError> {
        let stamp = stamp(path);
        let key = read(path)?;
        Ok(Self { path: path.to_owned(), state: Mutex::new((Arc::new(key), stamp)) })
    }

    pub(super) fn path(&self) -> &PathBuf {
        &self.path
    }

    /// The key as its file stands now, or the last good one.
    pub(super) fn current(&self) -> Arc<K> {
        let now = stamp(&self.path);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.1 != now {
            state.1 = now;
            match read(&self.path) {
                Ok(key) => {
                    tracing::info!(path = %self.path.display(), "key for signatures has changed and is taken up");
                    state.0 = Arc::new(key);
                }
                Err(error) => {
                    tracing::warn!(%error, "key for signatures has changed and cannot be used: the old one stays");
                }
            }
        }
        state.0.clone()
    }
}

fn stamp(path: &Path) -> Stamp {
    let file = fs::metadata(path).ok()?;
    Some((file.modified().ok()?, file.len(), file.ino()))
}

fn read<K: Key>(path: &Path) -> Result<K, KeyError> {
    let wrong = |problem| KeyError { path: path.to_owned(), problem };
    let pem = fs::read(path).map_err(|e| wrong(Problem::Read(e)))?;
    K::parse(&pem).map_err(|problem| {
        wrong(match problem {
            NOT_PRIVATE => Problem::NotPrivate,
            NOT_PUBLIC => Problem::NotPublic,
            _ => Problem::Unusable,
        })
    })
}
