//! The kernel's calls, made without the C library, and the C library's own versions of what this crate replaces.

use std::arch::asm;
use std::ffi::{CStr, c_int, c_long, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Makes a system call. Returns its value, or a negative error number.
pub(crate) unsafe fn raw(number: c_long, args: [usize; 6]) -> isize {
    let result: isize;
    unsafe {
        asm!("syscall", inlateout("rax") number as isize => result, in("rdi") args[0], in("rsi") args[1],
            in("rdx") args[2], in("r10") args[3], in("r8") args[4], in("r9") args[5],
            lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}

/// The same, but returns -1 and sets errno on an error, like the C library.
pub(crate) unsafe fn call(number: c_long, args: [usize; 6]) -> isize {
    answer(unsafe { raw(number, args) })
}

/// Turns a result of the kernel into that of the C library.
pub(crate) fn answer(result: isize) -> isize {
    if (-4095..0).contains(&result) { fail(-result as c_int) } else { result }
}

/// Sets errno. Returns -1.
pub(crate) fn fail(errno: c_int) -> isize {
    unsafe { *libc::__errno_location() = errno };
    -1
}

/// The C library's own function of that name, looked up once.
pub(crate) struct Original {
    name: &'static CStr,
    found: AtomicUsize,
}

impl Original {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicUsize::new(0) }
    }

    pub(crate) fn get(&self) -> *mut c_void {
        let found = self.found.load(Ordering::Relaxed);
        if found != 0 {
            return found as *mut c_void;
        }
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        assert!(!found.is_null(), "the C library has no {:?}", self.name);
        self.found.store(found as usize, Ordering::Relaxed);
        found
    }
}

/// Waits while the word has this value.
pub(crate) fn futex_wait(word: &std::sync::atomic::AtomicU32, value: u32) {
    let args = [
        word.as_ptr() as usize,
        (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as usize,
        value as usize,
        0,
        0,
        0,
    ];
    unsafe { raw(libc::SYS_futex, args) };
}

/// Wakes one waiter.
pub(crate) fn futex_wake(word: &std::sync::atomic::AtomicU32) {
    let args = [word.as_ptr() as usize, (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as usize, 1, 0, 0, 0];
    unsafe { raw(libc::SYS_futex, args) };
}
