//! Why the store did not do something: the caller's fault, another owner's right, or the database's absence.

use std::io;
use std::path::PathBuf;

use crate::controller::core::{Fence, Fenced, GroupName, InstanceName, JobId, JobKind, Refused};

/// Why the store did not do something.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The database cannot be reached or does not work. Nothing is known to have changed; verbs may be repeated.
    #[error("the store is away: {0}")]
    Away(String),
    /// The database refuses this, and would again: waiting does not help, but an operator may.
    #[error("the store refuses: {0}")]
    Refused(String),
    /// Something that a job needs besides the store is not there yet. It is tried again.
    #[error("{0}")]
    Unready(String),
    /// The writer no longer owns what it writes to. It must stand down.
    #[error(transparent)]
    Fenced(#[from] Fenced),
    /// The job does not allow the transition.
    #[error("{0}")]
    Job(Refused),
    /// There is no such job.
    #[error("there is no job {0}")]
    NoJob(JobId),
    /// There is no such instance.
    #[error(
        "there is no instance {0}: `meshctl instance list` names them, and with --found the nodes that can be enabled"
    )]
    NoInstance(InstanceName),
    /// There is no such group.
    #[error("there is no group {0}: `meshctl group list` names them")]
    NoGroup(GroupName),
    /// A job that another one depends on does not exist.
    #[error("depends_on names {0}, which does not exist")]
    NoDependency(String),
    /// The key belongs to a job of another kind.
    #[error("the key {key:?} belongs to job {job}, which is of kind {kind}", kind = .kind.name())]
    KeyTaken {
        /// The key.
        key: String,
        /// The job that has it.
        job: JobId,
        /// What that job does.
        kind: JobKind,
    },
    /// The limit of pending jobs is reached.
    #[error("no more than {0} jobs may be pending (maxpending)")]
    Full(u64),
    /// The caller would leave too little room for others.
    #[error(
        "only {0} more jobs may be pending (maxpending), and this caller already has that many: no caller may have \
         more pending jobs than there is room for"
    )]
    FullForOne(u64),
    /// An operator's change contradicts the state of the store.
    #[error("{0}")]
    Conflict(String),
    /// A newer program changed the store in a way that this one does not understand.
    #[error(
        "the store needs a program that knows schema {min_reader} or later, and this one knows {program}: upgrade meshd"
    )]
    TooOld {
        /// The newest schema that this program knows.
        program: i64,
        /// The oldest one that the store demands.
        min_reader: i64,
    },
    /// Another control node has the file open.
    #[error("{} is in use by {holder}: stop that first; several control nodes need PostgreSQL", .path.display())]
    Held {
        /// The database.
        path: PathBuf,
        /// The holder's node and process ID, as far as it wrote them.
        holder: String,
    },
    /// The settings of the store are wrong.
    #[error("store: {0}")]
    Settings(String),
    /// A file of the store, or one that its settings name.
    #[error("{}: {source}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What failed.
        source: io::Error,
    },
    /// A row that no program of ours wrote.
    #[error("the store contains something that it should not: {0}")]
    Corrupt(String),
    /// Another transaction came first. The engines repeat the verb; callers do not see this.
    #[error("another transaction came first")]
    Raced,
}

impl Error {
    pub(super) fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        |source| Self::File { path, source }
    }

    pub(super) fn fenced(by: &Fence) -> Self {
        Self::Fenced(Fenced(by.clone()))
    }
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Fenced(fenced) => Self::Fenced(fenced),
            Refused::NotPlaceable(_, _) | Refused::NotLost(_, _) | Refused::NoAttempt(_, _) => {
                Self::Job(refused)
            }
        }
    }
}
