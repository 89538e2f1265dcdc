//! Which boot of the machine this is.

use std::{fs, io};

/// The kernel's random ID of the time since it booted.
///
/// # Errors
/// If the kernel does not say.
pub(crate) fn boot() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}
