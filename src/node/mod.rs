//! The running node: one task owns the mesh protocol, others carry packets to and from it.
//!
//! - `driver` is the only one that touches [`crate::mesh::Mesh`]; it never waits for anybody but its inbox.
//! - `session` reads and writes one link's packets; a relayed packet goes from reader to queue directly,
//!   by the immutable forwarding table, and never meets the driver.
//! - `queue` is what a link's writer drains: bounded (`budget`), protocol messages first, sources in turn (`flows`).
//! - `link` keeps listeners open and peers dialled.
//! - `port` and `socket` are services' ends of the mesh; `ping` asks who is there; `traffic` counts, `metrics` tells.
//!
//! This room has never heard of work, control sockets or configuration files.

mod budget;
mod clock;
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

pub use handle::{Changes, NodeHandle, NodeOptions, Queues, StopCause, epoch};
pub use link::{LinkHandle, LinkSpec};
pub use ping::{PingError, PingReply};
pub use socket::{BindError, Blocked, OverlaySocket, Received};
pub use stats::LinkStatus;

#[cfg(test)]
pub(crate) mod tests;
