//! Waits for a descriptor on the runtime. Owns the argument why this is sound for the descriptors used here.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registers a descriptor with the runtime.
///
/// # Errors
/// The system's refusal, for example because there are too many watched descriptors.
pub(crate) fn register(descriptor: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the call asks that the descriptor stays open and the same until it is deregistered. An OwnedFd owns
    // its descriptor, always names the same one, and is moved into the AsyncFd, which deregisters before dropping.
    unsafe { AsyncFd::register_with_interest(descriptor, interest) }.map_err(io::Error::from)
}
