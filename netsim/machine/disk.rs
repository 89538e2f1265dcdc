//! Disks. Files are the real ones; what differs is how long a flush takes.

use std::ffi::c_int;

use crate::state::{Host, WORLD, me, with};
use crate::{sys, time};

/// The disk of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disk {
    /// A flush takes up to so many microseconds.
    pub flush_micros: u32,
}

impl Default for Disk {
    fn default() -> Self {
        Self { flush_micros: 2000 }
    }
}

/// From now on the disk of a host is such a one.
pub fn set_disk(host: Host, disk: Disk) {
    with(|machine| machine.hosts.entry(host).or_default().disk = disk);
}

fn flush(number: libc::c_long, fd: c_int) -> c_int {
    if let Some(me) = me() {
        let span = with(|machine| {
            let host = machine.threads.host_of(me).filter(|host| *host != WORLD)?;
            let most = machine.hosts.get(&host)?.disk.flush_micros as usize;
            Some(machine.chance.below(most + 1) as u64 * 1000)
        });
        if let Some(span) = span {
            time::sleep_for(me, span);
        }
    }
    unsafe { sys::call(number, [fd as usize, 0, 0, 0, 0, 0]) as c_int }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fsync(fd: c_int) -> c_int {
    flush(libc::SYS_fsync, fd)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fdatasync(fd: c_int) -> c_int {
    flush(libc::SYS_fdatasync, fd)
}
