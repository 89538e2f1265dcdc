//! A mesh node that speaks receptor's protocol, and the command line that talks to it.
//!
//! # The rooms
//!
//! Dependencies point one way: `wire` <- `mesh` <- `node` <- `stream` <- `work` <- `control` <- `daemon`
//! <- the binaries. `backend` stands beside `node`; `config` may be read by the last ones only.
//!
//! - [`wire`] owns every byte layout that travels between nodes.
//! - [`mesh`] owns the protocol, pure: sessions, routes, floods, datagrams; time is an argument.
//! - [`backend`] owns links to neighbours: dial, listen, redial, sessions of whole packets.
//! - [`node`] owns the running node: the task around `mesh`, its links, queues and datagram sockets.
//! - [`stream`] owns byte streams between services, QUIC above the mesh's datagrams.
//! - [`duration`] owns Go's notation of durations, which users type and clients read.

pub mod backend;
pub mod duration;
pub mod mesh;
pub mod node;
pub mod stream;
pub mod wire;
