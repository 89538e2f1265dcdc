//! Credentials: one file for each on the control node, read when it is used and never kept in memory.
//!
//! Jobs and groups name them, so the store holds names only. A file says to which addresses its secrets may be sent;
//! callers ask [`Credential::may_be_sent_to`] before they send anything. This module knows nothing of git, podman and
//! Kubernetes.

mod file;
mod url;
mod uses;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use self::file::FileFault;
pub use self::url::{Url, UrlError};
use crate::os::regular_file;

/// The largest file that is read.
const LARGEST: u64 = 1 << 20;
const LONGEST_NAME: usize = 63;

/// The name of a credential: lower-case letters, digits, `-` and `.`, at most 63 bytes. It is part of file
/// names and of names in Kubernetes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct CredentialName(String);

/// Why a text is no name of a credential.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a credential's name must have 1 to {LONGEST_NAME} lower-case letters, digits, dashes and dots, and must begin \
     and end with a letter or digit"
)]
pub struct BadName;

impl CredentialName {
    /// Parses a name.
    pub fn new(text: &str) -> Result<Self, BadName> {
        if is_file_name(text) { Ok(Self(text.to_owned())) } else { Err(BadName) }
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for CredentialName {
    type Error = BadName;

    fn try_from(text: String) -> Result<Self, BadName> {
        Self::new(&text)
    }
}

impl fmt::Display for CredentialName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether a text may be the name of a thing that has a file: lower-case letters, digits, dashes and dots.
pub(super) fn is_file_name(text: &str) -> bool {
    let ends = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let all = |b: &u8| ends(Some(b)) || b"-.".contains(b);
    let bytes = text.as_bytes();
    bytes.len() <= LONGEST_NAME
        && ends(bytes.first())
        && ends(bytes.last())
        && bytes.iter().all(all)
        && !text.contains("..")
}

/// A secret text. Nothing shows it: whoever needs it calls [`Self::expose`].
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// The text itself.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// A credential.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credential {
    /// Its secrets.
    pub kind: CredentialKind,
    /// The addresses that it may be sent to, with everything below them.
    pub urls: Vec<Url>,
    /// Callers over the mesh may name it.
    pub mesh: bool,
}

/// What a credential is for, with its secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CredentialKind {
    /// Pulls images.
    Registry(RegistryLogin),
    /// Fetches repositories.
    Scm(ScmLogin),
    /// Starts pods.
    Kubernetes(KubernetesLogin),
}

impl CredentialKind {
    /// The word in files and messages.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Registry(_) => "registry",
            Self::Scm(_) => "scm",
            Self::Kubernetes(_) => "kubernetes",
        }
    }
}

/// A login at a registry of images.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistryLogin {
    /// The registry, as in `quay.io` or `registry.example:5000`.
    pub host: String,
    /// The user.
    pub username: String,
    /// The password or token.
    pub password: Secret,
    /// Verify the registry's certificate.
    pub verify_ssl: bool,
}

/// A login at a server of repositories.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScmLogin {
    /// The user.
    pub username: Option<String>,
    /// What proves it.
    pub proof: ScmProof,
}

/// What proves a user to a server of repositories.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScmProof {
    /// A password or token, for https.
    Password(Secret),
    /// A private key, for ssh.
    SshKey(Secret),
}

/// Access to a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KubernetesLogin {
    /// A kubeconfig file's text.
    pub kubeconfig: Secret,
    /// The namespace of the pods.
    pub namespace: Option<String>,
}

impl Credential {
    /// Whether its secrets may be sent to that address. Without `urls` a registry login may go to its own host only. A
    /// kubeconfig without `urls` is not checked here, because it names its own server.
    pub fn may_be_sent_to(&self, url: &Url) -> bool {
        match &self.kind {
            CredentialKind::Registry(login) if self.urls.is_empty() => {
                Url::parse(&format!("https://{}", login.host)).is_ok_and(|own| url.is_below(&own))
            }
            CredentialKind::Registry(_) | CredentialKind::Scm(_) | CredentialKind::Kubernetes(_) => {
                self.urls.iter().any(|prefix| url.is_below(prefix))
            }
        }
    }
}

