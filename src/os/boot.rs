//! Which boot of the machine this is.

use std::sync::OnceLock;
use std::{fs, io};

/// The kernel's random ID of the time since it booted.
///
/// # Errors
/// If the kernel does not say.
pub(crate) fn boot() -> io::Result<String> {
    static BOOT: OnceLock<String> = OnceLock::new();
    if let Some(boot) = BOOT.get() {
        return Ok(boot.clone());
    }
    let found = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(BOOT.get_or_init(|| found.trim().to_owned()).clone())
}
