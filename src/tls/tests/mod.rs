//! Profiles against each other, over real handshakes in memory, on certificates made for each test.

mod bad_files;
mod handshakes;
mod old;
pub(crate) mod pki;
mod reload;
