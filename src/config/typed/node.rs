//! The node itself: its name, its data directory, its firewall, its log.
//!
//! Owns the defaults that depend on the machine and on the name the program was called by; both are
//! arguments. It refuses to touch the directory.

use std::path::PathBuf;
use std::time::Duration;

use super::super::Environment;
use super::super::error::Fault;
use super::super::fields::{Fields, Optional};
use super::super::firewall;
use crate::duration;
use crate::mesh::firewall::Rule;
use crate::wire::NodeId;
use crate::work::Quota;

/// How long a link may be silent unless configured otherwise; it may only be raised.
pub const DEFAULT_MAX_IDLE: Duration = Duration::from_secs(21);

/// How long an unreachable node stays listed unless configured otherwise.
pub const DEFAULT_FORGET_AFTER: Duration = Duration::from_secs(600);
/// A controller takes a node that is no longer listed for removed: a restart must not look like that.
const LEAST_FORGET_AFTER: Duration = Duration::from_secs(60);

/// With less, a few connections have all of it.
const LEAST_STREAM_BUFFERS: i64 = 16 << 20;

/// The directive `node`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// This node's name.
    pub id: NodeId,
    /// Where it keeps units and other data. It may not exist yet.
    pub data_dir: PathBuf,
    /// Rules for data packets; the first that is met decides.
    pub firewall_rules: Vec<Rule>,
    /// How long a link may be silent before it is closed; at least [`DEFAULT_MAX_IDLE`].
    pub max_idle: Duration,
    /// How long an unreachable node and its services stay listed.
    pub forget_after: Duration,
    /// What one calling node may have here.
    pub quota: Quota,
    /// Bytes that the buffers of all streams may have; without, the program decides.
    pub stream_buffers: Option<u64>,
    /// Settings of work in Kubernetes that Go nodes take here.
    pub kubernetes: KubernetesTuning,
}

/// Settings of the Kubernetes client, as written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KubernetesTuning {
    /// Whether a broken log stream is continued.
    pub support_reconnect: Option<String>,
    /// Requests per second.
    pub qps: Option<String>,
    /// Requests at once.
    pub burst: Option<String>,
    /// Kind of limit.
    pub rate_limiter: Option<String>,
}

impl Node {
    /// What stands in the configuration of a command that runs no node.
    pub(super) fn unused() -> Self {
        // The name is a constant and valid.
        let id = NodeId::new("none").expect("a valid node ID");
        let (firewall_rules, kubernetes) = (Vec::new(), KubernetesTuning::default());
        let (max_idle, forget_after) = (DEFAULT_MAX_IDLE, DEFAULT_FORGET_AFTER);
        Self {
            id,
            data_dir: PathBuf::new(),
            firewall_rules,
            max_idle,
            forget_after,
            quota: Quota::default(),
            stream_buffers: None,
            kubernetes,
        }
    }
}

/// How much is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Failures only.
    Error,
    /// And what a person should look at.
    Warning,
    /// And what happens in ordinary running.
    Info,
    /// And what helps to find a fault.
    Debug,
}

impl LogLevel {
    /// The level as it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Info => "info",
            Self::Debug => "debug",
        }
    }
}

impl std::str::FromStr for LogLevel {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.to_ascii_lowercase().as_str() {
            "error" => Ok(Self::Error),
            "warning" => Ok(Self::Warning),
            "info" => Ok(Self::Info),
            "debug" => Ok(Self::Debug),
            _ => Err("a level is error, warning, info or debug"),
        }
    }
}

pub(super) fn log_level(fields: &mut Fields<'_>) -> Option<LogLevel> {
    fields.must_parse("level", str::parse)
}

