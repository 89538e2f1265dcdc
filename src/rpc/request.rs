//! The grammar of the control socket: one line becomes one [`Request`], or an error in the words that clients know.
//!
//! Owns both notations, plain words and a JSON object, and every text that refuses a line. It is pure: it does
//! not know connections, whether a node or unit exists, or what a command does.

mod json;
mod words;

use std::collections::BTreeMap;
use std::fmt;

/// The key of the ID that a submitter chose for its unit.
pub const CHOSEN_ID: &str = "workUnitID";

/// The keys of a submission that are no parameters of the work type, besides [`CHOSEN_ID`].
pub const SUBMIT_KEYS: [&str; 9] = [
    "command",
    "subcommand",
    "node",
    "worktype",
    "tlsclient",
    "ttl",
    "signwork",
    "signature",
    "payloadlength",
];

/// The most seconds that a test of a link takes each way.
pub const MOST_SECONDS: u64 = 60;
/// The most megabytes that a test of a link sends each way.
pub const MOST_MB: u64 = 1000;

/// Which link to test, and how much to send each way. The first limit that is reached ends the sending.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkTest {
    /// The neighbour, as the client wrote it.
    pub node: String,
    /// Seconds to send, from 1 to [`MOST_SECONDS`].
    pub seconds: u64,
    /// Megabytes to send, from 1 to [`MOST_MB`].
    pub mb: u64,
}

impl LinkTest {
    /// The default of `seconds`.
    pub const SECONDS: u64 = 5;
    /// The default of `mb`.
    pub const MB: u64 = 50;
}

/// Which node to ask what is wrong with it, and proof that the client may.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DoctorRequest {
    /// Another node, as the client wrote it; `None` for this node.
    pub node: Option<String>,
    /// TLS profile towards that node.
    pub tls_client: Option<String>,
    /// Proof of origin.
    pub signature: Option<String>,
}

/// A request that a line contains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// What the node knows of itself and the mesh.
    Status {
        /// Only these keys; `None` for all of them.
        fields: Option<Vec<String>>,
    },
    /// Ask one node for a sign of life.
    Ping {
        /// The node, as the client wrote it.
        target: String,
    },
    /// Ask every node on the way to a node.
    Traceroute {
        /// The node, as the client wrote it.
        target: String,
    },
    /// Join the connection to a service of a node.
    Connect {
        /// The node, as the client wrote it.
        node: String,
        /// The service, as the client wrote it.
        service: String,
        /// Name of a TLS profile.
        tls: Option<String>,
    },
    /// Read the configuration again.
    Reload,
    /// Forget a node that is gone for good.
    NodeForget {
        /// The node, as the client wrote it.
        node: String,
    },
    /// Report what is kept of payloads, or remove it.
    NodeCache {
        /// Remove it.
        clear: bool,
    },
    /// Measure what the link with a neighbour carries.
    LinkTest(LinkTest),
    /// Report the log level, or change it.
    LogLevel {
        /// The new level, as the client wrote it.
        level: Option<String>,
    },
    /// Say what is wrong with this node, or ask another one.
    Doctor(DoctorRequest),
    /// One operation of the controller, with its arguments.
    Controller {
        /// The operation's arguments, and its name as `op`.
        operation: serde_json::Map<String, serde_json::Value>,
    },
    /// Anything about work units.
    Work(WorkRequest),
}

/// A command about work units. Unit IDs are as the client wrote them; signatures are never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkRequest {
    /// Create a unit; its payload follows the line.
    Submit(SubmitRequest),
    /// Take over a unit that another node submitted. In JSON only.
    Adopt(AdoptRequest),
    /// Report on all units, or on one under its ID.
    List {
        /// The unit; `None` for all units.
        unit: Option<String>,
    },
    /// Report on one unit.
    Status {
        /// The unit.
        unit: String,
        /// A token, which the unit of a job may need.
        signature: Option<String>,
    },
    /// End a unit.
    Cancel {
        /// The unit.
        unit: String,
        /// Proof of origin.
        signature: Option<String>,
    },
    /// End and delete a unit.
    Release {
        /// The unit.
        unit: String,
        /// Delete here even if the remote node cannot be reached.
        force: bool,
        /// End what the unit has left running. In JSON only.
        sweep: bool,
        /// Proof of origin.
        signature: Option<String>,
    },
    /// Promise not to run a unit that is not there. Between our own nodes only.
    Disclaim {
        /// The unit.
        unit: String,
        /// Its work type.
        work_type: String,
        /// Proof of origin.
        signature: Option<String>,
    },
    /// Send a unit's output until it is complete.
    Results(Follow),
    /// Send a unit's output and states in frames. Between our own nodes only.
    Follow(Follow),
    /// What a unit's command has written to its stderr, if that is apart from its output.
    Stderr(Follow),
}

