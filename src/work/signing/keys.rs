//! Keys for signatures, kept in memory and read again when their file changes.
//!
//! A file that cannot be used never takes the place of one that could. No key's bytes reach a message.

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
    problem: Problem,
}

/// What is wrong with the contents of a key file, or with reading it.
#[derive(Debug, thiserror::Error)]
pub(super) enum Problem {
    #[error("cannot be read: {0}")]
    Read(#[source] io::Error),
    #[error("holds a public key where the private one is needed")]
    NotPrivate,
    #[error("holds a private key where the public one is needed: a node that only verifies must not have it")]
    NotPublic,
    #[error(
        "holds an encrypted key, and a node has nobody to ask for the passphrase: \
         `ssh-keygen -p -N '' -f FILE` removes it"
    )]
    Encrypted,
    #[error("holds {0} lines where one public key is needed")]
    SeveralLines(usize),
    #[error("holds an RSA key of {0} bits, and 2048 to 8192 are needed")]
    RsaLength(usize),
    #[error(
        "holds no key that can be used: RSA and Ed25519 can, in PEM or as ssh-keygen writes them \
         (`meshctl key generate` makes a pair)"
    )]
    Unusable,
}

/// A key that a file may hold.
pub(super) trait KeyMaterial: Sized + Send + Sync {
    /// Reads it from a file's contents, PEM or OpenSSH's format, and makes sure that it can be used.
    fn parse(file: &[u8]) -> Result<Self, Problem>;
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

fn says(file: &[u8], what: &str) -> bool {
    file.windows(what.len()).any(|window| window == what.as_bytes())
}

impl KeyMaterial for PrivateKey {
    fn parse(file: &[u8]) -> Result<Self, Problem> {
        if says(file, "PUBLIC KEY") || openssh::is_public(file) {
            return Err(Problem::NotPrivate);
        }
        if says(file, "ENCRYPTED PRIVATE KEY") || says(file, "4,ENCRYPTED") {
            return Err(Problem::Encrypted);
        }
        let key = if says(file, "OPENSSH PRIVATE KEY") {
            openssh::private_key(file)?
        } else {
            let ed25519 = EncodingKey::from_ed_pem(file).map(|key| Self { algorithm: Algorithm::EdDSA, key });
            let rsa = || EncodingKey::from_rsa_pem(file).map(|key| Self { algorithm: Algorithm::RS512, key });
            ed25519.or_else(|_| rsa()).map_err(|_| Problem::Unusable)?
        };
        // The numbers in it are looked at when something is signed, so something is.
        let tried = jsonwebtoken::encode(&Header::new(key.algorithm), &serde_json::json!({}), &key.key);
        tried.map(|_| key).map_err(|_| Problem::Unusable)
    }
}

impl KeyMaterial for PublicKey {
    fn parse(file: &[u8]) -> Result<Self, Problem> {
        if says(file, "PRIVATE KEY") {
            return Err(Problem::NotPublic);
        }
        if openssh::is_public(file) {
            return openssh::public_key(file);
        }
        let ed25519 = DecodingKey::from_ed_pem(file).map(|key| Self { algorithm: Algorithm::EdDSA, key });
        let rsa = || DecodingKey::from_rsa_pem(file).map(|key| Self { algorithm: Algorithm::RS512, key });
        ed25519.or_else(|_| rsa()).map_err(|_| Problem::Unusable)
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

impl<K: KeyMaterial> KeyFile<K> {
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
        let mut state = self.state.lock();
        if state.1 != now {
            state.1 = now;
            match read(&self.path) {
                Ok(key) => {
                    tracing::info!(path = %self.path.display(), "key for signatures has changed and is in use");
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

fn read<K: KeyMaterial>(path: &Path) -> Result<K, KeyError> {
    let parsed = regular_file::read(path, LONGEST).map_err(Problem::Read).and_then(|file| K::parse(&file));
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
        assert!(refused.ends_with("cannot be read: it is no regular file"), "{refused}");
    }
}
