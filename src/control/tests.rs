//! Sessions over pipes in memory and over real sockets. What they talk to is made in one place, `rig`.

mod accepting;
mod access;
mod error_lines;
mod hostile;
mod rig;
mod sessions;
mod sockets;
mod work;
