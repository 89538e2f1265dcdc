//! What keeps a node from joining, in words for the person who typed the command.

use std::io;
use std::path::{Path, PathBuf};

use crate::config::ConfigErrors;
use crate::tls::ProfileError;
use crate::tls::make::MakeError;

/// Why a node cannot be added, or a bundle cannot be installed.
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
    /// The file exists already.
    #[error("{} exists: move it away, or name another file with --out", .0.display())]
    Exists(PathBuf),
    /// Certificates or keys cannot be made.
    #[error(transparent)]
    Make(#[from] MakeError),
    /// A record of the authority is damaged.
    #[error("{}: it is not a record of a node: {reason}", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// No authority has been made yet.
    #[error("{}: there is no authority: `meshctl node invite` and `meshctl node add` make one, and --ca names another directory", .0.display())]
    NoAuthority(PathBuf),
    /// A name that no node may have here.
    #[error(
        "{0:?} cannot be the name of a node: use letters, digits, `.`, `-` and `_`, and begin with a letter or digit"
    )]
    Name(String),
    /// A node of this name exists.
    #[error(
        "{0} has already been added: `meshctl node renew {0}` makes a new bundle, `meshctl node remove {0}` removes it"
    )]
    Known(String),
    /// No node of this name exists.
    #[error("the authority knows no node {0}")]
    Unknown(String),
    /// No host of this name waits.
    #[error("no host that calls itself {0} waits")]
    NobodyAsks(String),
    /// The host that waits has another key.
    #[error(
        "the host that calls itself {node} has another fingerprint ({shown}): somebody may be in between"
    )]
    AnotherAsks {
        /// The name.
        node: String,
        /// The fingerprint that it has.
        shown: String,
    },
    /// Several hosts wait under one name.
    #[error("several hosts call themselves {node}: name one of them by --fingerprint ({shown})")]
    SeveralAsk {
        /// The name.
        node: String,
        /// The fingerprints that they have.
        shown: String,
    },
    /// The configuration is wrong.
    #[error("{0}")]
    Configuration(#[from] ConfigErrors),
    /// A bundle's certificate, key or authority is wrong.
    #[error("the bundle: {0}")]
    Trust(#[from] ProfileError),
    /// A file that is no bundle, or is a bundle that must not be used.
    #[error("{}: {reason}", path.display())]
    Bundle {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Two control nodes share a store.
    #[error("another control node has changed this at the same moment: try again")]
    Raced,
    /// This node cannot admit the new one.
    #[error("{0}")]
    Unready(String),
    /// The host lacks something.
    #[error("{0}")]
    Host(String),
}

impl JoinError {
    /// Makes the error for a file from the system's.
    pub(super) fn of(path: &Path) -> impl FnOnce(io::Error) -> Self {
        |source| Self::File { path: path.to_owned(), source }
    }
}
