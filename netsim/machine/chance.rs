//! Random numbers: all of them from one seed.

use std::ffi::{c_uint, c_void};

use crate::state::{me, with};
use crate::sys;

/// SplitMix64: small, and good enough to decide which thread is next.
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed ^ 0x5851_f42d_4c95_7f2d)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `count`.
    pub(crate) fn below(&mut self, count: usize) -> usize {
        (self.next() % count as u64) as usize
    }

    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]);
        }
    }
}

/// Fills the buffer, if the caller belongs to a run.
pub(crate) unsafe fn fill(buffer: *mut c_void, length: usize) -> Option<isize> {
    me()?;
    let bytes = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), length) };
    with(|machine| machine.chance.fill(bytes));
    Some(length as isize)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(buffer: *mut c_void, length: usize, flags: c_uint) -> isize {
    unsafe {
        fill(buffer, length).unwrap_or_else(|| {
            sys::call(libc::SYS_getrandom, [buffer as usize, length, flags as usize, 0, 0, 0])
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn getentropy(buffer: *mut c_void, length: usize) -> i32 {
    unsafe { if getrandom(buffer, length, 0) == length as isize { 0 } else { -1 } }
}
