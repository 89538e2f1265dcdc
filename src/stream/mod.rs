//! Streams between services: QUIC connections whose UDP datagrams are the mesh's datagrams.
//!
//! - `dial` and `listen` open connections; `mesh_stream` is a plain byte stream over a connection.
//! - `connection` knows when a connection ends; `mux` lets many streams of our own nodes share a connection.
//! - `socket` lets quinn send and receive on an overlay socket; an address is a node's hash and a service.
//! - `tls` decides which certificates are trusted, with and without a user's profile; `settings` has the limits of
//!   QUIC.
//! - `windows` divides the node's memory for streams among connections; `far_end` keeps what the mesh says of an
//!   address.
//!
//! A connection carries one bidirectional stream, which begins with a zero byte (docs/protocol.md#stream-opening);
//! only our own nodes agree on more streams. This room does not know who uses it.

mod connection;
mod dial;
mod far_end;
mod listen;
mod mesh_stream;
mod mux;
mod settings;
mod socket;
mod tls;
mod windows;

pub use dial::{DialError, SetupError, Streams};
pub use listen::{StreamListenError, StreamListener};
pub use mesh_stream::MeshStream;
pub use tls::Peer;
pub use windows::default_buffers;

#[cfg(test)]
mod tests;
