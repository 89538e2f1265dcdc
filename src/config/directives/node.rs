//! The node itself: its name, its data directory, its firewall, its log.
//!
//! Owns the defaults that depend on the machine and on the name by which the program was called. It refuses to
//! touch the directory.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::super::declare::{DirectiveReader, directive, settings};
use super::super::firewall::FirewallRules;
use super::super::parameters::{self, Bytes, CacheSize, choice, grammar, number, parsed};
use super::super::value::Located;
use crate::duration;
use crate::telemetry::{LogFormat, LogLevel};
use crate::wire::{NodeId, is_localhost};
use crate::work::Quota;

/// How long a link may be silent by default; a configuration can only raise it.
pub const DEFAULT_MAX_IDLE: Duration = Duration::from_secs(21);

/// How long an unreachable node stays listed by default.
pub const DEFAULT_FORGET_AFTER: Duration = Duration::from_secs(600);
/// The minimum: a controller takes a node that is no longer listed for removed, and a restart must not look like
/// that.
const LEAST_FORGET_AFTER: Duration = Duration::from_secs(60);

directive! {
    /// This node's name and data
    "node" in Node [singleton];
    struct Node {
        /// node ID; the host name if not given
        id: OwnId [bare],
        /// where the node keeps its data; see above for the default
        data_dir "datadir": DataDir,
        /// rules for data packets, the first match decides
        ///
        /// A rule is a map: `action` is accept, reject or drop; `fromnode`, `tonode`, `fromservice` and `toservice`
        /// are each a name, or a regular expression between slashes that must match the whole name. What no rule
        /// matches is accepted.
        firewall_rules "firewallrules": FirewallRules,
        /// silence that ends a link to a receptor node, 21s up
        /// Between nodes of meshd, probes end a link that is dead after about 3 s, whatever this says.
        max_idle "maxidleconnectiontimeout": MaxIdle,
        /// forget a node unreachable this long, 1m up
        forget_after "forgetafter": ForgetAfter [empty_is_default] = "10m",
        /// what one calling node may have here
        quota: Quota,
        /// bytes of the disk that stay free
        /// If not given it is a twentieth of the disk under `datadir`, at most 1073741824.
        disk_reserve "diskreserve": Option<Bytes>,
        /// bytes of payloads that are kept for the next ones
        ///
        /// Pieces of long payloads that nodes have sent stay on this node, apart by sender, so that a node need not send them
        /// again. Written as bytes or as in `2GiB`; 0 keeps nothing. If not given it is a tenth of what is free on the disk
        /// under `datadir` when the node starts, at most 4 GiB.
        payload_cache "payloadcache": Option<CacheSize>,
        /// bytes for buffers of streams; an eighth of the memory
        stream_buffers "streambuffers": Option<StreamBuffers>,
        /// Kubernetes: no effect, logs are always resumed
        kube_support_reconnect "receptorkubesupportreconnect": Option<String>,
        /// Kubernetes: requests per second
        kube_qps "receptorkubeclientsetqps": Option<String>,
        /// Kubernetes: requests at once
        kube_burst "receptorkubeclientsetburst": Option<String>,
        /// Kubernetes: kind of limit
        kube_rate_limiter "receptorkubeclientsetratelimiter": Option<String>,
    }
}

directive! {
    /// Runs without any link to other nodes
    "local-only" in Node [singleton];
    LocalOnly => () {
        /// receptor's, which does nothing with it either
        local: Option<bool> [former],
    }
    warn says_nothing(local);
    make ()
}

fn says_nothing(local: &Option<bool>) -> Option<&'static str> {
    local.map(|_| "`local` has no effect, because a local-only node has no links in any case: delete it")
}

directive! {
    /// How much is logged
    "log-level" in Node [singleton];
    Level => LogLevel {
        /// error, warning, info or debug
        level: LogLevel [bare] = "error",
    }
    make level
}

directive! {
    /// How the log is written
    "log-format" in Node [singleton];
    Format => LogFormat {
        /// text, json or journald
        format: LogFormat [bare] = "text",
    }
    make format
}

directive! {
    /// Logs every packet
    "trace" in Node [singleton];
    Trace => () {} make ()
}

directive! {
    /// Sends profiles to Pyroscope
    "pyroscope-client" in Node [singleton, without_effect("meshd sends no profiles; the directive has no effect")];
    PyroscopeClient => () {
        /// name that the profiles are sent under
        application_name "applicationname": Option<String>,
        /// labels of the profiles
        tags: serde_json::Map<String, serde_json::Value>,
        /// URL of the server
        server_address "serveraddress": Option<String>,
        /// user for the server
        basic_auth_user "basicauthuser": Option<String>,
        /// password for the server
        basic_auth_password "basicauthpassword": Option<String>,
        /// tenant of the server
        tenant_id "tenantid": Option<String>,
        /// time between two uploads
        upload_rate "uploadrate": Option<String>,
        /// kinds of profiles
        profile_types "profiletypes": Vec<String>,
        /// do not collect garbage before a profile
        disable_gc_runs "disablegcruns": bool,
        /// headers of the uploads
        http_headers "httpheaders": serde_json::Map<String, serde_json::Value>,
    }
    make ()
}