/// Which unit to take over, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdoptRequest {
    /// The node that runs it.
    pub node: String,
    /// The unit there.
    pub unit: String,
    /// TLS profile towards the node.
    pub tls_client: Option<String>,
    /// Sign the requests to the node.
    pub sign_work: bool,
    /// Proof of origin.
    pub signature: Option<String>,
}

/// Which output, and from where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Follow {
    /// The unit.
    pub unit: String,
    /// Bytes of output to skip.
    pub start: u64,
    /// Proof of origin.
    pub signature: Option<String>,
    /// Whether results end as soon as the unit has ended, also if a client cancelled it.
    pub ends_with_unit: bool,
}

/// A submission. Empty options count as absent.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct SubmitRequest {
    /// The node that shall run the unit, as the client wrote it.
    pub node: String,
    /// The kind of work.
    pub work_type: String,
    /// Parameters of the work type; names beginning with `secret_` hold secrets.
    pub params: BTreeMap<String, String>,
    /// TLS profile towards the node.
    pub tls_client: Option<String>,
    /// How long the start may take, in Go's notation.
    pub ttl: Option<String>,
    /// Sign the requests to the node.
    pub sign_work: bool,
    /// Proof of origin.
    pub signature: Option<String>,
    /// Bytes of payload that follow, if the client announces them. Applies to this connection only.
    pub payload_length: Option<u64>,
    /// The ID that the unit shall have, as the client wrote it.
    pub unit_id: Option<String>,
    /// `work start`: the payload follows the line at once, and output and states are the answer. The signature then is
    /// two tokens with a space between them, for the submission and for the results. In JSON and between our own nodes
    /// only.
    pub at_once: bool,
    /// The payload of a `work start` comes in frames, for a node that keeps pieces of payloads.
    pub in_pieces: bool,
}

impl fmt::Debug for SubmitRequest {
    /// Parameters by name only: values may be secrets and this may reach a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SubmitRequest")
            .field("node", &self.node)
            .field("work_type", &self.work_type)
            .field("params", &self.params.keys())
            .finish_non_exhaustive()
    }
}

