//! What can go wrong with units of work. Owns the texts: a [`WorkError`] prints exactly what follows `ERROR: `
//! on the control socket, in the words that clients of the Go node know where such words exist.
//! Knows nothing of how the answer travels.

use std::io;
use std::path::PathBuf;

/// The answer to a submission whose unit its node has submitted again over another connection.
pub(crate) const SUBMITTED_AGAIN: &str = "it was submitted again before its payload was complete";

/// Why a request about work was refused or failed.
#[derive(Debug, thiserror::Error)]
pub enum WorkError {
    /// No such work type is configured here.
    #[error("unknown work type {0}")]
    UnknownType(String),
    /// The work type is not for this caller.
    #[error("work type {0} is for this node's own operators: they submit to it over its Unix socket")]
    OperatorsOnly(String),
    /// The controller refuses a submission, for this cause.
    #[error("controller: {0}")]
    Job(String),
    /// The unit is a job's child, which only the controller ends.
    #[error("unit {unit} belongs to job {job}: use meshctl job cancel {job}")]
    Child {
        /// The unit.
        unit: String,
        /// The job.
        job: i64,
    },
    /// A unit cannot run as a pod, for this cause.
    #[error("{0}")]
    Pod(String),
    /// No unit of that ID exists here.
    #[error("unknown work unit {0}")]
    UnknownUnit(String),
    /// A unit of that ID was here until a moment ago. The words are those for an unknown one, and more.
    #[error("unknown work unit {unit}: it was released {seconds} s ago")]
    Released {
        /// The unit.
        unit: String,
        /// Seconds since its release.
        seconds: u64,
    },
    /// A signature came with a request for a type that verifies none.
    #[error("work type did not expect a signature")]
    UnexpectedSignature,
    /// The type needs a signature, and the one given (or missing) does not do.
    #[error("could not verify signature: {0}")]
    BadSignature(#[from] super::signing::SignatureError),
    /// The unit was to be signed, and this node has no key.
    #[error("cannot sign work: signing key is empty")]
    NoSigningKey,
    /// The payload is not the one that the signature was made for.
    #[error("could not verify signature: the payload is not the one that was signed")]
    OtherPayload,
    /// More payload came than was announced.
    #[error("the payload has {received} bytes, and payloadlength is {announced}")]
    PayloadTooLong {
        /// Bytes that should have come.
        announced: u64,
        /// Bytes that came.
        received: u64,
    },
    /// Less payload came than was announced.
    #[error("the client went away after {received} bytes")]
    PayloadTooShort {
        /// Bytes that came.
        received: u64,
    },
    /// A calling node has as many units here as it may have.
    #[error(
        "peerunits of node allows {caller} {most} units here, and there are as many: release some, or raise it"
    )]
    PeerUnits {
        /// Who.
        caller: String,
        /// The bound.
        most: u64,
    },
    /// A calling node would have more payload here than it may have.
    #[error(
        "peerpayload of node allows {caller} {most} bytes of payload here, and this would be more: release units, or raise it"
    )]
    PeerPayload {
        /// Who.
        caller: String,
        /// The bound in bytes.
        most: u64,
    },
    /// Parameters came for a type that takes none at run time.
    #[error("extra params provided but not allowed")]
    ParamsNotAllowed,
    /// The parameters do not split into words.
    #[error("params {0:?} cannot be split into words: a quote or an escape is left open")]
    BadQuoting(String),
    /// A time to live was given for a unit that runs here.
    #[error("ttl option is intended for remote work only")]
    TtlIsForRemoteWork,
    /// The time to live is no duration.
    #[error("ttl {0}")]
    BadTtl(#[from] crate::duration::InvalidDuration),
    /// No TLS profile of that name is configured here.
    #[error("unknown TLS config {0}")]
    UnknownProfile(String),
    /// Secrets would travel in the clear.
    #[error("cannot send secrets over a non-TLS connection")]
    SecretsWithoutTls,
    /// The target is no node ID.
    #[error("node: {0}")]
    BadNode(#[from] crate::wire::InvalidNodeId),
    /// The file system under the data directory is full.
    #[error("no space left under the data directory ({path}): free some space, or release finished units")]
    NoSpace {
        /// The file that could not grow.
        path: PathBuf,
    },
    /// The file system under the data directory has less free than is to stay so.
    #[error(
        "no space left under the data directory ({path}): {free} bytes are free there, less than its reserve of {reserve} (diskreserve): free some space, or release finished units"
    )]
    Reserve {
        /// The directory.
        path: PathBuf,
        /// Bytes that are free.
        free: u64,
        /// Bytes that are to stay so.
        reserve: u64,
    },
    /// A file operation failed.
    #[error("cannot {what} {path}: {source}")]
    Io {
        /// The operation, as a verb.
        what: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's cause.
        source: io::Error,
    },
    /// The unit could not be started; its Detail says the same.
    #[error("{0}")]
    NotStarted(String),
    /// The unit was cancelled, released or ended otherwise while its payload was still being sent.
    #[error("work unit {0} ended before its payload was complete")]
    EndedEarly(String),
    /// Its node has submitted the unit again over another connection, and that one counts.
    #[error("work unit {0}: {SUBMITTED_AGAIN}")]
    SubmittedAgain(String),
    /// The ID that was chosen for a unit is another one's.
    #[error("workunit ID {0} is already in use, cannot use the same workunit ID more than once")]
    InUse(String),
    /// This node has promised not to run a unit of that ID.
    #[error(
        "work unit {0} was disclaimed: this node has promised not to run it, so that it may run elsewhere"
    )]
    Disclaimed(String),
    /// Nothing is known of a unit, and nothing is promised of it. The words are those for an unknown one, and more.
    #[error("unknown work unit {unit}: no promise, as its caller has {most} of them here")]
    NoPromise {
        /// The unit.
        unit: String,
        /// Promises that a caller may have.
        most: usize,
    },
    /// Only units of jobs have IDs that nobody else may use.
    #[error("work disclaim is for the units of jobs, and {0} is none")]
    NotDisclaimable(String),
    /// The ID that was chosen for a unit cannot be one.
    #[error(transparent)]
    BadUnitId(#[from] super::unit::NotChoosable),
    /// A unit of this very node was to be adopted.
    #[error("cannot adopt a work unit of this node itself: name the node that runs it")]
    AdoptHere,
    /// What was to be adopted can have no such ID.
    #[error(transparent)]
    NoUnitId(#[from] super::unit::InvalidUnitId),
    /// The stdout file holds less than the unit's final status says.
    #[error("stdout of work unit {unit} holds {found} of {expected} bytes")]
    StdoutTruncated {
        /// The unit.
        unit: String,
        /// Bytes there.
        found: u64,
        /// Bytes that the status promises.
        expected: u64,
    },
    /// A cancel did not end the processes in the time allowed for it.
    #[error("work unit {0} is still running: its processes have not ended yet, ask again")]
    StillRunning(String),
    /// The follower of a result stream stopped reading or writing.
    #[error("connection: {0}")]
    Connection(#[source] io::Error),
}

impl WorkError {
    /// Names a failed file operation; a full disk gets a variant of its own.
    pub(crate) fn io(what: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Self {
        let path = path.into();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace { path },
            _ => Self::Io { what, path, source },
        }
    }
}

/// Why the work engine does not start.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory is a symbolic link, which another user may turn elsewhere.
    #[error("directory {0} is a symbolic link: name the real directory instead")]
    Symlink(PathBuf),
    /// The path exists and is no directory.
    #[error("directory {0} is not a directory")]
    NotADirectory(PathBuf),
    /// Somebody else owns it.
    #[error(
        "directory {path} belongs to user {owner}, not to user {user} who runs this node: chown it or set another datadir"
    )]
    ForeignOwner {
        /// The directory.
        path: PathBuf,
        /// Its owner's numeric ID.
        owner: u32,
        /// Our numeric ID.
        user: u32,
    },
    /// Another daemon has it.
    #[error(
        "directory {path} is in use by another daemon of this node ID, {holder}: stop that one, or give this node an ID or a datadir of its own"
    )]
    InUse {
        /// The directory.
        path: PathBuf,
        /// The other daemon: process ID and program, as far as they are known.
        holder: String,
    },
    /// Others may write into it.
    #[error("directory {path} is writable by others (mode {mode:04o}): run chmod go-w on it")]
    WritableByOthers {
        /// The directory.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The node ID does not make a directory name.
    #[error("node ID {0:?} cannot be a directory name, and the units of a node are kept in one of that name")]
    NodeId(String),
    /// A file operation failed.
    #[error("cannot {what} {path}: {source}")]
    Io {
        /// The operation, as a verb.
        what: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's cause.
        source: io::Error,
    },
    /// The spawner process does not start.
    #[error("cannot start the process that starts jobs ({path}): {source}")]
    Spawner {
        /// The executable.
        path: PathBuf,
        /// The system's cause.
        source: io::Error,
    },
    /// Two work types have one name.
    #[error("work type {0} already registered")]
    DuplicateType(String),
}
