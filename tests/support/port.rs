//! Ports for nodes that are started later.

use std::net::{TcpListener, UdpSocket};
use std::sync::atomic::{AtomicU16, Ordering};

/// Below the ports that the kernel gives to connections and to listeners on port 0, and below those of the tests' clusters:
/// one of those could be gone when the node starts.
const FIRST: u16 = 12_000;
const COUNT: u16 = 14_000;

static TAKEN: AtomicU16 = AtomicU16::new(0);

/// A port of 127.0.0.1 that is free for TCP and UDP, and was not given out by this process.
pub(crate) fn free_port() -> u16 {
    // Processes begin at different ports.
    let begin = std::process::id().wrapping_mul(61);
    (0..COUNT)
        .map(|_| {
            let next = begin.wrapping_add(TAKEN.fetch_add(1, Ordering::Relaxed).into());
            FIRST + (next % u32::from(COUNT)) as u16
        })
        .find(|port| {
            let address = ("127.0.0.1", *port);
            TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok()
        })
        .expect("a free port")
}