/// Why a line is no request. The texts are those of Go nodes, if these have one, because clients match some of them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "each text says it")]
pub enum RequestError {
    #[error("Unknown command")]
    UnknownCommand,
    #[error("this is the control service of a meshd node, which speaks neither HTTP nor TLS here")]
    OtherProtocol,
    #[error("unexpected end of JSON input")]
    JsonEnds,
    #[error("invalid JSON: {0}")]
    Json(String),
    #[error("JSON did not contain a command")]
    NoCommand,
    #[error("command must be a string")]
    CommandNotString,
    #[error("status command does not take parameters")]
    StatusParameters,
    #[error("requested_fields must be an array of strings")]
    FieldsNotArray,
    #[error("each element of requested_fields must be a string")]
    FieldsNotStrings,
    #[error("no {0} target")]
    NoTarget(&'static str),
    #[error("{0} target must be string")]
    TargetNotString(&'static str),
    #[error("no connect target {0}")]
    NoConnect(&'static str),
    #[error("connect target {0} must be string")]
    ConnectNotString(&'static str),
    #[error("connect tls name must be string")]
    TlsNotString,
    #[error("loglevel level must be a string")]
    LevelNotString,
    #[error("{0} must be a whole number from 1 to {1}")]
    OutOfRange(&'static str, u64),
    #[error("too many parameters")]
    TooManyParameters,
    #[error("bad command")]
    BadSubcommand,
    #[error("work submit requires a target node and work type")]
    SubmitIncomplete,
    #[error("submit parameters must all be strings and {0} is not")]
    SubmitNotString(String),
    #[error("payloadlength must be a decimal number of bytes and {0:?} is none")]
    PayloadLength(String),
    #[error("work {0} requires a unit ID")]
    NoUnit(&'static str),
    #[error("work {0} does not take parameters after the unit ID")]
    AfterUnit(&'static str),
    #[error("work results only takes a unit ID and optional start position")]
    AfterStart,
    #[error("error converting start position to integer: {0}")]
    Start(InvalidInteger),
    #[error("start position {0} is negative")]
    StartNegative(i64),
    #[error("field {0} missing")]
    FieldMissing(&'static str),
    #[error("field {0} must be a string")]
    FieldNotString(&'static str),
    #[error("field {0} value {1} is not convertible to an int")]
    FieldNotInteger(&'static str, String),
    #[error(transparent)]
    Integer(#[from] InvalidInteger),
    /// An error in a `work start`, which a payload follows and no other command.
    #[error(transparent)]
    BadStart(Box<RequestError>),
}

/// A text that is no 64-bit integer, in Go's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("strconv.ParseInt: parsing {text:?}: {}", if *range { "value out of range" } else { "invalid syntax" })]
pub struct InvalidInteger {
    text: String,
    range: bool,
}

impl Request {
    /// Reads a line that has neither carriage returns nor its newline. Bytes that are not UTF-8 are replaced.
    ///
    /// # Errors
    /// [`RequestError`], whose text belongs after `ERROR: `.
    pub fn parse(line: &[u8]) -> Result<Self, RequestError> {
        let line = String::from_utf8_lossy(line);
        if line.starts_with('{') { json::parse(&line) } else { words::parse(&line) }
    }

    /// The request as a line, with its newline. In words if they can express it, otherwise in JSON, so that no odd name
    /// can change the meaning.
    pub fn to_line(&self) -> String {
        let is_word = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        match self {
            Self::Status { fields: None } | Self::Reload | Self::LogLevel { level: None } => {
                format!("{}\n", self.name())
            }
            Self::Work(WorkRequest::List { unit: None }) => format!("{}\n", self.name()),
            Self::Work(WorkRequest::Status { unit, signature: None }) if is_word(unit) => {
                format!("work status {unit}\n")
            }
            Self::Status { .. }
            | Self::Ping { .. }
            | Self::Traceroute { .. }
            | Self::Connect { .. }
            | Self::NodeForget { .. }
            | Self::NodeCache { .. }
            | Self::LinkTest(_)
            | Self::LogLevel { .. }
            | Self::Doctor(_)
            | Self::Controller { .. }
            | Self::Work(_) => format!("{}\n", json::print(self)),
        }
    }

    /// The command's name, for logs and errors.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Status { .. } => "status",
            Self::Ping { .. } => "ping",
            Self::Traceroute { .. } => "traceroute",
            Self::Connect { .. } => "connect",
            Self::Reload => "reload",
            Self::NodeForget { .. } => "node forget",
            Self::NodeCache { .. } => "node cache",
            Self::LinkTest(_) => "link test",
            Self::LogLevel { .. } => "loglevel",
            Self::Doctor(_) => "doctor",
            Self::Controller { .. } => "controller",
            Self::Work(WorkRequest::Submit(SubmitRequest { at_once: true, .. })) => "work start",
            Self::Work(WorkRequest::Submit(_)) => "work submit",
            Self::Work(WorkRequest::Adopt(_)) => "work adopt",
            Self::Work(WorkRequest::List { .. }) => "work list",
            Self::Work(WorkRequest::Status { .. }) => "work status",
            Self::Work(WorkRequest::Cancel { .. }) => "work cancel",
            Self::Work(WorkRequest::Release { .. }) => "work release",
            Self::Work(WorkRequest::Results(_)) => "work results",
            Self::Work(WorkRequest::Disclaim { .. }) => "work disclaim",
            Self::Work(WorkRequest::Follow(_)) => "work follow",
            Self::Work(WorkRequest::Stderr(_)) => "work stderr",
        }
    }
}

/// Reads a decimal integer as Go's `ParseInt` does.
fn integer(text: &str) -> Result<i64, InvalidInteger> {
    use std::num::IntErrorKind::{NegOverflow, PosOverflow};
    text.parse().map_err(|error: std::num::ParseIntError| {
        let range = matches!(error.kind(), PosOverflow | NegOverflow);
        InvalidInteger { text: text.to_owned(), range }
    })
}

/// A position in a unit's output.
fn position(number: i64) -> Result<u64, RequestError> {
    u64::try_from(number).map_err(|_| RequestError::StartNegative(number))
}

/// Clients send empty texts for options that they leave out.
fn given(text: impl Into<String>) -> Option<String> {
    Some(text.into()).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests;
