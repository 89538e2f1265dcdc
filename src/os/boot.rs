//! Tells the boots of the machine apart.

use std::{fs, io};

/// The kernel's random ID of the current boot.
pub(crate) fn boot() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}
