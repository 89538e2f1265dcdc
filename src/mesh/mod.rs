//! The mesh protocol, pure: what a node decides about sessions, routes, floods and datagrams.
//!
//! [`Mesh`] is told what happened (`handle_*`) and asked what to do (`poll_*`); time is an argument and
//! randomness comes from a generator given at birth, so the same inputs give the same outputs. This room
//! has never heard of sockets, tasks, files or configuration.
//!
//! - `core`: the state and its inputs and outputs; `flood`: how knowledge spreads; `session`: one neighbour's handshake and checks;
//! - `exchange`: what a new or slow neighbour is told, piece by piece;
//! - `duplicate_session`: two sessions with one neighbour, and whether a silent one lives; `duplicate_node`: two nodes with one ID;
//! - `probe`, `life`: probes between nodes of our kind; `anti_entropy`: what floods have missed; `aging`: what is gone for good;
//! - `lsdb`: who is linked to whom, by routing updates; `saying`: what each node tells of that; `rows`: where it is kept;
//! - `spf`: shortest paths over all links; `roster`: numbers for names;
//! - `forwarding`: the immutable table that forwards packets, shared with the fast path;
//! - `datagram`: what happens to a data message; `firewall`: the rules that it meets first;
//! - `listing`: what clients are shown of all that, printed only where it has changed;
//! - `services`, `service_table`: services on offer; `update_ids`: updates passed on without belief; `throttle`: "soon, but not too often";
//! - `quota`: how much each neighbour may fill of a table; `pool`: what many meshes in one process know alike;
//! - `readings`: what they read alike.

mod aging;
mod anti_entropy;
mod clock;
mod core;
mod counters;
mod datagram;
mod duplicate_node;
mod duplicate_session;
mod exchange;
pub mod firewall;
mod flood;
mod forwarding;
mod life;
mod listing;
mod lsdb;
mod options;
mod pool;
mod probe;
mod quota;
mod readings;
mod roster;
mod rows;
mod saying;
mod service_table;
mod services;
mod session;
mod spf;
mod status;
mod throttle;
mod update_ids;

pub use self::aging::ForgetError;
pub use self::clock::{Now, Tick};
pub use self::core::{Class, Event, Mesh, Transmit, Wakeup};
pub use self::counters::{Counters, Told};
pub use self::datagram::{Datagram, SendError};
pub use self::forwarding::{Decision, Routes};
pub use self::listing::{Entry, Listing};
pub use self::options::Options;
pub use self::pool::Pool;
pub use self::services::Offer;
pub use self::session::{CloseReason, LinkPolicy, SessionId};
pub use self::status::{Hops, LinkCosts, Neighbour, Offers, Status, Tables};

#[cfg(test)]
mod tests;
