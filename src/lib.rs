//! A mesh node that speaks receptor's protocol, and the command line that talks to it.
//!
//! # The rooms
//!
//! Dependencies point one way: `wire` <- `mesh` <- `node` <- `stream` <- `work` <- `control` <- `daemon`
//! <- the binaries. `backend` stands beside `node`; `config` may be read by the last ones only.
//!
//! - [`wire`] owns every byte layout that travels between nodes.
//! - [`control::client`] is the client's half of the control socket; [`cli`] is the command line above it.
//! - [`duration`] owns Go's notation of durations, which users type and clients read.

pub mod cli;
pub mod control;
pub mod duration;
pub mod wire;
