//! Clocks and sleeps.

use std::ffi::{c_int, c_uint, c_void};

use libc::{clockid_t, time_t, timespec, timeval, useconds_t};

use crate::state::{Host, WORLD, me, with};
use crate::sys::{self, Original};
use crate::threads::{self, Wait};

/// The time of wall clocks at the beginning, in seconds since 1970: a day in 2023. Files have real times, which are
/// later, so hosts consider no file old.
pub const EPOCH: u64 = 1_700_000_000;
/// The time of monotonic clocks at the beginning, as if hosts had been up for a while.
const UPTIME: u64 = 1_000_000_000_000;
/// After this many reads of clocks while time stands still, a microsecond passes, so that loops which wait by reading
/// end.
const LOOKS: u32 = 10_000;
const SECOND: u64 = 1_000_000_000;

/// The time of the world.
pub(crate) struct Clock {
    /// Nanoseconds since the run began.
    pub(crate) now: u64,
    looks: u32,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self { now: 0, looks: 0 }
    }

    fn look(&mut self) -> u64 {
        self.looks += 1;
        if self.looks == LOOKS {
            (self.looks, self.now) = (0, self.now + 1000);
        }
        self.now
    }

    /// Lets time pass to this moment.
    pub(crate) fn pass_to(&mut self, moment: u64) {
        if moment > self.now {
            (self.looks, self.now) = (0, moment);
        }
    }

    /// The moment at which a monotonic clock shows this time.
    pub(crate) fn when_monotonic(&self, shows: u64) -> u64 {
        shows.saturating_sub(UPTIME)
    }
}

/// Sets a host's wall clock this many seconds ahead of the world's, or behind it if the number is negative.
pub fn set_clock(host: Host, ahead: i64) {
    with(|machine| machine.hosts.entry(host).or_default().clock_ahead = ahead * SECOND as i64);
}

/// The time of a clock for this thread, if it belongs to a run.
fn shown(clock: clockid_t) -> Option<u64> {
    let me = me()?;
    let shown = with(|machine| {
        let now = machine.clock.look();
        match clock {
            libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE | libc::CLOCK_TAI => {
                let host = machine.threads.host_of(me).unwrap_or(WORLD);
                let ahead = machine.hosts.get(&host).map_or(0, |host| host.clock_ahead);
                (EPOCH * SECOND + now).saturating_add_signed(ahead)
            }
            _ => UPTIME + now,
        }
    });
    Some(shown)
}

pub(crate) unsafe fn nanos(span: *const timespec) -> u64 {
    let span = unsafe { &*span };
    span.tv_sec as u64 * SECOND + span.tv_nsec as u64
}

fn sleep_until(me: u32, deadline: u64) {
    threads::block(me, Wait::Sleep, Some(deadline));
}

/// Lets virtual time pass for this thread.
pub(crate) fn sleep_for(me: u32, span: u64) {
    let deadline = with(|machine| machine.clock.now + span);
    sleep_until(me, deadline);
}

static CLOCK_GETTIME: Original = Original::new(c"clock_gettime");

#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(clock: clockid_t, into: *mut timespec) -> c_int {
    let Some(nanos) = shown(clock) else {
        type Function = unsafe extern "C" fn(clockid_t, *mut timespec) -> c_int;
        let original: Function = unsafe { std::mem::transmute(CLOCK_GETTIME.get()) };
        return unsafe { original(clock, into) };
    };
    unsafe {
        *into = timespec { tv_sec: (nanos / SECOND) as i64, tv_nsec: (nanos % SECOND) as i64 };
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn gettimeofday(into: *mut timeval, zone: *mut c_void) -> c_int {
    match shown(libc::CLOCK_REALTIME) {
        Some(nanos) => unsafe {
            *into = timeval { tv_sec: (nanos / SECOND) as i64, tv_usec: (nanos % SECOND / 1000) as i64 };
            0
        },
        None => unsafe {
            sys::call(libc::SYS_gettimeofday, [into as usize, zone as usize, 0, 0, 0, 0]) as c_int
        },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn time(into: *mut time_t) -> time_t {
    let seconds = match shown(libc::CLOCK_REALTIME) {
        Some(nanos) => (nanos / SECOND) as time_t,
        None => unsafe { sys::call(libc::SYS_time, [0; 6]) as time_t },
    };
    if !into.is_null() {
        unsafe { *into = seconds };
    }
    seconds
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nanosleep(span: *const timespec, left: *mut timespec) -> c_int {
    unsafe { clock_nanosleep(libc::CLOCK_MONOTONIC, 0, span, left) }
}

/// Returns the error number, as POSIX has it.
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_nanosleep(
    clock: clockid_t,
    flags: c_int,
    span: *const timespec,
    left: *mut timespec,
) -> c_int {
    let Some(me) = me() else {
        let args = [clock as usize, flags as usize, span as usize, left as usize, 0, 0];
        return -unsafe { sys::raw(libc::SYS_clock_nanosleep, args) } as c_int;
    };
    let span = unsafe { nanos(span) };
    let absolute = flags & libc::TIMER_ABSTIME != 0;
    let deadline = with(|machine| match (absolute, clock) {
        (false, _) => machine.clock.now + span,
        (true, libc::CLOCK_REALTIME) => span.saturating_sub(EPOCH * SECOND),
        (true, _) => machine.clock.when_monotonic(span),
    });
    sleep_until(me, deadline);
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn usleep(micros: useconds_t) -> c_int {
    let micros = u64::from(micros);
    let span = timespec { tv_sec: (micros / 1_000_000) as i64, tv_nsec: (micros % 1_000_000 * 1000) as i64 };
    unsafe { nanosleep(&raw const span, std::ptr::null_mut()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sleep(seconds: c_uint) -> c_uint {
    let span = timespec { tv_sec: i64::from(seconds), tv_nsec: 0 };
    unsafe { nanosleep(&raw const span, std::ptr::null_mut()) };
    0
}
