//! Sessions over pipes in memory and over real sockets. `rig` makes the nodes and clients.

mod accepting;
mod access;
mod error_lines;
mod hostile;
mod rig;
mod sessions;
mod sockets;
mod work;
