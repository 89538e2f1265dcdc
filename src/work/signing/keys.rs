//! Keys for signatures, kept in memory and read again when their file changes.
//!
//! An unusable file never replaces a usable key. Messages never contain a key's bytes.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header};
use parking_lot::Mutex;

use super::openssh;
use crate::os::regular_file::{self, LONGEST};

/// Why a key file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct KeyError {
    path: PathBuf,
    problem: KeyProblem,
}

/// What is wrong with the contents of a key file, or with reading it.
#[derive(Debug, thiserror::Error)]
pub(super) enum KeyProblem {
    #[error("cannot be read: {0}")]
    Read(#[source] io::Error),
    #[error("holds a public key where the private one is needed")]
    NotPrivate,
    #[error("holds a private key where the public one is needed: a node that only verifies must not have it")]
    NotPublic,
    #[error(
        "holds an encrypted key, and a node has nobody to ask for the passphrase: remove it with `ssh-keygen -p -N '' -f FILE`"
    )]
    Encrypted,
    #[error("holds {0} lines, but must hold one public key")]
    SeveralLines(usize),
    #[error("holds an RSA key of {0} bits, but 2048 to 8192 are needed")]
    RsaLength(usize),
    #[error(
        "holds no key that can be used: give an RSA or Ed25519 key, in PEM or as ssh-keygen writes it (`meshctl key \
         generate` makes a pair)"
    )]
    Unusable,
}

/// A key that a file may hold.
pub(super) trait KeyMaterial: Sized + Send + Sync {
    /// Reads a key from a file's contents (PEM or OpenSSH's format). Fails if the key cannot be used.
    fn parse(file: &[u8]) -> Result<Self, KeyProblem>;
}

/// A key that signs.
pub(super) struct PrivateKey {
    pub(super) algorithm: Algorithm,
    pub(super) key: EncodingKey,
}

/// A key that verifies.
pub(super) struct PublicKey {
    pub(super) algorithm: Algorithm,
    pub(super) key: DecodingKey,
}

fn says(file: &[u8], what: &str) -> bool {
    file.windows(what.len()).any(|window| window == what.as_bytes())
}

impl KeyMaterial for PrivateKey {
    fn parse(file: &[u8]) -> Result<Self, KeyProblem> {
        if says(file, "PUBLIC KEY") || openssh::is_public(file) {
            return Err(KeyProblem::NotPrivate);
        }
        if says(file, "ENCRYPTED PRIVATE KEY") || says(file, "4,ENCRYPTED") {
            return Err(KeyProblem::Encrypted);
        }
        let key = if says(file, "OPENSSH PRIVATE KEY") {
            openssh::private_key(file)?
        } else {
            let ed25519 = EncodingKey::from_ed_pem(file).map(|key| Self { algorithm: Algorithm::EdDSA, key });
            let rsa = || EncodingKey::from_rsa_pem(file).map(|key| Self { algorithm: Algorithm::RS512, key });
            ed25519.or_else(|_| rsa()).map_err(|_| KeyProblem::Unusable)?
        };
        // Signs something, because the library checks the key's numbers only when it signs.
        let tried = jsonwebtoken::encode(&Header::new(key.algorithm), &serde_json::json!({}), &key.key);
        tried.map(|_| key).map_err(|_| KeyProblem::Unusable)
    }
}

impl KeyMaterial for PublicKey {
    fn parse(file: &[u8]) -> Result<Self, KeyProblem> {
        if says(file, "PRIVATE KEY") {
            return Err(KeyProblem::NotPublic);
        }
        if openssh::is_public(file) {
            return openssh::public_key(file);
        }
        let ed25519 = DecodingKey::from_ed_pem(file).map(|key| Self { algorithm: Algorithm::EdDSA, key });
        let rsa = || DecodingKey::from_rsa_pem(file).map(|key| Self { algorithm: Algorithm::RS512, key });
        ed25519.or_else(|_| rsa()).map_err(|_| KeyProblem::Unusable)
    }
}

type KeyStamp = Option<(SystemTime, u64, u64)>;

/// A key and the file it comes from.
pub(super) struct KeyFile<K> {
    path: PathBuf,
    /// The key, and its file's stamp when it was last read. The lock is never held longer than it takes to read the
    /// file.
    state: Mutex<(Arc<K>, KeyStamp)>,
}

impl<K> fmt::Debug for KeyFile<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KeyFile").field(&self.path).finish()
    }
}

impl<K: KeyMaterial> KeyFile<K> {
    pub(super) fn open(path: &Path) -> Result<Self, KeyError> {
        let stamp = stamp(path);
        let key = read(path)?;
        Ok(Self { path: path.to_owned(), state: Mutex::new((Arc::new(key), stamp)) })
    }

    pub(super) fn path(&self) -> &PathBuf {
        &self.path
    }

    /// The key in its file now, or the last usable one.
    pub(super) fn current(&self) -> Arc<K> {
        let now = stamp(&self.path);
        let mut state = self.state.lock();
        if state.1 != now {
            state.1 = now;
            match read(&self.path) {
                Ok(key) => {
                    tracing::info!(path = %self.path.display(), "the key for signatures has changed, the new one is in use");
                    state.0 = Arc::new(key);
                }
                Err(error) => {
                    tracing::warn!(%error, "the key for signatures has changed but cannot be used: the old one stays in use");
                }
            }
        }
        state.0.clone()
    }
}

fn stamp(path: &Path) -> KeyStamp {
    let file = fs::metadata(path).ok()?;
    Some((file.modified().ok()?, file.len(), file.ino()))
}

fn read<K: KeyMaterial>(path: &Path) -> Result<K, KeyError> {
    let parsed = regular_file::read(path, LONGEST).map_err(KeyProblem::Read).and_then(|file| K::parse(&file));
    parsed.map_err(|problem| KeyError { path: path.to_owned(), problem })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_in_the_place_of_a_key_is_not_waited_for() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("pipe");
        crate::os::regular_file::pipe(&path);
        let refused = KeyFile::<PrivateKey>::open(&path).err().unwrap().to_string();
        assert!(refused.ends_with("cannot be read: it is not a regular file"), "{refused}");
    }
}
