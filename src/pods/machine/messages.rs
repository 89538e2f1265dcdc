//! Inputs and outputs of a unit's owner, as plain values.

use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::pods::api_error::ApiError;
use crate::pods::log::cursor::Cursor;
use crate::pods::name::Owner;
use crate::pods::options::StreamMethod;
use crate::rpc::{OutputBound, UnitState as State};

/// The settings of a unit, which never change.
#[derive(Debug, Clone)]
pub struct UnitSettings {
    /// The labels of the unit's pod.
    pub owner: Owner,
    /// The prefix of the pod's name.
    pub prefix: String,
    /// The transport of stdin and stdout.
    pub method: StreamMethod,
    /// There is a payload to send.
    pub has_stdin: bool,
    /// How much it may print.
    pub max_stdout: Option<OutputBound>,
    /// The deadline by which the pod must run.
    pub pending_until: Option<Instant>,
    /// How long the API server may be unavailable.
    pub api_outage: Duration,
    /// The first delay between attempts.
    pub first_pause: Duration,
    /// Retry after `exceeded quota`.
    pub quota_retry: bool,
    /// Delete a pod that has not started at a restart.
    pub delete_pod_on_restart: bool,
    /// The credential may read events, as far as known.
    pub may_read_events: bool,
    /// The number from which the letters at the end of the pod's name are made; `None` for random letters.
    pub name: Option<u64>,
    /// The seed for names and delays.
    pub seed: u64,
}

/// The durable record of a unit, besides State and Detail.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodRecord {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name; empty until one is chosen.
    pub pod_name: String,
    /// The pod's UID; empty until it is known.
    pub pod_uid: String,
    /// Somebody else created the pod.
    pub adopted: bool,
    /// An attach for stdin was requested.
    pub stdin_begun: bool,
    /// Exit code of `worker`.
    pub exit_code: Option<i32>,
    /// Why it ended, in Kubernetes' words.
    pub terminated_reason: String,
}

/// A unit as recorded by an earlier daemon.
#[derive(Debug, Clone)]
pub struct Recorded {
    /// Its state.
    pub state: State,
    /// Its Detail.
    pub detail: String,
    /// The rest of its record.
    pub record: PodRecord,
    /// How far stdout is written.
    pub cursor: Cursor,
    /// Bytes of stdout.
    pub stdout_size: u64,
}

/// A command to the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MachineOutput {
    /// Record this durably.
    Status(StatusChange),
    /// Send this to the API server.
    Request(ApiRequest),
    /// Log that the unit waits for its API server from now on, for this reason.
    Waits(String),
    /// The pod of a released unit is not deleted yet, for this reason; the deletion is retried.
    ReleasePending(String),
    /// A released unit needs nothing more. Its pod is gone, unless it could not be reached.
    Released {
        /// The API server confirmed that there is no pod.
        is_gone: bool,
    },
}

/// A change of a unit's status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatusChange {
    /// Its state.
    pub state: State,
    /// Its Detail.
    pub detail: String,
    /// The rest of its record.
    pub record: PodRecord,
}

/// Identifies a log stream, so that late messages of an earlier stream are ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamId(pub(super) u32);

/// A request to the API server about the unit's pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ApiRequest {
    /// Report changes of the pod: through the shared watch, or by its name if somebody else created it.
    Watch,
    /// Create the pod under this name, without retries.
    Create(String),
    /// Get the pod.
    GetPod,
    /// Attach to container `worker`'s stdin.
    Attach,
    /// Send all of stdin over the attach stream, close the write side, and wait for the server's status.
    SendStdin,
    /// Close the attach stream, or stop opening it.
    CloseAttach,
    /// Open container `worker`'s log with timestamps.
    OpenLog {
        /// Identifies the stream.
        stream: StreamId,
        /// The time to start from, in whole seconds.
        since: Option<Timestamp>,
        /// Follow the log until the container has ended.
        follow: bool,
    },
    /// Close a log stream, or stop opening it.
    CloseLog(StreamId),
    /// Get the pod's last event.
    GetEvents,
    /// Delete the pod with the default grace period, if it has this UID.
    Delete(String),
}

/// News of an attach stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttachNews {
    /// It is open.
    Opened,
    /// It cannot be opened, or the container was never attached to: no data was sent.
    Refused(ApiError),
    /// All of stdin was sent, and the write side is closed.
    Sent,
    /// The server reports success.
    Succeeded,
    /// The server or the connection reports an error.
    Failed(String),
}

/// News of the connection of a pod with [`StreamMethod::Tcp`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TcpNews {
    /// The pod has connected.
    Connected,
    /// All of stdin was sent, and the write side is closed.
    Sent,
    /// Stdout was read to its end.
    Ended,
    /// It failed; the text is a complete Detail.
    Failed(String),
}
