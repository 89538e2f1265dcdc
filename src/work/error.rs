//! What can go wrong with units of work. Owns the texts: a [`WorkError`] prints exactly the text after `ERROR: ` on the
//! control socket. Where the Go node has words for an error, the text uses them, because clients know them. Does not
//! know how the answer travels.

use std::io;
use std::path::PathBuf;

use super::pieces::AssemblyError;

/// The answer to a submission that its node has repeated over another connection.
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
    /// The controller refused a submission, for this cause.
    #[error("controller: {0}")]
    Job(String),
    /// The unit is a job's child, which only the controller may end.
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
    /// No unit with that ID exists here.
    #[error("unknown work unit {0}")]
    UnknownUnit(String),
    /// A unit with that ID was released a moment ago. The text begins like that for an unknown unit.
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
    /// The type needs a signature, and it is missing or not accepted.
    #[error("could not verify signature: {0}")]
    BadSignature(#[from] super::signing::SignatureError),
    /// The unit should be signed, but this node has no key.
    #[error("cannot sign work: signing key is empty")]
    NoSigningKey,
    /// The payload is not the one that the signature was made for.
    #[error("could not verify signature: the payload is not the one that was signed")]
    OtherPayload,
    /// The payload does not come together from what was sent and from pieces that are here.
    #[error("cannot put the payload together: {0}")]
    Assembly(#[from] AssemblyError),
    /// The payload was longer than announced.
    #[error("the payload has {received} bytes, and payloadlength is {announced}")]
    PayloadTooLong {
        /// Bytes that should have come.
        announced: u64,
        /// Bytes that came.
        received: u64,
    },
    /// The payload was shorter than announced.
    #[error("the client went away after {received} bytes")]
    PayloadTooShort {
        /// Bytes that came.
        received: u64,
    },
    /// A calling node already has as many units here as it may have.
    #[error(
        "{caller} may have {most} units here (peerunits of node), and that many are there already: release some, or raise it"
    )]
    PeerUnits {
        /// The caller, in words.
        caller: String,
        /// The most units that it may have.
        most: u64,
    },
    /// A calling node would have more payload here than it may have.
    #[error(
        "{caller} may have {most} bytes of payload here (peerpayload of node), and this would be more: release units, or raise it"
    )]
    PeerPayload {
        /// The caller, in words.
        caller: String,
        /// The most bytes that it may have.
        most: u64,
    },
    /// Parameters came for a type that takes none at run time.
    #[error("extra params provided but not allowed")]
    ParamsNotAllowed,
    /// The parameters do not split into words.
    #[error("params {0:?} cannot be split into words: close the quote or escape")]
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
    /// The request has secrets, and no TLS profile to encrypt them on their way.
    #[error("cannot send secrets over a non-TLS connection")]
    SecretsWithoutTls,
    /// The target is not a valid node ID.
    #[error("node: {0}")]
    BadNode(#[from] crate::wire::InvalidNodeId),
    /// The file system under the data directory is full.
    #[error("no space left under the data directory ({path}): free some space, or release finished units")]
    NoSpace {
        /// The file that could not grow.
        path: PathBuf,
    },
    /// The file system under the data directory has less free space than its reserve.
    #[error(
        "no space left under the data directory ({path}): {free} bytes are free there, less than its reserve of {reserve} (diskreserve): free some space, or release finished units"
    )]
    Reserve {
        /// The directory.
        path: PathBuf,
        /// Bytes that are free.
        free: u64,
        /// Bytes that have to stay free.
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
    /// The unit's node has repeated the submission over another connection, which replaces this one.
    #[error("work unit {0}: {SUBMITTED_AGAIN}")]
    SubmittedAgain(String),
    /// The ID that was chosen for a unit belongs to another unit.
    #[error("workunit ID {0} is already in use, cannot use the same workunit ID more than once")]
    InUse(String),
    /// This node has promised not to run a unit with that ID.
    #[error(
        "work unit {0} was disclaimed: this node has promised not to run it, so that it may run elsewhere"
    )]
    Disclaimed(String),
    /// The unit is unknown, and the caller gets no promise about it. The text begins like that for an unknown unit.
    #[error("unknown work unit {unit}: no promise, because its caller already has {most} of them here")]
    NoPromise {
        /// The unit.
        unit: String,
        /// The most promises that a caller may have.
        most: usize,
    },
    /// A promise was asked about a unit that is not a job's. Only the IDs of jobs' units are used by nobody else.
    #[error("work disclaim is only for the units of jobs, and {0} is not one")]
    NotDisclaimable(String),
    /// The ID that was chosen for a unit is not allowed.
    #[error(transparent)]
    BadUnitId(#[from] super::unit::NotChoosable),
    /// The unit to be adopted runs on this node itself.
    #[error("cannot adopt a work unit of this node itself: name the node that runs it")]
    AdoptHere,
    /// The unit to be adopted has an invalid ID.
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
    /// The stderr of a unit that runs on another node is only there.
    #[error("the stderr of work unit {unit} stays on node {node}, which runs it: ask there")]
    StderrElsewhere {
        /// The unit.
        unit: String,
        /// The node.
        node: String,
    },
    /// The command's stderr is in its output.
    #[error(
        "work unit {0} has no stderr of its own: its work type merges it into the output (stderr: separate keeps it apart)"
    )]
    NoStderr(String),
    /// What a reader has got is not in the output any more.
    #[error(
        "work unit {unit} has begun its output again: what was read, {read} bytes, is not the beginning of it any more"
    )]
    OutputReplaced {
        /// The unit.
        unit: String,
        /// Bytes that the reader has got.
        read: u64,
    },
    /// A cancel did not end the processes in the time allowed for it.
    #[error("work unit {0} is still running: its processes have not ended yet, ask again")]
    StillRunning(String),
    /// The follower of a result stream stopped reading or writing.
    #[error("connection: {0}")]
    Connection(#[source] io::Error),
}

impl WorkError {
    /// Makes the error of a failed file operation. A full disk has a variant of its own.
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
    /// The directory is a symbolic link, which another user might point elsewhere.
    #[error("directory {0} is a symbolic link: name the real directory instead")]
    Symlink(PathBuf),
    /// The path exists, but is not a directory.
    #[error("directory {0} is not a directory")]
    NotADirectory(PathBuf),
    /// Somebody else owns the directory.
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
    /// Another daemon has the directory.
    #[error(
        "directory {path} is in use by another daemon of this node ID, {holder}: stop that one, or give this node an ID or a datadir of its own"
    )]
    InUse {
        /// The directory.
        path: PathBuf,
        /// The other daemon: process ID and program, as far as they are known.
        holder: String,
    },
    /// Others may write into the directory.
    #[error("directory {path} is writable by others (mode {mode:04o}): run chmod go-w on it")]
    WritableByOthers {
        /// The directory.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The node ID cannot be a directory name.
    #[error(
        "node ID {0:?} cannot be the name of a directory, but the node's units are kept in a directory of that name"
    )]
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
    /// Two work types have the same name.
    #[error("work type {0} already registered")]
    DuplicateType(String),
}
