//! What goes into a unit's owner and what comes out of it, as plain values. Owns their meaning; decides nothing.

use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::work::kubernetes::api_error::ApiError;
use crate::work::kubernetes::log::cursor::Cursor;
use crate::work::kubernetes::name::Owner;
use crate::work::kubernetes::options::StreamMethod;
use crate::work::unit::State;

/// What does not change while a unit lives.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The labels of the unit's pod.
    pub owner: Owner,
    /// What the pod's name begins with.
    pub prefix: String,
    /// How stdin and stdout travel.
    pub method: StreamMethod,
    /// There is a payload to send.
    pub has_stdin: bool,
    /// The pod must run by then.
    pub pending_until: Option<Instant>,
    /// How long the API server may be away.
    pub api_outage: Duration,
    /// The first pause between attempts.
    pub first_pause: Duration,
    /// `exceeded quota` is tried again.
    pub quota_retry: bool,
    /// A pod that has not started at a restart is deleted.
    pub delete_pod_on_restart: bool,
    /// The credential may read events, as far as is known.
    pub may_read_events: bool,
    /// What names and pauses are chosen by.
    pub seed: u64,
}

/// What is written down of a unit beside State and Detail.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Facts {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name, empty before one was chosen.
    pub pod_name: String,
    /// The pod's UID, empty before it is known.
    pub pod_uid: String,
    /// The pod was made by somebody else.
    pub adopted: bool,
    /// An attach for stdin was asked for.
    pub stdin_begun: bool,
    /// How `worker` ended.
    pub exit_code: Option<i32>,
    /// Why, in Kubernetes' words.
    pub terminated_reason: String,
}

/// A unit as an earlier daemon left it.
#[derive(Debug, Clone)]
pub struct Recorded {
    /// Where it stood.
    pub state: State,
    /// Its Detail.
    pub detail: String,
    /// What else was written down.
    pub facts: Facts,
    /// How far stdout was written.
    pub cursor: Cursor,
    /// Bytes of stdout.
    pub stdout_size: u64,
}

/// Something to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Write this down, durably.
    Status(Change),
    /// Ask the API server.
    Request(Request),
    /// The pod of a released unit is not deleted yet, for this cause; it is tried again.
    ReleasePending(String),
    /// Nothing more is to be done for a released unit. The pod is gone, unless it was not to be had.
    Released {
        /// The API server has confirmed that there is no pod.
        is_gone: bool,
    },
}

/// What a unit's status says from now on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Where it stands.
    pub state: State,
    /// Its Detail.
    pub detail: String,
    /// What else is written down.
    pub facts: Facts,
}

/// A log stream, so that what an earlier one still says is not taken for the present one's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamId(pub(super) u32);

/// A request to the API server; all are about the unit's pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Tell what happens to the pod: by the shared watch, or by its name if it was made by somebody else.
    Watch,
    /// Create it under this name, without any retry.
    Create(String),
    /// Get it.
    GetPod,
    /// Attach to container `worker`'s stdin.
    Attach,
    /// Send all of stdin over the attach stream, half-close it and wait for the server's word.
    SendStdin,
    /// Close the attach stream, or give its opening up.
    CloseAttach,
    /// Open container `worker`'s log with time stamps.
    OpenLog {
        /// The stream's name.
        stream: StreamId,
        /// Time to ask it from, in whole seconds.
        since: Option<Timestamp>,
        /// It goes on until the container has ended.
        follow: bool,
    },
    /// Close a log stream, or give its opening up.
    CloseLog(StreamId),
    /// Get the pod's last event.
    GetEvents,
    /// Delete it with the default grace, if it has this UID.
    Delete(String),
}

/// What an attach stream says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttachNews {
    /// It is open.
    Opened,
    /// It cannot be opened, or the container was never attached to: nothing was sent.
    Refused(ApiError),
    /// All of stdin was sent, and half-closed.
    Sent,
    /// The server says that all is well.
    Succeeded,
    /// The server, or the connection, says what went wrong.
    Failed(String),
}

/// What the connection of a pod with [`StreamMethod::Tcp`] says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TcpNews {
    /// The pod has connected.
    Connected,
    /// All of stdin was sent, and half-closed.
    Sent,
    /// Stdout was read to its end.
    Ended,
    /// It went wrong; the text is a whole Detail.
    Failed(String),
}
