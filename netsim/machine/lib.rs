//! A machine in software: whole programs, unchanged, run in it as threads of one process, in virtual time, and the same
//! seed gives the same run.
//!
//! It stands where programs meet the operating system, at the functions of the C library: a test binary that contains this
//! crate has `clock_gettime`, `getrandom`, `pthread_create`, `connect`, `fsync` and so on from here, and they do what they
//! always do until [`run`] is called. From then on, on threads that belong to the run:
//!
//! - `threads`: one thread runs at a time, and gives way only where it would wait. Which one is next is chance.
//! - `time`: stands still while anybody can run, and jumps to the next moment for which somebody waits.
//! - `chance`: all random numbers come from the seed.
//! - `sockets`, `datagrams`: the test carries the bytes of TCP connections, and UDP's datagrams, from one host to another, with
//!   delays and failures.
//! - `files`: files are the real ones, in a directory of the test's; flushes take time. `disk`: what a power loss takes.
//! - `processes`: what is started is a thread of the test's.
//!
//! A host is a number. Threads belong to the host of the thread that starts them; a host can be paused, its clock can be
//! wrong, its disk can fail, and it can lose its power. It knows nothing of what runs in it.
//!
//! Linux on x86-64 alone: system calls are made by hand, since the C library's own functions are what it replaces.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod chance;
mod datagrams;
mod disk;
mod epoll;
mod files;
mod futex;
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
pub use processes::{Process, Start, begin, kill_all, start_by};
pub use sockets::{Dial, address_of, carry_by, deliver, host_of};
pub use state::{Host, WORLD, boot, now, run};
pub use threads::{host, on_host, pause, resume, threads_of};
pub use time::{EPOCH, set_clock};