pub(super) fn node(fields: &mut Fields<'_>, environment: &Environment) -> Option<Node> {
    let id = id(fields, environment);
    let data_dir = data_dir(fields, environment);
    let firewall_rules = firewall::rules(fields, "firewallrules");
    let max_idle = max_idle(fields);
    let forget_after = forget_after(fields);
    let units = fields.number("peerunits", 0, i64::MAX, "a number of units is 0 or more");
    let payload = fields.number("peerpayload", 0, i64::MAX, "a number of bytes is 0 or more");
    let stream_buffers = fields.number(
        "streambuffers",
        LEAST_STREAM_BUFFERS,
        i64::MAX,
        "the streams of a node need at least 16777216 bytes",
    );
    let kubernetes = KubernetesTuning {
        support_reconnect: fields.string("receptorkubesupportreconnect"),
        qps: fields.string("receptorkubeclientsetqps"),
        burst: fields.string("receptorkubeclientsetburst"),
        rate_limiter: fields.string("receptorkubeclientsetratelimiter"),
    };
    Some(Node {
        id: id?,
        data_dir: data_dir?,
        firewall_rules: firewall_rules?,
        max_idle: max_idle?.unwrap_or(DEFAULT_MAX_IDLE),
        forget_after: forget_after?.unwrap_or(DEFAULT_FORGET_AFTER),
        quota: Quota {
            units: units?.unwrap_or(Quota::default().units),
            payload: payload?.unwrap_or(Quota::default().payload),
        },
        stream_buffers: stream_buffers?,
        kubernetes,
    })
}

/// What receptor allows in the ID that a node is given. Other nodes' IDs are taken as they come.
const OWN_ID_CLASS: &str = "node id can only contain a-z, A-Z, 0-9 or special characters . - _ @ :";

fn is_of_an_own_id(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b".-_@:".contains(&byte)
}

/// The name given, else the host's, unless that is the one name no node may have.
fn id(fields: &mut Fields<'_>, environment: &Environment) -> Option<NodeId> {
    if let Some(given) = fields.text("id").filter(|given| !given.bytes().all(is_of_an_own_id)) {
        // In receptor's words.
        fields.fail("id", Fault::Rule(format!("{OWN_ID_CLASS} but received: {given}")));
        return None;
    }
    if let Some(id) = fields.parse("id", str::parse::<NodeId>)? {
        return Some(id);
    }
    let host = environment.host_name.as_deref().unwrap_or_default();
    let lower = host.to_lowercase();
    let local = lower == "localhost" || lower.starts_with("localhost.");
    match NodeId::new(host) {
        Ok(id) if !local => Some(id),
        Ok(_) | Err(_) => {
            let host = if host.is_empty() { "unknown".to_owned() } else { format!("{host:?}") };
            fields.fail("id", Fault::NoNodeId { host });
            None
        }
    }
}

fn data_dir(fields: &mut Fields<'_>, environment: &Environment) -> Option<PathBuf> {
    let directory = fields.path("datadir").or_else(|| environment.default_data_dir());
    if directory.is_none() {
        fields.fail("datadir", Fault::NoDataDir);
    }
    directory
}

fn max_idle(fields: &mut Fields<'_>) -> Optional<Duration> {
    const NAME: &str = "maxidleconnectiontimeout";
    let given = fields.duration(NAME)?;
    match given {
        Some(short) if short < DEFAULT_MAX_IDLE => {
            let reason =
                format!("it may only be raised above the default of {}", duration::print(DEFAULT_MAX_IDLE));
            fields.refuse(NAME, duration::print(short), reason);
            None
        }
        Some(_) | None => Some(given),
    }
}

fn forget_after(fields: &mut Fields<'_>) -> Optional<Duration> {
    const NAME: &str = "forgetafter";
    let given = fields.duration(NAME)?;
    match given {
        Some(short) if short < LEAST_FORGET_AFTER => {
            let least = duration::print(LEAST_FORGET_AFTER);
            let reason = format!("a node that restarts must stay listed meanwhile: give {least} or more");
            fields.refuse(NAME, duration::print(short), reason);
            None
        }
        Some(_) | None => Some(given),
    }
}
