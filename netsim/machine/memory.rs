//! Memory: how much the threads of each host hold. Memory that one host's thread allocates and another host's thread
//! frees is counted wrong for both; hosts share only what a test hands from one to the other.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicI64, Ordering};

use crate::state::Host;

/// Hosts with greater numbers are not counted.
const HOSTS: usize = 64;

static HELD: [AtomicI64; HOSTS] = [const { AtomicI64::new(0) }; HOSTS];

thread_local! {
    /// The host of this thread, if it belongs to the run.
    static HOST: Cell<usize> = const { Cell::new(HOSTS) };
}

/// The system's allocator with counting. A test that calls [`held_by`] must use it as its global allocator.
#[derive(Debug)]
pub struct CountedMemory;

/// Bytes that the threads of a host hold.
pub fn held_by(host: Host) -> i64 {
    HELD.get(host.0 as usize).map_or(0, |held| held.load(Ordering::Relaxed))
}

/// Makes the memory of this thread count for a host.
pub(crate) fn count_for(host: Host) {
    HOST.set(host.0 as usize);
}

fn count(bytes: i64) {
    let host = HOST.try_with(Cell::get).unwrap_or(HOSTS);
    if let Some(held) = HELD.get(host) {
        held.fetch_add(bytes, Ordering::Relaxed);
    }
}

// SAFETY: every call is passed to the system's allocator unchanged; counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for CountedMemory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's duties are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as i64 - layout.size() as i64);
        // SAFETY: the caller's duties are the same.
        unsafe { System.realloc(at, layout, size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: the caller's duties are the same.
        unsafe { System.dealloc(at, layout) }
    }
}
