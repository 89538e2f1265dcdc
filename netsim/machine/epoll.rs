//! Waiting for descriptors: a runtime waits in `epoll_wait`.

use std::ffi::c_int;

use libc::{epoll_event, pollfd, sigset_t, timespec};

use crate::state::{me, with};
use crate::sys;
use crate::threads::{self, Wait};
use crate::time;

/// Of the threads that wait for these descriptors, those for which something has happened.
pub(crate) fn ready(watching: &[(u32, c_int)]) -> Vec<u32> {
    let mut looks: Vec<pollfd> =
        watching.iter().map(|(_, fd)| pollfd { fd: *fd, events: libc::POLLIN, revents: 0 }).collect();
    let args = [looks.as_mut_ptr() as usize, looks.len(), 0, 0, 0, 0];
    if looks.is_empty() || unsafe { sys::raw(libc::SYS_poll, args) } <= 0 {
        return Vec::new();
    }
    let found = watching.iter().zip(&looks).filter(|(_, look)| look.revents != 0);
    found.map(|((thread, _), _)| *thread).collect()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_wait(fd: c_int, events: *mut epoll_event, size: c_int, timeout: c_int) -> c_int {
    let look = |timeout: c_int| {
        let args = [fd as usize, events as usize, size as usize, timeout as usize, 0, 0];
        unsafe { sys::call(libc::SYS_epoll_wait, args) as c_int }
    };
    let Some(me) = me() else { return look(timeout) };
    if timeout == 0 {
        threads::yield_turn(me);
        return look(0);
    }
    let found = look(0);
    if found != 0 {
        return found;
    }
    let deadline =
        u64::try_from(timeout).ok().map(|millis| with(|machine| machine.clock.now) + millis * 1_000_000);
    threads::block(me, Wait::Epoll(fd), deadline);
    look(0)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn poll(descriptors: *mut pollfd, count: libc::nfds_t, timeout: c_int) -> c_int {
    match me() {
        Some(me) => {
            let limit = u64::try_from(timeout).ok().map(|millis| millis * 1_000_000);
            unsafe { poll_for(me, descriptors, count, limit) }
        }
        None => unsafe { look(descriptors, count, timeout) },
    }
}

/// In a run the signal mask is ignored, because no run changes it.
#[unsafe(no_mangle)]
unsafe extern "C" fn ppoll(
    descriptors: *mut pollfd,
    count: libc::nfds_t,
    timeout: *const timespec,
    signals: *const sigset_t,
) -> c_int {
    match me() {
        Some(me) => unsafe {
            let limit = (!timeout.is_null()).then(|| time::nanos(timeout));
            poll_for(me, descriptors, count, limit)
        },
        None => unsafe {
            let args = [descriptors as usize, count as usize, timeout as usize, signals as usize, 8, 0];
            sys::call(libc::SYS_ppoll, args) as c_int
        },
    }
}

unsafe fn look(descriptors: *mut pollfd, count: libc::nfds_t, timeout: c_int) -> c_int {
    unsafe {
        sys::call(libc::SYS_poll, [descriptors as usize, count as usize, timeout as usize, 0, 0, 0]) as c_int
    }
}

unsafe fn poll_for(me: u32, descriptors: *mut pollfd, count: libc::nfds_t, limit: Option<u64>) -> c_int {
    let found = unsafe { look(descriptors, count, 0) };
    if found != 0 || limit == Some(0) {
        return found;
    }
    let deadline = limit.map(|limit| with(|machine| machine.clock.now) + limit);
    let all =
        unsafe { sys::raw(libc::SYS_epoll_create1, [libc::EPOLL_CLOEXEC as usize, 0, 0, 0, 0, 0]) } as usize;
    for one in unsafe { std::slice::from_raw_parts(descriptors, count as usize) } {
        let event = epoll_event { events: one.events as u32, u64: 0 };
        let args = [all, libc::EPOLL_CTL_ADD as usize, one.fd as usize, &raw const event as usize, 0, 0];
        unsafe { sys::raw(libc::SYS_epoll_ctl, args) };
    }
    threads::block(me, Wait::Epoll(all as c_int), deadline);
    unsafe { sys::raw(libc::SYS_close, [all, 0, 0, 0, 0, 0]) };
    unsafe { look(descriptors, count, 0) }
}
