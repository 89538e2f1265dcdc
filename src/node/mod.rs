//! The running node: one task owns the mesh protocol, others carry packets to and from it.
//!
//! - `driver` alone touches [`crate::mesh::Mesh`]. It never waits for a full queue.
//! - `session` reads and writes one link's packets. A relayed packet goes directly from the reader to a queue, by the
//!   immutable table in `forwarding`, without the driver.
//! - `queue` holds a link's outgoing packets: protocol messages first (`budget`), then sources in turn (`fair_queue`).
//! - `link` keeps listeners open and peers dialled; `pending_sessions` bounds sessions of strangers; `dial` lists
//!   dialled peers; `link_log` logs how sessions begin and end.
//! - `handle` is how other rooms use a node. `port` and `socket` are services' ends of the mesh; `ping` is ping and
//!   traceroute; `stats` counts; `clock` gives the time.
//!
//! This module knows nothing of work, control sockets or configuration files.

mod budget;
mod clock;
mod dial;
mod driver;
mod fair_queue;
mod forwarding;
mod handle;
mod link;
mod link_log;
mod pending_sessions;
mod ping;
mod port;
mod queue;
mod session;
mod socket;
mod stats;

pub use dial::{DialStatus, LinkEnd};
pub use handle::{Changes, CountedBy, NodeHandle, NodeOptions, Queues, StopCause, epoch};
pub use link::{LinkHandle, LinkSpec};
pub use ping::{PingError, PingReply};
pub use socket::{BindError, Blocked, OverlaySocket};
pub use stats::LinkStatus;

#[cfg(test)]
pub(crate) mod tests;
