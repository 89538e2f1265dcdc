//! The running node: one task owns the mesh protocol, others carry packets to and from it.
//!
//! - `driver` alone touches [`crate::mesh::Mesh`], and waits for nothing but its inbox and timers.
//! - `session` reads and writes one link's packets; a relayed packet goes from reader to queue directly, by the
//!   immutable table in `forwarding`, and never reaches the driver.
//! - `queue` holds what a link's writer drains: protocol messages first (`budget`), then sources in turn (`fair_queue`).
//! - `link` keeps listeners open and peers dialled, which `dial` lists; `link_log` logs sessions that begin and end.
//! - `port` and `socket` are services' ends of the mesh; `ping` is ping and traceroute; `stats` counts.
//!
//! This room has never heard of work, control sockets or configuration files.

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
