//! The mesh protocol, pure: what a node decides about sessions, routes, floods and datagrams.
//!
//! [`Mesh`] is told what happened (`handle_*`) and asked what to do (`poll_*`); time is an argument and
//! randomness comes from a generator given at birth, so the same inputs give the same outputs. This room
//! has never heard of sockets, tasks, files or configuration.
//!
//! - `core`: the state and its inputs and outputs; `flood`: how knowledge spreads; `session`: one neighbour's handshake and checks;
//! - `catchup`: what a new or slow neighbour is told, piece by piece;
//! - `rivals`: two sessions with one neighbour, and whether a silent one lives; `duplicates`: two nodes with one ID;
//! - `liveness`, `life`: probes between nodes of our kind; `repair`: what floods have missed; `forget`: what is gone for good;
//! - `links`: who is linked to whom, by routing updates; `saying`: what each node tells of that; `rows`: where it is kept;
//! - `paths`: shortest paths over all links; `roster`: numbers for names;
//! - `routes`: the immutable table that forwards packets, shared with the fast path;
//! - `datagram`: what happens to a data message; `firewall`: the rules that it meets first;
//! - `listing`: what clients are shown of all that, printed only where it has changed;
//! - `adverts`, `heard`: services on offer; `seen`: updates passed on without belief; `pace`: "soon, but not too often";
//! - `shares`: how much each neighbour may fill of a table; `pool`: what many meshes in one process know alike;
//! - `readings`: what they read alike.

mod adverts;
mod catchup;
mod clock;
mod core;
mod counters;
mod datagram;
mod duplicates;
pub mod firewall;
mod flood;
mod forget;
mod heard;
mod life;
mod links;
mod listing;
mod liveness;
mod options;
mod pace;
mod paths;
mod pool;
mod readings;
mod repair;
mod rivals;
mod roster;
mod routes;
mod rows;
mod saying;
mod seen;
mod session;
mod shares;
mod status;

pub use self::adverts::Offer;
pub use self::clock::{Now, Tick};
pub use self::core::{Class, Event, Mesh, Transmit, Wakeup};
pub use self::counters::{Counters, Told};
pub use self::datagram::{Datagram, SendError};
pub use self::forget::ForgetError;
pub use self::listing::{Entry, Listing};
pub use self::options::Options;
pub use self::pool::Pool;
pub use self::routes::{Decision, Routes};
pub use self::session::{CloseReason, LinkPolicy, SessionId};
pub use self::status::{Hops, LinkCosts, Neighbour, Offers, Status, Tables};

#[cfg(test)]
mod tests;
