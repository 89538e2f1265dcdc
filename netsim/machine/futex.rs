//! `syscall`, with which Rust's locks wait, and other code asks for random numbers.

use std::ffi::c_long;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::timespec;

use crate::chance;
use crate::processes;
use crate::state::{me, with};
use crate::sys;
use crate::threads::{self, Wait};
use crate::time;

/// The C library's function is variadic. Six fixed arguments are in the same places on this processor.
#[unsafe(no_mangle)]
unsafe extern "C" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    let args = [a, b, c, d, e, f];
    unsafe {
        let answered = match number {
            libc::SYS_futex => futex(args),
            libc::SYS_getrandom => chance::fill(a as *mut _, b),
            libc::SYS_pidfd_open => processes::open_descriptor(a),
            libc::SYS_pidfd_send_signal => processes::signal_by_descriptor(a, b),
            _ => None,
        };
        answered.unwrap_or_else(|| sys::call(number, args)) as c_long
    }
}

unsafe fn futex([address, operation, value, limit, ..]: [usize; 6]) -> Option<isize> {
    let me = me()?;
    let command = operation as i32 & libc::FUTEX_CMD_MASK;
    match command {
        libc::FUTEX_WAIT | libc::FUTEX_WAIT_BITSET => {
            let found = unsafe { &*(address as *const AtomicU32) }.load(Ordering::SeqCst);
            if found != value as u32 {
                return Some(sys::fail(libc::EAGAIN));
            }
            let limit = limit as *const timespec;
            let deadline = (!limit.is_null()).then(|| {
                let limit = unsafe { time::nanos(limit) };
                with(|machine| match command {
                    libc::FUTEX_WAIT => machine.clock.now + limit,
                    _ => machine.clock.when_monotonic(limit),
                })
            });
            let in_time = threads::block(me, Wait::Futex(address), deadline);
            Some(if in_time { 0 } else { sys::fail(libc::ETIMEDOUT) })
        }
        libc::FUTEX_WAKE | libc::FUTEX_WAKE_BITSET => {
            let woken = with(|machine| machine.threads.wake(Wait::Futex(address), value));
            // A thread outside of the run may wait there, too.
            let rest = value.saturating_sub(woken);
            let wake = libc::FUTEX_WAKE as usize | operation & libc::FUTEX_PRIVATE_FLAG as usize;
            let args = [address, wake, rest, 0, 0, 0];
            let _outside = (rest > 0).then(|| unsafe { sys::raw(libc::SYS_futex, args) });
            Some(woken as isize)
        }
        _ => None,
    }
}
