//! What the operating system gives, in the shape that the rooms above need it.
//!
//! Imports the standard library, rustix, socket2 and tokio, and no other room: it knows nothing of the mesh.

pub(crate) mod coop;
pub(crate) mod log_limiter;
pub(crate) mod readiness;
pub(crate) mod rlimit;
pub mod unix_socket;
pub(crate) mod watch;
