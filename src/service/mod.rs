//! Proxies between services of the mesh and sockets outside it.
//!
//! Each carries bytes and nothing else: both directions with their own end, nothing lost at the close. This
//! room knows nodes and streams, and has never heard of work.

mod tcp;

pub use tcp::{TcpIn, TcpOut};