/// Why a credential cannot be used. No message shows anything of its file.
#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    /// This node has no such directory.
    #[error("credential {0}: this node has no directory of credentials: set work-controller's credentials")]
    NoDirectory(CredentialName),
    /// There is no such file.
    #[error("credential {0}: there is no file {path}", path = .1.display())]
    Missing(CredentialName, PathBuf),
    /// It cannot be read.
    #[error("credential {0}: cannot read its file: {1}")]
    Unreadable(CredentialName, io::Error),
    /// Others may read it.
    #[error("credential {0}: its file has mode {1:04o}: make it 0600 or 0400")]
    Mode(CredentialName, u32),
    /// It belongs to somebody else.
    #[error("credential {0}: its file belongs to user {1}, not to the user of this daemon, {2}")]
    Owner(CredentialName, u32, u32),
    /// It is no regular file, or far too large.
    #[error("credential {0}: its file is not a regular file of at most {LARGEST} bytes")]
    NoFile(CredentialName),
    /// Its content is not valid.
    #[error("credential {0}: {1}")]
    Content(CredentialName, FileFault),
    /// It is of another kind than its use needs.
    #[error("credential {0} is of kind {1}: a credential of kind {2} is needed here")]
    Kind(CredentialName, &'static str, &'static str),
    /// Its file does not allow the address.
    #[error(
        "credential {0} may not be sent to {1}: add a prefix of it to its urls, or use another credential"
    )]
    Address(CredentialName, Box<Url>),
    /// The image has no address.
    #[error("credential {0} cannot be used for the image {1:?}: the image's name is not an address: {2}")]
    Image(CredentialName, String, UrlError),
    /// An address in it is not valid.
    #[error("credential {0}: its server or host is not an address: {1}")]
    Server(CredentialName, UrlError),
    /// The caller came over the mesh.
    #[error(
        "credential {0} may not be used by callers over the mesh: set mesh: true in its file to allow that"
    )]
    Mesh(CredentialName),
}

/// The directory of credentials.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Credentials {
    directory: Option<PathBuf>,
}

impl Credentials {
    /// The credentials in a directory; none if there is no directory.
    pub fn new(directory: Option<PathBuf>) -> Self {
        Self { directory }
    }

    /// Reads a credential. Blocks on the disk.
    ///
    /// # Errors
    /// [`CredentialError`] names the credential and what to do.
    pub fn read(&self, name: &CredentialName) -> Result<Credential, CredentialError> {
        let directory = self.directory.as_deref();
        let directory = directory.ok_or_else(|| CredentialError::NoDirectory(name.clone()))?;
        let text = read_private(name, &directory.join(format!("{name}.yml")))?;
        file::parse(&text).map_err(|fault| CredentialError::Content(name.clone(), fault))
    }

    /// The names of all credentials in the directory, in order. Files with other names are left out.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn names(&self) -> io::Result<Vec<CredentialName>> {
        let Some(directory) = &self.directory else { return Ok(Vec::new()) };
        let mut names = Vec::new();
        for entry in std::fs::read_dir(directory)? {
            let file = entry?.file_name();
            let stem = file.to_str().and_then(|file| file.strip_suffix(".yml"));
            names.extend(stem.and_then(|stem| CredentialName::new(stem).ok()));
        }
        names.sort();
        Ok(names)
    }
}

/// Reads a file that nobody else may read. The checks are on the open file, not on its name.
fn read_private(name: &CredentialName, path: &Path) -> Result<String, CredentialError> {
    let unreadable = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => CredentialError::Missing(name.clone(), path.to_owned()),
        _ => CredentialError::Unreadable(name.clone(), error),
    };
    let opened = regular_file::open_itself(path).map_err(|error| match error.kind() {
        io::ErrorKind::Other | io::ErrorKind::IsADirectory => CredentialError::NoFile(name.clone()),
        _ => unreadable(error),
    })?;
    let (mode, own) = (opened.mode, rustix::process::geteuid().as_raw());
    if mode != 0o600 && mode != 0o400 {
        return Err(CredentialError::Mode(name.clone(), mode));
    }
    if opened.owner != own {
        return Err(CredentialError::Owner(name.clone(), opened.owner, own));
    }
    opened.text(LARGEST).map_err(|error| match error.kind() {
        io::ErrorKind::FileTooLarge => CredentialError::NoFile(name.clone()),
        _ => unreadable(error),
    })
}

#[cfg(test)]
mod tests;
