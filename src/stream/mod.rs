//! Streams between services: QUIC connections whose UDP datagrams are the mesh's datagrams.
//!
//! - `socket` lets quinn send and receive on an overlay socket; an address is a node's hash and a service.
//! - `trust` is the TLS of streams without a user's profile: a fixed name, checked as receptor does.
//! - `secured` is the TLS of streams with a profile: node IDs, checked against the node at the other end.
//! - `dial` and `listen` open connections; `connection` is one, as a plain byte stream.
//!
//! - `mux` lets many streams of our own nodes use one connection.
//! - `windows` shares the node's memory for streams out among connections; `far_end` knows what has become of far ends.
//!
//! One connection carries one bidirectional stream, which begins with a zero byte
//! (docs/protocol.md#stream-opening); only our own nodes agree on more of them.
//! This room does not know who uses it.

mod connection;
mod dial;
mod far_end;
mod listen;
mod mux;
mod secured;
mod settings;
mod socket;
mod trust;
mod windows;

pub use connection::MeshStream;
pub use dial::{DialError, SetupError, Streams};
pub use listen::{ListenError, StreamListener};
pub use mux::Peer;
pub use windows::default_buffers;

#[cfg(test)]
mod tests;
