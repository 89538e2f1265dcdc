//! A machine in software: whole programs, unchanged, run in it as threads of one process, in virtual time, and the same
//! seed gives the same run.
//!
//! It replaces functions of the C library: a test binary that contains this crate gets `clock_gettime`, `getrandom`,
//! `pthread_create`, `connect`, `fsync` and so on from here. They behave as usual until [`run`] is called. From then
//! on, on threads that belong to the run:
//!
//! - `threads`: one thread runs at a time, and gives way only where it would wait. The next thread is chosen by chance.
//! - `time`: time stands still while any thread can run, and then jumps to the next moment for which a thread waits.
//! - `chance`: all random numbers come from the seed.
//! - `sockets`, `datagrams`: the test carries TCP's bytes and UDP's datagrams between hosts, with delays and failures.
//! - `files`: real files in a directory of the test, but flushes take virtual time. `disk`: what a power loss takes.
//! - `processes`: a started program becomes a thread of the test. `memory`: how much memory each host holds.
//!
//! A host is a number. Threads belong to the host of the thread that starts them; a host can be paused, its clock can
//! be wrong, its disk can fail, and it can lose its power. The machine knows nothing of the programs that run in it.
//!
//! Only for Linux on x86-64: it makes system calls itself, because it replaces the C library's own functions.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod chance;
mod datagrams;
mod disk;
mod epoll;
mod files;
mod futex;
mod memory;
mod processes;
mod sockets;
mod state;
mod sys;
mod threads;
mod time;

pub use datagrams::{Datagram, carry_datagrams_by, deliver_datagram};
pub use disk::{
    Disk, descriptors as disk_descriptors, lose_unflushed, mount, set_disk, switch_off, switch_on, wipe,
};
pub use memory::{CountedMemory, held_by};
pub use processes::{Process, Start, begin, kill_all, start_by};
pub use sockets::{Dial, address_of, carry_by, deliver, host_of};
pub use state::{Host, WORLD, boot, now, run};
pub use threads::{host, on_host, pause, resume, threads_of};
pub use time::{EPOCH, set_clock};
