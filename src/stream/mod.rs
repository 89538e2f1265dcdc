//! Streams between services: QUIC connections whose UDP datagrams are the mesh's datagrams.
//!
//! - `dial` and `listen` open connections; `mesh_stream` is a plain byte stream over one.
//! - `connection` is one that ends with its only stream; `mux` lets many streams of our own nodes share one.
//! - `socket` lets quinn send and receive on an overlay socket; an address is a node's hash and a service.
//! - `tls` is the trust of streams, with and without a user's profile; `settings` are the limits of QUIC.
//! - `windows` shares the node's memory for streams out among connections; `far_end` is what the mesh says of an address.
//!
//! One connection carries one bidirectional stream, which begins with a zero byte (docs/protocol.md#stream-opening);
//! only our own nodes agree on more of them. This room does not know who uses it.

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
pub use listen::{ListenError, StreamListener};
pub use mesh_stream::MeshStream;
pub use tls::Peer;
pub use windows::default_buffers;

#[cfg(test)]
mod tests;