settings! {
    Quota => Quota {
        /// most units here of one calling node
        units "peerunits": Count = "10000",
        /// most bytes of their payloads
        payload "peerpayload": Bytes = "68719476736",
    }
}

grammar! {
    impl LogFormat => LogFormat = Text choice(
        &[("text", LogFormat::Text), ("json", LogFormat::Json), ("journald", LogFormat::Journald)],
        "a format is text, json or journald",
    );
}

grammar! {
    impl LogLevel => LogLevel =
        Text parsed(|text| LogLevel::named(text).ok_or("a level is error, warning, info or debug"));
}

grammar! {
    /// A number of units.
    struct Count => u64 = Int number(0.., "a number of units is 0 or more");
    /// Bytes for buffers; with less, a few connections have all of them.
    struct StreamBuffers => u64 = Int number(16 << 20.., "the streams of a node need at least 16777216 bytes");
    /// The name given, else the host's, unless that is the one name no node may have.
    struct OwnId => NodeId = Text own_id, empty_is_absent true;
    /// The directory given, else the one that depends on the machine.
    struct DataDir => PathBuf = Text data_dir, empty_is_absent true;
    /// How long a link may be silent.
    struct MaxIdle => Duration = Text max_idle, empty_is_absent true;
    /// How long an unreachable node stays listed.
    struct ForgetAfter => Duration = Text forget_after;
}

impl Node {
    /// The settings for Kubernetes, by the names of their environment variables.
    pub fn kubernetes(&self) -> BTreeMap<&'static str, String> {
        let given = [
            ("RECEPTOR_KUBE_SUPPORT_RECONNECT", &self.kube_support_reconnect),
            ("RECEPTOR_KUBE_CLIENTSET_QPS", &self.kube_qps),
            ("RECEPTOR_KUBE_CLIENTSET_BURST", &self.kube_burst),
            ("RECEPTOR_KUBE_CLIENTSET_RATE_LIMITER", &self.kube_rate_limiter),
        ];
        given.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))).collect()
    }

    /// The placeholder in the configuration of a command that runs no node.
    pub(super) fn none() -> Self {
        Self {
            // The name is a constant, and is valid.
            id: NodeId::new("none").expect("a valid node ID"),
            data_dir: PathBuf::new(),
            firewall_rules: Vec::new(),
            max_idle: DEFAULT_MAX_IDLE,
            forget_after: DEFAULT_FORGET_AFTER,
            quota: Quota::default(),
            disk_reserve: None,
            payload_cache: None,
            stream_buffers: None,
            kube_support_reconnect: None,
            kube_qps: None,
            kube_burst: None,
            kube_rate_limiter: None,
        }
    }
}

/// Receptor's message about the characters of a node's own ID. Other nodes' IDs are not checked.
const OWN_ID_CLASS: &str = "node id can only contain a-z, A-Z, 0-9 or special characters . - _ @ :";

fn own_id(given: Option<&Located>, reader: &mut DirectiveReader<'_>) -> Option<NodeId> {
    let Some(given) = given else { return host_id(reader) };
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b".-_@:".contains(&byte);
    if !given.name().bytes().all(is_allowed) {
        reader.fail(format!("{OWN_ID_CLASS} but received: {}", given.name()));
        return None;
    }
    reader.parse(given.name(), str::parse::<NodeId>)
}

fn host_id(reader: &mut DirectiveReader<'_>) -> Option<NodeId> {
    let host = reader.environment.host_name.as_deref().unwrap_or_default();
    let id = NodeId::new(host).ok().filter(|_| !host.split('.').next().is_some_and(is_localhost));
    if id.is_none() {
        let host = if host.is_empty() { "unknown".to_owned() } else { format!("{host:?}") };
        reader.fail(format!(
            "no node ID given and the host name is {host}: set one, as in `- node: {{id: my-name}}`"
        ));
    }
    id
}

fn data_dir(given: Option<&Located>, reader: &mut DirectiveReader<'_>) -> Option<PathBuf> {
    let given = given.map(|given| PathBuf::from(given.name()));
    let directory = given.or_else(|| reader.environment.default_data_dir());
    if directory.is_none() {
        reader
            .fail("no data directory: XDG_STATE_HOME is not set, and HOME is not set or is /; set `datadir`");
    }
    directory
}

fn max_idle(given: Option<&Located>, reader: &mut DirectiveReader<'_>) -> Option<Duration> {
    let least = duration::print(DEFAULT_MAX_IDLE);
    let reason = format!("it may only be raised above the default of {least}");
    given.map_or(Some(DEFAULT_MAX_IDLE), |given| at_least(DEFAULT_MAX_IDLE, given, &reason, reader))
}

fn forget_after(given: Option<&Located>, reader: &mut DirectiveReader<'_>) -> Option<Duration> {
    let least = duration::print(LEAST_FORGET_AFTER);
    let reason = format!("a node that restarts must stay listed meanwhile: give {least} or more");
    at_least(LEAST_FORGET_AFTER, given?, &reason, reader)
}

fn at_least(
    least: Duration,
    given: &Located,
    reason: &str,
    reader: &mut DirectiveReader<'_>,
) -> Option<Duration> {
    let given = reader.parse(given.name(), parameters::duration)?;
    if given < least {
        reader.refuse(&duration::print(given), reason);
    }
    (given >= least).then_some(given)
}
