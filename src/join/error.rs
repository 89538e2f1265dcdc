//! What keeps a node from joining, in words for whoever typed the command.

use std::io;
use std::path::{Path, PathBuf};

use crate::config::ConfigErrors;
use crate::tls::ProfileError;
use crate::tls::make::MakeError;

/// Why a node cannot be added, or a bundle not be installed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JoinError {
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's words.
        source: io::Error,
    },
    /// A file is there already.
    #[error("{} exists: move it away, or name another file with --out", .0.display())]
    Exists(PathBuf),
    /// Certificates or keys cannot be made.
    #[error(transparent)]
    Make(#[from] MakeError),
    /// A record of the authority is damaged.
    #[error("{}: it is no record of a node: {reason}", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Nobody has made an authority yet.
    #[error("{}: there is no authority: `meshctl node add` makes one, and --ca names another directory", .0.display())]
    NoAuthority(PathBuf),
    /// A name that no node may have here.
    #[error(
        "{0:?} is no name for a node: it has letters, digits, `.`, `-` and `_`, and begins with a letter or digit"
    )]
    Name(String),
    /// A node of this name is there.
    #[error(
        "{0} was added already: `meshctl node renew {0}` makes a new bundle, `meshctl node remove {0}` removes it"
    )]
    Known(String),
    /// No node of this name is there.
    #[error("the authority knows no node {0}")]
    Unknown(String),
    /// The configuration is wrong.
    #[error("{0}")]
    Configuration(#[from] ConfigErrors),
    /// A bundle's certificate, key or authority is wrong.
    #[error("the bundle: {0}")]
    Trust(#[from] ProfileError),
    /// A bundle is no bundle, or not one that may be used.
    #[error("{}: {reason}", path.display())]
    Bundle {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// This node cannot take the new one in.
    #[error("{0}")]
    Unready(String),
    /// The host lacks something.
    #[error("{0}")]
    Host(String),
}

impl JoinError {
    /// An error of the system about a file.
    pub(super) fn of(path: &Path) -> impl FnOnce(io::Error) -> Self {
        |source| Self::File { path: path.to_owned(), source }
    }
}
